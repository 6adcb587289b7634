//! One watcher's stream: a snapshot in parts, then what has changed, batched, and a message at least every heartbeat.
//!
//! A message is made only when the stream is asked for one, so that a slow reader holds no messages here: it falls
//! behind in the changes, and gets another snapshot once the ones that it missed are no longer kept.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::cache_state::{BlockChanges, CacheShape, CacheUpdate, WorkerLoad};
use tokio::time::{Instant, sleep_until};

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
    /// What is left of a snapshot.
    snapshot: Option<Snapshot>,
    sequence: u64,
    sent: Option<Instant>,
}

/// Keys, each with the key before it.
struct Snapshot {
    device: Vec<(u64, u64)>,
    host: Vec<(u64, u64)>,
    begun: bool,
}

impl<L: LoadSource> Watch<L> {
    pub(crate) fn new(watching: Watching, load: L) -> Self {
        Self {
            watching,
            load,
            next: 0,
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
                        if !difference.is_empty() {
                            return Some(CacheUpdate {
                                cleared: difference.cleared,
                                device: Some(difference.device),
                                host: Some(difference.host),
                                ..CacheUpdate::default()
                            });
                        }
                    }
                }
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(sent + HEARTBEAT) => return Some(CacheUpdate::default()),
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
        drop(state);
        self.snapshot = Some(Snapshot {
            device,
            host,
            begun: false,
        });
        self.next_part()
    }

    fn next_part(&mut self) -> Option<CacheUpdate> {
        let snapshot = self.snapshot.as_mut()?;
        let begins = !std::mem::replace(&mut snapshot.begun, true);
        let device = take(&mut snapshot.device, PART);
        let host = take(&mut snapshot.host, PART - device.len());
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
