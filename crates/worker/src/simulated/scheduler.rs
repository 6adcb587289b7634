//! Which requests run in which iteration: admission, prefill, tokens, the ends of sequences.
//!
//! Pure: time is a value, counted from the executor's start. Nothing here reads a clock or waits, so that
//! a test can replay any history.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use inflight_kserve::step::{ContextPhase, FinishReason, RowError, StepBatch};
use tonic::Code;

use super::SimulatedOptions;
use super::active::{Active, Context};
use super::answer::{Answer, first_token};
use super::blocks::Blocks;
use super::cache::CacheChange;
use super::phase::{Phases, left_by};
use crate::executor::{ClientId, InflightBatchingStats, IterationStats, Request};

/// Overdue iterations that one await returns at most, so that a late await does not build an unbounded
/// batch.
const MAX_ITERATIONS_PER_AWAIT: u32 = 16;
/// Iterations whose figures are kept for the next who asks; TensorRT-LLM's default.
const MAX_STATS: usize = 1000;
/// When the next rows are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    At(Duration),
    /// Not before a new request arrives.
    Idle,
}

/// A request that waits for a place in the batch or for blocks.
struct Waiting {
    client_id: ClientId,
    prompt_tokens: u32,
    active: Active,
}

struct Prefill {
    client_id: ClientId,
    tokens_left: u32,
    tokens_done: u32,
}

/// All that one token needs, in one place: the loop over these is the hot one.
struct Sequence {
    client_id: ClientId,
    index: i32,
    produced: u32,
    /// Of those, the tokens that another executor produced.
    reported: u32,
    max_tokens: u32,
    first_token: u32,
    streaming: bool,
}

/// A row outside any iteration: a refusal or a cancelled sequence.
struct Notice {
    client_id: ClientId,
    index: i32,
    last: bool,
    error: Option<(Code, String)>,
}

struct Iteration {
    end: Duration,
    context_requests: u32,
    context_tokens: u32,
    duration: Duration,
}

pub(super) struct Scheduler {
    options: SimulatedOptions,
    blocks: Blocks,
    answer: Answer,
    waiting: VecDeque<Waiting>,
    /// Those whose cache is on its way, and when it is there.
    transfers: Vec<(Duration, Waiting)>,
    active: HashMap<ClientId, Active>,
    prefills: Vec<Prefill>,
    sequences: Vec<Sequence>,
    notices: Vec<Notice>,
    /// Places taken: sequences running or about to, once their prompt is through.
    places: u32,
    iteration: Option<Iteration>,
    next_start: Duration,
    shut_down: bool,
    iterations: u64,
    completed: u64,
    stats: VecDeque<IterationStats>,
}

impl Scheduler {
    pub(super) fn new(options: SimulatedOptions) -> Self {
        Self {
            answer: Answer::new(&options),
            blocks: Blocks::new(&options),
            options,
            waiting: VecDeque::new(),
            transfers: Vec::new(),
            active: HashMap::new(),
            prefills: Vec::new(),
            sequences: Vec::new(),
            notices: Vec::new(),
            places: 0,
            iteration: None,
            next_start: Duration::ZERO,
            shut_down: false,
            iterations: 0,
            completed: 0,
            stats: VecDeque::new(),
        }
    }

    /// Keeps the cache's changes from now on, with tokens where they are wanted; returns how many blocks it has.
    pub(super) fn report_cache(&mut self, wants_tokens: bool) -> u32 {
        self.blocks.report(wants_tokens)
    }

    /// What has changed in the cache since the last call.
    pub(super) fn take_cache_changes(&mut self) -> Vec<CacheChange> {
        self.blocks.take_changes()
    }

