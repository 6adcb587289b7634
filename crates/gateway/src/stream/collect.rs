//! An answer in one piece. Owns waiting for its end; the shapes are inflight-openai's.

use std::future::poll_fn;

use inflight_openai::{
    ApiError, ChatChoice, ChatCompletion, Completion, CompletionChoice, FinishReason,
};

use super::body::usage;
use super::generation::Generation;

/// Waits for the first rows: an error until then has a status of its own.
///
/// # Errors
/// The request failed.
pub async fn first_rows(generation: &mut Generation) -> Result<(), ApiError> {
    poll_fn(|context| generation.poll_rows(context)).await
}

/// Waits until every choice has finished.
///
/// # Errors
/// The request failed.
pub async fn finished(generation: &mut Generation) -> Result<(), ApiError> {
    while !generation.is_done() {
        poll_fn(|context| generation.poll_rows(context)).await?;
    }
    Ok(())
}

/// A finished chat answer.
pub fn chat(
    generation: &mut Generation,
    id: String,
    created: u64,
    model: String,
) -> ChatCompletion {
    let usage = usage(generation);
    let choices = generation.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| {
            let text = std::mem::take(&mut choice.ready);
            let log_probs = choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_chat());
            ChatChoice::text(
                index,
                text,
                log_probs,
                choice.finish.unwrap_or(FinishReason::Stop),
            )
        })
        .collect();
    ChatCompletion::new(id, created, model, choices, usage)
}

/// A finished completion.
pub fn completion(
    generation: &mut Generation,
    id: String,
    created: u64,
    model: String,
) -> Completion {
    let usage = usage(generation);
    let choices = generation.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| CompletionChoice {
            text: std::mem::take(&mut choice.ready),
            index,
            logprobs: choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_completion()),
            finish_reason: choice.finish.unwrap_or(FinishReason::Stop),
        })
        .collect();
    Completion::new(id, created, model, choices, usage)
}
