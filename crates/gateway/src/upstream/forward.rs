//! KServe's calls for many servers: one call goes to one of them, and to another if that one cannot answer. Owns
//! which failures another server may not have, and when a call is given up; what calls say is their own.
//!
//! A call moves while its client has seen nothing of an answer. A stream is final with its first response.

mod calls;
mod merge;
mod service;
mod streams;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use inflight_kserve::inference::{ModelInferRequest, ModelMetadataResponse};
use inflight_kserve::streamed::{ResponseView, StreamedResponse};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Request, Status};

pub(crate) use self::streams::ForwardStream;
use self::streams::{Sent, may_share};
use super::classify::classify;
use super::dispatch::MOST_WORKERS;
use super::pool::{Link, Pool};
use super::slot::WorkerSlot;
use super::table::{NoPeer, Picked, Table};
use crate::admission::Admitted;
use crate::metrics::{Metrics, RetryLabels, RetryReason};
use crate::trace::Trace;

/// How long a model's metadata is taken to hold: as long as a configuration is between two looks at it.
const METADATA_AGE: Duration = Duration::from_secs(5);
/// Models whose metadata is kept.
const METADATA_KEPT: usize = 256;

/// What a call's server is to know of it, and how long it may take.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallContext {
    pub request_id: Arc<str>,
    pub trace: Trace,
    /// When it must have been answered.
    pub deadline: Option<Instant>,
    /// When a stream must have begun.
    pub first_response: Option<(Instant, Duration)>,
    /// Its place among the admitted ones, held until the last of it is gone.
    pub place: Option<Arc<Admitted>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Forward {
    table: Arc<Table>,
    metrics: Arc<Metrics>,
    metadata: Mutex<HashMap<(String, String), (Instant, ModelMetadataResponse)>>,
    /// Tells apart requests of different clients that have one id.
    requests: AtomicU64,
    /// Set when open calls are to end.
    interrupted: watch::Sender<bool>,
}

/// An open call at a server.
#[derive(Debug)]
pub(crate) struct Open {
    slot: Arc<WorkerSlot>,
    link: Arc<Link>,
    model: String,
}

impl Open {
    fn new(picked: &Picked, link: Arc<Link>) -> Self {
        picked.slot.peer.enter();
        Self {
            slot: Arc::clone(&picked.slot),
            link,
            model: picked.model.clone(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.slot.peer.leave();
    }
}

/// Where a request goes.
#[derive(Debug)]
pub(crate) enum Target {
    /// To whoever is least loaded.
    Any,
    /// To where another request is.
    Same(Box<Source>),
}

/// Where a request is: its server, the connection, and its id there.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    picked: Picked,
    link: Arc<Link>,
    id: String,
}

/// What is asked, whatever the call.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    model: &'a str,
    version: &'a str,
    context: &'a CallContext,
    /// Whether it is a stream that must begin in time.
    begins: bool,
    /// Whether a model works on it, so that it is a part of its request's trace.
    works: bool,
    /// Whether it may share a stream with others.
    shares: bool,
}

impl Asked<'_> {
    fn link(self, pool: &Pool) -> Arc<Link> {
        match self.shares {
            true => pool.sharing_link(),
            false => pool.link(),
        }
    }
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
            "tensor `{name}` lies in shared memory, which a gateway does not have; send its data, or ask the \
             worker's own port"
        ))),
    }
}

impl Forward {
    /// Calls go to the servers of `table`.
    pub(crate) fn new(table: Arc<Table>, metrics: Arc<Metrics>) -> Self {
        Self {
            table,
            metrics,
            metadata: Mutex::default(),
            requests: AtomicU64::new(0),
            interrupted: watch::Sender::new(false),
        }
    }

    /// Whether some server can take calls.
    pub(crate) fn is_ready(&self) -> bool {
        let workers = self.table.workers();
        workers.iter().any(|slot| slot.takes_calls())
    }

    /// Ends every open call with an error.
    pub(crate) fn interrupt(&self) {
        self.interrupted.send_replace(true);
    }

