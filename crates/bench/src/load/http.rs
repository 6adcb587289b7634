//! The clients of OpenAI's API and of Triton's `generate_stream` in a closed loop: each starts the same request
//! again as the last one ends, all on one thread over epoll.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use super::connection::{Call, Connection, MAX_FAILURES, READ_BYTES, Step, resolve};
use super::{LoadError, Phase, Streams, Target, Wire, Workload, ramp_start};

/// The model whose requests are token ids.
const CORE_MODEL: &str = "tensorrt_llm";

pub(super) struct HttpStreams {
    address: SocketAddr,
    call: Arc<Call>,
    poll: Poll,
    connections: Vec<Connection>,
    /// When each connection's turn in the ramp comes, until then.
    starts: Vec<Option<Instant>>,
    buffer: Vec<u8>,
    /// Connections that failed since the last response.
    failures: usize,
}

impl HttpStreams {
    pub(super) fn new(target: &Target, workload: &Workload) -> Result<Self, LoadError> {
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
        let call = Call {
            bytes: target.post(&path, &body),
            tokens: u64::from(workload.tokens),
            choices: 1,
            has_end_mark: target.wire == Wire::Openai,
        };
        Ok(Self {
            address: resolve(&target.address)?,
            call: Arc::new(call),
            poll: Poll::new()?,
            connections: (0..workload.streams).map(Connection::new).collect(),
            starts: vec![None; workload.streams],
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
        let call = Arc::clone(&self.call);
        let step = connection.begin(call, now, self.address, &self.poll, &mut phase.recorder)?;
        self.after(index, step, phase)
    }

    /// Starts the next request after one that ended.
    fn after(&mut self, index: usize, step: Step, phase: &mut Phase) -> Result<(), LoadError> {
        match step {
            Step::Open => Ok(()),
            Step::Ended => {
                self.failures = 0;
                self.start(index, phase)
            }
            Step::Lost {
                was_running: false, ..
            } => Ok(()),
            Step::Lost { error, .. } => {
                self.failures += usize::from(error.is_some());
                match error {
                    Some(source)
                        if self.failures >= MAX_FAILURES.min(self.connections.len() * 2) =>
                    {
                        Err(LoadError::Connect {
                            address: self.address.to_string(),
                            source,
                        })
                    }
                    _ => self.start(index, phase),
                }
            }
        }
    }

    fn running(&self) -> usize {
        let states = self.connections.iter().zip(&self.starts);
        states
            .filter(|(connection, starts)| connection.is_running() || starts.is_some())
            .count()
    }

    /// Starts the connections whose turn in the ramp has come; when the next one's is.
    fn start_due(&mut self, phase: &mut Phase) -> Result<Option<Instant>, LoadError> {
        let now = Instant::now();
        let mut next = None;
        for index in 0..self.starts.len() {
            let Some(starts) = self.starts.get_mut(index) else {
                break;
            };
            match *starts {
                Some(at) if at <= now => {
                    *starts = None;
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
        let (now, count) = (Instant::now(), self.starts.len());
        for (index, starts) in self.starts.iter_mut().enumerate() {
            *starts = Some(ramp_start(now, phase.ramp, index, count));
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
                let index = event.token().0;
                let Some(connection) = self.connections.get_mut(index) else {
                    continue;
                };
                let closing = event.is_read_closed();
                let step =
                    connection.drive(closing, &mut self.buffer, &self.poll, &mut phase.recorder);
                self.after(index, step, phase)?;
            }
            if next_start.is_some() {
                next_start = self.start_due(phase)?;
            }
        }
        Ok(())
    }
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
