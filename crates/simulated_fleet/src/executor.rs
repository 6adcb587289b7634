//! The simulated executor of a worker, watched. Owns what it was given and has not ended, and what it was asked to do; what
//! that must be is the oracle's.

mod apart;
mod ends;
mod moves;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_testkit::model::END;
use inflight_worker::SimulatedExecutor;
use inflight_worker::executor::{
    CacheReports, ClientId, Executor, ExecutorFailed, IterationStats, ModelInfo, Request,
    ResponseBatch, capability,
};
use parking_lot::Mutex;

pub(crate) use self::apart::LeftBlocks;
use self::apart::{is_handed_over, is_of_phases, prompt_of};
use self::ends::Ends;
pub(crate) use self::moves::Moves;
pub(crate) use self::turns::Room;
use self::turns::Turns;
use crate::determinism::elapsed;
use crate::history::note;

/// What happened at the executors of a worker's processes.
#[derive(Default)]
pub(crate) struct Said {
    /// Requests that were cancelled while they ran.
    cancelled: Vec<Cancelled>,
    /// When resumed requests came to their end, and their prompts.
    resumed: Vec<(Duration, Vec<u8>)>,
    /// Tokens of prompts that were found in the cache when they were begun with.
    cached: Vec<(u32, Vec<u8>)>,
    /// What was asked for a prompt, apart from what had been generated.
    asked: Vec<(String, Vec<u8>)>,
    /// Prompts of requests that were to continue a sequence which had ended.
    ended: Vec<Vec<u8>>,
    /// When requests waited because the executor had no room for them.
    turns: Turns,
}

impl Said {
    /// When an executor was asked to stop a request whose prompt has this text, that it had begun with, or had had for less
    /// than `before`.
    pub(crate) fn cancelled(&self, text: &str, before: Duration) -> Vec<Duration> {
        let soon = self
            .cancelled
            .iter()
            .filter(|one| one.has_begun || one.after < before);
        let own = soon.filter(|one| has_text(&one.prompt, text));
        own.map(|one| one.at).collect()
    }

    /// When an executor completed a resumed request whose prompt has this text.
    pub(crate) fn completed_resumed(&self, text: &str) -> Vec<Duration> {
        let own = self.resumed.iter();
        let own = own.filter(|(_, prompt)| has_text(prompt, text));
        own.map(|(at, _)| *at).collect()
    }

    /// How many tokens of the prompt that has this text were found in the cache, each time it was begun with.
    pub(crate) fn cached(&self, text: &str) -> Vec<u32> {
        let own = self.cached.iter();
        let own = own.filter(|(_, prompt)| has_text(prompt, text));
        own.map(|(tokens, _)| *tokens).collect()
    }

    /// What was asked for the prompt that has this text, each time.
    pub(crate) fn asked(&self, text: &str) -> Vec<String> {
        let own = self.asked.iter();
        let own = own.filter(|(_, prompt)| has_text(prompt, text));
        own.map(|(asked, _)| asked.clone()).collect()
    }

    /// From when until when the executor had no room for a request whose prompt has this text.
    pub(crate) fn waited(&self, text: &str) -> Vec<(Duration, Duration)> {
        self.turns.of(|prompt| has_text(prompt, text), elapsed())
    }

    /// A process has ended: what waited for its turn there waits no more.
    pub(crate) fn end_process(&mut self) {
        self.turns.end_all(elapsed());
    }

    /// Whether an executor was to continue a sequence that had ended, of a request whose prompt has this text.
    pub(crate) fn continues_ended(&self, text: &str) -> bool {
        self.ended.iter().any(|prompt| has_text(prompt, text))
    }
}

/// A request that was cancelled while it ran.
struct Cancelled {
    at: Duration,
    /// How long the executor had had it.
    after: Duration,
    /// Whether it had generated anything.
    has_begun: bool,
    prompt: Vec<u8>,
}

/// A request that an executor has.
struct Held {
    since: Duration,
    prompt: Vec<u8>,
    has_begun: bool,
    /// Whether it continues what another one has lost.
    is_resumed: bool,
    /// Whether another executor had begun with it.
    continues: bool,
    is_cancelled: bool,
    room: Room,
    /// The number of its wait for its turn, where it had to wait and has not begun.
    turn: Option<usize>,
}

/// The simulated executor, and what it was given and has not ended.
pub(crate) struct Watched {
    host: String,
    inner: SimulatedExecutor,
    /// What the executor has.
    room: Room,
    live: Mutex<BTreeMap<ClientId, Held>>,
    ends: Mutex<Ends>,
    said: Arc<Mutex<Said>>,
    /// Of the request whose way is followed.
    moves: Option<Arc<Mutex<Moves>>>,
    left_blocks: LeftBlocks,
}

impl Watched {
    /// Watches an executor at a host, which has this room; what it does is added to `said` and `moves`.
    pub(crate) fn new(
        host: String,
        (inner, room): (SimulatedExecutor, Room),
        said: Arc<Mutex<Said>>,
        moves: Option<Arc<Mutex<Moves>>>,
        left_blocks: LeftBlocks,
    ) -> Self {
        Self {
            left_blocks,
            moves,
            host,
            inner,
            room,
            live: Mutex::default(),
            ends: Mutex::default(),
            said,
        }
    }

    /// Requests that it was given and has not ended.
    pub(crate) fn open(&self) -> usize {
        self.live.lock().len()
    }

    /// Requests that it was given before then, and has not been asked to stop.
    pub(crate) fn open_since_before(&self, then: Duration) -> usize {
        let live = self.live.lock();
        let old = live
            .values()
            .filter(|held| held.since < then && !held.is_cancelled);
        old.count()
    }

