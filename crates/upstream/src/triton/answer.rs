//! From a Triton model's responses to answers. Pure: owns what each dialect's outputs mean and why an
//! answer ended, which most models do not say; knows nothing of sockets.

use std::sync::Arc;

use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names::FINAL_RESPONSE;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::{TensorError, Tensors};
use inflight_models::dialect::{Dialect, TritonModel, output};
use inflight_text::Tokenizer;

use crate::inbox::OutputDetails;
use crate::registry::SequenceOutput;

/// What an incomplete character decodes to; more bytes may complete it.
const REPLACEMENT: char = '\u{fffd}';
/// What a repeated text may end with and not have any more a token later: tokenizers that clean spaces
/// up write "do n't ." as "don't.".
const UNSETTLED: [&str; 6] = [" ", " '", " n", " n'", " 'v", " 'r"];
/// Bytes of text per token: far more than the longest token of any vocabulary, so that no real answer is refused.
const MAX_TOKEN_BYTES: usize = 1 << 10;
/// Responses and tokens that a text answer may have in addition to those that were asked for.
const ALLOWANCE: usize = 1 << 10;

/// Why a response cannot be used: the server is not what its configuration says.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("{log_probs} log probabilities for {tokens} tokens")]
    LogProbs { log_probs: usize, tokens: usize },
    #[error("more than the {limit} tokens that were requested")]
    TooLong { limit: u32 },
    #[error("the response text does not extend the previous response")]
    NotContinued,
    #[error(
        "the answer does not begin with the prompt, as the model's configuration says; set the core model's \
         parameter `exclude_input_in_output` to true"
    )]
    NotRepeated,
    #[error("unknown finish reason `{0}`")]
    Reason(String),
}

/// What is asked, as far as the answer's meaning depends on it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// Tokens asked for, or what is left of the context where that is less and known.
    pub limit: u32,
    /// Tokens that end an answer.
    pub end_ids: Arc<[i32]>,
    /// Whether responses come as tokens are made.
    pub streaming: bool,
    pub log_probs: bool,
    /// Counts an answer that comes in one piece and without a count.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// What an answer in one piece begins with.
    pub repeated: Option<RepeatedPrompt>,
    /// Whether to report the prompt's token count, where the server does.
    pub prompt_tokens: bool,
}

/// A prompt as an answer may repeat it.
#[derive(Clone, Debug)]
pub(super) struct RepeatedPrompt {
    pub tokens: Arc<[i32]>,
    pub text: String,
}

/// Reads the responses to one request, in order.
#[derive(Debug)]
pub(super) struct Reader {
    model: Arc<TritonModel>,
    expected: Expected,
    /// Tokens so far.
    generated: u32,
    last_token: Option<i32>,
    /// An end token and its log probability, until it is known whether it ended the answer.
    held: Option<(i32, Option<f32>)>,
    /// Responses, and bytes of text, so far.
    responses: usize,
    length: usize,
    /// As the server reported it, possibly before the response that is marked as the last.
    reason: Option<FinishReason>,
    /// For models that repeat the text so far: what of it was passed on, and what its end may yet
    /// become something else.
    passed: String,
    in_doubt: String,
    prompt_tokens_told: bool,
}

impl Reader {
    /// A reader of answers to a request to `model`.
    pub(super) fn new(model: Arc<TritonModel>, expected: Expected) -> Self {
        Self {
            model,
            expected,
            generated: 0,
            last_token: None,
            held: None,
            responses: 0,
            length: 0,
            reason: None,
            passed: String::new(),
            in_doubt: String::new(),
            prompt_tokens_told: false,
        }
    }

    /// What the next response brings.
    ///
    /// # Errors
    /// [`AnswerError`]; nothing more can be made of the answer.
    pub(super) fn read(
        &mut self,
        response: &ModelInferResponse,
    ) -> Result<SequenceOutput, AnswerError> {
        let outputs = Tensors::outputs(response)?;
        let last = is_final(response);
        self.responses = self.responses.saturating_add(1);
        self.check(self.responses <= self.bound(2))?;
        match self.model.dialect {
            Dialect::TokenIds => self.read_tokens(&outputs, last),
            Dialect::Text | Dialect::LlmApi => self.read_text(&outputs, last),
        }
    }

