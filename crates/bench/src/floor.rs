//! The floor: the least that a server must do, to compare servers with. Answers every chat request
//! with one ready event per token, each its own write, saturated or paced. One thread over epoll.
//!
//! Knows just enough HTTP to find where a request ends and how many tokens it asks for.

mod connection;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

use connection::{Connection, Progress};

const LISTENER: Token = Token(usize::MAX);
/// More connections than any run opens; beyond it none is taken.
const MAX_CONNECTIONS: usize = 16_384;

/// Tokens, nearly, that saturated streams get before sockets are looked at again.
const WRITES_BETWEEN_POLLS: usize = 64;

/// How the floor answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloorOptions {
    /// Between the tokens of a stream; zero: as fast as the socket takes them.
    pub(crate) pace: Duration,
}

/// A bound floor server.
pub(crate) struct Floor {
    poll: Poll,
    listener: TcpListener,
    options: FloorOptions,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Paced streams by when their next token is due.
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    /// Saturated streams whose socket may take more.
    ready: Vec<usize>,
}

impl Floor {
    pub(crate) fn bind(address: SocketAddr, options: FloorOptions) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            options,
            connections: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            ready: Vec::new(),
        })
    }

    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends or `stop` says so; it is asked at least every 100 ms.
    pub(crate) fn serve(&mut self, stop: impl Fn() -> bool) -> std::io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !stop() {
            match self.poll.poll(&mut events, Some(self.wait())) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    Token(index) => self.drive(index),
                }
            }
            self.write_due();
            // With few streams, asking for news after each token would cost as much as the token.
            for _ in 0..=WRITES_BETWEEN_POLLS / self.ready.len().max(1) {
                self.write_ready();
            }
        }
        Ok(())
    }

    /// How long there is nothing to do but to listen.
    fn wait(&self) -> Duration {
        let longest = Duration::from_millis(100);
        if !self.ready.is_empty() {
            return Duration::ZERO;
        }
        match self.due.peek() {
            Some(Reverse((at, ..))) => at.saturating_duration_since(Instant::now()).min(longest),
            None => longest,
        }
    }

    fn accept(&mut self) {
        loop {
            let (mut socket, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Nobody left waiting, or a client that has gone again.
                Err(_) => return,
            };
            let index = self.free.pop().unwrap_or(self.connections.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            let is_usable = index < MAX_CONNECTIONS
                && socket.set_nodelay(true).is_ok()
                && self
                    .poll
                    .registry()
                    .register(&mut socket, Token(index), interest)
                    .is_ok();
            if !is_usable {
                continue;
            }
            if index == self.connections.len() {
                self.connections.push(None);
            }
            if let Some(slot) = self.connections.get_mut(index) {
                *slot = Some(Connection::new(socket));
            }
        }
    }

    /// A socket has something to read, or takes more again.
    fn drive(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let was_streaming = connection.is_streaming();
        match connection.read().and_then(|()| connection.flush()) {
            Ok(()) if connection.is_streaming() => {
                if self.options.pace.is_zero() {
                    if !std::mem::replace(&mut connection.is_queued, true) {
                        self.ready.push(index);
                    }
                } else if !was_streaming {
                    let at = Instant::now() + self.options.pace;
                    self.due
                        .push(Reverse((at, index, connection.request_number())));
                }
            }
            Ok(()) => {}
            Err(_) => self.close(index),
        }
    }

    /// Paced: one token for each stream whose time has come.
    fn write_due(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, index, request))) = self.due.peek().copied() {
            if at > now {
                return;
            }
            self.due.pop();
            let Some(Some(connection)) = self.connections.get_mut(index) else {
                continue;
            };
            // The index may have been taken by another connection or request meanwhile.
            if connection.request_number() != request {
                continue;
            }
            match connection.write_token() {
                Ok(Progress::Ended) => {}
                // A stream that is blocked is late, as it would be anywhere; it keeps its times.
                Ok(_) => {
                    let request = connection.request_number();
                    self.due
                        .push(Reverse((at + self.options.pace, index, request)));
                }
                Err(_) => self.close(index),
            }
        }
    }

    /// Saturated: one token for each stream that takes one, in turn.
    fn write_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.retain(|index| {
            let Some(Some(connection)) = self.connections.get_mut(*index) else {
                return false;
            };
            match connection.write_token() {
                Ok(Progress::Open) => true,
                // The socket's next event puts it back.
                Ok(Progress::Blocked | Progress::Ended) => {
                    connection.is_queued = false;
                    false
                }
                Err(_) => {
                    self.close(*index);
                    false
                }
            }
        });
        self.ready = ready;
    }

    fn close(&mut self, index: usize) {
        if let Some(slot) = self.connections.get_mut(index)
            && slot.take().is_some()
        {
            self.free.push(index);
        }
    }
}
