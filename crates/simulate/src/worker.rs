//! The model of a worker: which prompts it computes and which wait, and what it reports. Owns what an iteration has of
//! prompts; knows nothing of gateways' choices.

use std::collections::{HashMap, VecDeque};

use crate::cache::{ByBlock, Cache, Taken};
use crate::trace::{BLOCK_TOKENS, Trace};

/// What a worker can do.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Blocks that its cache holds.
    pub blocks: usize,
    /// Prompt tokens a second.
    pub prompt_tokens_per_s: f64,
    /// Seconds between the tokens of an answer that is alone.
    pub token_s: f64,
}

/// What changed in a worker's cache.
#[derive(Clone, Debug)]
pub(crate) enum CacheChange {
    /// A prompt waits whose blocks are not all cached.
    Waits(u32),
    /// Its blocks are cached, which comes first.
    NoLongerWaits(u32),
    /// The blocks of a request's prompt are cached from this one on.
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
    /// Prompt tokens that are left to compute, by what was cached when their requests came.
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
    /// Tokens that were not cached when it came.
    uncached: u64,
}

/// A prompt that is being computed.
#[derive(Clone, Copy, Debug)]
struct Computing {
    request: u32,
    tokens: u64,
    /// Those that were not cached when it came.
    uncached: u64,
    /// Leading blocks that were cached.
    cached: usize,
    /// What it takes by itself, and what is left of that.
    seconds: f64,
    left_s: f64,
    /// What the iteration has of it.
    chunk_s: f64,
}

/// What an iteration may have of prompts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Seconds of one prompt.
    pub(crate) each_s: f64,
    /// Seconds of all of them.
    pub(crate) all_s: f64,
}

/// Of a prompt, so that rounding leaves no rest.
const NOTHING_S: f64 = 1e-9;

