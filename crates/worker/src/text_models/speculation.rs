//! Speculative decoding of `tensorrt_llm_bls`: a draft model guesses some tokens, the core model checks them all in
//! one step, and so on until the answer ends. Plans the requests and takes the answers; sends nothing.
//!
//! Every round sends the whole text so far again, as Triton's model does: reuse of the KV cache makes that cheap.

use bytes::Bytes;
use inflight_kserve::inference::model_infer_request::InferInputTensor;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::{DataType, RequestBuilder, ResponseBuilder, TensorError, Tensors};

use super::error::TextRequestError;
use super::inputs::Inputs;
use super::spec::Role;

/// Inputs that differ in each round.
const OWN: [&str; 5] = [
    "input_ids",
    "input_lengths",
    "request_output_len",
    "min_tokens",
    "seed",
];
/// What rounds cannot be put together from.
const REFUSED: [&str; 2] = ["return_context_logits", "return_generation_logits"];

/// What a request asks of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftPlan {
    num_draft_tokens: usize,
    use_draft_logits: bool,
}

impl DraftPlan {
    /// `None`: the request asks for none.
    ///
    /// # Errors
    /// What does not go together with it.
    pub(super) fn read(inputs: &Inputs<'_>) -> Result<Option<Self>, TextRequestError> {
        let Some(given) = inputs.named("num_draft_tokens") else {
            return Ok(None);
        };
        let num_draft_tokens = given.scalar::<i32>(0)?.unwrap_or(0);
        let Ok(num_draft_tokens @ 1..) = usize::try_from(num_draft_tokens) else {
            return Ok(None);
        };
        let flag = |name: &str| match inputs.named(name) {
            Some(given) => given.scalar::<bool>(0),
            None => Ok(None),
        };
        let above_one = |name: &str| match inputs.named(name) {
            Some(given) => Ok::<_, TextRequestError>(given.scalar::<i32>(0)?.unwrap_or(1) > 1),
            None => Ok(false),
        };
        let refused = |what: &'static str| Err(TextRequestError::NotSpeculative { what });
        if inputs.rows > 1 {
            return refused("a batch of several rows");
        }
        if inputs.flag(Role::Core("streaming"))? == Some(true) {
            return refused("`stream`");
        }
        for name in REFUSED {
            if flag(name)? == Some(true) {
                return refused(name);
            }
        }
        for name in ["beam_width", "num_return_sequences"] {
            if above_one(name)? {
                return refused(name);
            }
        }
        Ok(Some(Self {
            num_draft_tokens,
            use_draft_logits: flag("use_draft_logits")?.unwrap_or(false),
        }))
    }
}

/// One request in rounds.
#[derive(Debug)]
pub(crate) struct Speculation {
    plan: DraftPlan,
    draft_model: String,
    /// The core model's request as it would be without drafts.
    base: ModelInferRequest,
    prompt: usize,
    ids: Vec<i32>,
    max_tokens: usize,
    min_tokens: i32,
    seed: Option<u64>,
    drafts: Drafts,
    log_probs: Vec<f32>,
    has_log_probs: bool,
    drafted: usize,
    accepted: usize,
    finish_reason: i32,
    last: Option<ModelInferResponse>,
}

/// The guesses of one round.
#[derive(Debug, Default)]
struct Drafts {
    ids: Vec<i32>,
    /// Datatype, vocabulary size and packed values, one row for each guess.
    logits: Option<(DataType, i64, Bytes)>,
}

impl Speculation {
    /// `base`: the core model's request of one row, which leaves the prompt out of answers.
    ///
    /// # Errors
    /// A request that is none of the core model's.
    pub(super) fn new(
        plan: DraftPlan,
        base: ModelInferRequest,
        draft_model: &str,
    ) -> Result<Self, TensorError> {
        let inputs = Tensors::inputs(&base)?;
        let ids: Vec<i32> = inputs.values("input_ids")?.unwrap_or_default();
        let max_tokens = inputs.scalar::<i32>("request_output_len")?.unwrap_or(0);
        let min_tokens = inputs.scalar("min_tokens")?.unwrap_or(0);
        let seed = inputs.scalar("seed")?;
        let has_log_probs = inputs.scalar::<bool>("return_log_probs")?.unwrap_or(false);
        Ok(Self {
            plan,
            draft_model: draft_model.to_owned(),
            prompt: ids.len(),
            ids,
            max_tokens: usize::try_from(max_tokens).unwrap_or(0),
            min_tokens,
            seed,
            drafts: Drafts::default(),
            log_probs: Vec::new(),
            has_log_probs,
            drafted: 0,
            accepted: 0,
            finish_reason: FinishReason::NotFinished as i32,
            last: None,
            base,
        })
    }

