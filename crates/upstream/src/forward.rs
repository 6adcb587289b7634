//! KServe's calls for many servers. Owns which server a call is for, and what a failure is in KServe's words; when a
//! call goes to another server is `delivery`'s, and what calls say is their own.

mod call;
mod failures;
mod forward_stream;
mod merge;
mod one_response;
mod prompt;
mod responses;
mod said;
mod service;
mod stream_mover;
mod stream_start;
mod timeout;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inflight_kserve::inference::{ModelInferRequest, ModelMetadataResponse};
use inflight_kserve::stop::asks_to_stop;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Request, Status};

use self::call::CallSpec;
pub use self::call::OpenCall;
use self::failures::not_picked;
pub use self::forward_stream::ForwardStream;
use self::prompt::{Prompt, text_bytes};
use self::responses::{Responses, may_share};
pub use self::service::ForwardCall;
use self::stream_start::StreamStart;
use super::delivery::{CallContext, ResumeLimits, deliver};
use super::ending::Ending;
use super::expiry::Expiry;
use super::slot::WorkerSlot;
use super::stops::{Source, Stops};
use super::table::{MakeQuery, NoPeer, Picked, Table};
use super::visit::Visit;
use crate::metrics::Metrics;
use crate::placement::Placed;

/// How long a model's metadata is taken to hold: as long as a configuration is between two looks at it.
const METADATA_AGE: Duration = Duration::from_secs(5);
/// Longest text that is encoded where other requests wait for it; longer ones take milliseconds.
const ENCODED_AT_ONCE: usize = 16 << 10;
/// Models whose metadata is kept.
const METADATA_KEPT: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Forward {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    metadata: Mutex<HashMap<(String, String), (Instant, ModelMetadataResponse)>>,
    /// A number for each request: requests of different clients may have the same id.
    requests: AtomicU64,
    /// The same for those of several gateways.
    salt: u32,
    stops: Stops,
    /// When open calls are to end.
    ending: Ending,
    /// How far a stream that has begun may continue at other servers.
    limits: ResumeLimits,
    /// Whether a request may have its server load an adapter.
    loads_adapters: bool,
}

/// Where a request goes.
#[derive(Debug)]
enum Target {
    /// To the server that the table picks.
    Any,
    /// To the server that has another request.
    Same(Box<Source>),
}

impl Target {
    /// The id there of the request that this one stops.
    fn id(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Same(source) => Some(&source.id),
        }
    }
}

/// A request that is about to be sent.
#[derive(Debug)]
struct PreparedCall {
    /// When it came.
    since: Instant,
    target: Target,
    /// What it asks of a worker's cache.
    prompt: Option<Prompt>,
}

/// Shared memory is a worker's own and for clients on its machine: a gateway may have clients anywhere.
fn refuse_shared_memory(message: &ModelInferRequest) -> Result<(), Status> {
    let inputs = message
        .inputs
        .iter()
        .map(|input| (&input.name, &input.parameters));
    let outputs = message.outputs.iter();
    let outputs = outputs.map(|output| (&output.name, &output.parameters));
    let mut tensors = inputs.chain(outputs);
    let region = inflight_kserve::names::SHARED_MEMORY_REGION;
    match tensors.find(|(_, parameters)| parameters.contains_key(region)) {
        None => Ok(()),
        Some((name, _)) => Err(Status::invalid_argument(format!(
            "tensor `{name}` is in shared memory, which the gateway cannot read; send its data, or use the \
             worker's own port"
        ))),
    }
}

/// A path of a server is not for everyone who reaches the gateway.
fn refuse_adapter_files(message: &ModelInferRequest) -> Result<(), Status> {
    let path = inflight_kserve::names::LORA_PATH;
    if message.inputs.iter().all(|input| input.name != path) {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "`{path}` has a server load a LoRA adapter, which this gateway does not allow; start it with \
         `--allow-lora-loading`, or send the request without it"
    )))
}

