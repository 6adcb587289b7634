//! The events of a streamed answer. Owns their order and their bytes: blocks open when they have something to
//! say and close when another begins. What all deltas of a block share is written once for each block, so that
//! a delta is two copies and an escape, with no JSON tree and no extra allocation.

use bytes::{BufMut, BytesMut};
use inflight_openai::ApiError;
use inflight_openai::escape::write_escaped;
use serde::Serialize;

use crate::error;
use crate::response::{ContentBlock, SIGNATURE, StopReason, Usage};

/// Ends a delta of text: the string, the delta, the event.
const AFTER_DELTA: &[u8] = b"\"}}\n\n";

/// What the open block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    ToolUse,
}

impl Kind {
    /// `delta`, up to its text.
    const fn delta(self) -> &'static str {
        match self {
            Self::Text => r#"{"type":"text_delta","text":""#,
            Self::Thinking => r#"{"type":"thinking_delta","thinking":""#,
            Self::ToolUse => r#"{"type":"input_json_delta","partial_json":""#,
        }
    }
}

/// Writes the events of one answer.
///
/// ```
/// use bytes::BytesMut;
/// use inflight_anthropic::{Events, StopReason, Usage};
///
/// let mut out = BytesMut::new();
/// let mut events = Events::start(&mut out, "msg_1", "m", &Usage::new(Some(5), 0, 0));
/// events.text(&mut out, "Hi");
/// events.end(&mut out, StopReason::EndTurn, None, &Usage::new(Some(5), 0, 2));
/// assert!(out.starts_with(b"event: message_start\n"));
/// assert!(out.ends_with(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
/// ```
#[derive(Debug)]
pub struct Events {
    open: Option<Kind>,
    /// Blocks that have begun.
    begun: u32,
    /// Everything of a delta of the open block before its text.
    before: Vec<u8>,
}

impl Events {
    /// Begins an answer: `message_start`, and the `ping` that Anthropic sends with it.
    pub fn start(out: &mut BytesMut, id: &str, model: &str, usage: &Usage) -> Self {
        let event = Start {
            event_type: "message_start",
            message: StartedMessage {
                id,
                object: "message",
                role: "assistant",
                model,
                content: [],
                stop_reason: None,
                stop_sequence: None,
                usage,
            },
        };
        write_event(out, "message_start", &event);
        out.put_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
        Self {
            open: None,
            begun: 0,
            before: Vec::new(),
        }
    }

    /// A piece of text; nothing where it is empty.
    pub fn text(&mut self, out: &mut BytesMut, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(Kind::Text) {
            self.begin(out, Kind::Text, &ContentBlock::text(String::new()));
        }
        self.delta(out, text);
    }

    /// A piece of what the model thinks; nothing where it is empty.
    pub fn thinking(&mut self, out: &mut BytesMut, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(Kind::Thinking) {
            let block = ContentBlock::Thinking {
                thinking: String::new(),
                signature: "",
            };
            self.begin(out, Kind::Thinking, &block);
        }
        self.delta(out, text);
    }

    /// The start of a call.
    pub fn tool_use(&mut self, out: &mut BytesMut, id: &str, name: &str) {
        let block = ContentBlock::tool_use(id.to_owned(), name.to_owned(), "");
        self.begin(out, Kind::ToolUse, &block);
    }

    /// A piece of the JSON text of the call's input; nothing where it is empty, or no call is open.
    pub fn input(&mut self, out: &mut BytesMut, json: &str) {
        if !json.is_empty() && self.open == Some(Kind::ToolUse) {
            self.delta(out, json);
        }
    }

    fn delta(&self, out: &mut BytesMut, text: &str) {
        out.reserve(self.before.len() + text.len() + 8 + AFTER_DELTA.len());
        out.put_slice(&self.before);
        write_escaped(out, text);
        out.put_slice(AFTER_DELTA);
    }

