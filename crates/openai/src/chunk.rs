//! The frames of a stream. Everything that does not change between tokens is written once per choice;
//! a frame is then two copies and an escape, with no JSON tree and no extra allocation. Owns the
//! bytes; knows nothing of sockets, and leaves order to the caller: role (chat), content, finish, usage,
//! [`DONE`].

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use crate::error::ApiError;
use crate::escape::write_escaped;
use crate::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::reasoning_field::ReasoningField;
use crate::whole::{FinishReason, StopReason, Usage};

/// Ends every stream that is not aborted.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

const EVENT: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// What all frames of one stream share.
#[derive(Clone, Copy, Debug)]
pub struct StreamInfo<'a> {
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: &'a str,
    /// Unix seconds.
    pub created: u64,
    pub model: &'a str,
    /// Whether the last frame carries the usage; the others then say `"usage":null`.
    pub include_usage: bool,
}

/// Whether an answer is a chat completion or a text completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    Chat,
    Completion,
}

/// The log probabilities of one frame.
#[derive(Clone, Copy, Debug)]
pub enum FrameLogprobs<'a> {
    Chat(&'a ChatLogprobs),
    Completion(&'a CompletionLogprobs),
}

/// What a frame of a chat answer brings, where that may be more than text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDelta<'a> {
    Content(&'a str),
    Reasoning(&'a str),
    /// A call begins; its arguments follow.
    CallBegin {
        index: usize,
        id: &'a str,
        name: &'a str,
    },
    /// A part of a call's JSON text.
    CallArguments {
        index: usize,
        json: &'a str,
    },
    /// A custom tool's call begins; its input follows.
    CustomBegin {
        index: usize,
        id: &'a str,
        name: &'a str,
    },
    /// A part of a custom tool's text.
    CustomInput {
        index: usize,
        text: &'a str,
    },
}

/// What a frame has beyond the usual, where the request asks for it; see vLLM's `return_token_ids` and
/// `continuous_usage_stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameExtras<'a> {
    /// The tokens that this frame's text came from.
    pub token_ids: Option<&'a [i32]>,
    /// Once for each choice.
    pub prompt_token_ids: Option<&'a [i32]>,
    pub usage: Option<Usage>,
}

/// Writes the frames of one choice of one stream.
///
/// ```
/// use bytes::BytesMut;
/// use inflight_openai::chunk::{ChunkTemplate, StreamInfo};
///
/// let info = StreamInfo { id: "chatcmpl-1", created: 7, model: "m", include_usage: false };
/// let mut out = BytesMut::new();
/// ChunkTemplate::chat(&info, 0).write_content(&mut out, "Hi");
/// assert!(out.starts_with(b"data: {\"id\":\"chatcmpl-1\""));
/// assert!(out.ends_with(b"\n\n"));
/// ```
#[derive(Clone, Debug)]
pub struct ChunkTemplate {
    kind: AnswerKind,
    /// `data: {"id":…,"choices":[` — the same for every choice.
    head: Vec<u8>,
    /// `head` and everything up to the text of a content frame.
    before_text: Vec<u8>,
    /// From the text's closing quote to the frame's end, without log probabilities.
    after_text: Vec<u8>,
    /// `]` and what follows the choices.
    tail: Vec<u8>,
    index: u32,
    reasoning: ReasoningField,
}

impl ChunkTemplate {
    /// Frames of `chat.completion.chunk` for choice `index`.
    pub fn chat(info: &StreamInfo<'_>, index: u32) -> Self {
        Self::new(AnswerKind::Chat, info, index)
    }

    /// Frames of `text_completion` for choice `index`.
    pub fn completion(info: &StreamInfo<'_>, index: u32) -> Self {
        Self::new(AnswerKind::Completion, info, index)
    }

    fn new(kind: AnswerKind, info: &StreamInfo<'_>, index: u32) -> Self {
        let object = match kind {
            AnswerKind::Chat => "chat.completion.chunk",
            AnswerKind::Completion => "text_completion",
        };
        let mut head = Vec::with_capacity(192);
        head.extend_from_slice(b"data: {\"id\":\"");
        write_escaped(&mut head, info.id);
        head.extend_from_slice(b"\",\"object\":\"");
        head.extend_from_slice(object.as_bytes());
        head.extend_from_slice(b"\",\"created\":");
        head.extend_from_slice(itoa::Buffer::new().format(info.created).as_bytes());
        head.extend_from_slice(b",\"model\":\"");
        write_escaped(&mut head, info.model);
        head.extend_from_slice(b"\",\"system_fingerprint\":null,\"choices\":[");

        let mut tail = b"]".to_vec();
        if info.include_usage {
            tail.extend_from_slice(b",\"usage\":null");
        }
        tail.extend_from_slice(b"}\n\n");

        let mut template = Self {
            kind,
            head,
            before_text: Vec::new(),
            after_text: Vec::new(),
            tail,
            index,
            reasoning: ReasoningField::default(),
        };
        let mut before = template.head.clone();
        template.open_choice(&mut before);
        before.extend_from_slice(match kind {
            AnswerKind::Chat => b"\"delta\":{\"content\":\"".as_slice(),
            AnswerKind::Completion => b"\"text\":\"".as_slice(),
        });
        let mut after = template.close_text().to_vec();
        after.extend_from_slice(b"null,\"finish_reason\":null}");
        after.extend_from_slice(&template.tail);
        template.before_text = before;
        template.after_text = after;
        template
    }

    /// As it is, with the reasoning under this name.
    pub fn with_reasoning(mut self, field: ReasoningField) -> Self {
        self.reasoning = field;
        self
    }

    fn open_choice(&self, out: &mut impl BufMut) {
        out.put_slice(b"{\"index\":");
        out.put_slice(itoa::Buffer::new().format(self.index).as_bytes());
        out.put_slice(b",");
    }

    /// From the end of the text to the value of `logprobs`.
    fn close_text(&self) -> &'static [u8] {
        match self.kind {
            AnswerKind::Chat => b"\"},\"logprobs\":",
            AnswerKind::Completion => b"\",\"logprobs\":",
        }
    }

    /// Chat's first frame of a choice: the role, once, with empty content. Completions have none.
    pub fn write_role(&self, out: &mut BytesMut) {
        if self.kind == AnswerKind::Completion {
            return;
        }
        out.reserve(self.before_text.len() + self.after_text.len() + 32);
        out.put_slice(&self.head);
        self.open_choice(out);
        out.put_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"");
        out.put_slice(&self.after_text);
    }

    /// A frame of text and nothing more, as most are.
    pub fn write_content(&self, out: &mut BytesMut, text: &str) {
        out.reserve(self.before_text.len() + text.len() + 8 + self.after_text.len());
        out.put_slice(&self.before_text);
        write_escaped(out, text);
        out.put_slice(&self.after_text);
    }

    /// A frame of text, which may be empty where there is something else to report.
    fn write_content_with(
        &self,
        out: &mut BytesMut,
        text: &str,
        logprobs: Option<FrameLogprobs<'_>>,
        extras: FrameExtras<'_>,
    ) {
        out.reserve(self.before_text.len() + text.len() + 8 + self.after_text.len());
        out.put_slice(&self.before_text);
        write_escaped(out, text);
        out.put_slice(self.close_text());
        write_logprobs(out, logprobs);
        out.put_slice(b",\"finish_reason\":null");
        self.end_with(out, extras);
    }

    /// A frame of an answer that is more than text. Only chat has these.
    pub fn write_delta(
        &self,
        out: &mut BytesMut,
        delta: FrameDelta<'_>,
        logprobs: Option<FrameLogprobs<'_>>,
        extras: FrameExtras<'_>,
    ) {
        let (before, text, after): (&[u8], &str, &[u8]) = match delta {
            FrameDelta::Content(text) => {
                return self.write_content_with(out, text, logprobs, extras);
            }
            FrameDelta::Reasoning(text) => match self.reasoning {
                ReasoningField::Reasoning => (b"\"reasoning\":\"", text, b"\""),
                _ => (b"\"reasoning_content\":\"", text, b"\""),
            },
            FrameDelta::CallBegin { name, .. } => (
                b"\"type\":\"function\",\"function\":{\"name\":\"",
                name,
                b"\",\"arguments\":\"\"}}]",
            ),
            FrameDelta::CallArguments { json, .. } => {
                (b"\"function\":{\"arguments\":\"", json, b"\"}}]")
            }
            FrameDelta::CustomBegin { name, .. } => (
                b"\"type\":\"custom\",\"custom\":{\"name\":\"",
                name,
                b"\",\"input\":\"\"}}]",
            ),
            FrameDelta::CustomInput { text, .. } => (b"\"custom\":{\"input\":\"", text, b"\"}}]"),
        };
        out.reserve(self.before_text.len() + text.len() + 128 + self.after_text.len());
        out.put_slice(&self.head);
        self.open_choice(out);
        out.put_slice(b"\"delta\":{");
        if let FrameDelta::CallBegin { index, .. }
        | FrameDelta::CallArguments { index, .. }
        | FrameDelta::CustomBegin { index, .. }
        | FrameDelta::CustomInput { index, .. } = delta
        {
            out.put_slice(b"\"tool_calls\":[{\"index\":");
            out.put_slice(itoa::Buffer::new().format(index).as_bytes());
            out.put_slice(b",");
        }
        if let FrameDelta::CallBegin { id, .. } | FrameDelta::CustomBegin { id, .. } = delta {
            out.put_slice(b"\"id\":\"");
            write_escaped(out, id);
            out.put_slice(b"\",");
        }
        out.put_slice(before);
        write_escaped(out, text);
        out.put_slice(after);
        if self.reasoning == ReasoningField::Both && matches!(delta, FrameDelta::Reasoning(_)) {
            out.put_slice(b",\"reasoning\":\"");
            write_escaped(out, text);
            out.put_slice(b"\"");
        }
        out.put_slice(b"},\"logprobs\":");
        write_logprobs(out, logprobs);
        out.put_slice(b",\"finish_reason\":null");
        self.end_with(out, extras);
    }

    /// [`ChunkTemplate::write_role`] with extras.
    pub fn write_role_with(&self, out: &mut BytesMut, extras: FrameExtras<'_>) {
        if self.kind == AnswerKind::Completion {
            return;
        }
        out.put_slice(&self.head);
        self.open_choice(out);
        out.put_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"");
        out.put_slice(self.close_text());
        out.put_slice(b"null,\"finish_reason\":null");
        self.end_with(out, extras);
    }

    /// Ends a choice and its frame.
    fn end_with(&self, out: &mut BytesMut, extras: FrameExtras<'_>) {
        if let Some(ids) = extras.token_ids {
            out.put_slice(b",\"token_ids\":");
            write_json(out, &ids);
        }
        let write_prompt = |out: &mut BytesMut| {
            if let Some(ids) = extras.prompt_token_ids {
                out.put_slice(b",\"prompt_token_ids\":");
                write_json(out, &ids);
            }
        };
        if self.kind == AnswerKind::Completion {
            write_prompt(out);
        }
        out.put_slice(b"}");
        match &extras.usage {
            None => out.put_slice(self.tail.strip_suffix(b"}\n\n").unwrap_or(&self.tail)),
            Some(usage) => {
                out.put_slice(b"],\"usage\":");
                write_json(out, usage);
            }
        }
        if self.kind == AnswerKind::Chat {
            write_prompt(out);
        }
        out.put_slice(b"}\n\n");
    }

    /// The choice's last frame: no text, why it ended, and what ended it.
    pub fn write_finish(
        &self,
        out: &mut BytesMut,
        reason: FinishReason,
        stop_reason: Option<&StopReason>,
        extras: FrameExtras<'_>,
    ) {
        out.reserve(self.before_text.len() + self.after_text.len() + 32);
        out.put_slice(&self.head);
        self.open_choice(out);
        out.put_slice(match self.kind {
            AnswerKind::Chat => b"\"delta\":{},\"logprobs\":null,\"finish_reason\":\"".as_slice(),
            AnswerKind::Completion => {
                b"\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"".as_slice()
            }
        });
        out.put_slice(reason.as_str().as_bytes());
        out.put_slice(b"\"");
        if let Some(stop_reason) = stop_reason {
            out.put_slice(b",\"stop_reason\":");
            write_json(out, stop_reason);
        }
        self.end_with(out, extras);
    }

    /// The stream's usage frame, after the last choice has ended: no choices. Any choice's template
    /// of the stream may write it.
    pub fn write_usage(&self, out: &mut BytesMut, usage: &Usage) {
        out.reserve(self.head.len() + 256);
        out.put_slice(&self.head);
        out.put_slice(b"],\"usage\":");
        write_json(out, usage);
        out.put_slice(b"}\n\n");
    }
}

/// A failure after the first frame went out; [`DONE`] follows.
pub fn write_error(out: &mut BytesMut, error: &ApiError) {
    out.put_slice(EVENT);
    out.put_slice(&error.to_json());
    out.put_slice(END);
}

fn write_logprobs(out: &mut BytesMut, logprobs: Option<FrameLogprobs<'_>>) {
    match logprobs {
        None => out.put_slice(b"null"),
        Some(FrameLogprobs::Chat(logprobs)) => write_json(out, logprobs),
        Some(FrameLogprobs::Completion(logprobs)) => write_json(out, logprobs),
    }
}

fn write_json(out: &mut BytesMut, value: &impl Serialize) {
    // Nothing that is written here can fail: no maps with keys that are not strings, no I/O.
    let _ = serde_json::to_writer(out.writer(), value);
}

#[cfg(test)]
mod tests;