    /// Sends one request, and waits for its first response.
    ///
    /// # Errors
    /// It failed, and no other server can take it.
    pub(crate) async fn stream(
        &self,
        message: ModelInferRequest,
        context: CallContext,
        target: Target,
    ) -> Result<ForwardStream, Status> {
        refuse_shared_memory(&message)?;
        let about = match &target {
            Target::Any => None,
            Target::Same(source) => Some(source.id.clone()),
        };
        let may_share = about.is_none() && may_share(&message);
        let asked = Asked {
            model: &message.model_name,
            version: &message.model_version,
            context: &context,
            begins: true,
            works: true,
            shares: may_share,
        };
        let ask = |link: Arc<Link>, model: String| {
            let mut message = message.clone();
            message.model_name = model;
            let shared = if may_share { link.shared() } else { None };
            let sent = match shared {
                Some(shared) => {
                    context.trace.write_parameters(&mut message.parameters);
                    shared.send(message).map(Sent::Shared)
                }
                None => {
                    match &about {
                        Some(id) => message.id.clone_from(id),
                        None => self.make_own(&mut message),
                    }
                    let id = message.id.clone();
                    let request = context.request(tokio_stream::once(message));
                    Ok(Sent::Alone(link.streams(), Box::new(request), id))
                }
            };
            async move {
                let (id, mut rest) = sent?.responses().await?;
                let first = rest.next().await.transpose()?;
                if let Some(first) = &first {
                    in_band(&first.view()?)?;
                }
                Ok((first, rest, id))
            }
        };
        let ((first, rest, id), open) = self.call(asked, target, ask).await?;
        context.trace.output(Instant::now());
        let ended = Box::pin(ended(self.interrupted.subscribe(), context.deadline));
        let ids = (message.id, id);
        Ok(ForwardStream::new(first, rest, ids, open, ended, context))
    }

    /// Gives the request an id that no other client's has at the server: it can be stopped by it.
    fn make_own(&self, message: &mut ModelInferRequest) {
        if !message.id.is_empty() {
            let number = self.requests.fetch_add(1, Ordering::Relaxed);
            message.id = format!("{}-{number:x}", message.id);
        }
    }

    /// Makes a call at the server that it is for, or at another one if that cannot answer.
    async fn call<T, F>(
        &self,
        asked: Asked<'_>,
        target: Target,
        ask: impl Fn(Arc<Link>, String) -> F,
    ) -> Result<(T, Open), Status>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let context = asked.context;
        let calls = self.call_until(asked, target, ask);
        let until = ended(self.interrupted.subscribe(), context.deadline);
        let first = context.first_response.filter(|_| asked.begins);
        tokio::select! {
            biased;
            answer = calls => answer,
            status = until => Err(status),
            limit = reached(first) => Err(Status::deadline_exceeded(format!(
                "the model generated nothing within {} s", limit.as_secs()
            ))),
        }
    }

    async fn call_until<T, F>(
        &self,
        asked: Asked<'_>,
        target: Target,
        ask: impl Fn(Arc<Link>, String) -> F,
    ) -> Result<(T, Open), Status>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let (mut picked, link, may_move) = match target {
            Target::Same(source) => {
                let Source { picked, link, .. } = *source;
                (picked, link, false)
            }
            Target::Any => {
                let picked = self.pick(asked, &[])?;
                let link = asked.link(&picked.pool);
                (picked, link, true)
            }
        };
        let mut tried = vec![Arc::clone(&picked.slot.address)];
        let mut open = Open::new(&picked, link);
        loop {
            if asked.works {
                let trace = &asked.context.trace;
                let method = match asked.begins {
                    true => "ModelStreamInfer",
                    false => "ModelInfer",
                };
                trace.sent(trace.sending(), method, &picked.slot.address);
            }
            let answer = ask(Arc::clone(&open.link), picked.model.clone());
            let next = {
                tokio::pin!(answer);
                let mut heeds_silence = may_move;
                loop {
                    tokio::select! {
                        biased;
                        answer = &mut answer => break match answer {
                            Ok(answer) => {
                                open.slot.pulse.hear();
                                return Ok((answer, open));
                            }
                            Err(status) => {
                                let status = lost(status);
                                let reason = retry_reason(&status).filter(|_| may_move);
                                match reason.and_then(|reason| self.elsewhere(asked, &tried, reason)) {
                                    Some(next) => next,
                                    None => return Err(status),
                                }
                            }
                        },
                        () = open.slot.pulse.silence(), if heeds_silence => {
                            match self.elsewhere(asked, &tried, RetryReason::Silent) {
                                Some(next) => break next,
                                // Without another server, this one may yet go on.
                                None => heeds_silence = false,
                            }
                        }
                    }
                }
            };
            picked = next;
            tried.push(Arc::clone(&picked.slot.address));
            open = Open::new(&picked, asked.link(&picked.pool));
        }
    }

    /// Another server for a call that some have had.
    fn elsewhere(
        &self,
        asked: Asked<'_>,
        tried: &[Arc<str>],
        reason: RetryReason,
    ) -> Option<Picked> {
        if tried.len() >= MOST_WORKERS {
            return None;
        }
        let next = self.pick(asked, tried).ok()?;
        if asked.works {
            asked.context.trace.leaving(reason.label());
        }
        tracing::info!(
            request_id = %asked.context.request_id,
            to = %next.slot.address,
            reason = reason.label(),
            "request sent to another worker"
        );
        let labels = RetryLabels::from(reason);
        self.metrics.retries.get_or_create(&labels).inc();
        Some(next)
    }

    /// The name that a model has at its server.
    ///
    /// # Errors
    /// No server has it, or none that does is ready.
    fn name_at_its_server(
        &self,
        (model, version): (&str, &str),
        context: &CallContext,
    ) -> Result<String, Status> {
        let asked = Asked {
            model,
            version,
            context,
            begins: false,
            works: false,
            shares: false,
        };
        Ok(self.pick(asked, &[])?.model)
    }

    fn pick(&self, asked: Asked<'_>, tried: &[Arc<str>]) -> Result<Picked, Status> {
        let Asked { model, version, .. } = asked;
        let picked = self.table.pick_peer(model, version, tried);
        picked.map_err(|missing| match missing {
            // Clients look for these words of Triton's.
            NoPeer::Unknown if version.is_empty() => Status::not_found(format!(
                "Request for unknown model: '{}' is not found",
                shortened(model)
            )),
            NoPeer::Unknown => Status::not_found(format!(
                "Request for unknown model: '{}' version {} is not found",
                shortened(model),
                shortened(version)
            )),
            NoPeer::NotYet => {
                Status::unavailable("not every worker has been reached yet; retry later")
            }
            NoPeer::NoneReady => {
                Status::unavailable("no worker of the model is ready; retry later")
            }
            NoPeer::Ambiguous(names) => Status::failed_precondition(format!(
                "`{model}` is another model at each worker; ask for one of `{}`",
                names.join("`, `")
            )),
        })
    }
}