    /// Begins a block, after the open one has ended.
    fn begin(&mut self, out: &mut BytesMut, kind: Kind, content_block: &ContentBlock) {
        self.close(out);
        let event = BlockStart {
            event_type: "content_block_start",
            index: self.begun,
            content_block,
        };
        write_event(out, "content_block_start", &event);
        self.write_before(kind.delta());
        self.open = Some(kind);
        self.begun += 1;
    }

    /// Writes what the deltas of the block that begins share.
    fn write_before(&mut self, delta: &str) {
        self.before.clear();
        self.before.extend_from_slice(
            b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
        );
        let mut digits = itoa::Buffer::new();
        self.before
            .extend_from_slice(digits.format(self.begun).as_bytes());
        self.before.extend_from_slice(b",\"delta\":");
        self.before.extend_from_slice(delta.as_bytes());
    }

    /// Ends the open block, if there is one.
    fn close(&mut self, out: &mut BytesMut) {
        let Some(kind) = self.open.take() else {
            return;
        };
        let index = self.begun.saturating_sub(1);
        if kind == Kind::Thinking {
            let event = Signed {
                event_type: "content_block_delta",
                index,
                delta: SignatureDelta {
                    delta_type: "signature_delta",
                    signature: SIGNATURE,
                },
            };
            write_event(out, "content_block_delta", &event);
        }
        out.put_slice(
            b"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":",
        );
        out.put_slice(itoa::Buffer::new().format(index).as_bytes());
        out.put_slice(b"}\n\n");
    }

    /// Ends the answer: why, and its usage.
    pub fn end(
        &mut self,
        out: &mut BytesMut,
        stop_reason: StopReason,
        stop_sequence: Option<&str>,
        usage: &Usage,
    ) {
        self.close(out);
        let event = MessageDelta {
            event_type: "message_delta",
            delta: Stopped {
                stop_reason,
                stop_sequence,
            },
            usage,
        };
        write_event(out, "message_delta", &event);
        out.put_slice(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }

    /// Ends the answer with a failure.
    pub fn fail(&mut self, out: &mut BytesMut, error: &ApiError, request_id: &str) {
        out.put_slice(b"event: error\ndata: ");
        out.put_slice(&error::to_json(error, request_id));
        out.put_slice(b"\n\n");
        self.open = None;
    }
}

fn write_event(out: &mut BytesMut, name: &str, event: &impl Serialize) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    // Nothing that is written here can fail: no maps with keys that are not strings, no I/O.
    let _ = serde_json::to_writer((&mut *out).writer(), event);
    out.put_slice(b"\n\n");
}

#[derive(Serialize)]
struct Start<'a> {
    #[serde(rename = "type")]
    event_type: &'static str,
    message: StartedMessage<'a>,
}

#[derive(Serialize)]
struct StartedMessage<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    object: &'static str,
    role: &'static str,
    model: &'a str,
    content: [(); 0],
    stop_reason: Option<StopReason>,
    stop_sequence: Option<&'a str>,
    usage: &'a Usage,
}

#[derive(Serialize)]
struct BlockStart<'a> {
    #[serde(rename = "type")]
    event_type: &'static str,
    index: u32,
    content_block: &'a ContentBlock,
}

#[derive(Serialize)]
struct Signed {
    #[serde(rename = "type")]
    event_type: &'static str,
    index: u32,
    delta: SignatureDelta,
}

#[derive(Serialize)]
struct SignatureDelta {
    #[serde(rename = "type")]
    delta_type: &'static str,
    signature: &'static str,
}

#[derive(Serialize)]
struct MessageDelta<'a> {
    #[serde(rename = "type")]
    event_type: &'static str,
    delta: Stopped<'a>,
    usage: &'a Usage,
}

