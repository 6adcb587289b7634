//! Requests that a model cannot serve, whatever worker has it: too long, or of tokens that it does not know.

use inflight_openai::ApiError;

/// 400: prompt and requested tokens do not fit, with the numbers.
pub(crate) fn context_length_exceeded(
    field: &'static str,
    context: usize,
    prompt_tokens: usize,
    max_tokens: Option<u32>,
) -> ApiError {
    let message = match max_tokens {
        Some(wanted) => format!(
            "The model's context holds {context} tokens, but the request needs {}: {prompt_tokens} in \
             the prompt and {wanted} to generate. Shorten the prompt or ask for fewer tokens.",
            prompt_tokens.saturating_add(wanted as usize)
        ),
        None => format!(
            "The model's context holds {context} tokens, but the prompt alone has {prompt_tokens}, and \
             nothing could be generated. Shorten the prompt."
        ),
    };
    ApiError::context_length_exceeded(field, message)
}

/// 400: a text so long that it was not even tokenized.
pub fn text_too_long(field: &'static str, context: usize, at_least: usize) -> ApiError {
    let message = format!(
        "The model's context holds {context} tokens, but the prompt has {at_least} or more. Shorten the \
         prompt."
    );
    ApiError::context_length_exceeded(field, message)
}

/// 400: a token id that the model does not have.
pub fn outside_vocabulary(field: &str, id: i64, vocabulary: u32) -> ApiError {
    ApiError::invalid_request(
        field,
        format!(
            "The token id `{id}` in `{field}` is not in the model's vocabulary of {vocabulary}."
        ),
    )
}