impl Forward {
    /// Calls go to the servers of `table`, and those that are open fail at the `ending`.
    pub fn new(
        table: Arc<Table>,
        metrics: Arc<Metrics>,
        limits: ResumeLimits,
        ending: Ending,
        loads_adapters: bool,
    ) -> Self {
        Self {
            table,
            metrics,
            metadata: Mutex::default(),
            requests: AtomicU64::new(0),
            salt: rand::random(),
            stops: Stops::default(),
            ending,
            limits,
            loads_adapters,
        }
    }

    /// Whether some server can take calls.
    pub fn is_ready(&self) -> bool {
        let workers = self.table.workers();
        workers.iter().any(|slot| slot.takes_calls())
    }

    /// Sends one request, and waits for its first response.
    ///
    /// # Errors
    /// It failed, and no other server can take it.
    pub async fn stream(
        self: &Arc<Self>,
        message: ModelInferRequest,
        context: CallContext,
    ) -> Result<ForwardStream, Status> {
        let witness = context.witness.clone();
        let begun = self.begin(message, context).await;
        if let Some(witness) = witness {
            match &begun {
                Ok(_) => witness.first_output(),
                Err(status) => witness.ended(status.code()),
            }
        }
        begun
    }

    async fn begin(
        self: &Arc<Self>,
        message: ModelInferRequest,
        mut context: CallContext,
    ) -> Result<ForwardStream, Status> {
        let prepared = self.prepare(&message, &mut context).await?;
        let context = Arc::new(context);
        let message = Arc::new(message);
        let asked = CallSpec {
            // One that stops another goes under the id that it has, or has none.
            shares: !asks_to_stop(&message) && may_share(&message),
            ..CallSpec::stream(&message, &context, prepared.prompt.as_ref())
        };
        let mut start = StreamStart {
            forward: self,
            context: &context,
            message: &message,
            asked,
            prepared: &prepared,
            stream: None,
        };
        let mut expiry = Expiry::new(&self.ending, context.deadline);
        deliver(&mut start, &context, &mut expiry, &self.metrics.retries).await?;
        context.trace.output(Instant::now());
        let stream = start.stream.map(|stream| stream.expires(expiry));
        stream.ok_or_else(|| Status::internal("no answer came"))
    }

    /// Looks at a request before it is sent.
    ///
    /// # Errors
    /// It cannot be sent, or what it stops is still on its way.
    async fn prepare(
        &self,
        message: &ModelInferRequest,
        context: &mut CallContext,
    ) -> Result<PreparedCall, Status> {
        // A client's time runs while the gateway asks about its model.
        let since = context.since.unwrap_or_else(Instant::now);
        refuse_shared_memory(message)?;
        if !self.loads_adapters {
            refuse_adapter_files(message)?;
        }
        let target = self.target(message, context).await?;
        self.make_stoppable(message, context);
        self.limit(message, since, context);
        let prompt = match &target {
            Target::Any => self.prompt(message).await,
            Target::Same(_) => None,
        };
        Ok(PreparedCall {
            since,
            target,
            prompt,
        })
    }

    /// Sends a request to a server. `about`: the id there of the request that it stops.
    fn send_stream(
        &self,
        mut message: ModelInferRequest,
        open: &OpenCall,
        asked: CallSpec<'_>,
        about: Option<&str>,
    ) -> Result<Responses, Status> {
        let context = asked.context;
        message.model_name.clone_from(&open.picked.model);
        let link = &open.link;
        let shared = if asked.shares { link.shared() } else { None };
        let is_at = |id: &str| {
            if let Some(stoppable) = &context.stoppable {
                stoppable.is_at(open.source(id));
            }
        };
        if let Some(shared) = shared {
            context.trace.write_parameters(&mut message.parameters);
            let responses = shared.send(message)?;
            is_at(responses.id());
            return Ok(Responses::Shared(responses));
        }
        match about {
            Some(id) => id.clone_into(&mut message.id),
            None => self.make_own(&mut message),
        }
        is_at(&message.id);
        let request = context.request(tokio_stream::once(message));
        Ok(Responses::alone(link.streams(), request))
    }

    /// Gives the request the name that it is stopped by, unless it has it or stops another one. Callers do so early
    /// where what stops it may come next.
    pub fn make_stoppable(&self, message: &ModelInferRequest, context: &mut CallContext) {
        if let Some(caller) = &context.caller
            && context.stoppable.is_none()
            && !message.id.is_empty()
            && !asks_to_stop(message)
        {
            context.stoppable = Some(Arc::new(self.stops.name(&message.id, caller)));
        }
    }

