//! An answer in one piece, in the shapes of inflight-openai.

use inflight_openai::{
    AssistantMessage, ChatChoice, ChatCompletion, Completion, CompletionChoice, FinishReason,
    MessageToolCall,
};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::choice::Choice;
use super::details::AnswerDetails;

/// A finished chat answer.
pub fn chat(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    details: &AnswerDetails,
) -> ChatCompletion {
    let usage = request.usage();
    let scores = match details.prompt_logprobs {
        Some(_) => request.prompt_log_probs(),
        None => Vec::new(),
    };
    let choices = request.choices.iter_mut().zip(0u32..);
    let choices = choices
        .map(|(choice, index)| {
            let mut message = message(choice);
            message.name_reasoning(details.reasoning_field);
            let log_probs = choice
                .log_probs
                .as_mut()
                .map(|log_probs| log_probs.take_chat(usize::MAX));
            let finish = choice.finish.unwrap_or(FinishReason::Stop);
            let finish = details.finish_reason(finish);
            let mut answered = ChatChoice::new(index, message, log_probs, finish);
            let stopped = choice.stop_reason();
            answered.stop_reason = stopped.map(|stopped| stopped.stop_reason(&details.stop));
            answered.token_ids = choice.ids.take().map(|ids| ids.all);
            answered
        })
        .collect();
    let mut answer = ChatCompletion::new(id, created, model, choices, usage);
    answer.prompt_token_ids = details.prompt(0).map(<[i32]>::to_vec);
    answer.prompt_logprobs = details.prompt_logprobs(0, scores.first().and_then(Option::as_ref));
    answer
}

/// What a finished choice says.
fn message(choice: &Choice) -> AssistantMessage {
    let mut message = AssistantMessage::default();
    for event in choice.events() {
        match event.delta {
            Delta::Content(text) => add(&mut message.content, text),
            Delta::Reasoning(text) => add(&mut message.reasoning_content, text),
            Delta::CallBegin { id, name, .. } => {
                let id = id.unwrap_or_default().to_owned();
                let new = match event.is_custom {
                    true => MessageToolCall::custom,
                    false => MessageToolCall::new,
                };
                let call = new(id, name.to_owned(), String::new());
                message.tool_calls.push(call);
            }
            Delta::CallArguments { json, .. } => {
                if let Some(call) = message.tool_calls.last_mut() {
                    call.push(json);
                }
            }
            Delta::CallEnd { .. } => {}
        }
    }
    if message.content.is_none() && message.tool_calls.is_empty() {
        message.content = Some(String::new());
    }
    message
}

/// Adds text; an event without any only had log probabilities.
fn add(text: &mut Option<String>, more: &str) {
    if more.is_empty() {
        return;
    }
    text.get_or_insert_default().push_str(more);
}

/// A finished completion.
pub fn completion(
    request: &mut ActiveRequest,
    id: String,
    created: u64,
    model: String,
    details: &AnswerDetails,
) -> Completion {
    let usage = request.usage();
    let scores = match details.prompt_logprobs {
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
                stop_reason: stopped.map(|stopped| stopped.stop_reason(&details.stop)),
                token_ids: choice.ids.take().map(|ids| ids.all),
                prompt_token_ids: details.prompt(place).map(<[i32]>::to_vec),
                prompt_logprobs: details
                    .prompt_logprobs(place, scores.get(place).and_then(Option::as_ref)),
            }
        })
        .collect();
    Completion::new(id, created, model, choices, usage)
}