/// See the module.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: VecDeque<Waiting>,
    /// Of those that wait or are computed.
    queued_tokens: u64,
    /// Those that have begun, in the order of the queue.
    computing: Vec<Computing>,
    running: u32,
    /// Requests whose blocks come from another worker.
    arriving: u32,
    /// Blocks of the requests that wait or generate, each with how many.
    active: ByBlock<u32>,
    taken: HashMap<u32, Taken>,
    changes: Vec<CacheChange>,
    computed_tokens: u64,
    computed_seconds: f64,
    /// Since the beginning.
    pub(crate) busy_s: f64,
    pub(crate) has_news: bool,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            queued_tokens: 0,
            computing: Vec::new(),
            running: 0,
            arriving: 0,
            active: ByBlock::default(),
            taken: HashMap::new(),
            changes: Vec::new(),
            computed_tokens: 0,
            computed_seconds: 0.0,
            busy_s: 0.0,
            has_news: false,
        }
    }

    /// Takes a request, which waits for its turn.
    pub(crate) fn arrive(&mut self, trace: &Trace, request: u32, cache: &Cache) {
        let blocks = trace.blocks(request);
        let uncached = uncached_tokens(trace, request, cache.leading(blocks));
        for block in blocks {
            *self.active.entry(*block).or_default() += 1;
        }
        if uncached >= u64::from(BLOCK_TOKENS) {
            self.changes.push(CacheChange::Waits(request));
        }
        self.queue.push_back(Waiting { request, uncached });
        self.queued_tokens += uncached;
    }

    /// The iteration is over.
    pub(crate) fn iterated(&mut self) {
        for one in &mut self.computing {
            self.busy_s += one.chunk_s;
            one.left_s -= one.chunk_s;
        }
    }

    /// A request whose prompt is computed: its blocks are in the cache.
    pub(crate) fn computed(&mut self, trace: &Trace, cache: &mut Cache) -> Option<u32> {
        let mut computing = self.computing.iter();
        let place = computing.position(|one| one.left_s <= NOTHING_S)?;
        let done = self.computing.remove(place);
        self.queued_tokens -= done.uncached;
        self.store(trace, done.request, done.cached, cache);
        if done.uncached >= u64::from(BLOCK_TOKENS) {
            self.changes.push(CacheChange::NoLongerWaits(done.request));
        }
        self.computed_tokens += done.tokens;
        self.computed_seconds += done.seconds;
        Some(done.request)
    }

    /// Begins an iteration with the prompts that have room in it and in the cache. Returns their seconds in it, and those that
    /// begin with it with their cached tokens.
    pub(crate) fn iterate(
        &mut self,
        trace: &Trace,
        cache: &mut Cache,
        prompt_tokens_per_s: f64,
        bounds: Bounds,
    ) -> (f64, Vec<(u32, u64)>) {
        let mut rest_s = bounds.all_s;
        let mut take = |one: &mut Computing| {
            one.chunk_s = one.left_s.min(bounds.each_s).min(rest_s);
            rest_s -= one.chunk_s;
            rest_s > 0.0
        };
        let mut has_room = self.computing.iter_mut().fold(true, |_, one| take(one));
        // Where all that has blocks is elsewhere, waiting for an end would be for ever.
        let has_ends = self.running + self.arriving > 0 || !self.computing.is_empty();
        let (mut begun, mut place) = (Vec::new(), 0);
        while has_room && let Some(&Waiting { request, uncached }) = self.queue.get(place) {
            let blocks = trace.blocks(request);
            let cached = cache.leading(blocks);
            if self.is_computing(trace, blocks, cached) {
                place += 1;
                continue;
            }
            let more = trace.needed(request).min(cache.capacity()) - cached;
            if !cache.has_room(&blocks[..cached], more) && has_ends {
                break;
            }
            self.queue.remove(place);
            self.take(trace, request, cached, cache);
            let tokens = uncached_tokens(trace, request, cached);
            let seconds = tokens as f64 / prompt_tokens_per_s;
            let mut one = Computing {
                request,
                tokens,
                uncached,
                cached,
                seconds,
                left_s: seconds,
                chunk_s: 0.0,
            };
            has_room = take(&mut one);
            self.computing.push(one);
            let input = u64::from(trace.requests[request as usize].input_tokens);
            begun.push((request, input - tokens));
        }
        (bounds.all_s - rest_s, begun)
    }

    /// Whether a block is being computed for another prompt.
    fn is_computing(&self, trace: &Trace, blocks: &[u32], place: usize) -> bool {
        let mut others = self.computing.iter().map(|one| trace.blocks(one.request));
        // Equal blocks follow equal blocks.
        blocks
            .get(place)
            .is_some_and(|block| others.any(|other| other.get(place) == Some(block)))
    }

    /// The answer to a prompt begins.
    pub(crate) fn generates(&mut self) {
        self.running += 1;
    }

    /// Takes a request whose blocks come from another worker.
    pub(crate) fn expect(&mut self, trace: &Trace, request: u32) {
        for block in trace.blocks(request) {
            *self.active.entry(*block).or_default() += 1;
        }
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
        self.take(trace, request, from, cache);
        self.store(trace, request, from, cache);
    }

    /// The answer to a request comes from elsewhere, or is complete.
    pub(crate) fn left(&mut self, trace: &Trace, request: u32, cache: &mut Cache) {
        for block in trace.blocks(request) {
            forget(&mut self.active, *block);
        }
        if let Some(taken) = self.taken.remove(&request) {
            cache.release(&taken);
        }
    }

    /// Takes all blocks of a request, of which so many are there.
    fn take(&mut self, trace: &Trace, request: u32, cached: usize, cache: &mut Cache) {
        let found = &trace.blocks(request)[..cached];
        let more = trace.needed(request).min(cache.capacity()) - cached;
        let mut gone = Vec::new();
        let taken = cache.take(found, more, &mut gone);
        self.taken.insert(request, taken);
        if !gone.is_empty() {
            self.changes.push(CacheChange::Removed(gone));
        }
    }

    /// The blocks of a prompt can be found, of which those from one on could not.
    fn store(&mut self, trace: &Trace, request: u32, from: usize, cache: &mut Cache) {
        let blocks = &trace.blocks(request)[from..];
        if let Some(taken) = self.taken.get_mut(&request)
            && !blocks.is_empty()
        {
            cache.store(taken, blocks);
            self.changes.push(CacheChange::Stored { request, from });
        }
    }

    /// An answer is complete.
    pub(crate) fn ended(&mut self, trace: &Trace, request: u32, cache: &mut Cache) {
        self.running -= 1;
        self.left(trace, request, cache);
    }

    /// What it reports now.
    pub(crate) fn report(&mut self, cache: &Cache, now: f64) -> Reported {
        let waiting = self.queue.len() + self.computing.len();
        let done = |one: &Computing| one.tokens as f64 * (1.0 - one.left_s / one.seconds);
        let done: f64 = self.computing.iter().map(done).sum();
        self.has_news = false;
        Reported {
            at: now,
            changes: std::mem::take(&mut self.changes),
            queued_tokens: self.queued_tokens.saturating_sub(done as u64),
            waiting: waiting as u32 + self.arriving,
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
