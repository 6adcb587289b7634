//! How a stream of KServe's continues at another server. Owns what is sent again, and which servers may have it; when
//! that is, is [`Survival`]'s, and what was said before, [`Said`]'s.

use std::sync::Arc;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::stop::asks_to_stop;
use inflight_kserve::tensor::{RequestBuilder, TensorError, Tensors};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::call::{CallSpec, Generator};
use super::prompt::Prompt;
use super::responses::Responses;
use super::said::Said;
use super::timeout::shorten_timeout;
use super::{Forward, OpenCall};
use crate::delivery::CallContext;
use crate::dispatch::NotDispatched;
use crate::inbox::Notice;
use crate::metrics::RetryReason;
use crate::pool::Pool;
use crate::process::Life;
use crate::slot::WorkerSlot;
use crate::stops::Source;
use crate::survival::{Movable, Mover, Survival, Way, Work, may_return};
use crate::table::Picked;

/// A stream's request at one server.
pub(super) struct AtServer {
    /// `None`: it has ended there, or was never sent.
    pub(super) rest: Option<Responses>,
    pub(super) open: OpenCall,
    /// Where a stop goes, while another server has the request on trial.
    source: Option<Source>,
}

impl AtServer {
    pub(super) fn new(rest: Option<Responses>, open: OpenCall) -> Self {
        Self {
            rest,
            open,
            source: None,
        }
    }

    pub(super) fn slot(&self) -> &WorkerSlot {
        &self.open.picked.slot
    }

    /// What the server gives notice of.
    pub(super) fn notice(&self) -> Option<Notice> {
        let slot = self.slot();
        if slot.is_leaving() {
            return Some(Notice::Leaving);
        }
        slot.pulse.is_silent().then_some(Notice::Silent)
    }

    /// Whether this is the server that was picked. One that has come back since is another.
    fn is(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(pool, &self.open.picked.pool)
    }
}

impl Work for AtServer {
    fn server(&self) -> &str {
        &self.slot().address
    }

    fn life(&self) -> &Life {
        &self.open.life
    }

    fn server_stays(&self) -> bool {
        let slot = self.slot();
        let served = slot.peer.served();
        slot.takes_calls() && served.is_some_and(|served| self.is(&served.pool))
    }
}

/// A request that can continue at another server.
#[derive(Debug)]
pub(super) struct StreamMover {
    forward: Arc<Forward>,
    call: Arc<CallContext>,
    /// As its client sent it.
    message: Arc<ModelInferRequest>,
    /// When it came.
    since: Instant,
    may_share: bool,
    pub(super) said: Said,
    /// Whether the last response is marked even where it says nothing.
    pub(super) expects_final: bool,
    way: Way,
    /// Of the server that it began with.
    weights: String,
}

impl StreamMover {
    /// The request, and when it continues at another server. `None`: it can only finish where it is.
    pub(super) fn new(
        forward: &Arc<Forward>,
        call: &Arc<CallContext>,
        (message, since): (&Arc<ModelInferRequest>, Instant),
        open: &OpenCall,
        may_share: bool,
    ) -> Option<(Self, Survival<Status>)> {
        if forward.limits.most == 0 || asks_to_stop(message) {
            return None;
        }
        let inputs = Tensors::inputs(message).ok()?;
        let more_than_one = |name| {
            let value = inputs.values::<i32>(name);
            value.is_ok_and(|values| values.is_some_and(|values| values.iter().any(|it| *it > 1)))
        };
        // The tokens of a beam search may still change.
        if more_than_one("beam_width") {
            return None;
        }
        let ids = inputs.get("input_ids");
        let is_one = ids.is_some_and(|ids| ids.shape.first() == Some(&1))
            && !more_than_one("num_return_sequences");
        let way = match is_one && open.generator.resumes() {
            true => Way::Resume,
            false => Way::Replay,
        };
        // Of our text models none streams by this name.
        let is_llmapi = inputs.get("text_input").is_some() && inputs.get("streaming").is_some();
        let asked = message.parameters.get(names::ENABLE_EMPTY_FINAL_RESPONSE);
        let asked = asked.and_then(|asked| asked.parameter_choice.as_ref());
        let mover = Self {
            expects_final: asked == Some(&ParameterChoice::BoolParam(true)),
            weights: open.generator.weights().to_owned(),
            forward: Arc::clone(forward),
            call: Arc::clone(call),
            message: Arc::clone(message),
            since,
            may_share,
            said: Said::new(open.generator.accumulates() || is_llmapi),
            way,
        };
        let movable = Movable {
            way,
            prompt_tokens: ids.map_or(0, |ids| ids.count()),
        };
        let metrics = forward.metrics.resumes.clone();
        Some((mover, Survival::new(movable, forward.limits, metrics)))
    }

