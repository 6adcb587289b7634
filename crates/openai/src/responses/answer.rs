//! An answer as it grows: text in, items and events out. Owns which events an item has and in what order, for
//! a stream and for an answer in one piece alike; the latter writes nothing until it is asked for the whole.

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use super::event::{DeltaTemplate, Sequence};
use super::item::{
    CustomToolCall, FunctionCall, Item, MessageItem, Part, Reasoning, Status, Thought,
};
use super::object::{Failure, Head, IncompleteDetails, ResponseObject, ResponseStatus};
use crate::chat::Role;
use crate::error::ApiError;
use crate::logprobs::TokenLogprob;
use crate::whole::{FinishReason, Usage};

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub reason: FinishReason,
    /// `None` where the server behind does not count tokens.
    pub usage: Option<Usage>,
    /// Unix seconds.
    pub now: u64,
}

/// What is being written.
#[derive(Debug)]
struct Open {
    kind: Kind,
    id: String,
    /// Text, reasoning, arguments or a custom tool's input so far.
    text: String,
    /// `None` without a stream.
    delta: Option<DeltaTemplate>,
}

#[derive(Debug)]
enum Kind {
    Message {
        logprobs: Vec<TokenLogprob>,
    },
    Reasoning,
    Call {
        call_id: String,
        namespace: Option<String>,
        name: String,
        /// Whether it is one of a custom tool, which takes a text.
        is_custom: bool,
    },
}

/// Writes one response.
///
/// ```
/// use bytes::BytesMut;
/// use inflight_openai::{FinishReason, responses};
///
/// let parsed = responses::parse(br#"{"model": "m", "input": "Hi"}"#)?;
/// let head = responses::Head {
///     id: responses::ResponseId(7),
///     created_at: 1,
///     model: "m".to_owned(),
///     settings: parsed.request.settings.into(),
///     input_items: 1,
///     seals_reasoning: false,
/// };
/// let mut out = BytesMut::new();
/// let mut writer = responses::AnswerWriter::streamed(head);
/// writer.begin(&mut out);
/// writer.content(&mut out, "Hello", Vec::new());
/// let outcome = responses::Outcome { reason: FinishReason::Stop, usage: None, now: 2 };
/// writer.finish(&mut out, outcome);
/// assert!(out.starts_with(b"event: response.created\ndata: {\"type\":\"response.created\""));
/// # Ok::<(), inflight_openai::ApiError>(())
/// ```
#[derive(Debug)]
pub struct AnswerWriter {
    head: Head,
    streams: bool,
    sequence: Sequence,
    items: Vec<Item>,
    open: Option<Open>,
}

#[derive(Serialize)]
struct OfResponse<T> {
    response: T,
}

#[derive(Serialize)]
struct OfItem<'a> {
    output_index: usize,
    item: &'a Item,
}

#[derive(Serialize)]
struct OfPart<'a, T> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    part: T,
}

#[derive(Serialize)]
struct TextDone<'a> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [TokenLogprob]>,
}

#[derive(Serialize)]
struct ArgumentsDone<'a> {
    item_id: &'a str,
    output_index: usize,
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct InputDone<'a> {
    item_id: &'a str,
    output_index: usize,
    input: &'a str,
}

impl AnswerWriter {
    /// For an answer in events.
    pub fn streamed(head: Head) -> Self {
        Self::new(head, true)
    }

    /// For an answer in one piece.
    pub fn whole(head: Head) -> Self {
        Self::new(head, false)
    }

    fn new(head: Head, streams: bool) -> Self {
        Self {
            head,
            streams,
            sequence: Sequence::default(),
            items: Vec::new(),
            open: None,
        }
    }

    /// What was known before there was any output.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The events before any output.
    pub fn begin(&mut self, out: &mut BytesMut) {
        for name in ["response.created", "response.in_progress"] {
            let response = ResponseObject::new(&self.head, ResponseStatus::InProgress, &[]);
            self.sequence.write(out, name, &OfResponse { response });
        }
    }

    /// Text of the answer, which may be empty where there are log probabilities to report.
    pub fn content(&mut self, out: &mut BytesMut, text: &str, logprobs: Vec<TokenLogprob>) {
        if !matches!(
            self.open,
            Some(Open {
                kind: Kind::Message { .. },
                ..
            })
        ) {
            let kind = Kind::Message {
                logprobs: Vec::new(),
            };
            self.open(out, kind);
        }
        let logprobs: Vec<TokenLogprob> = logprobs.into_iter().map(with_bytes).collect();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        if let Some(delta) = &open.delta {
            delta.write_with(&mut self.sequence, out, text, &logprobs);
        }
        if let Kind::Message { logprobs: all } = &mut open.kind {
            all.extend(logprobs);
        }
    }