    fn generated(&self) -> usize {
        self.ids.len() - self.prompt
    }

    /// Tokens that must still come before the answer may end.
    fn min_tokens_left(&self) -> usize {
        let min_tokens = usize::try_from(self.min_tokens).unwrap_or(0);
        min_tokens.saturating_sub(self.generated())
    }

    /// What to ask the draft model. `None`: one token is left, which needs no guess.
    pub(crate) fn draft(&self) -> Option<ModelInferRequest> {
        let left = self.max_tokens.saturating_sub(self.generated() + 1);
        let count = left.min(self.plan.num_draft_tokens);
        if count == 0 {
            return None;
        }
        // Not more than the answer itself must have: a guess behind the end would be no guess, and with logits it
        // could even be accepted.
        let min_tokens = self.min_tokens_left().min(count);
        let mut out = self.round(&self.draft_model, count, min_tokens, &REFUSED);
        out.output(names::OUTPUT_IDS).output("sequence_length");
        if self.plan.use_draft_logits {
            out.scalar("return_generation_logits", true)
                .output("generation_logits");
        }
        Some(self.finished(out))
    }

    /// Takes the draft model's answer.
    ///
    /// # Errors
    /// Tensors that are not a core model's.
    pub(crate) fn take_drafts(&mut self, response: &ModelInferResponse) -> Result<(), TensorError> {
        let outputs = Tensors::outputs(response)?;
        let mut ids: Vec<i32> = outputs.values(names::OUTPUT_IDS)?.unwrap_or_default();
        let length = outputs.scalar::<i32>("sequence_length")?.unwrap_or(0);
        ids.truncate(usize::try_from(length).unwrap_or(0));
        let logits = outputs.get("generation_logits").and_then(|tensor| {
            let vocabulary = tensor.shape.last().copied()?;
            let row = usize::try_from(vocabulary).ok()? * tensor.datatype.size()?;
            let wanted = row.checked_mul(ids.len())?;
            (wanted <= tensor.data.len())
                .then(|| (tensor.datatype, vocabulary, tensor.data.slice(..wanted)))
        });
        self.drafts = Drafts { ids, logits };
        Ok(())
    }

