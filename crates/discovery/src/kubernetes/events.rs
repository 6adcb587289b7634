//! What the API server writes: a list of slices, and a watch, one event a line. Pure. Owns what is an event and what is not;
//! a line that makes no sense is an error, after which nothing of the stream is believed.

use bytes::{Buf, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::slices::{Metadata, Slice};

/// A slice has at most a thousand endpoints, and no object more than 1.5 MB.
const MAX_LINE_BYTES: usize = 4 << 20;
/// The status of a version that is too old.
const GONE: u16 = 410;

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) metadata: PageMetadata,
    pub(super) items: Option<Vec<Slice>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    /// Where the next page begins; empty after the last.
    #[serde(default, rename = "continue")]
    pub(super) next: String,
}

/// A change of what is watched.
#[derive(Debug)]
pub(super) enum Event {
    Put(Slice),
    Deleted(Metadata),
    /// Nothing but the version.
    Bookmark(String),
    /// The version that was watched from is too old.
    Gone,
    /// Something that a later API may send.
    Other,
}

/// What cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventError {
    #[error("the API server sent a line of more than {MAX_LINE_BYTES} bytes")]
    TooLong,
    #[error("the API server sent what is not an event")]
    Form(#[source] serde_json::Error),
    #[error("the API server ended the watch with status `{code}`: {message}")]
    Failed { code: u16, message: String },
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The object of an event that has only a version.
#[derive(Deserialize)]
struct Versioned {
    metadata: Metadata,
}

/// A status of another kind of answer, which has its code in HTTP's.
#[derive(Deserialize)]
struct Said {
    message: String,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
    #[serde(default)]
    message: String,
}

/// Reads a line of a watch.
///
/// # Errors
/// It is not an event, or says that the watch has failed.
pub(super) fn read(line: &[u8]) -> Result<Event, EventError> {
    let event: RawEvent<'_> = serde_json::from_slice(line).map_err(EventError::Form)?;
    match event.kind.as_str() {
        "ADDED" | "MODIFIED" => object(event.object).map(Event::Put),
        "DELETED" => object(event.object).map(|one: Versioned| Event::Deleted(one.metadata)),
        "BOOKMARK" => object(event.object)
            .map(|one: Versioned| Event::Bookmark(one.metadata.resource_version)),
        "ERROR" => match object::<Status>(event.object)? {
            Status { code: GONE, .. } => Ok(Event::Gone),
            Status { code, message } => Err(EventError::Failed {
                code,
                message: abbreviated(&message),
            }),
        },
        _ => Ok(Event::Other),
    }
}

fn object<T: DeserializeOwned>(raw: &RawValue) -> Result<T, EventError> {
    serde_json::from_str(raw.get()).map_err(EventError::Form)
}

/// What an answer without success says, as the end of a sentence; empty where a proxy wrote it.
pub(super) fn message_of(answer: &[u8]) -> String {
    match serde_json::from_slice::<Said>(answer) {
        Ok(said) => format!(": {}", abbreviated(&said.message)),
        Err(_) => String::new(),
    }
}

/// As much of a peer's text as an error shows.
fn abbreviated(text: &str) -> String {
    text.chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect()
}

/// Bytes as lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: BytesMut,
    /// Bytes without an end of a line.
    searched: usize,
}

impl Lines {
    /// More of the stream.
    ///
    /// # Errors
    /// There is more than a line may have, and no end of it.
    pub(super) fn push(&mut self, data: impl Buf) -> Result<(), EventError> {
        use bytes::BufMut;
        self.bytes.put(data);
        let has_end =
            self.bytes.len() <= MAX_LINE_BYTES || self.bytes[self.searched..].contains(&b'\n');
        has_end.then_some(()).ok_or(EventError::TooLong)
    }

    /// The next whole line that is not empty.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        loop {
            let rest = &self.bytes[self.searched..];
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.bytes.len();
                return None;
            };
            let line = self.bytes.split_to(self.searched + end + 1).freeze();
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A stream of whatever bytes, in whatever pieces, is lines that are events or errors.
        #[test]
        fn no_bytes_cause_a_panic(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            changed in any::<(u16, u8)>(),
        ) {
            let mut whole = Vec::from(
                &br#"{"type":"ADDED","object":{"metadata":{"name":"s","resourceVersion":"7"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":1}]}}"#[..],
            );
            let place = usize::from(changed.0) % whole.len();
            whole[place] = changed.1;
            let _ = read(&whole);
            let mut lines = Lines::default();
            for piece in &pieces {
                lines.push(piece.as_slice()).unwrap();
                while let Some(line) = lines.pop() {
                    prop_assert!(line.ends_with(b"\n"));
                    let _ = read(&line);
                }
            }
        }
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"{\"a\": 1}\n\n{\"b\": 2}\r\n{\"half\"";
        for step in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in text.chunks(step) {
                lines.push(piece).unwrap();
                found.extend(std::iter::from_fn(|| lines.pop()));
            }
            let trimmed: Vec<_> = found.iter().map(|line| line.trim_ascii()).collect();
            assert_eq!(trimmed, [b"{\"a\": 1}", b"{\"b\": 2}"], "{step}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..4 {
            lines.push(piece.as_slice()).unwrap();
            assert!(lines.pop().is_none());
        }
        assert!(matches!(lines.push(&b"x"[..]), Err(EventError::TooLong)));
    }

    #[test]
    fn events_are_read_and_what_is_none_is_an_error() {
        let read = |text: &str| read(text.as_bytes());
        let slice = r#"{"metadata":{"name":"s","resourceVersion":"7"},"addressType":"IPv4","endpoints":null,"ports":null}"#;
        for kind in ["ADDED", "MODIFIED"] {
            let event = read(&format!(r#"{{"type":"{kind}","object":{slice}}}"#));
            assert!(matches!(event, Ok(Event::Put(_))), "{event:?}");
        }
        let event = read(&format!(r#"{{"type":"DELETED","object":{slice}}}"#));
        assert!(matches!(event, Ok(Event::Deleted(one)) if one.name == "s"));
        let event = read(
            r#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"9","creationTimestamp":null},"endpoints":null,"ports":null}}"#,
        );
        assert!(matches!(event, Ok(Event::Bookmark(version)) if version == "9"));
        let event = read(
            r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version: 1 (9)","reason":"Expired"}}"#,
        );
        assert!(matches!(event, Ok(Event::Gone)));
        let event = read(r#"{"type":"ERROR","object":{"code":500,"message":"etcd\nis away"}}"#);
        let error = event.unwrap_err().to_string();
        assert!(error.ends_with(r"status `500`: etcd\nis away"), "{error}");
        assert!(matches!(
            read(r#"{"type":"NEW","object":{}}"#),
            Ok(Event::Other)
        ));
        for bad in [
            "",
            "{}",
            "<html>",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"s"},"addressType":"IPv9","endpoints":[],"ports":[]}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"s"},"addressType":"IPv4","endpoints":[{"addresses":"10.0.0.1"}],"ports":[]}}"#,
            r#"{"type":"ERROR","object":{}}"#,
        ] {
            assert!(matches!(read(bad), Err(EventError::Form(_))), "{bad}");
        }
    }
}
