//! Reads one HTTP/1.1 response that streams server-sent events, from bytes cut anywhere. Counts what
//! a client of OpenAI's API or of Triton's would see. Knows nothing of sockets or clocks.

use memchr::{memchr, memmem};

/// A head longer than this is not a gateway's response.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How much of an error's body is kept for the report.
const MAX_ERROR_BYTES: usize = 512;
/// An event longer than this is cut: no chunk of a chat completion is near it.
const MAX_LINE_BYTES: usize = 8 << 20;

/// What an event means to someone who counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A delta with text.
    Content,
    /// A response of Triton's `generate_stream` with so many tokens.
    Tokens(u64),
    Usage(TokenUsage),
    Error(String),
    Done,
    /// A role, a finish reason, a comment.
    Other,
}

/// What the usage chunk says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt: u64,
    /// Those of the prompt that were found in a cache.
    pub(crate) cached: u64,
    pub(crate) completion: u64,
}

/// Why bytes are no HTTP response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    #[error("the response's head is longer than {MAX_HEAD_BYTES} bytes")]
    HeadTooLong,
    #[error("the response starts with `{0}`, not with an HTTP/1.1 status line")]
    StatusLine(String),
    #[error("`{0}` is not a valid HTTP chunk size")]
    ChunkSize(String),
    #[error("an event is longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong,
}

/// Where in the body the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// In the line with a chunk's size.
    ChunkSize,
    ChunkData {
        left: usize,
    },
    /// In the line break after a chunk's data.
    ChunkEnd,
    /// In the trailer lines after the last chunk.
    Trailer,
    Length {
        left: usize,
    },
    UntilClose,
    Complete,
}

/// One response in the making.
#[derive(Debug, Default)]
pub(crate) struct ResponseReader {
    /// The head until it is complete, then the current chunk-size or trailer line.
    line: Vec<u8>,
    /// The current event's line, as far as it is split over reads.
    event: Vec<u8>,
    head: Option<Head>,
    body: Option<Body>,
    /// The start of a body that is not an event stream.
    error_body: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    status: u16,
    keeps_alive: bool,
}

/// Reads a response whole and byte by byte, for fuzzing.
///
/// # Panics
/// Where the two ways differ.
pub fn check_reader(response: &[u8]) {
    let (mut whole, mut events) = (ResponseReader::default(), Vec::new());
    let read = whole.feed(response, &mut |event| events.push(event));
    let (mut cut, mut cut_events) = (ResponseReader::default(), Vec::new());
    let mut cut_read = Ok(0);
    for byte in response.chunks(1) {
        let taken = cut.feed(byte, &mut |event| cut_events.push(event));
        cut_read = cut_read.and_then(|sum| Ok(sum + taken?));
        if cut_read.is_err() {
            break;
        }
    }
    assert_eq!((read.is_ok(), events), (cut_read.is_ok(), cut_events));
    if read.is_ok() {
        assert_eq!(read, cut_read);
    }
}

