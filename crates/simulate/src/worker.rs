//! The model of a worker: prompts are computed one after another, answers are generated at a fixed pace, and a cache
//! keeps the blocks of prompts. Owns what a worker does and reports; knows nothing of gateways' choices.

use std::collections::VecDeque;

use crate::cache::{ByBlock, Cache};
use crate::trace::{BLOCK_TOKENS, Trace};

/// What a worker can do.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Blocks that its cache holds.
    pub blocks: usize,
    /// Prompt tokens a second.
    pub prompt_tokens_per_s: f64,
    /// Seconds between the tokens of an answer.
    pub token_s: f64,
}

impl Machine {
    /// Seconds that a prompt's tokens take next to so many answers, of which a generated token costs as much as one of a
    /// prompt.
    pub(crate) fn next_to(&self, running: u32, tokens: u64) -> f64 {
        let generated_per_s = f64::from(running) / self.token_s;
        let share = (1.0 - generated_per_s / self.prompt_tokens_per_s).max(LEAST_SHARE);
        tokens as f64 / (self.prompt_tokens_per_s * share)
    }
}

/// The least share of a worker's time that prompts get, however many answers it generates.
const LEAST_SHARE: f64 = 0.1;

/// What changed in a worker's cache.
#[derive(Clone, Debug)]
pub(crate) enum CacheChange {
    /// The blocks of a request's prompt, from this one on, are cached or will be once it is computed.
    Stored {
        request: u32,
        from: usize,
    },
    Removed(Vec<u32>),
}

/// What a worker reports. Cache changes are those since the last report.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) at: f64,
    pub(crate) changes: Vec<CacheChange>,
    /// The last ticket of each gateway.
    pub(crate) tickets: Vec<u64>,
    pub(crate) queued_tokens: u64,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) is_full: bool,
    /// Different blocks of the requests that wait or generate.
    pub(crate) active_blocks: u32,
    pub(crate) computed_tokens: u64,
    pub(crate) computed_seconds: f64,
}

#[derive(Debug)]
struct Waiting {
    request: u32,
    /// Tokens that will not be cached when its turn comes, as far as can be known when it arrives.
    uncached: u64,
}

/// A prompt that is being computed.
#[derive(Clone, Copy, Debug)]
struct Computing {
    request: u32,
    tokens: u64,
    from: f64,
    until: f64,
    /// Those that it works on the prompt.
    seconds: f64,
    /// Leading blocks that were cached.
    cached: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: VecDeque<Waiting>,
    queued_tokens: u64,
    computing: Option<Computing>,
    running: u32,
    /// Requests whose blocks come from another worker.
    arriving: u32,
    /// Blocks of the prompts that wait, each with how many.
    pending: ByBlock<u32>,
    active: ByBlock<u32>,
    changes: Vec<CacheChange>,
    tickets: Vec<u64>,
    computed_tokens: u64,
    computed_seconds: f64,
    /// Since the beginning.
    pub(crate) busy_s: f64,
    pub(crate) has_news: bool,
}

impl Worker {
    pub(crate) fn new(gateways: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            queued_tokens: 0,
            computing: None,
            running: 0,
            arriving: 0,
            pending: ByBlock::default(),
            active: ByBlock::default(),
            changes: Vec::new(),
            tickets: vec![0; gateways],
            computed_tokens: 0,
            computed_seconds: 0.0,
            busy_s: 0.0,
            has_news: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.computing.is_none()
    }

    /// Takes a request, which waits for its turn.
    pub(crate) fn arrive(
        &mut self,
        trace: &Trace,
        request: u32,
        gateway: usize,
        ticket: u64,
        cache: &Cache,
    ) {
        let blocks = trace.blocks(request);
        let known = |block: &&u32| cache.contains(**block) || self.pending.contains_key(*block);
        let cached = blocks.iter().take_while(known).count();
        let uncached = uncached_tokens(trace, request, cached);
        for block in blocks {
            *self.pending.entry(*block).or_default() += 1;
            *self.active.entry(*block).or_default() += 1;
        }
        if cached < blocks.len() {
            // Announced when it is accepted: the next request finds them cached when its turn comes.
            let from = cached;
            self.changes.push(CacheChange::Stored { request, from });
        }
        self.queue.push_back(Waiting { request, uncached });
        self.queued_tokens += uncached;
        self.tickets[gateway] = ticket;
    }

