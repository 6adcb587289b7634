//! Which requests run in which iteration: admission, prefill, tokens, the ends of sequences.
//!
//! Pure: time is a value, counted from the executor's start. Nothing here reads a clock or waits, so that
//! a test can replay any history.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use inflight_blocks::{Chain, Seed};
use inflight_kserve::step::{FinishReason, RowError, StepBatch};
use tonic::Code;

use super::SimulatedOptions;
use super::cache::{BlockCache, CacheChange};
use crate::cache::seed_of;
use crate::executor::{ClientId, InflightBatchingStats, IterationStats, KvCacheStats, Request};

/// Overdue iterations that one await returns at most, so that a late await does not build an unbounded
/// batch.
const MAX_ITERATIONS_PER_AWAIT: u32 = 16;
/// Iterations whose figures are kept for the next who asks; TensorRT-LLM's default.
const MAX_STATS: usize = 1000;
/// The first printable ASCII character: byte-level vocabularies begin with ASCII.
const FIRST_PRINTABLE: u32 = 32;
/// The number of printable ASCII characters.
const PRINTABLE: u32 = 95;

/// When the next rows are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    At(Duration),
    /// Not before a new request arrives.
    Idle,
}

/// A request from admission to its last row.
struct Active {
    sequences: u32,
    sequences_left: u32,
    /// Tokens that each sequence has already, and which have ended; empty: none has any.
    resumed: Vec<Option<u32>>,
    /// Blocks that are its own, of all that it may need.
    blocks: u32,
    /// And those that it shares, of the beginning of what it computes before it generates.
    shared: Vec<u64>,
    context: Option<Context>,
    /// Prompt tokens found in the cache, until they are reported.
    cached_tokens: Option<u32>,
    max_tokens: u32,
    streaming: bool,
    first_token: u32,
}

impl Active {
    /// The sequences that it still generates, before any of them has ended here.
    fn indexes(&self) -> impl Iterator<Item = i32> {
        let goes_on = |index: &u32| self.resumed.get(*index as usize) != Some(&None);
        (0..self.sequences)
            .filter(goes_on)
            .map(|index| index as i32)
    }

    /// Makes its context findable, whose last block was computed now.
    fn store_context(&mut self, cache: &mut BlockCache) {
        let Some(context) = &self.context else {
            return;
        };
        for place in self.shared.len()..context.keys.len() {
            let (key, before) = (context.keys[place], place.checked_sub(1));
            let after = before.map_or(0, |before| context.keys[before]);
            // Where another has computed the same meanwhile, its own block stays unknown.
            if cache.store(key, after, context.seed) {
                self.blocks = self.blocks.saturating_sub(1);
                self.shared.push(key);
            }
        }
    }

    /// Makes findable what it generated, where it is one sequence.
    fn store_answer(&mut self, cache: &mut BlockCache, tokens: impl Iterator<Item = i32>) {
        let Some(context) = &mut self.context else {
            return;
        };
        if self.sequences != 1 {
            return;
        }
        for token in tokens {
            context.rest.push(token);
            if context.rest.len() < context.size {
                continue;
            }
            let after = context.chain.last().unwrap_or(0);
            let key = context.chain.push(&context.rest);
            context.rest.clear();
            if cache.store(key, after, context.seed) {
                self.blocks = self.blocks.saturating_sub(1);
                self.shared.push(key);
            }
        }
    }

    fn tokens_before(&self, index: i32) -> u32 {
        let resumed = usize::try_from(index).ok();
        let resumed = resumed.and_then(|index| *self.resumed.get(index)?);
        resumed.unwrap_or(0)
    }
}

/// What a request computes before it generates, as blocks of the cache. Only where they are reused.
struct Context {
    chain: Chain,
    seed: Seed,
    /// Of its full blocks.
    keys: Vec<u64>,
    /// The tokens after them.
    rest: Vec<i32>,
    /// Tokens of a block.
    size: usize,
    /// Tokens of the prompt, without what was generated elsewhere.
    prompt: u32,
    /// All of its tokens, of which at least the last is computed.
    tokens: u32,
}