    /// Where a request must go. One that stops another is for the server of that; where there is none, any server
    /// knows what to answer.
    async fn target(
        &self,
        message: &ModelInferRequest,
        context: &CallContext,
    ) -> Result<Target, Status> {
        let source = match &context.caller {
            Some(caller) if asks_to_stop(message) => self.stops.find(&message.id, caller).await?,
            _ => None,
        };
        Ok(source.map_or(Target::Any, |source| Target::Same(Box::new(source))))
    }

    /// Gives the request an id that no other client's has at the server: it can be stopped by it.
    fn make_own(&self, message: &mut ModelInferRequest) {
        if !message.id.is_empty() {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            message.id = format!("{}-{:x}-{number:x}", message.id, self.salt);
        }
    }

    /// The name that a model has at its server.
    ///
    /// # Errors
    /// No server has it, or none that does is ready.
    fn name_at_its_server(
        &self,
        model: (&str, &str),
        context: &CallContext,
    ) -> Result<String, Status> {
        Ok(self.pick(CallSpec::question(model, context), &[])?.0.model)
    }

    /// What a request asks of a worker's cache; `None`: that does not matter, or it has no single prompt.
    async fn prompt(&self, message: &ModelInferRequest) -> Option<Prompt> {
        let one = self
            .table
            .placing(&message.model_name, &message.model_version)?;
        let Some(bytes) = text_bytes(message) else {
            return Prompt::read(message, None);
        };
        let text = one.served.text.clone()?;
        if bytes <= ENCODED_AT_ONCE {
            return Prompt::read(message, Some(&text));
        }
        let message = message.clone();
        let read = move || Prompt::read(&message, Some(&text));
        inflight_base::blocking::run(read).await.ok().flatten()
    }

    /// Picks the server of a request that another program sends, among those that `fit`, by its model and its prompt, with at
    /// most so many `others` that would be next.
    ///
    /// # Errors
    /// No server has its model, or none that does is ready.
    pub async fn visit(
        &self,
        message: &ModelInferRequest,
        fits: impl Fn(&WorkerSlot) -> bool,
        others: usize,
    ) -> Result<Visit, Status> {
        let prompt = self.prompt(message).await;
        let ask = prompt
            .as_ref()
            .map(|prompt| |block_tokens| prompt.ask(block_tokens));
        let asks = ask.as_ref().map(|ask| ask as MakeQuery<'_>);
        let (model, version) = (&message.model_name, &message.model_version);
        let fits = |picked: &Picked| fits(&picked.slot);
        let table = &self.table;
        let visit = table.pick_visited_peer((model, version), fits, asks, others);
        visit.map_err(|missing| not_picked(missing, model, version))
    }

    /// Picks the server of a call among those that fit.
    fn pick_that(
        &self,
        asked: CallSpec<'_>,
        fits: impl Fn(&Picked) -> bool,
    ) -> Result<(Picked, Option<Placed>), NoPeer> {
        let CallSpec { model, version, .. } = asked;
        match asked.prompt {
            Some(prompt) => {
                let asks = |block_tokens| prompt.ask(block_tokens);
                self.table.pick_peer(model, version, fits, Some(&asks))
            }
            None => self.table.pick_peer(model, version, fits, None),
        }
    }

    fn pick(
        &self,
        asked: CallSpec<'_>,
        tried: &[Arc<str>],
    ) -> Result<(Picked, Option<Placed>), Status> {
        let CallSpec { model, version, .. } = asked;
        let picked = self.pick_that(asked, |picked| !tried.contains(&picked.slot.address));
        picked.map_err(|missing| not_picked(missing, model, version))
    }
}

impl CallContext {
    /// A request of the call.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // With it, Triton reports an error as a status with a code. Otherwise it only sends a text.
        let metadata = request.metadata_mut();
        metadata.insert(
            "triton_grpc_error",
            tonic::metadata::MetadataValue::from_static("true"),
        );
        self.trace.write(metadata);
        request
    }
}