    /// What to ask the core model.
    pub(crate) fn target(&self) -> ModelInferRequest {
        let drafts = &self.drafts;
        let max_tokens = drafts.ids.len() + 1;
        let min_tokens = self.min_tokens_left().min(max_tokens);
        let core_model = self.base.model_name.as_str();
        let mut out = self.round(core_model, max_tokens, min_tokens, &[]);
        if !drafts.ids.is_empty() {
            out.vector("draft_input_ids", &drafts.ids);
            if let Some((datatype, vocabulary, data)) = &drafts.logits {
                let shape = [1, drafts.ids.len() as i64, *vocabulary];
                out.push_raw("draft_logits", *datatype, &shape, data.clone());
            }
        }
        for output in &self.base.outputs {
            out.output(output.name.as_str());
        }
        self.finished(out)
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &str {
        &self.base.id
    }

    /// Takes the core model's answer; true if it was the last.
    ///
    /// # Errors
    /// Tensors that are not the core model's.
    pub(crate) fn advance(&mut self, response: ModelInferResponse) -> Result<bool, TensorError> {
        let outputs = Tensors::outputs(&response)?;
        let mut new: Vec<i32> = outputs.values(names::OUTPUT_IDS)?.unwrap_or_default();
        let length = outputs.scalar::<i32>("sequence_length")?.unwrap_or(0);
        new.truncate(usize::try_from(length).unwrap_or(0));
        if let Some(values) = outputs.values::<f32>(names::OUTPUT_LOG_PROBS)? {
            self.log_probs.extend(values.into_iter().take(new.len()));
        }
        let reason = outputs.scalar::<i32>(names::FINISH_REASON)?;
        self.finish_reason = reason.unwrap_or(FinishReason::Length as i32);
        self.drafted += self.drafts.ids.len();
        self.accepted += new
            .iter()
            .zip(&self.drafts.ids)
            .take_while(|(new, draft)| new == draft)
            .count();
        self.drafts = Drafts::default();
        let stalled = new.is_empty();
        self.ids.extend(new);
        self.last = Some(response);
        let ended = self.finish_reason != FinishReason::Length as i32;
        Ok(ended || stalled || self.generated() >= self.max_tokens)
    }

    /// The answer of all rounds, as the core model would have given it in one.
    pub(crate) fn answer(self) -> ModelInferResponse {
        let generated = self.ids.get(self.prompt..).unwrap_or_default();
        let count = generated.len();
        let mut out =
            ResponseBuilder::new(self.base.model_name.as_str(), self.base.id.as_str(), 64);
        out.bool_parameter(names::FINAL_RESPONSE, true)
            .push(names::OUTPUT_IDS, &[1, 1, count as i64], generated)
            .push("sequence_length", &[1, 1], &[count as i32])
            .push(names::FINISH_REASON, &[1, 1], &[self.finish_reason]);
        if self.has_log_probs {
            let sum: f32 = self.log_probs.iter().sum();
            let shape = [1, 1, self.log_probs.len() as i64];
            out.push("cum_log_probs", &[1, 1], &[sum]).push(
                names::OUTPUT_LOG_PROBS,
                &shape,
                &self.log_probs,
            );
        }
        let rate = self.accepted as f32 / self.drafted.max(1) as f32;
        let last = self.last.unwrap_or_default();
        for (output, data) in last.outputs.iter().zip(&last.raw_output_contents) {
            match output.name.as_str() {
                names::OUTPUT_IDS
                | "sequence_length"
                | names::FINISH_REASON
                | "cum_log_probs"
                | names::OUTPUT_LOG_PROBS => continue,
                "num_input_tokens" => out.push("num_input_tokens", &[1, 1], &[self.prompt as i32]),
                "num_output_tokens" => out.push("num_output_tokens", &[1, 1], &[count as i32]),
                "total_draft_tokens" => {
                    out.push("total_draft_tokens", &[1, 1], &[self.drafted as i32])
                }
                "total_accepted_draft_tokens" => out.push(
                    "total_accepted_draft_tokens",
                    &[1, 1],
                    &[self.accepted as i32],
                ),
                "acceptance_rate" => out.push("acceptance_rate", &[1, 1], &[rate]),
                name => match DataType::from_name(&output.datatype) {
                    Some(datatype) => out.push_raw(name, datatype, &output.shape, data.clone()),
                    None => continue,
                },
            };
        }
        out.build()
    }

    /// A request over the text so far, with the base's other inputs but for those in `without`.
    fn round(
        &self,
        model: &str,
        max_tokens: usize,
        min_tokens: usize,
        without: &[&str],
    ) -> RequestBuilder {
        let mut out = RequestBuilder::new(model, self.base.id.as_str(), 4 * self.ids.len() + 64);
        out.vector("input_ids", &self.ids)
            .scalar("input_lengths", self.ids.len() as i32)
            .scalar("request_output_len", max_tokens as i32);
        if min_tokens > 0 {
            out.scalar("min_tokens", min_tokens as i32);
        }
        if let Some(seed) = self.seed {
            // Each round draws other numbers.
            out.scalar("seed", seed.wrapping_add(self.generated() as u64));
        }
        for (input, data) in self.inputs() {
            let name = input.name.as_str();
            if OWN.contains(&name) || without.contains(&name) {
                continue;
            }
            if let Some(datatype) = DataType::from_name(&input.datatype) {
                out.push_raw(name, datatype, &input.shape, data.clone());
            }
        }
        out
    }

    fn inputs(&self) -> impl Iterator<Item = (&InferInputTensor, &Bytes)> {
        self.base.inputs.iter().zip(&self.base.raw_input_contents)
    }

    fn finished(&self, mut out: RequestBuilder) -> ModelInferRequest {
        let mut request = out.build();
        request.parameters.clone_from(&self.base.parameters);
        request
    }
}

#[cfg(test)]
mod tests;
