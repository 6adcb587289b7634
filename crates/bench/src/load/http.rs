//! The clients of OpenAI's API and of Triton's `generate_stream`: kept-alive HTTP/1.1 connections, one request at
//! a time on each, all on one thread over epoll. An ordinary client: it leaves delayed ACKs as they are, and sends
//! each request in one write.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::{LoadError, Phase, Streams, Target, Wire, Workload, ending, ramp_start};
use crate::measure::{Ending, Timer};
use crate::sse::{Event, ResponseReader};

/// Failed connections in a row, without one response between, that end the run: nobody is there.
const MAX_FAILURES: usize = 16;
/// More of an answer than a read of this size does not wait in a socket buffer of usual size.
const READ_BYTES: usize = 256 << 10;
/// The model whose requests are token ids.
const CORE_MODEL: &str = "tensorrt_llm";

pub(super) struct HttpStreams {
    address: SocketAddr,
    request: Vec<u8>,
    /// Whether a stream's end is marked by a separate event.
    has_end_mark: bool,
    tokens: u32,
    poll: Poll,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    /// Connections that failed since the last response.
    failures: usize,
}

struct Connection {
    socket: Option<TcpStream>,
    /// Bytes of the request that are sent; all of them when none is running.
    sent: usize,
    running: Option<Running>,
    reader: ResponseReader,
    /// Waits for its turn in the ramp.
    starts: Option<Instant>,
}

struct Running {
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

impl HttpStreams {
    pub(super) fn new(target: &Target, workload: &Workload) -> Result<Self, LoadError> {
        let address = target
            .address
            .to_socket_addrs()
            .ok()
            .and_then(|mut addresses| addresses.next())
            .ok_or_else(|| LoadError::Address {
                address: target.address.clone(),
            })?;
        let connections = (0..workload.streams)
            .map(|_| Connection {
                socket: None,
                sent: 0,
                running: None,
                reader: ResponseReader::default(),
                starts: None,
            })
            .collect();
        Ok(Self {
            address,
            request: request_bytes(target, workload),
            has_end_mark: target.wire == Wire::Openai,
            tokens: workload.tokens,
            poll: Poll::new()?,
            connections,
            buffer: vec![0; READ_BYTES],
            failures: 0,
        })
    }