#[derive(Serialize)]
struct Stopped<'a> {
    stop_reason: StopReason,
    stop_sequence: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Each event's name and data.
    fn read(out: &BytesMut) -> Vec<(String, Value)> {
        let text = std::str::from_utf8(out).unwrap();
        let events = text.strip_suffix("\n\n").unwrap().split("\n\n");
        let read = events.map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap().to_owned();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name);
            (name, data)
        });
        read.collect()
    }

    #[test]
    fn a_text_answer_is_framed_to_the_letter() {
        let mut out = BytesMut::new();
        let mut events = Events::start(&mut out, "msg_1", "m\"x", &Usage::new(Some(5), 2, 0));
        events.text(&mut out, "");
        events.text(&mut out, "He \"");
        events.text(&mut out, "y\n");
        let usage = Usage::new(Some(5), 2, 3);
        events.end(&mut out, StopReason::EndTurn, None, &usage);
        let expected = [
            (
                "message_start",
                r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m\"x","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":0}}}"#,
            ),
            ("ping", r#"{"type":"ping"}"#),
            (
                "content_block_start",
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            ),
            (
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"He \""}}"#,
            ),
            (
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"y\n"}}"#,
            ),
            (
                "content_block_stop",
                r#"{"type":"content_block_stop","index":0}"#,
            ),
            (
                "message_delta",
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":3}}"#,
            ),
            ("message_stop", r#"{"type":"message_stop"}"#),
        ];
        let expected: String = expected
            .iter()
            .map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"))
            .collect();
        assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
    }

    #[test]
    fn blocks_follow_one_another_and_deltas_name_theirs() {
        let mut out = BytesMut::new();
        let mut events = Events::start(&mut out, "msg_1", "m", &Usage::default());
        events.thinking(&mut out, "Hm");
        events.thinking(&mut out, "m");
        events.text(&mut out, "Looking.");
        events.tool_use(&mut out, "call_1", "look");
        events.input(&mut out, "{\"at\":");
        events.input(&mut out, "");
        events.input(&mut out, "1}");
        events.tool_use(&mut out, "call_2", "wait");
        events.end(&mut out, StopReason::ToolUse, None, &Usage::default());
        let told: Vec<Value> = read(&out).into_iter().map(|(_, data)| data).collect();
        let start = |index: u32, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let delta = |index: u32, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let stop = |index: u32| json!({"type": "content_block_stop", "index": index});
        let thought = |text: &str| json!({"type": "thinking_delta", "thinking": text});
        let input = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
        assert_eq!(
            told[2..told.len() - 2],
            [
                start(
                    0,
                    json!({"type": "thinking", "thinking": "", "signature": ""})
                ),
                delta(0, thought("Hm")),
                delta(0, thought("m")),
                delta(
                    0,
                    json!({"type": "signature_delta", "signature": SIGNATURE})
                ),
                stop(0),
                start(1, json!({"type": "text", "text": ""})),
                delta(1, json!({"type": "text_delta", "text": "Looking."})),
                stop(1),
                start(
                    2,
                    json!({"type": "tool_use", "id": "call_1", "name": "look", "input": {}})
                ),
                delta(2, input("{\"at\":")),
                delta(2, input("1}")),
                stop(2),
                start(
                    3,
                    json!({"type": "tool_use", "id": "call_2", "name": "wait", "input": {}})
                ),
                stop(3),
            ]
        );
    }

    #[test]
    fn an_answer_without_text_has_no_block() {
        let mut out = BytesMut::new();
        let usage = Usage::default();
        let mut events = Events::start(&mut out, "msg_1", "m", &usage);
        events.end(&mut out, StopReason::StopSequence, Some("END"), &usage);
        let read = read(&out);
        let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["message_start", "ping", "message_delta", "message_stop"]
        );
        let stopped = json!({"stop_reason": "stop_sequence", "stop_sequence": "END"});
        assert_eq!(read[2].1["delta"], stopped);
    }

    #[test]
    fn a_failure_is_an_event_of_its_own() {
        let mut out = BytesMut::new();
        let mut events = Events::start(&mut out, "msg_1", "m", &Usage::default());
        events.text(&mut out, "H");
        events.fail(&mut out, &ApiError::unavailable("gone"), "req_1");
        let (name, data) = read(&out).pop().unwrap();
        assert_eq!(name, "error");
        assert_eq!(data["error"]["type"], "overloaded_error");
        assert_eq!(data["request_id"], "req_1");
    }
}
