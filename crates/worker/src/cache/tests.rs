//! Watchers against executors that report at random, and against the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt;
use inflight_blocks::{Seed, keys};
use inflight_kserve::cache_state::{CacheUpdate, WorkerLoad};
use proptest::prelude::*;
use tokio::time::{Instant, timeout};

use super::*;

const SIZE: u32 = 4;

struct Idle;

impl LoadSource for Idle {
    async fn load(&self) -> WorkerLoad {
        WorkerLoad::default()
    }
}

/// What a reader makes of the updates.
#[derive(Debug, Default)]
struct Reader {
    /// Each with the key before it.
    device: BTreeMap<u64, u64>,
    host: BTreeMap<u64, u64>,
    /// Keys of prompts that wait, by number.
    waiting: BTreeMap<u64, Vec<u64>>,
    sequence: u64,
    snapshots: u32,
    in_snapshot: bool,
}

impl Reader {
    fn read(&mut self, update: &CacheUpdate) {
        assert_eq!(update.sequence, self.sequence + 1);
        self.sequence = update.sequence;
        assert!(update.load.is_some());
        assert_eq!(update.shape.is_some(), update.snapshot_begin);
        if update.snapshot_begin || update.cleared {
            self.device.clear();
            self.host.clear();
        }
        if update.snapshot_begin {
            assert!(!self.in_snapshot);
            self.in_snapshot = true;
            self.snapshots += 1;
            self.waiting.clear();
        }
        for number in &update.no_longer_waiting {
            assert!(self.waiting.remove(number).is_some(), "never waited");
        }
        for prompt in &update.waiting {
            let before = self.waiting.insert(prompt.number, prompt.keys.clone());
            assert!(before.is_none(), "waits twice");
        }
        for (set, changes) in [
            (&mut self.device, &update.device),
            (&mut self.host, &update.host),
        ] {
            for changes in changes.iter() {
                assert_eq!(changes.stored.len(), changes.after.len());
                for (key, after) in changes.stored.iter().zip(&changes.after) {
                    assert!(set.insert(*key, *after).is_none(), "stored twice");
                }
                for key in &changes.removed {
                    assert!(set.remove(key).is_some(), "removed and not there");
                }
            }
        }
        if update.snapshot_end {
            assert!(self.in_snapshot);
            self.in_snapshot = false;
        }
    }

    fn has(&self, board: &Board) -> bool {
        let [device, host] = board.state.lock().blocks.keys();
        self.device == BTreeMap::from_iter(device) && self.host == BTreeMap::from_iter(host)
    }
}

fn watch(board: &Arc<Board>) -> Watch<Idle> {
    Watch::new(board.join().unwrap(), Idle)
}

fn block(number: i32) -> Vec<i32> {
    vec![number; SIZE as usize]
}

fn plain() -> Parent<'static> {
    static PLAIN: Origin = Origin {
        lora_task_id: None,
        salt: Vec::new(),
    };
    Parent::First(&PLAIN)
}

