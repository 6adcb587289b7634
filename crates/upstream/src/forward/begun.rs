//! How a stream of KServe's continues at another server. Owns what is sent again, and which servers may have it; when
//! that is, is [`Survival`]'s, and what was said before, [`Said`]'s.

use std::sync::Arc;
use std::task::Context;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::stop::asks_to_stop;
use inflight_kserve::tensor::{RequestBuilder, TensorError, Tensors};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::call::{Asked, Generator};
use super::prompt::Prompt;
use super::said::Said;
use super::streams::Responses;
use super::{Forward, Open, given_up};
use crate::delivery::{CallContext, GivenUp};
use crate::dispatch::NotDispatched;
use crate::inbox::Notice;
use crate::metrics::RetryReason;
use crate::pool::Pool;
use crate::slot::WorkerSlot;
use crate::survival::{Mover, Step, Survival, Way};
use crate::table::Picked;

/// A request that can continue at another server.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) forward: Arc<Forward>,
    /// As its client sent it.
    pub(super) message: ModelInferRequest,
    pub(super) may_share: bool,
    pub(super) said: Said,
    pub(super) survival: Survival<Status>,
    /// Whether the last response is marked even where it says nothing.
    pub(super) expects_final: bool,
    /// Of the server that it began with.
    weights: String,
    prompt_tokens: usize,
}

impl Begun {
    /// `None`: the request cannot continue after the server that has it.
    pub(super) fn new(
        forward: &Arc<Forward>,
        message: &ModelInferRequest,
        open: &Open,
        may_share: bool,
    ) -> Option<Self> {
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
        let way = match is_one && open.generator.resumes {
            true => Way::Resume,
            false => Way::Replay,
        };
        let asked = message.parameters.get(names::ENABLE_EMPTY_FINAL_RESPONSE);
        let asked = asked.and_then(|asked| asked.parameter_choice.as_ref());
        let metrics = forward.metrics.resumes.clone();
        Some(Self {
            expects_final: asked == Some(&ParameterChoice::BoolParam(true)),
            weights: open.generator.weights.clone(),
            prompt_tokens: ids.map_or(0, |ids| ids.count()),
            forward: Arc::clone(forward),
            message: message.clone(),
            may_share,
            said: Said::default(),
            survival: Survival::new(way, forward.limits, metrics),
        })
    }

    /// Goes back to the server that kept the request, because the one on trial has failed it.
    pub(super) fn take_back(&mut self, open: &Open, reason: Option<RetryReason>, tried: &Open) {
        if self.said.is_empty() {
            self.weights.clone_from(&open.generator.weights);
        }
        self.survival.take_back(reason, &tried.life);
    }

    /// Whether the gateway ends.
    pub(super) fn is_over(&self) -> bool {
        *self.forward.interrupted.borrow()
    }

    /// What the server that has it gives notice of.
    pub(super) fn notice(slot: &WorkerSlot) -> Option<Notice> {
        if slot.is_leaving() {
            return Some(Notice::Leaving);
        }
        slot.pulse.is_silent().then_some(Notice::Silent)
    }

    /// Continues if a server takes the request; see [`Survival::poll`].
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        open: &Open,
        call: &CallContext,
    ) -> Step<(Responses, Open), Status> {
        let Self {
            forward,
            message,
            may_share,
            said,
            survival,
            weights,
            prompt_tokens,
            ..
        } = self;
        let mut moving = Moving {
            forward,
            message,
            may_share: *may_share,
            said,
            weights,
            prompt_tokens: *prompt_tokens,
            way: survival.way(),
            open,
            call,
        };
        let step = survival.poll(context, &mut moving);
        if let Step::Moved((_, open)) | Step::Tried((_, open)) = &step {
            if said.is_empty() {
                weights.clone_from(&open.generator.weights);
            }
            if survival.way() == Way::Replay {
                said.replay();
            }
        }
        step
    }
}

/// The request as it moves.
struct Moving<'a> {
    forward: &'a Forward,
    message: &'a ModelInferRequest,
    may_share: bool,
    said: &'a Said,
    weights: &'a str,
    prompt_tokens: usize,
    way: Way,
    open: &'a Open,
    call: &'a CallContext,
}

impl Moving<'_> {
    /// Whether the server that has the request is the one that was picked. One that has come back since is another.
    fn has_it(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(pool, &self.open.pool)
    }

    fn suits(&self, picked: &Picked, may_return: bool) -> bool {
        let generator = Generator::of(picked);
        (may_return || !self.has_it(&picked.pool))
            && (self.said.is_empty() || generator.weights == self.weights)
            && (self.way == Way::Replay || generator.resumes)
    }

    fn again(&self) -> Result<ModelInferRequest, TensorError> {
        match self.way {
            Way::Replay => Ok(self.message.clone()),
            Way::Resume => resumed(self.message, self.said.only()),
        }
    }
}

impl Mover for Moving<'_> {
    type Error = Status;
    type Sent = (Responses, Open);

    fn send(&mut self, may_return: bool) -> Result<Self::Sent, NotDispatched> {
        let Self { message, .. } = self;
        let table = &self.forward.table;
        // Not a text's: to encode it takes too long here.
        let placing = table.placing(&message.model_name, &message.model_version);
        let prompt = placing.and_then(|_| Prompt::read(message, None));
        let asked = Asked {
            model: &self.message.model_name,
            version: &self.message.model_version,
            context: self.call,
            is_stream: true,
            works: true,
            shares: self.may_share,
            prompt: prompt.as_ref(),
        };
        let fits = |picked: &Picked| self.suits(picked, may_return);
        let picked = self.forward.pick_that(asked, fits);
        let (picked, placed) = picked.map_err(|_| NotDispatched::NoWorker)?;
        let again = self.again().map_err(|_| NotDispatched::NoWorker)?;
        let open = Open::new(&picked, placed, asked.link(&picked.pool));
        let sent = self.forward.start(again, &open, asked, None);
        let sent = sent.map_err(|status| match status.code() {
            Code::ResourceExhausted => NotDispatched::Full,
            _ => NotDispatched::NoWorker,
        })?;
        asked.trace_sent(&picked.slot);
        tracing::info!(
            request_id = %self.call.request_id,
            from = %self.open.slot.address,
            to = %open.slot.address,
            tokens = self.said.tokens(),
            "request continues at another worker"
        );
        Ok((sent.into_responses(), open))
    }

    fn is_over(&self) -> bool {
        *self.forward.interrupted.borrow() || !self.said.can_continue()
    }

    fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    fn tokens(&self) -> usize {
        self.prompt_tokens + self.said.tokens()
    }

    fn server_stays(&self) -> bool {
        let slot = &self.open.slot;
        let served = slot.peer.served();
        slot.takes_calls() && served.is_some_and(|served| self.has_it(&served.pool))
    }

    fn timed_out(&self) -> Status {
        given_up(GivenUp::TimedOut)
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