impl ResponseReader {
    /// Takes bytes in and reports each event. Returns how many bytes belonged to this response:
    /// fewer than given once it is complete.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        on_event: &mut impl FnMut(Event),
    ) -> Result<usize, ResponseError> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_complete() {
            rest = match self.body {
                None => self.feed_head(rest)?,
                Some(body) => self.feed_body(body, rest, on_event)?,
            };
        }
        Ok(bytes.len() - rest.len())
    }

    /// Whether the response has ended, so that the connection is free for the next.
    pub(crate) fn is_complete(&self) -> bool {
        self.body == Some(Body::Complete)
    }

    /// 0 before the head is there.
    pub(crate) fn status(&self) -> u16 {
        self.head.map_or(0, |head| head.status)
    }

    pub(crate) fn keeps_alive(&self) -> bool {
        self.head.is_some_and(|head| head.keeps_alive)
    }

    /// The start of an error's body.
    pub(crate) fn error_body(&self) -> String {
        String::from_utf8_lossy(&self.error_body).trim().to_owned()
    }

    /// Back to a fresh reader, keeping what it has allocated.
    pub(crate) fn reset(&mut self) {
        self.line.clear();
        self.event.clear();
        self.error_body.clear();
        self.head = None;
        self.body = None;
    }

    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ResponseError> {
        // The end may be split over reads, so it is searched for from three bytes before the new.
        let before = self.line.len();
        self.line.extend_from_slice(bytes);
        let from = before.saturating_sub(3);
        let found = self
            .line
            .get(from..)
            .and_then(|tail| memmem::find(tail, b"\r\n\r\n"));
        let Some(end) = found.map(|at| from + at + 4) else {
            if self.line.len() > MAX_HEAD_BYTES {
                return Err(ResponseError::HeadTooLong);
            }
            return Ok(&[]);
        };
        let text = String::from_utf8_lossy(self.line.get(..end).unwrap_or_default()).into_owned();
        self.line.clear();
        self.read_head(&text)?;
        Ok(bytes.get(end - before..).unwrap_or_default())
    }

    fn read_head(&mut self, text: &str) -> Result<(), ResponseError> {
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| ResponseError::StatusLine(status_line.chars().take(80).collect()))?;
        let (mut body, mut keeps_alive) = (Body::UntilClose, true);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") && value.ends_with("chunked") {
                body = Body::ChunkSize;
            } else if name.eq_ignore_ascii_case("content-length")
                && let Ok(left) = value.parse()
            {
                body = Body::Length { left };
            } else if name.eq_ignore_ascii_case("connection") {
                keeps_alive = !value.eq_ignore_ascii_case("close");
            }
        }
        keeps_alive &= body != Body::UntilClose;
        if let Body::Length { left: 0 } = body {
            body = Body::Complete;
        }
        self.head = Some(Head {
            status,
            keeps_alive,
        });
        self.body = Some(body);
        Ok(())
    }

    fn feed_body<'a>(
        &mut self,
        body: Body,
        bytes: &'a [u8],
        on_event: &mut impl FnMut(Event),
    ) -> Result<&'a [u8], ResponseError> {
        let (next, rest) = match body {
            Body::ChunkSize => match self.feed_line(bytes)? {
                (false, rest) => (body, rest),
                (true, rest) => {
                    let left = chunk_size(&self.line)?;
                    self.line.clear();
                    let next = if left == 0 {
                        Body::Trailer
                    } else {
                        Body::ChunkData { left }
                    };
                    (next, rest)
                }
            },
            Body::ChunkData { left } => {
                let (data, rest) = bytes.split_at(left.min(bytes.len()));
                self.feed_content(data, on_event)?;
                match left - data.len() {
                    0 => (Body::ChunkEnd, rest),
                    left => (Body::ChunkData { left }, rest),
                }
            }
            Body::ChunkEnd => match self.feed_line(bytes)? {
                (false, rest) => (body, rest),
                (true, rest) => {
                    self.line.clear();
                    (Body::ChunkSize, rest)
                }
            },
            Body::Trailer => match self.feed_line(bytes)? {
                (false, rest) => (body, rest),
                (true, rest) => {
                    let is_last = self.line.trim_ascii().is_empty();
                    self.line.clear();
                    (
                        if is_last {
                            Body::Complete
                        } else {
                            Body::Trailer
                        },
                        rest,
                    )
                }
            },
            Body::Length { left } => {
                let (data, rest) = bytes.split_at(left.min(bytes.len()));
                self.feed_content(data, on_event)?;
                match left - data.len() {
                    0 => (Body::Complete, rest),
                    left => (Body::Length { left }, rest),
                }
            }
            Body::UntilClose => {
                self.feed_content(bytes, on_event)?;
                (body, &[][..])
            }
            Body::Complete => (body, bytes),
        };
        self.body = Some(next);
        Ok(rest)
    }

    /// Adds bytes up to a line break to `line`; true when the break was there.
    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> Result<(bool, &'a [u8]), ResponseError> {
        let (part, rest, is_whole) = match memchr(b'\n', bytes) {
            Some(at) => (&bytes[..at], &bytes[at + 1..], true),
            None => (bytes, &[][..], false),
        };
        self.line.extend_from_slice(part);
        if self.line.len() > MAX_HEAD_BYTES {
            return Err(ResponseError::HeadTooLong);
        }
        Ok((is_whole, rest))
    }

    fn feed_content(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(Event),
    ) -> Result<(), ResponseError> {
        if self.status() != 200 {
            let room = MAX_ERROR_BYTES.saturating_sub(self.error_body.len());
            self.error_body.extend(bytes.iter().take(room));
            return Ok(());
        }
        while let Some(at) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..at], &bytes[at + 1..]);
            bytes = rest;
            // Whole lines, which most are, are read in place.
            if self.event.is_empty() {
                report(line, on_event);
            } else {
                self.event.extend_from_slice(line);
                report(&self.event, on_event);
                self.event.clear();
            }
        }
        self.event.extend_from_slice(bytes);
        if self.event.len() > MAX_LINE_BYTES {
            return Err(ResponseError::LineTooLong);
        }
        Ok(())
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, ResponseError> {
    let text = std::str::from_utf8(line).unwrap_or_default();
    let digits = text.split(';').next().unwrap_or_default().trim();
    // A sign is not a digit of a size, but `from_str_radix` would take it.
    if digits.starts_with('+') {
        return Err(ResponseError::ChunkSize(digits.to_owned()));
    }
    usize::from_str_radix(digits, 16).map_err(|_| ResponseError::ChunkSize(digits.to_owned()))
}

