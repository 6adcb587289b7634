//! How long a model may think: a request's budget as the tokens that its executor counts between and ends with. Owns
//! which marks those are; the formats' own tags are `inflight-parsers`'.

use inflight_models::sampling_params::Thinking;
use inflight_models::served::ServedModel;
use inflight_openai::{ApiError, Generation};
use inflight_parsers::Format;
use inflight_text::Tokenizer;

use super::prompt::PreparedPrompt;

const FIELD: &str = "thinking_token_budget";
/// Tokens at the end of a prompt that may open the reasoning, white space behind it included.
const TAIL: usize = 32;

/// A request's budget, for all of its prompts.
#[derive(Debug)]
pub(super) struct Budget<'a> {
    tokens: i32,
    start: Vec<i32>,
    end: Vec<i32>,
    format: Format,
    tokenizer: &'a Tokenizer,
}

/// The budget that a request asks for, of a model that reasons in this format.
///
/// # Errors
/// 400: it is not known how the model marks its reasoning.
pub(super) fn budget<'a>(
    generation: &Generation,
    format: Format,
    served: &'a ServedModel,
) -> Result<Option<Budget<'a>>, ApiError> {
    let extensions = generation.extensions.as_ref();
    let Some(tokens) = extensions.and_then(|asked| asked.thinking_token_budget) else {
        return Ok(None);
    };
    let marks = format.reasoning.and_then(|format| format.marks());
    let (Some((open, close)), Some(text)) = (marks, served.text.as_deref()) else {
        let message = "`thinking_token_budget` needs a model whose reasoning is between two tags that the gateway \
                       knows. Name its format when you start the gateway, with `--reasoning-parser`, or omit the field.";
        return Err(ApiError::unsupported(FIELD, message));
    };
    let tokenizer = text.tokenizer();
    let ids = |mark: &str| match tokenizer.token_id(mark) {
        Some(id) => Ok(vec![id as i32]),
        None => match tokenizer.encode(mark, false) {
            Ok(ids) => Ok(ids.into_iter().map(|id| id as i32).collect()),
            Err(error) => Err(ApiError::invalid_request(FIELD, format!("{error}."))),
        },
    };
    Ok(Some(Budget {
        tokens: i32::try_from(tokens).unwrap_or(i32::MAX),
        start: ids(open)?,
        end: ids(close)?,
        format,
        tokenizer,
    }))
}

impl Budget<'_> {
    /// Bounds the answer to this prompt.
    pub(super) fn apply(&self, prompt: &mut PreparedPrompt) {
        let tail = prompt.tokens.len().saturating_sub(TAIL);
        let tail = prompt.tokens.get(tail..).unwrap_or_default();
        let tail: Vec<u32> = tail
            .iter()
            .filter_map(|id| u32::try_from(*id).ok())
            .collect();
        // What cannot be decoded opens nothing.
        let text = self.tokenizer.decode(&tail, false).unwrap_or_default();
        let start = match self.format.opens_reasoning(&text) {
            true => Vec::new(),
            false => self.start.clone(),
        };
        let extras = prompt.params.extras.get_or_insert_default();
        extras.thinking = Some(Thinking {
            tokens: self.tokens,
            start,
            end: self.end.clone(),
        });
    }
}