    /// Whether it holds a request whose prompt has this text.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let live = self.live.lock();
        live.values().any(|held| has_text(&held.prompt, text))
    }

    fn note_request(&self, request: &Request) {
        let generated = request.generated.iter();
        let lengths: Vec<_> = generated.map(|one| one.as_ref().map(Vec::len)).collect();
        let (id, most) = (request.client_id.0, request.max_tokens);
        let prompt = &request.input_token_ids;
        let said = format!("{id} {prompt:?} {most} {lengths:?}");
        note(&self.host, "enqueue", said.as_bytes());
        let prompt = prompt_of(request);
        let asked = (asked(request), prompt.clone());
        self.said.lock().asked.push(asked);
        let mut generated = request.generated.iter().flatten();
        if generated.any(|tokens| tokens.last() == Some(&END) || tokens.len() >= most as usize) {
            self.said.lock().ended.push(prompt.clone());
        }
        let mut live = self.live.lock();
        let room = Room::of(request);
        let taken: Room = live
            .values()
            .map(|held| held.room)
            .chain(std::iter::once(room))
            .sum();
        let mut begin_turn = || self.said.lock().turns.begin(&prompt, elapsed());
        let turn = (!self.room.holds(taken)).then(&mut begin_turn);
        // With only the first token, this continues a context that nobody is left to fetch: nothing was lost.
        let is_first = lengths == [Some(1)] && self.left_blocks.had(&prompt);
        let held = Held {
            since: elapsed(),
            room,
            turn,
            prompt,
            has_begun: false,
            is_resumed: !lengths.is_empty() && !is_handed_over(request) && !is_first,
            continues: lengths.iter().any(|length| *length != Some(0)),
            is_cancelled: false,
        };
        live.insert(request.client_id, held);
    }

    fn note_rows(&self, batch: &ResponseBatch) {
        let rows = &batch.rows;
        if rows.ids.is_empty() {
            return;
        }
        let said = format!("{:?} {:?}", rows.ids, rows.token_ids);
        note(&self.host, "rows", said.as_bytes());
        let mut live = self.live.lock();
        for (row, tokens) in &rows.cached_tokens {
            let held = rows.ids.get(*row as usize).and_then(|id| live.get(id));
            if let Some(held) = held.filter(|held| !held.continues) {
                let cached = (*tokens, held.prompt.clone());
                self.said.lock().cached.push(cached);
            }
        }
        for ((row, id), is_final) in (0..).zip(&rows.ids).zip(&rows.finals) {
            if let Some(turn) = live.get_mut(id).and_then(|held| held.turn.take()) {
                self.said.lock().turns.end(turn, elapsed());
            }
            if *is_final == 0 {
                if let Some(held) = live.get_mut(id) {
                    held.has_begun = true;
                }
                continue;
            }
            let ended = live.remove(id);
            let has_left = rows.context_phases.iter().any(|one| one.row == row);
            if let Some(held) = ended.as_ref().filter(|_| has_left) {
                self.left_blocks.leave(held.prompt.clone(), &self.host);
                if let Some(moves) = &self.moves {
                    moves.lock().note_left(&self.host, &held.prompt);
                }
            }
            if let Some(held) = ended.filter(|held| held.is_resumed && !held.is_cancelled) {
                self.said.lock().resumed.push((elapsed(), held.prompt));
            }
        }
    }
}

/// What is asked for a prompt, apart from what was generated before and who computes what.
fn asked(request: &Request) -> String {
    let Request {
        max_tokens,
        streaming,
        sampling_config,
        output_config,
        end_id,
        stop_words,
        tensors,
        ..
    } = request;
    let tensors = tensors.iter().filter(|tensor| !is_of_phases(tensor));
    let tensors: Vec<_> = tensors.collect();
    format!(
        "{max_tokens} {streaming} {sampling_config:?} {output_config:?} {end_id:?} {stop_words:?} {tensors:?}"
    )
}

fn has_text(prompt: &[u8], text: &str) -> bool {
    let mut parts = prompt.windows(text.len().max(1));
    parts.any(|part| part == text.as_bytes())
}

impl Executor for Watched {
    fn info(&self) -> ModelInfo {
        let mut info = self.inner.info();
        // The order of requests is nothing that it says.
        info.capabilities.push(capability::PRIORITY.to_owned());
        info
    }

    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed> {
        for request in &requests {
            self.note_request(request);
            if let Some(moves) = &self.moves {
                moves.lock().note(&self.host, request);
            }
            self.ends.lock().begin(request);
        }
        let requests = requests.into_iter();
        let requests = requests.map(|request| self.left_blocks.fetch(request));
        self.inner.enqueue(requests.collect())
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        note(&self.host, "cancel", format!("{client_ids:?}").as_bytes());
        let mut live = self.live.lock();
        let mut said = self.said.lock();
        for id in client_ids {
            let Some(held) = live.get_mut(id) else {
                continue;
            };
            held.is_cancelled = true;
            let at = elapsed();
            said.cancelled.push(Cancelled {
                at,
                after: at - held.since,
                has_begun: held.has_begun,
                prompt: held.prompt.clone(),
            });
        }
        drop((live, said));
        self.inner.cancel(client_ids)
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        let mut batch = self.inner.await_responses(timeout)?;
        let (rows, over) = self.ends.lock().apply(batch.rows);
        batch.rows = rows;
        if !over.is_empty() {
            self.inner.cancel(&over)?;
        }
        self.note_rows(&batch);
        Ok(batch)
    }

    fn report_cache(&self, reports: CacheReports) -> Result<(), ExecutorFailed> {
        self.inner.report_cache(reports)
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        self.inner.stats()
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}