    fn suits(&self, now: &AtServer, picked: &Picked, may_return: bool) -> bool {
        let generator = Generator::of(picked);
        (may_return || !now.is(&picked.pool))
            && (self.said.is_empty() || generator.weights() == self.weights)
            && (self.way == Way::Replay || generator.resumes())
    }

    fn again(&self) -> Result<ModelInferRequest, TensorError> {
        let mut again = match self.way {
            Way::Replay => ModelInferRequest::clone(&self.message),
            Way::Resume => resumed(&self.message, self.said.only())?,
        };
        shorten_timeout(&mut again, self.since);
        Ok(again)
    }
}

impl Mover for StreamMover {
    type Error = Status;
    type Work = AtServer;

    fn send(
        &mut self,
        now: &mut AtServer,
        because: Option<RetryReason>,
    ) -> Result<AtServer, NotDispatched> {
        let message = &self.message;
        let table = &self.forward.table;
        // Not a text's: to encode it takes too long here.
        let placing = table.placing(&message.model_name, &message.model_version);
        let prompt = placing.and_then(|_| Prompt::read(message, None));
        let asked = CallSpec {
            shares: self.may_share,
            ..CallSpec::stream(message, &self.call, prompt.as_ref())
        };
        let fits = |picked: &Picked| self.suits(now, picked, may_return(because));
        let picked = self.forward.pick_that(asked, fits);
        let (picked, placed) = picked.map_err(|_| NotDispatched::NoWorker)?;
        let again = self.again().map_err(|_| NotDispatched::NoWorker)?;
        // It writes into the request what is sent.
        asked.trace_sent(&picked.slot, because);
        let link = asked.link(&picked.pool);
        let open = OpenCall::new(picked, placed, link);
        let source = self
            .call
            .stoppable
            .as_ref()
            .and_then(|stoppable| stoppable.source());
        let responses = self.forward.send_stream(again, &open, asked, None);
        let responses = responses.map_err(|status| match status.code() {
            Code::ResourceExhausted => NotDispatched::Full,
            _ => NotDispatched::NoWorker,
        })?;
        now.source = source;
        Ok(AtServer::new(Some(responses), open))
    }

    fn has_moved(&mut self, now: &mut AtServer) {
        if self.said.is_empty() {
            now.open.generator.weights().clone_into(&mut self.weights);
        }
        if self.way == Way::Replay {
            self.said.replay();
        }
        if let Some(stoppable) = &self.call.stoppable
            && let Some(source) = now.source.take()
        {
            stoppable.is_at(source);
        }
    }

    fn is_over(&self) -> bool {
        self.forward.ending.has_begun() || !self.said.can_continue()
    }

    fn generated_tokens(&self) -> usize {
        self.said.tokens()
    }
}

/// The request with what was generated, and the sum of its log probabilities.
fn resumed(
    message: &ModelInferRequest,
    (tokens, sum): (&[i32], Option<f32>),
) -> Result<ModelInferRequest, TensorError> {
    let mut out = RequestBuilder::new(&*message.model_name, &*message.id, 4 * tokens.len() + 4);
    for tensor in &Tensors::inputs(message)? {
        let data = tensor.data.clone();
        out.push_raw(tensor.name, tensor.datatype, tensor.shape, data);
    }
    if !tokens.is_empty() {
        out.vector(names::GENERATED_IDS, tokens);
        if let Some(sum) = sum {
            out.scalar(names::GENERATED_SUMS, sum);
        }
    }
    let mut again = out.build();
    again.model_version.clone_from(&message.model_version);
    again.parameters.clone_from(&message.parameters);
    again.outputs.clone_from(&message.outputs);
    Ok(again)
}