impl CallContext {
    /// A request of the call.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Triton then tells an error's code, as a status, where it told words alone.
        let metadata = request.metadata_mut();
        metadata.insert(
            "triton_grpc_error",
            tonic::metadata::MetadataValue::from_static("true"),
        );
        self.trace.write(metadata);
        request
    }
}

/// Resolves when a call is to end, to why.
async fn ended(mut interrupted: watch::Receiver<bool>, deadline: Option<Instant>) -> Status {
    let deadline = deadline.map(Instant::into);
    tokio::select! {
        () = async { match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        } } => Status::deadline_exceeded("the request timed out"),
        _ = interrupted.wait_for(|interrupted| *interrupted) => {
            Status::unavailable("the gateway is shutting down")
        }
    }
}

async fn reached(limit: Option<(Instant, Duration)>) -> Duration {
    match limit {
        Some((until, limit)) => {
            tokio::time::sleep_until(until.into()).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// The failure that a response of a stream tells.
fn in_band(response: &ResponseView<'_>) -> Result<(), Status> {
    let message = response.error_message;
    if message.is_empty() {
        return Ok(());
    }
    let code = response.error_code().unwrap_or_else(|| classify(message).0);
    Err(Status::new(code, message))
}

/// A failed call, as the client is told: the transport says `unknown` when the connection is gone, and Triton's
/// TensorRT-LLM models say INTERNAL whatever it is.
fn lost(status: Status) -> Status {
    let code = match status.code() {
        Code::Unknown | Code::Cancelled => Code::Unavailable,
        Code::Internal => classify(status.message()).0,
        other => other,
    };
    if code == status.code() {
        return status;
    }
    let mut changed = Status::new(code, status.message());
    *changed.metadata_mut() = status.metadata().clone();
    changed
}

/// Whether another server may do what this one did not.
fn retry_reason(status: &Status) -> Option<RetryReason> {
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::Aborted => Some(RetryReason::Unavailable),
        Code::ResourceExhausted => Some(RetryReason::Full),
        _ => None,
    }
}

/// The beginning of a name that an error repeats.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