impl Context {
    fn new(request: &Request, size: usize) -> Self {
        let size = size.max(1);
        let seed = seed_of(request);
        let mut chain = Chain::new(seed);
        let mut rest = request.input_token_ids.clone();
        let prompt = rest.len() as u32;
        // Several sequences continue differently.
        if let [Some(generated)] = request.generated.as_slice() {
            rest.extend_from_slice(generated);
        }
        let tokens = rest.len() as u32;
        let full = rest.chunks_exact(size);
        let keys: Vec<u64> = full.map(|block| chain.push(block)).collect();
        rest.drain(..keys.len() * size);
        Self {
            chain,
            seed,
            keys,
            rest,
            size,
            prompt,
            tokens,
        }
    }
}

/// What of a request is in the cache.
struct Found {
    blocks: usize,
    /// Blocks that it takes of the free ones.
    cost: u32,
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
    /// `None`: blocks are not reused.
    cache: Option<BlockCache>,
    /// What answers cycle through; never empty.
    ids: Vec<u32>,
    waiting: VecDeque<Waiting>,
    active: HashMap<ClientId, Active>,
    prefills: Vec<Prefill>,
    sequences: Vec<Sequence>,
    notices: Vec<Notice>,
    free_blocks: u32,
    /// Places taken: sequences running or about to, once their prompt is through.
    places: u32,
    iteration: Option<Iteration>,
    next_start: Duration,
    shut_down: bool,
    iterations: u64,
    completed: u64,
    alloc_total_blocks: u64,
    stats: VecDeque<IterationStats>,
    reused_blocks: u64,
    missed_blocks: u64,
}

impl Scheduler {
    pub(super) fn new(options: SimulatedOptions) -> Self {
        Self {
            ids: answer_ids(&options),
            cache: options.enable_kv_cache_reuse.then(BlockCache::default),
            free_blocks: options.num_blocks,
            options,
            waiting: VecDeque::new(),
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
            alloc_total_blocks: 0,
            stats: VecDeque::new(),
            reused_blocks: 0,
            missed_blocks: 0,
        }
    }

    /// Keeps the cache's changes from now on; returns how many blocks it has.
    pub(super) fn report_cache(&mut self) -> u32 {
        if let Some(cache) = &mut self.cache {
            cache.report();
        }
        self.options.num_blocks
    }

    /// What has changed in the cache since the last call.
    pub(super) fn take_cache_changes(&mut self) -> Vec<CacheChange> {
        let cache = self.cache.as_mut();
        cache.map(BlockCache::take_changes).unwrap_or_default()
    }

