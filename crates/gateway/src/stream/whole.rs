//! An answer in one piece, in the shapes of inflight-openai.

use inflight_openai::{ChatChoice, ChatCompletion, Completion, CompletionChoice, FinishReason};

use super::active_request::ActiveRequest;
use super::tells::Tells;

/// A finished chat answer.
pub(crate) fn chat(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    tells: &Tells,
) -> ChatCompletion {
    let usage = request.usage();
    let scores = match tells.prompt_logprobs {
        Some(_) => request.prompt_log_probs(),
        None => Vec::new(),
    };
    let choices = request.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| {
            let text = std::mem::take(&mut choice.ready);
            let log_probs = choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_chat(usize::MAX));
            let finish = choice.finish.unwrap_or(FinishReason::Stop);
            let mut told = ChatChoice::text(index, text, log_probs, finish);
            let stopped = choice.stop_reason();
            told.stop_reason = stopped.map(|stopped| stopped.told(&tells.stop));
            told.token_ids = choice.ids.take().map(|ids| ids.all);
            told
        })
        .collect();
    let mut answer = ChatCompletion::new(id, created, model, choices, usage);
    answer.prompt_token_ids = tells.prompt(0).map(<[i32]>::to_vec);
    answer.prompt_logprobs = tells.prompt_logprobs(0, scores.first().and_then(Option::as_ref));
    answer
}

/// A finished completion.
pub(crate) fn completion(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    tells: &Tells,
) -> Completion {
    let usage = request.usage();
    let scores = match tells.prompt_logprobs {
        Some(_) => request.prompt_log_probs(),
        None => Vec::new(),
    };
    let choices = request.choices.iter_mut().enumerate().zip(0u32..);
    let choices = choices
        .map(|((place, choice), index)| {
            let stopped = choice.stop_reason();
            CompletionChoice {
                text: std::mem::take(&mut choice.ready),
                index,
                logprobs: choice
                    .log_probs
                    .as_mut()
                    .map(|log_probs| log_probs.take_completion(usize::MAX)),
                finish_reason: choice.finish.unwrap_or(FinishReason::Stop),
                stop_reason: stopped.map(|stopped| stopped.told(&tells.stop)),
                token_ids: choice.ids.take().map(|ids| ids.all),
                prompt_token_ids: tells.prompt(place).map(<[i32]>::to_vec),
                prompt_logprobs: tells
                    .prompt_logprobs(place, scores.get(place).and_then(Option::as_ref)),
            }
        })
        .collect();
    Completion::new(id, created, model, choices, usage)
}