    /// Queues a request, or the row that refuses it.
    pub(super) fn enqueue(&mut self, request: Request, now: Duration) {
        let mut prompt_tokens = request.input_token_ids.len() as u32;
        let sequences = request.sampling_config.num_return_sequences.max(1);
        let resumed = request.generated.iter();
        let resumed = resumed.map(|tokens| tokens.as_ref().map(|tokens| tokens.len() as u32));
        let resumed: Vec<Option<u32>> = resumed.collect();
        let phases = Phases::of(&request);
        let max_tokens = match phases {
            Ok(Phases::Context) => 1,
            _ => request.max_tokens.max(1),
        };
        let blocks = self
            .blocks
            .of(prompt_tokens)
            .saturating_add(self.blocks.of(max_tokens).saturating_mul(sequences));
        let refusal = if self.shut_down {
            Some((
                Code::Unavailable,
                "the executor is shutting down; send the request to another worker".to_owned(),
            ))
        } else if blocks > self.options.num_blocks {
            let have = self.options.num_blocks;
            let text = format!(
                "the request needs `{blocks}` KV cache blocks, and the simulated executor has `{have}`; \
                 lower `max_tokens` or raise `num_blocks`"
            );
            Some((Code::InvalidArgument, text))
        } else if sequences > self.options.max_batch_size {
            let text = format!(
                "`num_return_sequences` is `{sequences}`, above `max_batch_size` `{}`",
                self.options.max_batch_size
            );
            Some((Code::InvalidArgument, text))
        } else {
            let refused = phases.as_ref().err();
            refused.map(|text| (Code::InvalidArgument, text.clone()))
        };
        if let Some(error) = refusal {
            self.notices.push(Notice {
                client_id: request.client_id,
                index: 0,
                last: true,
                error: Some(error),
            });
            return;
        }
        let is_transferred = phases == Ok(Phases::Generation);
        if self.is_idle() && !is_transferred {
            self.next_start = self.next_start.max(now);
        }
        // What was generated is computed again, like a prompt.
        prompt_tokens += resumed.iter().flatten().sum::<u32>();
        let ended = resumed.iter().filter(|tokens| tokens.is_none()).count() as u32;
        let size = self.options.tokens_per_block as usize;
        let (is_reused, wants_tokens) = (self.blocks.are_reused(), self.blocks.wants_tokens());
        let context = is_reused.then(|| Context::new(&request, size, wants_tokens));
        let waiting = Waiting {
            client_id: request.client_id,
            prompt_tokens: if is_transferred { 0 } else { prompt_tokens },
            active: Active {
                sequences,
                sequences_left: sequences - ended,
                resumed,
                blocks,
                shared: Vec::new(),
                context,
                cached_tokens: None,
                max_tokens,
                streaming: request.streaming,
                first_token: first_token(&request.input_token_ids),
                leaves: (phases == Ok(Phases::Context)).then(|| left_by(&request)),
            },
        };
        if is_transferred {
            let microseconds = self.options.transfer_us_per_token * f64::from(prompt_tokens);
            let takes = Duration::try_from_secs_f64(microseconds / 1e6).unwrap_or_default();
            self.transfers.push((now + takes, waiting));
        } else {
            self.waiting.push_back(waiting);
        }
    }

