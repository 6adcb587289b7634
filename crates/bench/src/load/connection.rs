//! A client's kept-alive HTTP/1.1 connection, with at most one request at a time: writes it, reads its stream and
//! records how it came out. An ordinary client: it leaves delayed ACKs as they are, and sends each request in one
//! write. Knows nothing of when requests start.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Poll, Token};

use super::{LoadError, Target, ending};
use crate::measure::{Ending, Recorder, Timer};
use crate::sse::{Event, ResponseReader};

/// Failed connections in a row, without one response between, that end the run: nobody is there.
pub(super) const MAX_FAILURES: usize = 16;
/// More of an answer than a read of this size does not wait in a socket buffer of usual size.
pub(super) const READ_BYTES: usize = 256 << 10;

/// A request, and what a whole answer to it has.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) bytes: Vec<u8>,
    /// Of all choices.
    pub(super) tokens: u64,
    /// Sequences that the request asks for.
    pub(super) choices: u32,
    /// Whether a stream's end is marked by a separate event.
    pub(super) has_end_mark: bool,
}

/// What became of a connection.
#[derive(Debug)]
pub(super) enum Step {
    Open,
    /// Its response is complete and recorded; the next request may begin.
    Ended,
    /// It is closed, and the request that ran, if any, recorded as cut.
    Lost {
        was_running: bool,
        /// Where not even the start of a response came.
        error: Option<std::io::Error>,
    },
}

pub(super) struct Connection {
    token: Token,
    socket: Option<TcpStream>,
    /// Bytes of the request that are sent.
    sent: usize,
    running: Option<Running>,
    reader: ResponseReader,
}

struct Running {
    call: Arc<Call>,
    timer: Timer,
    usage: Option<u64>,
    error: Option<String>,
    is_done: bool,
    /// Content events: what a cut stream is known to have brought at least.
    events: u64,
}

/// Whether a connection can continue.
enum Io {
    Open,
    Closed,
}

impl Target {
    /// A whole request.
    pub(super) fn post(&self, path: &str, body: &str) -> Vec<u8> {
        let authorization = self
            .api_key
            .as_ref()
            .map(|key| format!("authorization: Bearer {key}\r\n"))
            .unwrap_or_default();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             accept: text/event-stream\r\n{authorization}content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .into_bytes()
    }
}

/// The first address of `HOST:PORT`.
pub(super) fn resolve(address: &str) -> Result<SocketAddr, LoadError> {
    let found = address.to_socket_addrs().ok();
    let first = found.and_then(|mut addresses| addresses.next());
    first.ok_or_else(|| LoadError::Address {
        address: address.to_owned(),
    })
}