    /// Starts a request on a connection if the budget allows, opening the connection if need be.
    fn start(&mut self, index: usize, phase: &mut Phase) -> Result<(), LoadError> {
        let now = Instant::now();
        if !phase.budget.take(now) {
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(index) else {
            return Ok(());
        };
        connection.sent = 0;
        connection.reader.reset();
        connection.running = Some(Running {
            timer: Timer::start(now),
            usage: None,
            error: None,
            is_done: false,
            events: 0,
        });
        if connection.socket.is_none() {
            let mut socket = TcpStream::connect(self.address)?;
            socket.set_nodelay(true)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll
                .registry()
                .register(&mut socket, Token(index), interest)?;
            // The socket becomes writable when it is connected; the request goes out then.
            connection.socket = Some(socket);
            return Ok(());
        }
        // Only written here: the answer's arrival is a separate event.
        match connection.socket.as_mut() {
            Some(socket) => match write_request(socket, &self.request, &mut connection.sent) {
                Ok(Io::Open) => Ok(()),
                Ok(Io::Closed) => self.lost(index, None, phase),
                Err(error) => self.lost(index, Some(error), phase),
            },
            None => Ok(()),
        }
    }

    /// Writes and reads what the socket takes and has, and starts the next request after a response.
    ///
    /// `is_closing`: the server has closed its side, and that was reported together with data.
    fn drive(
        &mut self,
        index: usize,
        is_closing: bool,
        phase: &mut Phase,
    ) -> Result<(), LoadError> {
        let Some(connection) = self.connections.get_mut(index) else {
            return Ok(());
        };
        // Out of the connection for now, whose other parts take what is read.
        let Some(mut socket) = connection.socket.take() else {
            return Ok(());
        };
        let mut outcome = if connection.running.is_some() {
            write_request(&mut socket, &self.request, &mut connection.sent)
        } else {
            Ok(Io::Open)
        };
        let mut is_complete = false;
        while let Ok(Io::Open) = outcome {
            match socket.read(&mut self.buffer) {
                Ok(0) => outcome = Ok(Io::Closed),
                Ok(count) => {
                    let bytes = self.buffer.get(..count).unwrap_or_default();
                    is_complete = connection.take(bytes, phase);
                    if is_complete {
                        break;
                    }
                    // A short read emptied the socket; the next readiness reports more.
                    if count < READ_BYTES && !is_closing {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => outcome = Err(error),
            }
        }
        connection.socket = Some(socket);
        if is_complete {
            self.failures = 0;
            let reusable = connection.reader.keeps_alive() && matches!(outcome, Ok(Io::Open));
            connection.finish(self.tokens, !self.has_end_mark, phase);
            if !reusable {
                connection.close(&self.poll);
            }
            return self.start(index, phase);
        }
        match outcome {
            Ok(Io::Open) => Ok(()),
            Ok(Io::Closed) => self.lost(index, None, phase),
            Err(error) => self.lost(index, Some(error), phase),
        }
    }

    /// A connection ended: its request, if one ran, was cut.
    fn lost(
        &mut self,
        index: usize,
        error: Option<std::io::Error>,
        phase: &mut Phase,
    ) -> Result<(), LoadError> {
        let Some(connection) = self.connections.get_mut(index) else {
            return Ok(());
        };
        connection.close(&self.poll);
        if connection.running.is_none() {
            return Ok(());
        }
        let had_response = connection.reader.status() != 0;
        connection.finish(self.tokens, false, phase);
        if !had_response {
            self.failures += 1;
            if self.failures >= MAX_FAILURES.min(self.connections.len() * 2) {
                let source = error.unwrap_or_else(|| ErrorKind::UnexpectedEof.into());
                return Err(LoadError::Connect {
                    address: self.address.to_string(),
                    source,
                });
            }
        }
        self.start(index, phase)
    }

    fn running(&self) -> usize {
        self.connections
            .iter()
            .filter(|connection| connection.running.is_some() || connection.starts.is_some())
            .count()
    }

    /// Starts the connections whose turn in the ramp has come; when the next one's is.
    fn start_due(&mut self, phase: &mut Phase) -> Result<Option<Instant>, LoadError> {
        let now = Instant::now();
        let mut next = None;
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index) else {
                break;
            };
            match connection.starts {
                Some(at) if at <= now => {
                    connection.starts = None;
                    self.start(index, phase)?;
                }
                // Starts ascend with the index.
                Some(at) => {
                    next = Some(at);
                    break;
                }
                None => {}
            }
        }
        Ok(next)
    }
}

impl Streams for HttpStreams {
    fn run(&mut self, phase: &mut Phase) -> Result<(), LoadError> {
        let (now, count) = (Instant::now(), self.connections.len());
        for (index, connection) in self.connections.iter_mut().enumerate() {
            connection.starts = Some(ramp_start(now, phase.ramp, index, count));
        }
        let mut next_start = self.start_due(phase)?;
        let mut events = Events::with_capacity(1024);
        while self.running() > 0 {
            let now = Instant::now();
            if now >= phase.deadline {
                return Err(LoadError::TimedOut {
                    ended: phase.recorder.ended(),
                    running: self.running(),
                });
            }
            let wake = next_start.map_or(phase.deadline, |start| start.min(phase.deadline));
            let timeout = wake
                .saturating_duration_since(now)
                .max(Duration::from_micros(100));
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                self.drive(event.token().0, event.is_read_closed(), phase)?;
            }
            if next_start.is_some() {
                next_start = self.start_due(phase)?;
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Reads a piece of the response; true when it is complete.
    fn take(&mut self, bytes: &[u8], phase: &mut Phase) -> bool {
        let Some(running) = &mut self.running else {
            // Bytes that no request asked for: the next response will not start where it should.
            return false;
        };
        let now = Instant::now();
        let recorder = &mut phase.recorder;
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
            Event::Usage(tokens) => running.usage = Some(tokens),
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

    /// Records how the request that ran came out. `is_done`: its response is whole, which is the only sign.
    fn finish(&mut self, expected: u32, is_done: bool, phase: &mut Phase) {
        let Some(running) = self.running.take() else {
            return;
        };
        let tokens = running.usage.unwrap_or(running.events);
        let ending = if let Some(error) = running.error {
            Ending::Errored(error)
        } else if !matches!(self.reader.status(), 0 | 200) {
            let status = self.reader.status();
            Ending::Errored(format!("HTTP {status}: {}", self.reader.error_body()))
        } else if !(running.is_done || is_done) {
            Ending::Truncated
        } else if running.usage.is_none() {
            Ending::Errored("a stream ended without a usage chunk: its tokens are unknown".into())
        } else {
            ending(tokens, expected)
        };
        phase.recorder.end(&running.timer, tokens, ending);
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

/// The whole request, which is the same for every stream.
fn request_bytes(target: &Target, workload: &Workload) -> Vec<u8> {
    let (path, body) = match target.wire {
        Wire::Generate => (
            format!("/v2/models/{}/generate_stream", target.model),
            generate_body(target, workload),
        ),
        _ => (
            "/v1/chat/completions".to_owned(),
            chat_body(target, workload),
        ),
    };
    let authorization = target
        .api_key
        .as_ref()
        .map(|key| format!("authorization: Bearer {key}\r\n"))
        .unwrap_or_default();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         accept: text/event-stream\r\n{authorization}content-length: {}\r\n\r\n{body}",
        target.address,
        body.len()
    )
    .into_bytes()
}

/// A request of the core model, or of one that takes text.
fn generate_body(target: &Target, workload: &Workload) -> String {
    if target.model == CORE_MODEL {
        let ids: Vec<u32> = (0..workload.prompt_tokens)
            .map(|index| 3 + index % 50)
            .collect();
        return serde_json::json!({
            "input_ids": ids,
            "input_lengths": workload.prompt_tokens,
            "request_output_len": workload.tokens,
            "streaming": true,
        })
        .to_string();
    }
    let prompt = vec!["word"; workload.prompt_tokens as usize].join(" ");
    serde_json::json!({
        "text_input": prompt,
        "max_tokens": workload.tokens,
        // Nothing ends an answer early.
        "end_id": -1,
        "stream": true,
        "return_num_output_tokens": true,
    })
    .to_string()
}

fn chat_body(target: &Target, workload: &Workload) -> String {
    // One short word is about one token for any tokenizer.
    let prompt = vec!["word"; workload.prompt_tokens as usize].join(" ");
    let mut body = serde_json::json!({
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": workload.tokens,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    for (name, value) in &workload.fields {
        body[name] = value.clone();
    }
    body.to_string()
}