fn report(line: &[u8], on_event: &mut impl FnMut(Event)) {
    if let Some(data) = line.strip_prefix(b"data:") {
        on_event(classify(data.trim_ascii()));
    }
}

/// The keys of what a model wrote: an answer's text in chat and completions, a call's arguments, reasoning.
const TEXTS: [&[u8]; 4] = [
    b"\"content\":\"",
    b"\"text\":\"",
    b"\"arguments\":\"",
    b"\"reasoning_content\":\"",
];

/// What an event's JSON says, by search: inside a JSON string every quote is escaped, so that these
/// patterns, which hold unescaped ones, match keys only.
fn classify(data: &[u8]) -> Event {
    if data == b"[DONE]" {
        return Event::Done;
    }
    let has_text = |key: &[u8]| {
        memmem::find_iter(data, key).any(|at| data.get(at + key.len()).is_some_and(|b| *b != b'"'))
    };
    if TEXTS.iter().any(|key| has_text(key)) {
        return Event::Content;
    }
    if let Some(completion) = number_after(data, b"\"completion_tokens\":") {
        let count = |key| number_after(data, key).unwrap_or_default();
        return Event::Usage(TokenUsage {
            prompt: count(b"\"prompt_tokens\":"),
            cached: count(b"\"cached_tokens\":"),
            completion,
        });
    }
    for count in [&b"\"sequence_length\":"[..], b"\"num_output_tokens\":"] {
        if let Some(tokens) = number_after(data, count) {
            return Event::Tokens(tokens);
        }
    }
    if memmem::find(data, b"\"error\":{").is_some() || data.starts_with(b"{\"error\":") {
        let text = data.get(..MAX_ERROR_BYTES).unwrap_or(data);
        return Event::Error(String::from_utf8_lossy(text).into_owned());
    }
    Event::Other
}

fn number_after(data: &[u8], key: &[u8]) -> Option<u64> {
    let at = memmem::find(data, key)?;
    let rest = data.get(at + key.len()..)?.trim_ascii_start();
    let end = rest
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(rest.len());
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
