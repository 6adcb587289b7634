//! What a model's KV cache holds, for those who watch it: executors report changes of blocks here, and `CacheState`
//! sends them on.
//!
//! All blocks are kept, since a watcher first gets what there is: at most about 100 bytes a block that the executor
//! holds. Changes are kept only while somebody watches, and for all watchers once, so that a report costs the same
//! however many there are.

mod blocks;
mod changes;
mod contents;
pub(crate) mod load;
mod publication;
mod waiting;
mod watch;

use std::sync::Arc;

use inflight_blocks::{Seed, keys};
use load::Freshness;
use parking_lot::Mutex;
use tokio::sync::Notify;
use waiting::Waiting;

pub use blocks::{CacheBlocks, Parent};
pub use changes::Level;
pub use contents::Origin;
pub(crate) use publication::{everything, publish};
pub(crate) use watch::{LoadSource, Watch};

/// Streams that may watch one model: gateways and other routers. Each holds a copy of the blocks' keys while its
/// snapshot is sent.
pub(crate) const MAX_WATCHERS: usize = 64;

/// By which an executor reports what its cache holds. A clone reports of the same cache.
#[derive(Clone, Debug)]
pub struct CacheReports(Arc<Board>);

impl CacheReports {
    /// As [`CacheBlocks::wants_tokens`]; the same for as long as the worker runs.
    pub fn wants_tokens(&self) -> bool {
        self.0.state.lock().blocks.wants_tokens()
    }

    /// Makes changes, all of which watchers get at once. Called from the thread that makes them, once for all changes
    /// of an iteration.
    pub fn report<T>(&self, change: impl FnOnce(&mut CacheBlocks) -> T) -> T {
        let mut state = self.0.state.lock();
        let before = state.blocks.changes().end();
        let result = change(&mut state.blocks);
        let changed = state.blocks.changes().end() != before;
        drop(state);
        if changed {
            self.0.changed.notify_waiters();
        }
        result
    }
}

/// One model's cache.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    /// Notified after changes, and at the end.
    changed: Notify,
    /// Whether the executor reports blocks.
    reports_blocks: bool,
    /// Whether its short prompts pass long ones.
    short_prompts_first: bool,
    /// Of the executor's figures.
    pub(crate) freshness: Freshness,
}

#[derive(Debug)]
struct State {
    blocks: CacheBlocks,
    waiting: Waiting,
    watchers: usize,
    /// Watchers are released.
    closed: bool,
}

impl Board {
    /// `is_published`: besides those who watch, somebody [publishes](publish) its blocks.
    pub(crate) fn new(
        tokens_per_block: u32,
        reports_blocks: bool,
        is_published: bool,
        short_prompts_first: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                blocks: CacheBlocks::new(tokens_per_block, is_published),
                waiting: Waiting::default(),
                watchers: 0,
                closed: false,
            }),
            changed: Notify::new(),
            reports_blocks,
            short_prompts_first,
            freshness: Freshness::new(),
        })
    }

    pub(crate) fn reports(self: &Arc<Self>) -> CacheReports {
        CacheReports(Arc::clone(self))
    }

    /// Looks up prompts that come, and names to watchers those that the cache lacks blocks of. Empty where nobody watches.
    /// A prompt has no seed where its token ids do not say what its blocks hold.
    pub(crate) fn expect<'a>(
        self: &Arc<Self>,
        prompts: impl Iterator<Item = (&'a [i32], Option<Seed>)>,
    ) -> Vec<Expected> {
        if !self.reports_blocks || self.state.lock().watchers == 0 {
            return Vec::new();
        }
        let tokens_per_block = self.state.lock().blocks.tokens_per_block() as usize;
        let mut names_any = false;
        let expected = prompts.map(|(tokens, seed)| {
            let keys = seed.map_or_else(Vec::new, |seed| keys(tokens, tokens_per_block, seed));
            let mut state = self.state.lock();
            let held = keys.iter().take_while(|key| state.blocks.holds(**key));
            let held = held.count();
            let left = tokens.len().saturating_sub(held * tokens_per_block);
            let number = match held < keys.len() {
                true => state.waiting.came(&keys),
                false => None,
            };
            drop(state);
            names_any |= number.is_some();
            Expected {
                // An executor computes the last one.
                uncached_tokens: u32::try_from(left.max(1)).unwrap_or(u32::MAX),
                waiting: number.map(|number| NamedAsWaiting {
                    board: Arc::clone(self),
                    number,
                }),
            }
        });
        let expected = expected.collect();
        if names_any {
            self.changed.notify_waiters();
        }
        expected
    }

    /// Ends all watchers' streams, and those that come later.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// A place among the watchers. `None`: there are too many.
    pub(crate) fn join(self: &Arc<Self>) -> Option<Watching> {
        let mut state = self.state.lock();
        if state.watchers == MAX_WATCHERS {
            return None;
        }
        state.watchers += 1;
        state.blocks.watch(true);
        Some(Watching(Arc::clone(self)))
    }
}

/// A prompt that has come.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Tokens that the cache is not known to hold.
    pub(crate) uncached_tokens: u32,
    /// `None`: all its blocks are held, or it is left out.
    pub(crate) waiting: Option<NamedAsWaiting>,
}

/// A prompt is named to watchers as one that waits, for as long as this lives. To drop it takes the cache's lock.
#[derive(Debug)]
pub(crate) struct NamedAsWaiting {
    board: Arc<Board>,
    number: u64,
}

impl Drop for NamedAsWaiting {
    fn drop(&mut self) {
        // Watchers hear of it with what comes next: its blocks say as much.
        self.board.state.lock().waiting.left(self.number);
    }
}

/// Changes are kept while it lives.
#[derive(Debug)]
pub(crate) struct Watching(Arc<Board>);

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.watchers -= 1;
        if state.watchers == 0 {
            state.blocks.watch(false);
        }
    }
}

#[cfg(test)]
mod tests;