#[tokio::test(start_paused = true)]
async fn a_watcher_gets_what_there_is_then_changes_in_batches_and_heartbeats() {
    let board = Board::new(SIZE, true, false, false);
    let reports = board.reports();
    reports.report(|blocks| {
        blocks.set_capacity(100, 10);
        blocks.stored(1, plain(), &block(1), Level::Device);
        blocks.stored(2, Parent::Block(1), &block(2), Level::Host);
    });
    let tokens = [block(1), block(2), block(3)].concat();
    let named = keys(&tokens, SIZE as usize, Seed::new(None, b""));
    let mut watch = watch(&board);
    let mut reader = Reader::default();

    let first = watch.next().await.unwrap();
    assert!(first.snapshot_begin && first.snapshot_end);
    let shape = first.shape.unwrap();
    assert_eq!((shape.tokens_per_block, shape.reports_blocks), (SIZE, true));
    assert_eq!((shape.device_blocks, shape.host_blocks), (100, 10));
    reader.read(&first);
    assert_eq!(reader.device, BTreeMap::from([(named[0], 0)]));
    assert_eq!(reader.host, BTreeMap::from([(named[1], named[0])]));

    // Nothing changes: a heartbeat.
    let start = Instant::now();
    let second = watch.next().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(500));
    assert_eq!(second.device, None);
    reader.read(&second);

    // After a while in silence a change comes at once, and all of one report in one message.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    reports.report(|blocks| {
        blocks.stored(3, Parent::Block(2), &block(3), Level::Device);
        blocks.moved(2, Level::Device);
    });
    reader.read(&watch.next().await.unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    let before = std::iter::once(0).chain(named.iter().copied());
    assert_eq!(reader.device, named.iter().copied().zip(before).collect());
    assert!(reader.host.is_empty());

    // And those that follow closely wait for each other.
    reports.report(|blocks| blocks.removed(3));
    reports.report(|blocks| blocks.removed(2));
    reader.read(&watch.next().await.unwrap());
    assert_eq!(start.elapsed(), Duration::from_millis(10));
    assert_eq!(reader.device, BTreeMap::from([(named[0], 0)]));

    reports.report(CacheBlocks::cleared);
    let last = watch.next().await.unwrap();
    assert!(last.cleared);
    reader.read(&last);
    assert!(reader.has(&board));

    board.close();
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn watchers_know_prompts_that_wait_for_blocks() {
    let board = Board::new(SIZE, true, false, false);
    let reports = board.reports();
    let seed = Seed::new(None, b"");
    let held = [block(1), block(2)].concat();
    let lacking = [block(1), block(3), vec![9]].concat();
    let other = block(4);
    let named = |tokens: &[i32]| keys(tokens, SIZE as usize, seed);
    // Nobody watches.
    assert!(board.expect([(&*other, Some(seed))].into_iter()).is_empty());
    let mut early = watch(&board);
    let mut reader = Reader::default();
    reader.read(&early.next().await.unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    reports.report(|blocks| {
        blocks.stored(1, plain(), &block(1), Level::Device);
        blocks.stored(2, Parent::Block(1), &block(2), Level::Host);
    });
    reader.read(&early.next().await.unwrap());

    // Only one whose blocks are named, and not all held.
    let prompts = [
        (&*held, Some(seed)),
        (&*lacking, Some(seed)),
        (&*other, None),
    ];
    let mut expected = board.expect(prompts.into_iter());
    let uncached = expected.iter().map(|one| one.uncached_tokens);
    assert_eq!(Vec::from_iter(uncached), [1, 5, 4]);
    reader.read(&early.next().await.unwrap());
    assert_eq!(reader.waiting, BTreeMap::from([(1, named(&lacking))]));
    // One who comes later knows it from the beginning.
    let mut late = watch(&board);
    let mut of_late = Reader::default();
    of_late.read(&late.next().await.unwrap());
    assert_eq!(of_late.waiting, reader.waiting);

    // One that comes and leaves between two messages is not named.
    drop(board.expect([(&*other, Some(seed))].into_iter()));
    expected.push(board.expect([(&*other, Some(seed))].into_iter()).remove(0));
    reader.read(&early.next().await.unwrap());
    assert_eq!(reader.waiting.get(&3), Some(&named(&other)));
    assert_eq!(reader.waiting.len(), 2);
    // Who no longer waits is named with what comes next: blocks, or the heartbeat.
    expected.clear();
    let start = Instant::now();
    reader.read(&early.next().await.unwrap());
    assert_eq!(start.elapsed(), Duration::from_millis(500));
    assert!(reader.waiting.is_empty() && reader.has(&board));
    of_late.read(&late.next().await.unwrap());
    assert!(of_late.waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_change_ends_the_wait_and_so_does_the_end() {
    let board = Board::new(SIZE, true, false, false);
    let mut one = watch(&board);
    let mut other = watch(&board);
    one.next().await.unwrap();
    other.next().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let reports = board.reports();
    let change = async {
        tokio::time::sleep(Duration::from_millis(7)).await;
        reports.report(|blocks| blocks.stored(1, plain(), &block(1), Level::Device));
        Instant::now()
    };
    let (first, second, reported) = tokio::join!(one.next(), other.next(), change);
    assert_eq!(Instant::now(), reported);
    assert_eq!(first, second);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (ended, ()) = tokio::join!(one.next(), async {
        tokio::time::sleep(Duration::from_millis(7)).await;
        board.close();
    });
    assert_eq!(ended, None);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_is_too_slow_gets_a_snapshot() {
    let board = Board::new(SIZE, true, false, false);
    let reports = board.reports();
    let mut slow = watch(&board);
    let mut quick = watch(&board);
    let (mut of_slow, mut of_quick) = (Reader::default(), Reader::default());
    of_slow.read(&slow.next().await.unwrap());
    of_quick.read(&quick.next().await.unwrap());
    let count = changes::MAX_CHANGES as u64 + 10_000;
    for part in 0..10 {
        reports.report(|blocks| {
            for name in part * count / 10..(part + 1) * count / 10 {
                blocks.stored(name, plain(), &block(name as i32), Level::Device);
            }
        });
        of_quick.read(&quick.next().await.unwrap());
    }
    assert_eq!(of_quick.snapshots, 1);
    assert!(of_quick.has(&board));
    let mut parts = 0;
    loop {
        let update = slow.next().await.unwrap();
        of_slow.read(&update);
        parts += 1;
        // What changes meanwhile comes after it.
        reports.report(|blocks| blocks.removed(parts));
        if update.snapshot_end {
            break;
        }
    }
    assert_eq!(of_slow.snapshots, 2);
    assert!(parts > 9);
    of_slow.read(&slow.next().await.unwrap());
    assert!(of_slow.has(&board));
}

#[test]
fn watchers_are_bounded_and_nothing_is_kept_without_them() {
    let board = Board::new(SIZE, true, false, false);
    let reports = board.reports();
    let store = |name: u64| {
        reports.report(|blocks| blocks.stored(name, plain(), &block(name as i32), Level::Device));
    };
    store(1);
    assert_eq!(board.state.lock().blocks.changes().end(), 0);
    let watching: Vec<Watching> = (0..MAX_WATCHERS).map_while(|_| board.join()).collect();
    assert_eq!(watching.len(), MAX_WATCHERS);
    assert!(board.join().is_none());
    store(2);
    assert_eq!(board.state.lock().blocks.changes().end(), 1);
    drop(watching);
    store(3);
    assert_eq!(board.state.lock().blocks.changes().end(), 1);
    assert!(board.join().is_some());
}

#[test]
fn a_block_after_one_that_is_gone_still_has_its_key() {
    let mut blocks = CacheBlocks::new(SIZE, false);
    blocks.stored(1, plain(), &block(1), Level::Device);
    blocks.removed(1);
    blocks.stored(2, Parent::Block(1), &block(2), Level::Device);
    let tokens = [block(1), block(2)].concat();
    let named = keys(&tokens, SIZE as usize, Seed::new(None, b""));
    assert_eq!(blocks.keys(), [vec![(named[1], named[0])], vec![]]);
    // Without a key: not full, or after a block that nobody reported.
    blocks.stored(3, Parent::Block(2), &[1], Level::Device);
    blocks.stored(4, Parent::Block(99), &block(4), Level::Device);
    blocks.stored(5, Parent::Block(4), &block(5), Level::Device);
    assert_eq!(blocks.keys(), [vec![(named[1], named[0])], vec![]]);
    // How many names of the gone are remembered is bounded.
    for name in 100..100_000 {
        blocks.stored(name, plain(), &block(name as i32), Level::Device);
        blocks.removed(name);
    }
    blocks.stored(6, Parent::Block(1), &block(2), Level::Device);
    assert_eq!(blocks.keys(), [vec![(named[1], named[0])], vec![]]);
    blocks.stored(6, Parent::Block(99_999), &block(2), Level::Device);
    assert_eq!(blocks.keys()[0].len(), 2);
}

/// One thing that an executor or a watcher does.
#[derive(Clone, Debug)]
enum Step {
    /// A block by its name, its content's number and its parent's name.
    Stored(u64, i32, Option<u64>, bool),
    Moved(u64, bool),
    Removed(u64),
    Cleared,
    /// Watcher 0 or 1 reads a message, if there is one.
    Read(usize),
    /// A report of so many steps ends.
    Rewatch(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12_u64, 0..4_i32, proptest::option::of(0..12_u64), any::<bool>())
            .prop_map(|(name, content, parent, host)| Step::Stored(name, content, parent, host)),
        4 => (0..12_u64, any::<bool>()).prop_map(|(name, host)| Step::Moved(name, host)),
        6 => (0..12_u64).prop_map(Step::Removed),
        1 => Just(Step::Cleared),
        6 => (0..2_usize).prop_map(Step::Read),
        1 => (0..2_usize).prop_map(Step::Rewatch),
    ]
}

fn level(is_host: bool) -> Level {
    match is_host {
        true => Level::Host,
        false => Level::Device,
    }
}

proptest! {
    #[test]
    fn watchers_know_what_the_executor_holds(steps in proptest::collection::vec(step(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let board = Board::new(SIZE, true, false, false);
            let reports = board.reports();
            let mut watchers = [(watch(&board), Reader::default()), (watch(&board), Reader::default())];
            // By name: all tokens up to the block's end, and its level.
            let mut naive: BTreeMap<u64, (Vec<i32>, Level)> = BTreeMap::new();
            // Of names that are gone, which may still be parents.
            let mut gone: BTreeMap<u64, Vec<i32>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Stored(name, content, parent, is_host) => {
                        let before = match parent {
                            None => Some(Vec::new()),
                            Some(parent) => {
                                let held = naive.get(&parent).map(|(tokens, _)| tokens.clone());
                                held.or_else(|| gone.get(&parent).cloned())
                            }
                        };
                        reports.report(|blocks| {
                            let parent = parent.map_or(plain(), Parent::Block);
                            blocks.stored(name, parent, &block(content), level(is_host));
                        });
                        if let Some(before) = before {
                            let tokens = [before, block(content)].concat();
                            gone.remove(&name);
                            naive.insert(name, (tokens, level(is_host)));
                        }
                    }
                    Step::Moved(name, is_host) => {
                        reports.report(|blocks| blocks.moved(name, level(is_host)));
                        if let Some((_, at)) = naive.get_mut(&name) {
                            *at = level(is_host);
                        }
                    }
                    Step::Removed(name) => {
                        reports.report(|blocks| blocks.removed(name));
                        if let Some((tokens, _)) = naive.remove(&name) {
                            gone.insert(name, tokens);
                        }
                    }
                    Step::Cleared => {
                        reports.report(CacheBlocks::cleared);
                        naive.clear();
                        gone.clear();
                    }
                    Step::Read(which) => {
                        let (watch, reader) = &mut watchers[which];
                        let update = timeout(Duration::from_millis(20), watch.next()).await;
                        if let Ok(Some(update)) = update {
                            reader.read(&update);
                        }
                    }
                    Step::Rewatch(which) => {
                        watchers[which] = (watch(&board), Reader::default());
                    }
                }
            }
            let expected = |at: Level| -> BTreeSet<u64> {
                let held = naive.values().filter(|(_, level)| *level == at);
                held.filter_map(|(tokens, _)| {
                    keys(tokens, SIZE as usize, Seed::new(None, b"")).last().copied()
                })
                .collect()
            };
            for (watch, reader) in &mut watchers {
                // A snapshot, and what followed it.
                for _ in 0..2 {
                    reader.read(&watch.next().await.unwrap());
                }
                assert!(reader.has(&board));
                assert!(reader.device.keys().copied().eq(expected(Level::Device)));
                assert!(reader.host.keys().copied().eq(expected(Level::Host)));
                assert!(watch.next().now_or_never().is_none());
            }
        });
    }
}