    /// Queues a request, or the row that refuses it.
    pub(super) fn enqueue(&mut self, request: Request, now: Duration) {
        let mut prompt_tokens = request.input_token_ids.len() as u32;
        let sequences = request.sampling_config.num_return_sequences.max(1);
        let resumed = request.generated.iter();
        let resumed = resumed.map(|tokens| tokens.as_ref().map(|tokens| tokens.len() as u32));
        let resumed: Vec<Option<u32>> = resumed.collect();
        let max_tokens = request.max_tokens.max(1);
        let blocks = self
            .blocks_of(prompt_tokens)
            .saturating_add(self.blocks_of(max_tokens).saturating_mul(sequences));
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
            None
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
        if self.is_idle() {
            self.next_start = self.next_start.max(now);
        }
        // What was generated is computed again, like a prompt.
        prompt_tokens += resumed.iter().flatten().sum::<u32>();
        let ended = resumed.iter().filter(|tokens| tokens.is_none()).count() as u32;
        let size = self.options.tokens_per_block as usize;
        let context = self.cache.as_ref().map(|_| Context::new(&request, size));
        self.waiting.push_back(Waiting {
            client_id: request.client_id,
            prompt_tokens,
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
            },
        });
    }

    /// Ends a request; each of its live sequences gets a last row. Unknown ids are ignored.
    pub(super) fn cancel(&mut self, client_id: ClientId) {
        let mut ended: Vec<i32> = Vec::new();
        if let Some(place) = self.waiting.iter().position(|w| w.client_id == client_id) {
            if let Some(waiting) = self.waiting.remove(place) {
                ended.extend(waiting.active.indexes());
            }
        } else if let Some(active) = self.active.remove(&client_id) {
            self.give_back(&active);
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
            if self.iteration.is_none() && !self.schedule() {
                return Next::Idle;
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

    fn blocks_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.options.tokens_per_block.max(1))
    }

    /// Admits what fits, first come first served, and begins an iteration. Returns false if there is
    /// nothing to do.
    fn schedule(&mut self) -> bool {
        while let Some(waiting) = self.waiting.front() {
            let found = self.find(&waiting.active);
            let fits = found.cost <= self.free_blocks
                && waiting.active.sequences_left + self.places <= self.options.max_batch_size;
            if !fits {
                break;
            }
            let Some(mut waiting) = self.waiting.pop_front() else {
                break;
            };
            self.alloc_total_blocks += u64::from(waiting.active.blocks);
            self.places += waiting.active.sequences_left;
            let cached = self.take(&mut waiting.active, &found);
            self.prefills.push(Prefill {
                client_id: waiting.client_id,
                tokens_left: waiting.prompt_tokens.saturating_sub(cached),
            });
            self.active.insert(waiting.client_id, waiting.active);
        }
        if self.prefills.is_empty() && self.sequences.is_empty() {
            return false;
        }
        let mut budget = self
            .options
            .max_num_tokens
            .saturating_sub(self.sequences.len() as u32)
            .max(1);
        let (mut context_requests, mut context_tokens) = (0, 0);
        for prefill in &mut self.prefills {
            if budget == 0 {
                break;
            }
            let chunk = prefill.tokens_left.min(budget);
            prefill.tokens_left -= chunk;
            budget -= chunk;
            context_requests += 1;
            context_tokens += chunk;
        }
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

    /// Ends an iteration: finished prompts become sequences, and each sequence gets a token.
    fn complete(&mut self, iteration: &Iteration, rows: &mut StepBatch<ClientId>) {
        self.next_start = iteration.end;
        self.iterations += 1;
        let generating = self.sequences.len();
        let answer = &self.options.answer;
        let Self {
            prefills,
            active,
            sequences,
            cache,
            ..
        } = self;
        prefills.retain(|prefill| {
            if prefill.tokens_left > 0 {
                return true;
            }
            if let Some(request) = active.get_mut(&prefill.client_id) {
                if let Some(cache) = cache {
                    request.store_context(cache);
                }
                sequences.extend(request.indexes().map(|index| {
                    let produced = request.tokens_before(index);
                    Sequence {
                        client_id: prefill.client_id,
                        index,
                        produced,
                        reported: produced,
                        max_tokens: request.max_tokens,
                        // Sequences of one request differ, as samples do, unless the answer is given.
                        first_token: match answer.is_empty() {
                            true => request.first_token.wrapping_add(index as u32),
                            false => 0,
                        },
                        streaming: request.streaming,
                    }
                }));
            }
            false
        });

        let Self {
            active,
            sequences,
            free_blocks,
            places,
            completed,
            cache,
            ids,
            ..
        } = self;
        let token = |sequence: &Sequence, place: u32| {
            let place = sequence.first_token.wrapping_add(place) as usize % ids.len();
            ids.get(place).copied().unwrap_or_default() as i32
        };
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
            if cache.is_some() && begins {
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
                        if let Some(cache) = cache {
                            let own = sequence.reported..sequence.produced.saturating_sub(1);
                            request.store_answer(cache, own.map(|place| token(sequence, place)));
                            *free_blocks += cache.release(&request.shared);
                        }
                        *free_blocks += request.blocks;
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

    /// What of a request is in the cache, and how many blocks it takes of those that are free.
    fn find(&self, active: &Active) -> Found {
        let (Some(cache), Some(context)) = (&self.cache, &active.context) else {
            return Found {
                blocks: 0,
                cost: active.blocks,
            };
        };
        // The last token is computed in any case: its row is what the first token comes from.
        let most = context.tokens.saturating_sub(1) / self.options.tokens_per_block.max(1);
        let most = (most as usize).min(context.keys.len());
        let keys = context.keys.get(..most).unwrap_or_default();
        let blocks = cache.find(keys);
        let keys = keys.get(..blocks).unwrap_or_default();
        Found {
            blocks,
            cost: active.blocks - blocks as u32 + cache.unused_of(keys),
        }
    }

    /// Gives a request its blocks; returns how many tokens were found in them.
    fn take(&mut self, active: &mut Active, found: &Found) -> u32 {
        self.free_blocks -= found.cost;
        let (Some(cache), Some(context)) = (&mut self.cache, &mut active.context) else {
            return 0;
        };
        active.shared = context
            .keys
            .get(..found.blocks)
            .unwrap_or_default()
            .to_vec();
        cache.hold(&active.shared);
        // What has no user is in free blocks.
        cache.shrink(self.free_blocks);
        active.blocks -= found.blocks as u32;
        self.reused_blocks += found.blocks as u64;
        self.missed_blocks += (context.keys.len() - found.blocks) as u64;
        let tokens = found.blocks as u32 * self.options.tokens_per_block;
        active.cached_tokens = Some(tokens.min(context.prompt));
        tokens
    }

    /// Takes back the blocks of a request that ended early.
    fn give_back(&mut self, active: &Active) {
        self.free_blocks += active.blocks;
        if let Some(cache) = &mut self.cache {
            self.free_blocks += cache.release(&active.shared);
        }
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
        let used = self.options.num_blocks - self.free_blocks;
        let generating = generating as u64;
        IterationStats {
            timestamp: String::new(),
            iter: self.iterations,
            iter_latency_ms: iteration.duration.as_secs_f64() * 1e3,
            num_active_requests: (self.active.len() + self.waiting.len()) as u64,
            num_queued_requests: self.waiting.len() as u64,
            num_completed_requests: self.completed,
            max_num_active_requests: u64::from(self.options.max_batch_size),
            kv_cache_stats: Some(KvCacheStats {
                max_num_blocks: u64::from(self.options.num_blocks),
                free_num_blocks: u64::from(self.free_blocks),
                used_num_blocks: u64::from(used),
                tokens_per_block: u64::from(self.options.tokens_per_block),
                alloc_total_blocks: self.alloc_total_blocks,
                alloc_new_blocks: self.alloc_total_blocks - self.reused_blocks,
                reused_blocks: self.reused_blocks,
                missed_blocks: self.missed_blocks,
                cache_hit_rate: hit_rate(self.reused_blocks, self.missed_blocks),
            }),
            inflight_batching_stats: Some(InflightBatchingStats {
                num_scheduled_requests: generating + u64::from(iteration.context_requests),
                num_context_requests: u64::from(iteration.context_requests),
                num_gen_requests: generating,
                num_ctx_tokens: u64::from(iteration.context_tokens),
                avg_num_decoded_tokens_per_iter: 1.0,
                ..InflightBatchingStats::default()
            }),
            ..IterationStats::default()
        }
    }
}

/// Part of the blocks that were looked for and found.
fn hit_rate(reused: u64, missed: u64) -> f64 {
    match reused + missed {
        0 => 0.0,
        all => reused as f64 / all as f64,
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

/// The token ids that answers cycle through: those of the given answer, or of printable characters.
fn answer_ids(options: &SimulatedOptions) -> Vec<u32> {
    if !options.answer.is_empty() {
        return options.answer.clone();
    }
    let first_id = match options.vocab_size > FIRST_PRINTABLE {
        true => FIRST_PRINTABLE,
        false => 0,
    };
    let count = PRINTABLE.min(options.vocab_size - first_id).max(1);
    (first_id..first_id + count).collect()
}

/// Where in the cycle of token ids a prompt's answer begins: the same prompt always gets the same answer.
fn first_token(prompt: &[i32]) -> u32 {
    prompt.iter().fold(0_u32, |hash, id| {
        hash.wrapping_mul(31).wrapping_add(*id as u32)
    })
}

#[cfg(test)]
mod tests;
