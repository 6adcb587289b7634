//! The frames of a response's stream. A frame of text is two copies and an escape, with no JSON tree and
//! no extra allocation; the few others are serialized. Owns the bytes and the count of events; their order
//! is the caller's.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use crate::escape::write_escaped;

/// Which events there were.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        let number = self.0;
        self.0 += 1;
        number
    }

    /// Writes the event `name`, which has `fields`: a struct or a map with at least one.
    pub(super) fn write(&mut self, out: &mut BytesMut, name: &str, fields: &impl Serialize) {
        let head = head(name);
        out.reserve(head.len() + 256);
        out.put_slice(&head);
        out.put_slice(itoa::Buffer::new().format(self.next()).as_bytes());
        let open = out.len();
        // Nothing that is written here can fail: no maps with keys that are not strings, no I/O.
        let _ = serde_json::to_writer(out.writer(), fields);
        // The fields continue the object that the head began.
        if let Some(brace) = out.get_mut(open) {
            *brace = b',';
        }
        out.put_slice(b"\n\n");
    }
}

/// From the event's line to its number.
fn head(name: &str) -> Vec<u8> {
    format!("event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":").into_bytes()
}

/// Writes the frames of one text that grows.
#[derive(Clone, Debug)]
pub(super) struct DeltaTemplate {
    head: Vec<u8>,
    /// From the number to the text.
    middle: Vec<u8>,
}

impl DeltaTemplate {
    /// The event `name` of an item; `part` says where in the item the text is: `("content_index", 0)`.
    pub(super) fn new(
        name: &str,
        item_id: &str,
        output_index: usize,
        part: Option<(&str, usize)>,
    ) -> Self {
        let mut middle = b",\"item_id\":\"".to_vec();
        write_escaped(&mut middle, item_id);
        middle.extend_from_slice(format!("\",\"output_index\":{output_index}").as_bytes());
        if let Some((field, index)) = part {
            middle.extend_from_slice(format!(",\"{field}\":{index}").as_bytes());
        }
        middle.extend_from_slice(b",\"delta\":\"");
        Self {
            head: head(name),
            middle,
        }
    }

    fn open(&self, sequence: &mut Sequence, out: &mut BytesMut, text: &str) {
        out.reserve(self.head.len() + self.middle.len() + text.len() + 64);
        out.put_slice(&self.head);
        out.put_slice(itoa::Buffer::new().format(sequence.next()).as_bytes());
        out.put_slice(&self.middle);
        write_escaped(out, text);
    }

    /// A frame that has nothing but the text.
    pub(super) fn write(&self, sequence: &mut Sequence, out: &mut BytesMut, text: &str) {
        self.open(sequence, out, text);
        out.put_slice(b"\"}\n\n");
    }

    /// A frame of output text, which has log probabilities.
    pub(super) fn write_with(
        &self,
        sequence: &mut Sequence,
        out: &mut BytesMut,
        text: &str,
        logprobs: &[impl Serialize],
    ) {
        self.open(sequence, out, text);
        if logprobs.is_empty() {
            out.put_slice(b"\",\"logprobs\":[]}\n\n");
            return;
        }
        out.put_slice(b"\",\"logprobs\":");
        let _ = serde_json::to_writer(out.writer(), logprobs);
        out.put_slice(b"}\n\n");
    }
}