    /// What the model thinks.
    pub fn reasoning(&mut self, out: &mut BytesMut, text: &str) {
        if !matches!(
            self.open,
            Some(Open {
                kind: Kind::Reasoning,
                ..
            })
        ) {
            self.open(out, Kind::Reasoning);
        }
        self.grow(out, text);
    }

    /// A function's call begins. `call_id`: the model's own, if it gave one.
    pub fn call(&mut self, out: &mut BytesMut, call_id: Option<&str>, name: &str) {
        self.begin_call(out, call_id, name, false);
    }

    /// A custom tool's call begins, as [`Self::call`].
    pub fn custom_call(&mut self, out: &mut BytesMut, call_id: Option<&str>, name: &str) {
        self.begin_call(out, call_id, name, true);
    }

    fn begin_call(
        &mut self,
        out: &mut BytesMut,
        call_id: Option<&str>,
        name: &str,
        is_custom: bool,
    ) {
        let place = self.head.input_items + self.items.len() + usize::from(self.open.is_some());
        let call_id = call_id.map_or_else(|| self.head.id.item("call", place), str::to_owned);
        let (namespace, name) = self.head.settings.in_namespace(name);
        let (namespace, name) = (namespace.map(str::to_owned), name.to_owned());
        let kind = Kind::Call {
            call_id,
            namespace,
            name,
            is_custom,
        };
        self.open(out, kind);
    }

    /// More of the arguments of the call that began last: JSON, or a custom tool's text.
    pub fn arguments(&mut self, out: &mut BytesMut, text: &str) {
        self.grow(out, text);
    }

    fn grow(&mut self, out: &mut BytesMut, text: &str) {
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        if let Some(delta) = &open.delta {
            delta.write(&mut self.sequence, out, text);
        }
    }

    /// Ends the answer. Returns the response, in JSON.
    pub fn finish(&mut self, out: &mut BytesMut, outcome: Outcome) -> Bytes {
        let status = match outcome.reason {
            FinishReason::Length | FinishReason::ContentFilter => ResponseStatus::Incomplete,
            _ => ResponseStatus::Completed,
        };
        // Every answer has an item, be it empty.
        if self.items.is_empty() && self.open.is_none() {
            let kind = Kind::Message {
                logprobs: Vec::new(),
            };
            self.open(out, kind);
        }
        self.close(out, status.into());
        let mut response = ResponseObject::new(&self.head, status, &self.items);
        response.completed_at = (status == ResponseStatus::Completed).then_some(outcome.now);
        response.usage = outcome.usage.as_ref().map(Into::into);
        response.incomplete_details = match outcome.reason {
            FinishReason::Length => Some("max_output_tokens"),
            FinishReason::ContentFilter => Some("content_filter"),
            _ => None,
        }
        .map(|reason| IncompleteDetails { reason });
        let json = serde_json::value::to_raw_value(&response).unwrap_or_default();
        if self.streams {
            let name = match status {
                ResponseStatus::Incomplete => "response.incomplete",
                _ => "response.completed",
            };
            let event: OfResponse<&RawValue> = OfResponse { response: &json };
            self.sequence.write(out, name, &event);
        }
        Bytes::from(String::from(Box::<str>::from(json)))
    }