    fn read_tokens(
        &mut self,
        outputs: &Tensors<'_>,
        last: bool,
    ) -> Result<SequenceOutput, AnswerError> {
        let mut tokens = outputs.values::<i32>(output::IDS)?.unwrap_or_default();
        let length = outputs.values::<i32>(output::LENGTH)?;
        let length = length.and_then(|lengths| lengths.first().copied());
        if let Some(length) = length.and_then(|length| usize::try_from(length).ok()) {
            // What lies behind is padding.
            tokens.truncate(length);
        }
        if !tokens.is_empty()
            && let Some(prompt) = self.expected.repeated.take()
            && tokens.starts_with(&prompt.tokens)
        {
            tokens.drain(..prompt.tokens.len());
        }
        let mut log_probs = match self.expected.log_probs {
            true => newest_log_probs(outputs, tokens.len())?,
            false => Vec::new(),
        };
        self.count(tokens.len());
        self.check(self.generated <= self.expected.limit)?;
        self.last_token = tokens.last().copied().or(self.last_token);
        // The token that ends an answer is not part of it, even when the mark of the end comes in a later response.
        if let Some((token, log_prob)) = self.held.take() {
            tokens.insert(0, token);
            log_probs.splice(0..0, log_prob);
        }
        if !last && tokens.last().is_some_and(|id| self.ends(*id)) {
            self.held = tokens.pop().map(|token| (token, log_probs.pop()));
        }
        let details = (!log_probs.is_empty()).then(|| {
            Box::new(OutputDetails {
                log_probs,
                ..OutputDetails::default()
            })
        });
        let told = outputs.values::<i32>(output::REASON)?;
        let told = told.and_then(|reasons| u8::try_from(*reasons.first()?).ok());
        let told = told.and_then(FinishReason::from_number);
        self.note_reason(told.filter(|reason| *reason != FinishReason::NotFinished));
        Ok(SequenceOutput {
            tokens,
            finish: self.finish(last),
            last,
            details,
        })
    }

    fn read_text(
        &mut self,
        outputs: &Tensors<'_>,
        last: bool,
    ) -> Result<SequenceOutput, AnswerError> {
        let text = match outputs.get(output::TEXT) {
            Some(tensor) => {
                let bytes = tensor.elements()?.next().unwrap_or_default();
                Some(String::from_utf8_lossy(bytes).into_owned())
            }
            None => None,
        };
        let text = match text {
            Some(text) if !text.is_empty() => Some(self.without_prompt(text)?),
            text => text,
        };
        let so_far = if self.model.accumulates {
            0
        } else {
            self.length
        };
        self.length = so_far.saturating_add(text.as_ref().map_or(0, String::len));
        self.check(self.length <= self.bound(MAX_TOKEN_BYTES))?;
        let told = outputs.values::<i32>(output::OUTPUT_TOKENS)?;
        let told = told.filter(|_| self.model.counts_tokens());
        let told = told.and_then(|counts| usize::try_from(*counts.first()?).ok());
        let reason = self.reported_reason(outputs)?;
        let tokens = match (told, &text) {
            (Some(told), _) => told,
            (None, None) => 0,
            // One response is one step. A last one without news is an end token's, which is not counted,
            // or only says that it is the last; it is a token where that was the last one allowed.
            (None, Some(text)) if self.expected.streaming => {
                let counts = !last || self.is_news(text) || reason == Some(FinishReason::Length);
                usize::from(counts)
            }
            (None, Some(text)) => self.counted(text),
        };
        let text = match text {
            Some(text) if self.model.accumulates && !text.is_empty() => self.news(text, last)?,
            Some(text) if !text.is_empty() => text,
            // The last response may be nothing but the mark.
            _ if last => std::mem::take(&mut self.in_doubt),
            _ => String::new(),
        };
        self.count(tokens);
        self.note_reason(reason);
        let prompt_tokens = self.prompt_tokens(outputs)?;
        Ok(SequenceOutput {
            tokens: Vec::new(),
            finish: self.finish(last),
            last,
            details: Some(Box::new(OutputDetails {
                text: Some(text),
                generated: u32::try_from(tokens).unwrap_or(u32::MAX),
                prompt_tokens,
                ..OutputDetails::default()
            })),
        })
    }

    /// The text behind the prompt, where the first answer repeats that. A server writes the prompt's tokens, so
    /// that special ones are missing and spaces may be.
    fn without_prompt(&mut self, text: String) -> Result<String, AnswerError> {
        let Some(prompt) = self.expected.repeated.take() else {
            return Ok(text);
        };
        let rewritten = self.expected.tokenizer.as_ref().and_then(|tokenizer| {
            let tokens = tokenizer.encode(&prompt.text, true).ok()?;
            tokenizer.decode(&tokens, true).ok()
        });
        let mut ways = [Some(prompt.text), rewritten].into_iter().flatten();
        let rest = ways.find_map(|prompt| {
            let exact = text.strip_prefix(prompt.as_str());
            let start = text.trim_start();
            let rest = exact.or_else(|| start.strip_prefix(prompt.trim_start()));
            rest.map(str::to_owned)
        });
        match rest {
            Some(rest) => Ok(rest),
            // Its releases differ in what they do by default.
            None if self.model.dialect == Dialect::LlmApi => Ok(text),
            None => Err(AnswerError::NotRepeated),
        }
    }

    /// How much of something an answer may have, where a token has `each`.
    fn bound(&self, each: usize) -> usize {
        let tokens = (self.expected.limit as usize).saturating_add(ALLOWANCE);
        tokens.saturating_mul(each)
    }

