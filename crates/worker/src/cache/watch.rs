//! One watcher's stream: a snapshot in parts, then what has changed, batched, and a message at least every heartbeat.
//!
//! A message is made only when the stream is asked for one, so that a slow reader holds no messages here: it falls
//! behind in the changes, and gets another snapshot once the ones that it missed are no longer kept.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::cache_state::{
    BlockChanges, CacheShape, CacheUpdate, WaitingPrompt, WorkerLoad,
};
use tokio::time::{Instant, sleep_until};

use super::waiting::Waiting;
use super::{Board, Watching};

/// Between two messages: an executor changes blocks in each iteration, and routers need no more than this.
pub(super) const BATCH: Duration = Duration::from_millis(10);
/// The longest silence.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Keys in one message of a snapshot: 128 KiB, far below any message limit.
const PART: usize = 8 * 1024;

/// The load that messages report.
pub(crate) trait LoadSource {
    fn load(&self) -> impl Future<Output = WorkerLoad> + Send;
}

pub(crate) struct Watch<L> {
    watching: Watching,
    load: L,
    /// The number of the first change that was not sent.
    next: u64,
    named: Named,
    /// What is left of a snapshot.
    snapshot: Option<Snapshot>,
    sequence: u64,
    sent: Option<Instant>,
}

/// Keys, each with the key before it.
struct Snapshot {
    device: Vec<(u64, u64)>,
    host: Vec<(u64, u64)>,
    waiting: Vec<WaitingPrompt>,
    begun: bool,
}

/// Prompts that the reader knows as waiting.
#[derive(Debug, Default)]
struct Named {
    numbers: Vec<u64>,
    /// The last one that came.
    last: u64,
}

impl Named {
    /// Those that came since the last call.
    fn came(&mut self, waiting: &Waiting) -> Vec<WaitingPrompt> {
        let prompts = waiting
            .after(self.last)
            .map(|(number, keys)| WaitingPrompt {
                number,
                keys: keys.to_vec(),
            });
        let prompts: Vec<WaitingPrompt> = prompts.collect();
        self.last = prompts.last().map_or(self.last, |prompt| prompt.number);
        self.numbers
            .extend(prompts.iter().map(|prompt| prompt.number));
        prompts
    }

    /// And those that no longer wait.
    fn left(&mut self, waiting: &Waiting) -> Vec<u64> {
        let gone = |number: &mut u64| !waiting.waits(*number);
        self.numbers.extract_if(.., gone).collect()
    }
}

impl<L: LoadSource> Watch<L> {
    pub(crate) fn new(watching: Watching, load: L) -> Self {
        Self {
            watching,
            load,
            next: 0,
            named: Named::default(),
            snapshot: None,
            sequence: 0,
            sent: None,
        }
    }

    /// The next message. `None`: the worker ends.
    pub(crate) async fn next(&mut self) -> Option<CacheUpdate> {
        let mut update = self.blocks().await?;
        self.sequence += 1;
        update.sequence = self.sequence;
        update.load = Some(self.load.load().await);
        self.sent = Some(Instant::now());
        Some(update)
    }

    /// The message without its load.
    async fn blocks(&mut self) -> Option<CacheUpdate> {
        if let Some(part) = self.next_part() {
            return Some(part);
        }
        let Some(sent) = self.sent else {
            return self.begin();
        };
        sleep_until(sent + BATCH).await;
        let board = Arc::clone(self.board());
        let mut is_due = false;
        loop {
            let changed = board.changed.notified();
            tokio::pin!(changed);
            // Before looking, so that no change is missed between.
            changed.as_mut().enable();
            {
                let state = board.state.lock();
                if state.closed {
                    return None;
                }
                let changes = state.blocks.changes();
                match changes.since(self.next) {
                    None => {
                        drop(state);
                        return self.begin();
                    }
                    Some(difference) => {
                        self.next = changes.end();
                        let came = self.named.came(&state.waiting);
                        let has_blocks = !difference.is_empty();
                        if is_due || has_blocks || !came.is_empty() {
                            return Some(CacheUpdate {
                                cleared: difference.cleared,
                                device: has_blocks.then_some(difference.device),
                                host: has_blocks.then_some(difference.host),
                                waiting: came,
                                no_longer_waiting: self.named.left(&state.waiting),
                                ..CacheUpdate::default()
                            });
                        }
                    }
                }
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(sent + HEARTBEAT) => is_due = true,
            }
        }
    }

    fn board(&self) -> &Arc<Board> {
        &self.watching.0
    }

    /// Begins a snapshot of what there is now.
    fn begin(&mut self) -> Option<CacheUpdate> {
        let state = self.watching.0.state.lock();
        if state.closed {
            return None;
        }
        let [device, host] = state.blocks.keys();
        self.next = state.blocks.changes().end();
        self.named = Named::default();
        let waiting = self.named.came(&state.waiting);
        drop(state);
        self.snapshot = Some(Snapshot {
            device,
            host,
            waiting,
            begun: false,
        });
        self.next_part()
    }

    fn next_part(&mut self) -> Option<CacheUpdate> {
        let snapshot = self.snapshot.as_mut()?;
        let begins = !std::mem::replace(&mut snapshot.begun, true);
        let device = take(&mut snapshot.device, PART);
        let host = take(&mut snapshot.host, PART - device.len());
        let waiting = std::mem::take(&mut snapshot.waiting);
        let ends = snapshot.device.is_empty() && snapshot.host.is_empty();
        if ends {
            self.snapshot = None;
        }
        let stored = |keys: Vec<(u64, u64)>| {
            let (stored, after) = keys.into_iter().unzip();
            Some(BlockChanges {
                stored,
                after,
                removed: Vec::new(),
            })
        };
        Some(CacheUpdate {
            snapshot_begin: begins,
            snapshot_end: ends,
            device: stored(device),
            host: stored(host),
            shape: begins.then(|| self.shape()),
            waiting,
            ..CacheUpdate::default()
        })
    }

    fn shape(&self) -> CacheShape {
        let board = self.board();
        let state = board.state.lock();
        let [device_blocks, host_blocks] = state.blocks.capacity();
        CacheShape {
            tokens_per_block: state.blocks.tokens_per_block(),
            device_blocks,
            host_blocks,
            reports_blocks: board.reports_blocks,
            short_prompts_first: board.short_prompts_first,
        }
    }
}

/// Takes at most `most` keys.
fn take(keys: &mut Vec<(u64, u64)>, most: usize) -> Vec<(u64, u64)> {
    keys.split_off(keys.len().saturating_sub(most))
}