    /// Begins with the next prompt, if there is one. Returns when it is computed, and its cached tokens. `takes`: the
    /// seconds that so many tokens take next to so many answers, and those of them that are the prompt's.
    pub(crate) fn begin(
        &mut self,
        trace: &Trace,
        cache: &Cache,
        now: f64,
        takes: impl FnOnce(u64, u32) -> (f64, f64),
    ) -> Option<(f64, u32, u64)> {
        let Waiting { request, uncached } = self.queue.pop_front()?;
        self.queued_tokens -= uncached;
        let cached = cache.leading(trace.blocks(request));
        let tokens = uncached_tokens(trace, request, cached);
        let (lasts, seconds) = takes(tokens, self.running);
        self.computing = Some(Computing {
            request,
            tokens,
            from: now,
            until: now + lasts,
            seconds,
            cached,
        });
        self.busy_s += seconds;
        let input = u64::from(trace.requests[request as usize].input_tokens);
        Some((now + lasts, request, input - tokens))
    }

    /// The prompt is computed: its blocks are in the cache, and its answer begins.
    pub(crate) fn computed(&mut self, trace: &Trace, cache: &mut Cache) -> Option<u32> {
        let done = self.computing.take()?;
        for block in trace.blocks(done.request) {
            forget(&mut self.pending, *block);
        }
        self.store(trace, done.request, done.cached, cache);
        self.computed_tokens += done.tokens;
        self.computed_seconds += done.seconds;
        Some(done.request)
    }

    /// The answer to a prompt begins.
    pub(crate) fn generates(&mut self) {
        self.running += 1;
    }

    /// Takes a request whose blocks come from another worker.
    pub(crate) fn expect(&mut self, trace: &Trace, request: u32, gateway: usize, ticket: u64) {
        for block in trace.blocks(request) {
            *self.active.entry(*block).or_default() += 1;
        }
        self.tickets[gateway] = ticket;
        self.arriving += 1;
    }

    /// The answer to a request of another worker's prompt begins.
    pub(crate) fn continues(&mut self) {
        self.arriving -= 1;
        self.generates();
    }

    /// The blocks of a request are here.
    pub(crate) fn fetched(&mut self, trace: &Trace, request: u32, cache: &mut Cache) {
        let from = cache.leading(trace.blocks(request));
        self.store(trace, request, from, cache);
    }

    /// The answer to a request comes from elsewhere.
    pub(crate) fn left(&mut self, trace: &Trace, request: u32) {
        for block in trace.blocks(request) {
            forget(&mut self.active, *block);
        }
    }

    /// Seconds of the prompts behind the first one that waits, no more of each.
    pub(crate) fn behind_s(&self, prompt_tokens_per_s: f64, each_s: f64) -> f64 {
        let behind = self.queue.iter().skip(1);
        let each = behind.map(|one| (one.uncached as f64 / prompt_tokens_per_s).min(each_s));
        each.sum()
    }

    /// Puts the blocks of a prompt into the cache, of which those from one on were not there.
    fn store(&mut self, trace: &Trace, request: u32, from: usize, cache: &mut Cache) {
        let blocks = trace.blocks(request);
        let mut removed = Vec::new();
        // The first block is the last that leaves.
        for block in blocks.iter().rev() {
            removed.extend(cache.use_block(*block));
        }
        if from < blocks.len() {
            self.changes.push(CacheChange::Stored { request, from });
        }
        if !removed.is_empty() {
            self.changes.push(CacheChange::Removed(removed));
        }
    }

    /// An answer is complete.
    pub(crate) fn ended(&mut self, trace: &Trace, request: u32) {
        self.running -= 1;
        self.left(trace, request);
    }

    /// What it reports now.
    pub(crate) fn report(&mut self, cache: &Cache, now: f64) -> Reported {
        let remaining = self.computing.map_or(0.0, |one| {
            one.tokens as f64 * (one.until - now).max(0.0) / (one.until - one.from).max(1e-9)
        });
        self.has_news = false;
        Reported {
            at: now,
            changes: std::mem::take(&mut self.changes),
            tickets: self.tickets.clone(),
            queued_tokens: self.queued_tokens + remaining as u64,
            waiting: self.queue.len() as u32 + u32::from(self.computing.is_some()) + self.arriving,
            running: self.running,
            is_full: cache.is_full(),
            active_blocks: self.active.len() as u32,
            computed_tokens: std::mem::take(&mut self.computed_tokens),
            computed_seconds: std::mem::take(&mut self.computed_seconds),
        }
    }
}

/// Tokens to compute; a worker computes at least the last one of a prompt.
fn uncached_tokens(trace: &Trace, request: u32, cached: usize) -> u64 {
    let input = u64::from(trace.requests[request as usize].input_tokens);
    input
        .saturating_sub(cached as u64 * u64::from(BLOCK_TOKENS))
        .max(1)
}

fn forget(counts: &mut ByBlock<u32>, block: u32) {
    if let Some(count) = counts.get_mut(&block) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&block);
        }
    }
}