    fn check(&self, fits: bool) -> Result<(), AnswerError> {
        let limit = self.expected.limit;
        fits.then_some(()).ok_or(AnswerError::TooLong { limit })
    }

    fn ends(&self, id: i32) -> bool {
        self.expected.end_ids.contains(&id)
    }

    fn count(&mut self, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.generated = self.generated.saturating_add(tokens);
    }

    fn counted(&self, text: &str) -> usize {
        let tokenizer = self.expected.tokenizer.as_ref();
        let counted = tokenizer.and_then(|tokenizer| tokenizer.encode(text, false).ok());
        counted.map_or(0, |tokens| tokens.len())
    }

    fn is_news(&self, text: &str) -> bool {
        if !self.model.accumulates {
            return !text.is_empty();
        }
        let news = text.strip_prefix(self.passed.as_str());
        news != Some(self.in_doubt.as_str()) && !text.is_empty()
    }

    /// The part of a repeated text that is new. What may yet become something else waits for the rest.
    fn news(&mut self, text: String, last: bool) -> Result<String, AnswerError> {
        let news = text.strip_prefix(self.passed.as_str());
        let news = news.ok_or(AnswerError::NotContinued)?;
        let sure = match last {
            true => news,
            false => settled(news),
        };
        self.in_doubt = news.get(sure.len()..).unwrap_or_default().to_owned();
        let sure = sure.to_owned();
        self.passed.push_str(&sure);
        Ok(sure)
    }

    fn reported_reason(&self, outputs: &Tensors<'_>) -> Result<Option<FinishReason>, AnswerError> {
        if !self.model.reports_reason() {
            return Ok(None);
        }
        let Some(reasons) = outputs.get(output::FINISH_REASON) else {
            return Ok(None);
        };
        let reasons = reasons.strings()?;
        // The names of TensorRT-LLM's CompletionOutput.finish_reason.
        match reasons.first().copied() {
            Some("stop") => Ok(Some(FinishReason::EndId)),
            Some("length") => Ok(Some(FinishReason::Length)),
            Some("timeout") => Ok(Some(FinishReason::TimedOut)),
            Some("cancelled") => Ok(Some(FinishReason::Cancelled)),
            None | Some("None" | "") => Ok(None),
            Some(other) => Err(AnswerError::Reason(other.to_owned())),
        }
    }

    fn note_reason(&mut self, reason: Option<FinishReason>) {
        self.reason = reason.or(self.reason);
    }

    /// Why the answer ended. A server that does not say it sends an end token, as many tokens as were
    /// asked for, or fewer because the end came first.
    fn finish(&self, last: bool) -> FinishReason {
        match self.reason {
            _ if !last => FinishReason::NotFinished,
            Some(reason) => reason,
            None if self.last_token.is_some_and(|id| self.ends(id)) => FinishReason::EndId,
            None if self.generated >= self.expected.limit => FinishReason::Length,
            None => FinishReason::EndId,
        }
    }

    fn prompt_tokens(&mut self, outputs: &Tensors<'_>) -> Result<Option<u32>, AnswerError> {
        if !self.expected.prompt_tokens || self.prompt_tokens_told || !self.model.counts_tokens() {
            return Ok(None);
        }
        let counts = outputs.values::<i32>(output::INPUT_TOKENS)?;
        let count = counts.and_then(|counts| u32::try_from(*counts.first()?).ok());
        self.prompt_tokens_told |= count.is_some();
        Ok(count)
    }
}

/// The log probabilities of a response's tokens. Its values may begin with those of the responses before
/// it.
fn newest_log_probs(outputs: &Tensors<'_>, tokens: usize) -> Result<Vec<f32>, AnswerError> {
    if tokens == 0 {
        return Ok(Vec::new());
    }
    let values = outputs.get(output::LOG_PROBS);
    let values = values.map(|tensor| tensor.floats()).transpose()?;
    let mut values = values.unwrap_or_default();
    match values.len().checked_sub(tokens) {
        Some(start) => Ok(values.split_off(start)),
        None => Err(AnswerError::LogProbs {
            log_probs: values.len(),
            tokens,
        }),
    }
}

/// The part of a text that no token after it changes.
fn settled(text: &str) -> &str {
    let text = text.trim_end_matches(REPLACEMENT);
    let endings = UNSETTLED.iter();
    let rests = endings.filter_map(|ending| text.strip_suffix(ending));
    rests.min_by_key(|rest| rest.len()).unwrap_or(text)
}

/// Triton's mark of a request's last response.
pub(super) fn is_final(response: &ModelInferResponse) -> bool {
    let flag = response.parameters.get(FINAL_RESPONSE);
    let flag = flag.and_then(|flag| flag.parameter_choice.as_ref());
    matches!(flag, Some(ParameterChoice::BoolParam(true)))
}

#[cfg(test)]
mod tests;
