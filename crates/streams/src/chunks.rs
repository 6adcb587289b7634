//! The events of chat and completions. Owns their order; the bytes are inflight-openai's, and the content the
//! request's.

use bytes::BytesMut;
use inflight_openai::ApiError;
use inflight_openai::chunk::{
    self, AnswerKind, ChunkTemplate, DONE, FrameDelta, FrameExtras, FrameLogprobs,
};
use inflight_parsers::Delta;

use super::active_request::ActiveRequest;
use super::body::EventWriter;
use super::choice::Choice;
use super::details::{AnswerDetails, PromptCounts};

/// Writes chunks for all choices of an answer.
#[derive(Debug)]
pub struct ChunkWriter {
    kind: AnswerKind,
    /// One per choice.
    templates: Vec<ChunkTemplate>,
    /// Choices whose last frame is written.
    ended: Vec<bool>,
    include_usage: bool,
    details: AnswerDetails,
}

impl ChunkWriter {
    /// Writes each choice's role.
    pub fn begin(
        request: &ActiveRequest,
        kind: AnswerKind,
        templates: Vec<ChunkTemplate>,
        include_usage: bool,
        details: AnswerDetails,
        out: &mut BytesMut,
    ) -> Self {
        let writer = Self {
            ended: vec![false; templates.len()],
            kind,
            templates,
            include_usage,
            details,
        };
        let counts = request.prompt_counts();
        for (index, template) in writer.templates.iter().enumerate() {
            match writer.details.prompt(index) {
                None if !writer.details.usage => template.write_role(out),
                prompt_token_ids => {
                    let extras = FrameExtras {
                        prompt_token_ids,
                        usage: writer.details.usage_after(0, counts),
                        ..FrameExtras::default()
                    };
                    template.write_role_with(out, extras);
                }
            }
        }
        writer
    }
}

impl EventWriter for ChunkWriter {
    fn write_ready(&mut self, request: &mut ActiveRequest, out: &mut BytesMut) -> bool {
        let counts = request.prompt_counts();
        let choices = request.choices.iter_mut().enumerate();
        for (((index, choice), template), ended) in
            choices.zip(&self.templates).zip(&mut self.ended)
        {
            if *ended {
                continue;
            }
            write_events(
                choice,
                template,
                (self.kind, index),
                &self.details,
                counts,
                out,
            );
            choice.clear_ready();
            if let Some(reason) = choice.finish {
                let stopped = choice.stop_reason();
                let stopped = stopped.map(|stopped| stopped.stop_reason(&self.details.stop));
                let tokens = choice.tokens as usize;
                let ids = choice.ids.as_mut();
                let extras = self.details.extras(self.kind, index, tokens, ids, counts);
                let reason = self.details.finish_reason(reason);
                template.write_finish(out, reason, stopped.as_ref(), extras);
                *ended = true;
            }
        }
        if !request.is_done() {
            return false;
        }
        let template = self.templates.first().filter(|_| self.include_usage);
        if let Some((template, usage)) = template.zip(request.usage()) {
            template.write_usage(out, &usage);
        }
        out.extend_from_slice(DONE);
        true
    }

    fn write_failure(&mut self, _request: &ActiveRequest, error: &ApiError, out: &mut BytesMut) {
        chunk::write_error(out, error);
        out.extend_from_slice(DONE);
    }
}

/// Writes what has come of a choice.
fn write_events(
    choice: &mut Choice,
    template: &ChunkTemplate,
    (kind, index): (AnswerKind, usize),
    details: &AnswerDetails,
    counts: PromptCounts,
    buffer: &mut BytesMut,
) {
    let has_extras = details.has_extras();
    let mut reported = 0;
    // Taking log probabilities and tokens changes the choice.
    let mut ids = choice.ids.take();
    let mut log_probs = choice.log_probs.take();
    for event in choice.events() {
        let count = event.log_probs_end.saturating_sub(reported);
        reported = reported.max(event.log_probs_end);
        let log_probs = log_probs.as_mut().filter(|_| count > 0);
        let delta = match event.delta {
            // Most frames of most streams.
            Delta::Content(text) if log_probs.is_none() && !has_extras => {
                template.write_content(buffer, text);
                continue;
            }
            Delta::Content(text) => FrameDelta::Content(text),
            Delta::Reasoning(text) => FrameDelta::Reasoning(text),
            Delta::CallBegin { index, id, name } => {
                let id = id.unwrap_or_default();
                match event.is_custom {
                    true => FrameDelta::CustomBegin { index, id, name },
                    false => FrameDelta::CallBegin { index, id, name },
                }
            }
            Delta::CallArguments { index, json } if event.is_custom => {
                FrameDelta::CustomInput { index, text: json }
            }
            Delta::CallArguments { index, json } => FrameDelta::CallArguments { index, json },
            Delta::CallEnd { .. } => continue,
        };
        let extras = match has_extras {
            true => details.extras(kind, index, event.tokens_end, ids.as_mut(), counts),
            false => FrameExtras::default(),
        };
        match (log_probs, kind) {
            (None, _) => template.write_delta(buffer, delta, None, extras),
            (Some(log_probs), AnswerKind::Chat) => {
                let values = log_probs.take_chat(count);
                template.write_delta(buffer, delta, Some(FrameLogprobs::Chat(&values)), extras);
            }
            (Some(log_probs), AnswerKind::Completion) => {
                let values = log_probs.take_completion(count);
                let values = Some(FrameLogprobs::Completion(&values));
                template.write_delta(buffer, delta, values, extras);
            }
        }
    }
    choice.ids = ids;
    choice.log_probs = log_probs;
}
