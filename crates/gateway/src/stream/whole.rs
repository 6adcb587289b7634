//! An answer in one piece, in the shapes of inflight-openai.

use inflight_openai::{ChatChoice, ChatCompletion, Completion, CompletionChoice, FinishReason};

use super::active_request::ActiveRequest;

/// A finished chat answer. `stop`: the request's stop strings.
pub(crate) fn chat(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    stop: &[String],
) -> ChatCompletion {
    let usage = request.usage();
    let choices = request.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| {
            let text = std::mem::take(&mut choice.ready);
            let log_probs = choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_chat(usize::MAX));
            let stop_reason = choice.stop_reason().map(|stopped| stopped.told(stop));
            let finish = choice.finish.unwrap_or(FinishReason::Stop);
            let mut told = ChatChoice::text(index, text, log_probs, finish);
            told.stop_reason = stop_reason;
            told
        })
        .collect();
    ChatCompletion::new(id, created, model, choices, usage)
}

/// A finished completion.
pub(crate) fn completion(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    stop: &[String],
) -> Completion {
    let usage = request.usage();
    let choices = request.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| CompletionChoice {
            text: std::mem::take(&mut choice.ready),
            index,
            logprobs: choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_completion(usize::MAX)),
            finish_reason: choice.finish.unwrap_or(FinishReason::Stop),
            stop_reason: choice.stop_reason().map(|stopped| stopped.told(stop)),
        })
        .collect();
    Completion::new(id, created, model, choices, usage)
}
