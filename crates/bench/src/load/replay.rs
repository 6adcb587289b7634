//! Replays a trace against a gateway: completions of token ids as server-sent events over HTTP/1.1, each request
//! sent when it is due (an open loop), or as many as are wanted at a time (a closed loop). Owns the schedule.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use mio::{Events, Poll};
use serde::Serialize;

use super::connection::{Call, Connection, MAX_FAILURES, READ_BYTES, Step, resolve};
use super::trace::Planned;
use super::{Fields, LoadError, Target};
use crate::measure::{Objective, Recorder, Report, Surroundings};
use crate::process;

/// Requests to send, and how.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) planned: Vec<Planned>,
    /// Run so many at a time, whenever they are due.
    pub(crate) streams: Option<usize>,
    /// Added to each request.
    pub(crate) fields: Fields,
    pub(crate) objective: Objective,
    /// The whole run is given up after this.
    pub(crate) timeout: Duration,
}

/// The figures of a replay.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReplayReport {
    /// The longest that a request was sent after it was due; more than a few milliseconds is the client's fault.
    pub(crate) sent_late_ms: f64,
    /// Requests that ran at the same time, at most.
    pub(crate) most_running: usize,
    /// By the group that the trace names.
    pub(crate) groups: BTreeMap<String, Report>,
}

/// A request with its place in the schedule.
struct Due {
    at: Duration,
    call: Arc<Call>,
    group: usize,
}

struct Player {
    address: SocketAddr,
    poll: Poll,
    /// The next one last.
    waiting: Vec<Due>,
    /// Each with the group of its request.
    connections: Vec<(Connection, usize)>,
    idle: Vec<usize>,
    recorders: Vec<Recorder>,
    streams: Option<usize>,
    started: Instant,
    deadline: Instant,
    buffer: Vec<u8>,
    /// Connections that failed since the last response.
    failures: usize,
    late: Duration,
    most_running: usize,
}

/// Sends every request and waits for the last answer.
pub(crate) fn run(target: &Target, replay: Replay) -> Result<ReplayReport, LoadError> {
    process::raise_open_files();
    let mut names: Vec<String> = replay.planned.iter().map(|one| one.group.clone()).collect();
    names.sort_unstable();
    names.dedup();
    let place = |group: &String| names.binary_search(group).unwrap_or_default();
    let due = |one: &Planned| Due {
        at: one.due,
        call: Arc::new(call(target, one, &replay.fields)),
        group: place(&one.group),
    };
    let waiting = replay.planned.iter().rev().map(due).collect();
    let client_before = process::own_usage();
    let started = Instant::now();
    let mut player = Player {
        address: resolve(&target.address)?,
        poll: Poll::new()?,
        waiting,
        connections: Vec::new(),
        idle: Vec::new(),
        recorders: vec![replay.objective; names.len()]
            .into_iter()
            .map(Recorder::with_objective)
            .collect(),
        streams: replay.streams,
        started,
        deadline: started + replay.timeout,
        buffer: vec![0; READ_BYTES],
        failures: 0,
        late: Duration::ZERO,
        most_running: 0,
    };
    player.play()?;
    let around = Surroundings {
        wall: started.elapsed(),
        client_cpu: process::own_usage().cpu_since(&client_before),
        server: None,
    };
    let reports = player.recorders.iter();
    let reports = reports.map(|recorder| Report::new(player.most_running, recorder, &around));
    Ok(ReplayReport {
        sent_late_ms: player.late.as_secs_f64() * 1e3,
        most_running: player.most_running,
        groups: names.into_iter().zip(reports).collect(),
    })
}

impl Player {
    fn play(&mut self) -> Result<(), LoadError> {
        let mut events = Events::with_capacity(1024);
        loop {
            let next = self.start_due()?;
            if self.running() == 0 && self.waiting.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Err(LoadError::TimedOut {
                    ended: self.recorders.iter().map(Recorder::ended).sum(),
                    running: self.running(),
                });
            }
            let wake = next.map_or(self.deadline, |next| next.min(self.deadline));
            let timeout = wake.saturating_duration_since(now);
            // Rounded up to a whole millisecond by the system: close to the time it must not sleep.
            let timeout = if timeout < Duration::from_millis(2) {
                Duration::ZERO
            } else {
                timeout - Duration::from_millis(1)
            };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                let index = event.token().0;
                let Some((connection, group)) = self.connections.get_mut(index) else {
                    continue;
                };
                let Some(recorder) = self.recorders.get_mut(*group) else {
                    continue;
                };
                let closing = event.is_read_closed();
                let step = connection.drive(closing, &mut self.buffer, &self.poll, recorder);
                self.after(index, step)?;
            }
        }
    }

    fn running(&self) -> usize {
        self.connections.len() - self.idle.len()
    }

    /// Starts the requests whose time has come; when the next one's comes, where it is known.
    fn start_due(&mut self) -> Result<Option<Instant>, LoadError> {
        while let Some(due) = self.waiting.last() {
            let now = Instant::now();
            let from = match self.streams {
                Some(streams) if self.running() >= streams => return Ok(None),
                Some(_) => now,
                None => self.started + due.at,
            };
            if from > now {
                return Ok(Some(from));
            }
            let Some(due) = self.waiting.pop() else { break };
            self.late = self.late.max(now.saturating_duration_since(from));
            let index = self.idle.pop().unwrap_or_else(|| {
                let index = self.connections.len();
                self.connections.push((Connection::new(index), 0));
                index
            });
            let Some((connection, group)) = self.connections.get_mut(index) else {
                break;
            };
            *group = due.group;
            let Some(recorder) = self.recorders.get_mut(due.group) else {
                break;
            };
            let step = connection.begin(due.call, from, self.address, &self.poll, recorder)?;
            self.most_running = self.most_running.max(self.running());
            self.after(index, step)?;
        }
        Ok(None)
    }

    fn after(&mut self, index: usize, step: Step) -> Result<(), LoadError> {
        match step {
            Step::Open
            | Step::Lost {
                was_running: false, ..
            } => return Ok(()),
            Step::Ended => self.failures = 0,
            Step::Lost { error: None, .. } => {}
            Step::Lost {
                error: Some(source),
                ..
            } => {
                self.failures += 1;
                if self.failures >= MAX_FAILURES {
                    return Err(LoadError::Connect {
                        address: self.address.to_string(),
                        source,
                    });
                }
            }
        }
        self.idle.push(index);
        Ok(())
    }
}

fn call(target: &Target, planned: &Planned, fields: &Fields) -> Call {
    let mut body = serde_json::json!({
        "model": planned.model.as_ref().unwrap_or(&target.model),
        "prompt": planned.prompt,
        "max_tokens": planned.tokens,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    for (name, value) in fields {
        body[name] = value.clone();
    }
    let choices = fields.get("n").and_then(serde_json::Value::as_u64);
    let choices = choices.map_or(1, |count| u32::try_from(count).unwrap_or(u32::MAX));
    Call {
        bytes: target.post("/v1/completions", &body.to_string()),
        tokens: u64::from(planned.tokens) * u64::from(choices),
        choices,
        has_end_mark: true,
    }
}

impl ReplayReport {
    /// Whether every stream came whole.
    pub(crate) fn is_clean(&self) -> bool {
        self.groups.values().all(Report::is_clean)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.add_row(["most requests at a time", &self.most_running.to_string()]);
        table.add_row(["sent late, ms", &format!("{:.1}", self.sent_late_ms)]);
        let mut text = table.trim_fmt();
        for (name, report) in &self.groups {
            text.push_str(&format!("\n{name}\n{}", report.table()));
        }
        text
    }
}