    /// Ends a stream with a failure.
    pub fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        let mut response = ResponseObject::new(&self.head, ResponseStatus::Failed, &self.items);
        response.error = Some(Failure::new(error));
        self.sequence
            .write(out, "response.failed", &OfResponse { response });
    }

    /// Takes the items of a finished answer.
    pub fn take_items(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.items)
    }

    fn open(&mut self, out: &mut BytesMut, kind: Kind) {
        self.close(out, Status::Completed);
        let output_index = self.items.len();
        let place = self.head.input_items + output_index;
        let (prefix, event, part) = match &kind {
            Kind::Message { .. } => (
                "msg",
                "response.output_text.delta",
                Some(("content_index", 0)),
            ),
            Kind::Reasoning => (
                "rs",
                "response.reasoning_text.delta",
                Some(("content_index", 0)),
            ),
            Kind::Call {
                is_custom: false, ..
            } => ("fc", "response.function_call_arguments.delta", None),
            Kind::Call { .. } => ("ctc", "response.custom_tool_call_input.delta", None),
        };
        let id = self.head.id.item(prefix, place);
        let delta = self
            .streams
            .then(|| DeltaTemplate::new(event, &id, output_index, part));
        let open = Open {
            kind,
            id,
            text: String::new(),
            delta,
        };
        if self.streams {
            let item = &open.item(Status::InProgress);
            let event = OfItem { output_index, item };
            self.sequence
                .write(out, "response.output_item.added", &event);
            if let Some(part) = open.part() {
                let event = part.event(&open.id, output_index);
                self.sequence
                    .write(out, "response.content_part.added", &event);
            }
        }
        self.open = Some(open);
    }

    fn close(&mut self, out: &mut BytesMut, status: Status) {
        let Some(open) = self.open.take() else { return };
        let output_index = self.items.len();
        let mut item = open.item(status);
        if let Item::Reasoning(reasoning) = &mut item
            && self.head.seals_reasoning
        {
            reasoning.encrypted_content = Some(Reasoning::sealed(&open.text));
        }
        if self.streams {
            self.write_done(out, &open, output_index);
            if let Some(part) = open.part() {
                let event = part.event(&open.id, output_index);
                self.sequence
                    .write(out, "response.content_part.done", &event);
            }
            let event = OfItem {
                output_index,
                item: &item,
            };
            self.sequence
                .write(out, "response.output_item.done", &event);
        }
        self.items.push(item);
    }

    fn write_done(&mut self, out: &mut BytesMut, open: &Open, output_index: usize) {
        let text = |logprobs| TextDone {
            item_id: &open.id,
            output_index,
            content_index: 0,
            text: &open.text,
            logprobs,
        };
        match &open.kind {
            Kind::Message { logprobs } => {
                let event = text(Some(logprobs.as_slice()));
                self.sequence
                    .write(out, "response.output_text.done", &event);
            }
            Kind::Reasoning => {
                self.sequence
                    .write(out, "response.reasoning_text.done", &text(None));
            }
            Kind::Call {
                is_custom: true, ..
            } => {
                let event = InputDone {
                    item_id: &open.id,
                    output_index,
                    input: &open.text,
                };
                self.sequence
                    .write(out, "response.custom_tool_call_input.done", &event);
            }
            Kind::Call { name, .. } => {
                let event = ArgumentsDone {
                    item_id: &open.id,
                    output_index,
                    name,
                    arguments: &open.text,
                };
                self.sequence
                    .write(out, "response.function_call_arguments.done", &event);
            }
        }
    }
}

/// A part of an item that is being written.
#[derive(Serialize)]
#[serde(untagged)]
enum OpenPart {
    Message(Part),
    Reasoning(Thought),
}

impl OpenPart {
    fn event(self, item_id: &str, output_index: usize) -> OfPart<'_, Self> {
        OfPart {
            item_id,
            output_index,
            content_index: 0,
            part: self,
        }
    }
}

impl Open {
    /// The item as it is now; one that is in progress has no parts yet.
    fn item(&self, status: Status) -> Item {
        let id = self.id.clone();
        let has_parts = status != Status::InProgress;
        match &self.kind {
            Kind::Message { logprobs } => Item::Message(MessageItem {
                id,
                status,
                role: Role::Assistant,
                content: listed(has_parts, || self.said(logprobs)),
            }),
            Kind::Reasoning => Item::Reasoning(Reasoning {
                id,
                status: Some(status),
                summary: Vec::new(),
                content: listed(has_parts, || self.thought()),
                encrypted_content: None,
            }),
            Kind::Call {
                call_id,
                namespace,
                name,
                is_custom: true,
            } => Item::CustomToolCall(CustomToolCall {
                id,
                status,
                call_id: call_id.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                input: self.text.clone(),
            }),
            Kind::Call {
                call_id,
                namespace,
                name,
                is_custom: false,
            } => Item::FunctionCall(FunctionCall {
                id,
                status,
                call_id: call_id.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                arguments: self.text.clone(),
            }),
        }
    }

    /// The item's part as it is now; a call has none.
    fn part(&self) -> Option<OpenPart> {
        match &self.kind {
            Kind::Message { logprobs } => Some(OpenPart::Message(self.said(logprobs))),
            Kind::Reasoning => Some(OpenPart::Reasoning(self.thought())),
            Kind::Call { .. } => None,
        }
    }

    fn said(&self, logprobs: &[TokenLogprob]) -> Part {
        Part::output(self.text.clone(), logprobs.to_vec())
    }

    fn thought(&self) -> Thought {
        Thought::ReasoningText {
            text: self.text.clone(),
        }
    }
}

fn listed<T>(has_parts: bool, part: impl FnOnce() -> T) -> Vec<T> {
    has_parts.then(part).into_iter().collect()
}

/// This endpoint has no null for a token without bytes.
fn with_bytes(mut token: TokenLogprob) -> TokenLogprob {
    token.bytes.get_or_insert_default();
    for top in &mut token.top_logprobs {
        top.bytes.get_or_insert_default();
    }
    token
}