    /// Queues the requests whose cache is there by now.
    fn receive(&mut self, now: Duration) {
        let first = self.transfers.iter().map(|(at, _)| *at).min();
        if let Some(first) = first.filter(|first| *first <= now)
            && self.is_idle()
        {
            self.next_start = self.next_start.max(first);
        }
        let next_start = self.next_start;
        let there = self.transfers.extract_if(.., |(at, _)| *at <= next_start);
        let there: Vec<Waiting> = there.map(|(_, waiting)| waiting).collect();
        // Nothing of their prompts is computed, so that they wait for none.
        for waiting in there.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    /// Ends a request; each of its live sequences gets a last row. Unknown ids are ignored.
    pub(super) fn cancel(&mut self, client_id: ClientId) {
        let mut ended: Vec<i32> = Vec::new();
        if let Some(place) = self.waiting.iter().position(|w| w.client_id == client_id) {
            if let Some(waiting) = self.waiting.remove(place) {
                ended.extend(waiting.active.indexes());
            }
        } else if let Some(place) = self
            .transfers
            .iter()
            .position(|(_, w)| w.client_id == client_id)
        {
            ended.extend(self.transfers.remove(place).1.active.indexes());
        } else if let Some(active) = self.active.remove(&client_id) {
            self.blocks.give_back(&active);
            self.places -= active.sequences_left;
            if let Some(place) = self.prefills.iter().position(|p| p.client_id == client_id) {
                self.prefills.remove(place);
                ended.extend(active.indexes());
            } else {
                self.sequences.retain(|sequence| {
                    let live = sequence.client_id != client_id;
                    if !live {
                        ended.push(sequence.index);
                    }
                    live
                });
            }
        }
        // The blocks are free at once: another iteration may never come.
        if !ended.is_empty() {
            let between = Iteration {
                end: self.next_start,
                context_requests: 0,
                context_tokens: 0,
                duration: Duration::ZERO,
            };
            self.keep_stats(self.snapshot(&between, self.sequences.len()));
        }
        let last = ended.len().saturating_sub(1);
        for (place, index) in ended.into_iter().enumerate() {
            self.notices.push(Notice {
                client_id,
                index,
                last: place == last,
                error: None,
            });
        }
    }

    /// Appends all rows that are due by `now`.
    pub(super) fn advance(&mut self, now: Duration, rows: &mut StepBatch<ClientId>) -> Next {
        self.flush_notices(rows);
        for _ in 0..MAX_ITERATIONS_PER_AWAIT {
            if self.iteration.is_none() {
                self.receive(now);
                if !self.schedule() {
                    let first = self.transfers.iter().map(|(at, _)| *at).min();
                    return first.map_or(Next::Idle, Next::At);
                }
            }
            let Some(iteration) = self.iteration.take_if(|iteration| iteration.end <= now) else {
                break;
            };
            self.complete(&iteration, rows);
            if iteration.duration.is_zero() && !rows.ids.is_empty() {
                // As fast as they are awaited: one iteration per await.
                return Next::At(now);
            }
        }
        Next::At(
            self.iteration
                .as_ref()
                .map_or(now, |iteration| iteration.end),
        )
    }

    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
        let mut ids: Vec<ClientId> = self.waiting.iter().map(|w| w.client_id).collect();
        ids.extend(self.transfers.iter().map(|(_, w)| w.client_id));
        ids.extend(self.active.keys());
        for id in ids {
            self.cancel(id);
        }
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    /// The figures of the iterations since the last call, the oldest first, at most [`MAX_STATS`].
    pub(super) fn drain_stats(&mut self) -> Vec<IterationStats> {
        self.stats.drain(..).collect()
    }

    fn keep_stats(&mut self, stats: IterationStats) {
        if self.stats.len() == MAX_STATS {
            self.stats.pop_front();
        }
        self.stats.push_back(stats);
    }

    fn is_idle(&self) -> bool {
        self.iteration.is_none() && self.active.is_empty() && self.waiting.is_empty()
    }

    /// Admits what fits, first come first served, and begins an iteration. Returns false if there is
    /// nothing to do.
    fn schedule(&mut self) -> bool {
        let each = self.most_of_a_prompt();
        let budget = self
            .options
            .max_num_tokens
            .saturating_sub(self.sequences.len() as u32)
            .min(each.saturating_mul(2))
            .max(1);
        let (mut left, mut context_requests) = (budget, 0);
        for place in 0..self.prefills.len() {
            if left == 0 {
                break;
            }
            left -= self.compute(place, left.min(each));
            context_requests += 1;
        }
        // What of a prompt is cached is looked up when its turn comes: those before it may have computed it. One whose next
        // block another computes waits for that, and lets others pass.
        let mut place = 0;
        while let Some(waiting) = self.waiting.get(place) {
            let has_turn = left > 0 || waiting.prompt_tokens == 0;
            let places = waiting.active.sequences_left + self.places;
            if !has_turn || places > self.options.max_batch_size {
                break;
            }
            let found = self.blocks.find(&waiting.active);
            if self.is_computing(&waiting.active, found.blocks) {
                place += 1;
                continue;
            }
            if found.cost > self.blocks.free() {
                break;
            }
            let Some(mut waiting) = self.waiting.remove(place) else {
                break;
            };
            self.places += waiting.active.sequences_left;
            let cached = self.blocks.take(&mut waiting.active, &found);
            self.prefills.push(Prefill {
                client_id: waiting.client_id,
                tokens_left: waiting.prompt_tokens.saturating_sub(cached),
                tokens_done: 0,
            });
            self.active.insert(waiting.client_id, waiting.active);
            left -= self.compute(self.prefills.len() - 1, left.min(each));
            context_requests += 1;
        }
        if self.prefills.is_empty() && self.sequences.is_empty() {
            return false;
        }
        let context_tokens = budget - left;
        let options = &self.options;
        let microseconds = options.step_us
            + options.step_us_per_sequence
                * (self.sequences.len() as f64 + f64::from(context_requests))
            + options.prefill_us_per_token * f64::from(context_tokens);
        let duration = Duration::try_from_secs_f64(microseconds / 1e6).unwrap_or(Duration::ZERO);
        self.iteration = Some(Iteration {
            end: self.next_start + duration,
            context_requests,
            context_tokens,
            duration,
        });
        true
    }

    /// Whether a prompt in progress has this block of a request, and is to compute it.
    fn is_computing(&self, request: &Active, place: usize) -> bool {
        let key = |active: &Active| active.context.as_ref()?.keys.get(place).copied();
        let Some(wanted) = key(request) else {
            return false;
        };
        let computing = self.prefills.iter().filter(|one| one.tokens_left > 0);
        let mut others = computing.filter_map(|one| self.active.get(&one.client_id));
        others.any(|other| key(other) == Some(wanted))
    }

    /// Tokens of one prompt in an iteration, at most, by the time that streams may wait for it.
    fn most_of_a_prompt(&self) -> u32 {
        let options = &self.options;
        if options.max_prompt_ms == 0 || self.sequences.is_empty() {
            return u32::MAX;
        }
        // Where prompts cost nothing, this is more than any has.
        let tokens = f64::from(options.max_prompt_ms) * 1e3 / options.prefill_us_per_token;
        (tokens as u32).max(1)
    }

    /// Has the next iteration compute as much of a prompt as there is room for. Returns how much that is. Those after it
    /// find a prompt whose rest it computes.
    fn compute(&mut self, place: usize, room: u32) -> u32 {
        let Some(prefill) = self.prefills.get_mut(place) else {
            return 0;
        };
        let chunk = prefill.tokens_left.min(room);
        prefill.tokens_left -= chunk;
        prefill.tokens_done += chunk;
        if prefill.tokens_left == 0
            && let Some(request) = self.active.get_mut(&prefill.client_id)
            && let Some(cache) = self.blocks.cache_mut()
        {
            request.store_context(cache);
        }
        chunk
    }

    /// Ends an iteration: finished prompts become sequences, and each sequence gets a token.
    fn complete(&mut self, iteration: &Iteration, rows: &mut StepBatch<ClientId>) {
        self.next_start = iteration.end;
        self.iterations += 1;
        let generating = self.sequences.len();
        let Self {
            prefills,
            active,
            sequences,
            blocks,
            places,
            completed,
            answer,
            ..
        } = self;
        prefills.retain(|prefill| {
            if prefill.tokens_left > 0 {
                return true;
            }
            if let Some(request) = active.get_mut(&prefill.client_id) {
                sequences.extend(request.indexes().map(|index| {
                    let produced = request.tokens_before(index);
                    Sequence {
                        client_id: prefill.client_id,
                        index,
                        produced,
                        reported: produced,
                        max_tokens: request.max_tokens,
                        first_token: answer.first_of(request.first_token, index),
                        streaming: request.streaming,
                    }
                }));
            }
            false
        });
        let token = |sequence: &Sequence, place: u32| answer.token(sequence.first_token, place);
        sequences.retain_mut(|sequence| {
            let place = sequence.produced;
            sequence.produced += 1;
            let done = sequence.produced >= sequence.max_tokens;
            if sequence.streaming {
                rows.token_ids.push(token(sequence, place));
            } else if done {
                rows.token_ids.extend(
                    (sequence.reported..sequence.produced).map(|place| token(sequence, place)),
                );
            } else {
                return true;
            }
            let begins = sequence.produced == sequence.reported + 1 || !sequence.streaming;
            if blocks.are_reused() && begins {
                let request = active.get_mut(&sequence.client_id);
                let cached = request.and_then(|request| request.cached_tokens.take());
                let row = rows.ids.len() as u32;
                rows.cached_tokens
                    .extend(cached.map(|cached| (row, cached)));
            }
            if !done {
                close_row(
                    rows,
                    sequence.client_id,
                    sequence.index,
                    FinishReason::NotFinished,
                    false,
                );
                return true;
            }
            *places -= 1;
            let last = match active.get_mut(&sequence.client_id) {
                Some(request) if request.sequences_left > 1 => {
                    request.sequences_left -= 1;
                    false
                }
                _ => {
                    if let Some(mut request) = active.remove(&sequence.client_id) {
                        if let Some(params) = request.leaves.take() {
                            let row = rows.ids.len() as u32;
                            rows.context_phases.push(ContextPhase { row, params });
                        }
                        if let Some(cache) = blocks.cache_mut() {
                            let own = sequence.reported..sequence.produced.saturating_sub(1);
                            request.store_answer(cache, own.map(|place| token(sequence, place)));
                        }
                        blocks.give_back(&request);
                    }
                    *completed += 1;
                    true
                }
            };
            close_row(
                rows,
                sequence.client_id,
                sequence.index,
                FinishReason::Length,
                last,
            );
            false
        });
        self.keep_stats(self.snapshot(iteration, generating));
    }

    fn flush_notices(&mut self, rows: &mut StepBatch<ClientId>) {
        for notice in self.notices.drain(..) {
            if let Some((code, text)) = notice.error {
                let row = rows.ids.len() as u32;
                rows.errors.push(RowError {
                    row,
                    code,
                    text,
                    retry_after_ms: 0,
                });
            }
            close_row(
                rows,
                notice.client_id,
                notice.index,
                FinishReason::Cancelled,
                notice.last,
            );
        }
    }

    fn snapshot(&self, iteration: &Iteration, generating: usize) -> IterationStats {
        let generating = generating as u64;
        let queued = self.waiting.len() + self.transfers.len();
        let partial = self.prefills.iter().map(|one| u64::from(one.tokens_done));
        IterationStats {
            timestamp: String::new(),
            iter: self.iterations,
            iter_latency_ms: iteration.duration.as_secs_f64() * 1e3,
            num_active_requests: (self.active.len() + queued) as u64,
            num_queued_requests: queued as u64,
            num_completed_requests: self.completed,
            max_num_active_requests: u64::from(self.options.max_batch_size),
            kv_cache_stats: Some(self.blocks.stats()),
            inflight_batching_stats: Some(InflightBatchingStats {
                num_scheduled_requests: generating + u64::from(iteration.context_requests),
                num_context_requests: u64::from(iteration.context_requests),
                num_gen_requests: generating,
                num_ctx_tokens: u64::from(iteration.context_tokens),
                num_partial_ctx_tokens: Some(partial.sum()),
                avg_num_decoded_tokens_per_iter: 1.0,
                ..InflightBatchingStats::default()
            }),
            ..IterationStats::default()
        }
    }
}

/// Closes the row whose tokens were just pushed.
fn close_row(
    rows: &mut StepBatch<ClientId>,
    client_id: ClientId,
    index: i32,
    reason: FinishReason,
    last: bool,
) {
    if rows.token_offsets.is_empty() {
        rows.token_offsets.push(0);
    }
    rows.ids.push(client_id);
    rows.sequence_index.push(index);
    rows.token_offsets.push(rows.token_ids.len() as u32);
    rows.finish_reasons.push(reason as u8);
    rows.finals.push(u8::from(last));
}

#[cfg(test)]
mod tests;
