//! One client's connection to the floor: requests in, ready bytes out.

use std::io::{self, ErrorKind, Read, Write};

use memchr::memmem;
use mio::net::TcpStream;

/// What a token costs on the wire of a usual gateway: an event of about 230 bytes in its own chunk.
const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\
    \"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"inflight-floor\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\
    \"finish_reason\":null}]}\n\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const READY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
    content-length: 2\r\n\r\n{}";
/// Where a request does not name a number.
const DEFAULT_TOKENS: u64 = 128;
const MAX_REQUEST_BYTES: usize = 1 << 20;

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Open,
    Blocked,
    /// The last token and the end of the stream are written, or waiting to be.
    Ended,
}

pub(super) struct Connection {
    /// Whether the server has it among the streams to write to.
    pub(super) is_queued: bool,
    socket: TcpStream,
    request: Vec<u8>,
    /// Bytes that the socket did not take yet; mostly empty.
    pending: Vec<u8>,
    tokens: u64,
    sent: u64,
    requests: u64,
}

impl Connection {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            is_queued: false,
            socket,
            request: Vec::new(),
            pending: Vec::new(),
            tokens: 0,
            sent: 0,
            requests: 0,
        }
    }

    /// Counts up with each request, so that an old one differs from a new.
    pub(super) fn request_number(&self) -> u64 {
        self.requests
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.sent < self.tokens
    }

    /// Reads what there is; a request that is complete becomes a stream.
    ///
    /// # Errors
    /// When the client has closed, or sends no HTTP that can be read.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.request
                        .extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.request.len() > MAX_REQUEST_BYTES {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        if !self.is_streaming() {
            self.answer()?;
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        let Some(head) = memmem::find(&self.request, b"\r\n\r\n").map(|at| at + 4) else {
            return Ok(());
        };
        let (head_bytes, body) = self.request.split_at(head);
        let length = content_length(head_bytes);
        if body.len() < length {
            return Ok(());
        }
        if head_bytes.starts_with(b"POST") {
            let body = body.get(..length).unwrap_or_default();
            self.tokens = max_tokens(body).unwrap_or(DEFAULT_TOKENS);
            self.sent = 0;
            self.requests += 1;
        } else {
            self.write(READY)?;
        }
        self.request.drain(..head + length);
        Ok(())
    }

    /// Writes the next token, alone; with the last one the stream's end.
    pub(super) fn write_token(&mut self) -> io::Result<Progress> {
        if !self.is_streaming() {
            return Ok(Progress::Ended);
        }
        if !self.pending.is_empty() {
            self.flush()?;
            if !self.pending.is_empty() {
                return Ok(Progress::Blocked);
            }
        }
        let mut bytes = Vec::with_capacity(1024);
        if self.sent == 0 {
            bytes.extend_from_slice(HEAD);
        }
        push_chunk(&mut bytes, EVENT);
        self.sent += 1;
        self.write(&bytes)?;
        if self.is_streaming() {
            let is_blocked = !self.pending.is_empty();
            return Ok(if is_blocked {
                Progress::Blocked
            } else {
                Progress::Open
            });
        }
        let end = end_of_stream(self.tokens);
        self.write(&end)?;
        // The client may have sent its next request already; its event is long over.
        self.answer()?;
        Ok(if self.is_streaming() {
            Progress::Open
        } else {
            Progress::Ended
        })
    }

    /// Writes what an earlier write left.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        self.write(&pending)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        if self.pending.is_empty() {
            while !rest.is_empty() {
                match self.socket.write(rest) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.pending.extend_from_slice(rest);
        Ok(())
    }
}

fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Finish reason, usage, the end mark and the last chunk, as one write.
fn end_of_stream(tokens: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let finish = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\
         \"finish_reason\":\"length\"}]}\n\n";
    let usage = format!(
        "data: {{\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{{\
         \"prompt_tokens\":1,\"completion_tokens\":{tokens},\"total_tokens\":{}}}}}\n\n",
        tokens.saturating_add(1)
    );
    push_chunk(&mut out, finish.as_bytes());
    push_chunk(&mut out, usage.as_bytes());
    push_chunk(&mut out, b"data: [DONE]\n\n");
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// 0 where the head names none.
fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head);
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
        .min(MAX_REQUEST_BYTES)
}

fn max_tokens(body: &[u8]) -> Option<u64> {
    let key = b"\"max_tokens\":";
    let rest = body
        .get(memmem::find(body, key)? + key.len()..)?
        .trim_ascii_start();
    let end = rest
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(rest.len());
    std::str::from_utf8(rest.get(..end)?)
        .ok()?
        .parse()
        .ok()
        .filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_far_as_needed() {
        let head = b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n";
        assert_eq!(content_length(head), 12);
        assert_eq!(content_length(b"GET / HTTP/1.1\r\n\r\n"), 0);
        assert_eq!(max_tokens(b"{\"max_tokens\": 7}"), Some(7));
        for body in [&b"{}"[..], b"{\"max_tokens\":null}", b"{\"max_tokens\":0}"] {
            assert_eq!(max_tokens(body), None);
        }
    }
}