impl Connection {
    /// `index` comes back as the token of its events.
    pub(super) fn new(index: usize) -> Self {
        Self {
            token: Token(index),
            socket: None,
            sent: 0,
            running: None,
            reader: ResponseReader::default(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a request, opening the connection if need be. Times count from `from`.
    pub(super) fn begin(
        &mut self,
        call: Arc<Call>,
        from: Instant,
        address: SocketAddr,
        poll: &Poll,
        recorder: &mut Recorder,
    ) -> std::io::Result<Step> {
        self.sent = 0;
        self.reader.reset();
        let running = self.running.insert(Running {
            timer: Timer::start(from).of_choices(call.choices),
            call,
            usage: None,
            error: None,
            is_done: false,
            events: 0,
        });
        let Some(socket) = self.socket.as_mut() else {
            let mut socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut socket, self.token, interest)?;
            // The socket becomes writable when it is connected; the request goes out then.
            self.socket = Some(socket);
            return Ok(Step::Open);
        };
        // Only written here: the answer's arrival is a separate event.
        Ok(
            match write_request(socket, &running.call.bytes, &mut self.sent) {
                Ok(Io::Open) => Step::Open,
                Ok(Io::Closed) => self.lost(None, poll, recorder),
                Err(error) => self.lost(Some(error), poll, recorder),
            },
        )
    }

    /// Writes and reads what the socket takes and has.
    ///
    /// `is_closing`: the server has closed its side, and that was reported together with data.
    pub(super) fn drive(
        &mut self,
        is_closing: bool,
        buffer: &mut [u8],
        poll: &Poll,
        recorder: &mut Recorder,
    ) -> Step {
        // Out of the connection for now, whose other parts take what is read.
        let Some(mut socket) = self.socket.take() else {
            return Step::Open;
        };
        let mut outcome = match &self.running {
            Some(running) => write_request(&mut socket, &running.call.bytes, &mut self.sent),
            None => Ok(Io::Open),
        };
        let mut is_complete = false;
        while let Ok(Io::Open) = outcome {
            match socket.read(buffer) {
                Ok(0) => outcome = Ok(Io::Closed),
                Ok(count) => {
                    is_complete = self.take(buffer.get(..count).unwrap_or_default(), recorder);
                    if is_complete {
                        break;
                    }
                    // A short read emptied the socket; the next readiness reports more.
                    if count < buffer.len() && !is_closing {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => outcome = Err(error),
            }
        }
        self.socket = Some(socket);
        if is_complete {
            let reusable = self.reader.keeps_alive() && matches!(outcome, Ok(Io::Open));
            self.finish(false, recorder);
            if !reusable {
                self.close(poll);
            }
            return Step::Ended;
        }
        match outcome {
            Ok(Io::Open) => Step::Open,
            Ok(Io::Closed) => self.lost(None, poll, recorder),
            Err(error) => self.lost(Some(error), poll, recorder),
        }
    }

    /// The connection ended: its request, if one ran, was cut.
    fn lost(
        &mut self,
        error: Option<std::io::Error>,
        poll: &Poll,
        recorder: &mut Recorder,
    ) -> Step {
        self.close(poll);
        let was_running = self.is_running();
        let had_response = self.reader.status() != 0;
        self.finish(true, recorder);
        let unanswered = was_running && !had_response;
        Step::Lost {
            was_running,
            error: unanswered.then(|| error.unwrap_or_else(|| ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Reads a piece of the response; true when it is complete.
    fn take(&mut self, bytes: &[u8], recorder: &mut Recorder) -> bool {
        let Some(running) = &mut self.running else {
            // Bytes that no request asked for: the next response will not start where it should.
            return false;
        };
        let now = Instant::now();
        let result = self.reader.feed(bytes, &mut |event| match event {
            Event::Content => {
                running.events += 1;
                recorder.event(&mut running.timer, now);
            }
            Event::Tokens(tokens) => {
                running.events += 1;
                running.usage = Some(running.usage.unwrap_or(0) + tokens);
                recorder.event(&mut running.timer, now);
            }
            Event::Usage(usage) => {
                running.usage = Some(usage.completion);
                recorder.prompt(usage.prompt, usage.cached);
            }
            Event::Error(text) => running.error = Some(text),
            Event::Done => running.is_done = true,
            Event::Other => {}
        });
        match result {
            Ok(_) => self.reader.is_complete(),
            Err(error) => {
                running.error = Some(error.to_string());
                true
            }
        }
    }

    /// Records how the request that ran came out. `is_cut`: the connection ended before its response.
    fn finish(&mut self, is_cut: bool, recorder: &mut Recorder) {
        let Some(running) = self.running.take() else {
            return;
        };
        let tokens = running.usage.unwrap_or(running.events);
        // A whole response is the only sign of the end where none marks it.
        let is_done = running.is_done || !(is_cut || running.call.has_end_mark);
        let ending = if let Some(error) = running.error {
            Ending::Errored(error)
        } else if !matches!(self.reader.status(), 0 | 200) {
            let status = self.reader.status();
            Ending::Errored(format!("HTTP {status}: {}", self.reader.error_body()))
        } else if !is_done {
            Ending::Truncated
        } else if running.usage.is_none() {
            Ending::Errored("a stream ended without a usage chunk: its tokens are unknown".into())
        } else {
            ending(tokens, running.call.tokens)
        };
        recorder.end(&running.timer, tokens, ending);
    }

    fn close(&mut self, poll: &Poll) {
        if let Some(mut socket) = self.socket.take() {
            // Closing removes it from epoll as well; an error here says only that it is gone.
            let _ = poll.registry().deregister(&mut socket);
        }
    }
}

fn write_request(socket: &mut TcpStream, request: &[u8], sent: &mut usize) -> std::io::Result<Io> {
    while let Some(rest) = request.get(*sent..).filter(|rest| !rest.is_empty()) {
        match socket.write(rest) {
            Ok(0) => return Ok(Io::Closed),
            Ok(count) => *sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // Still connecting: the socket becomes writable when it is connected.
            Err(error) if error.kind() == ErrorKind::NotConnected => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Io::Open)
}
