//! The index against a naive model: for each server, the set of blocks that it reported.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use inflight_routing::index::{Depth, Held, Index, Level};
use proptest::prelude::*;

const SERVERS: u32 = 4;
const DEPTH: usize = 6;

/// What a server may report. A prompt is a path through a tree of two branches a block, as bits.
#[derive(Clone, Debug)]
enum Report {
    Stored {
        server: u32,
        path: u32,
        from: usize,
        to: usize,
        level: Level,
    },
    Removed {
        server: u32,
        path: u32,
        depths: Vec<usize>,
        level: Level,
    },
    Cleared(u32),
}

/// The chain keys of a path.
fn keys(path: u32) -> Vec<u64> {
    let key = |depth: usize| u64::from(path & ((1 << depth) - 1)) << 8 | depth as u64;
    (1..=DEPTH).map(key).collect()
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![3 => Just(Level::Device), 1 => Just(Level::Host)]
}

fn report() -> impl Strategy<Value = Report> {
    let path = 0..1_u32 << DEPTH;
    let stored = (0..SERVERS, path.clone(), 0..DEPTH, 1..=DEPTH, level()).prop_map(
        |(server, path, from, length, level)| Report::Stored {
            server,
            path,
            from,
            to: (from + length).min(DEPTH),
            level,
        },
    );
    let depths = prop::collection::vec(0..DEPTH, 1..4);
    let removed = (0..SERVERS, path, depths, level()).prop_map(|(server, path, depths, level)| {
        Report::Removed {
            server,
            path,
            depths,
            level,
        }
    });
    prop_oneof![
        12 => stored,
        8 => removed,
        1 => (0..SERVERS).prop_map(Report::Cleared),
    ]
}

#[derive(Default)]
struct Naive {
    device: [HashSet<u64>; SERVERS as usize],
    host: [HashSet<u64>; SERVERS as usize],
}

impl Naive {
    fn level(&mut self, server: u32, level: Level) -> &mut HashSet<u64> {
        match level {
            Level::Device => &mut self.device[server as usize],
            Level::Host => &mut self.host[server as usize],
        }
    }

    fn depth(&self, server: u32, keys: &[u64]) -> Depth {
        let (device, host) = (&self.device[server as usize], &self.host[server as usize]);
        let leading =
            |holds: &dyn Fn(&u64) -> bool| keys.iter().take_while(|one| holds(one)).count();
        let on_device = leading(&|key| device.contains(key)) as u32;
        Depth {
            device: on_device,
            coming: on_device,
            host: leading(&|key| device.contains(key) || host.contains(key)) as u32,
        }
    }
}

fn apply(index: &mut Index, naive: &mut Naive, report: &Report) {
    match report {
        Report::Stored {
            server,
            path,
            from,
            to,
            level,
        } => {
            let keys = keys(*path);
            let after = from.checked_sub(1).map(|before| keys[before]);
            index.stored(*server, after, &keys[*from..*to], *level);
            naive.level(*server, *level).extend(&keys[*from..*to]);
        }
        Report::Removed {
            server,
            path,
            depths,
            level,
        } => {
            let keys = keys(*path);
            let gone: Vec<u64> = depths.iter().map(|depth| keys[*depth]).collect();
            index.removed(*server, &gone, *level);
            for key in gone {
                naive.level(*server, *level).remove(&key);
            }
        }
        Report::Cleared(server) => {
            index.cleared(*server);
            naive.level(*server, Level::Device).clear();
            naive.level(*server, Level::Host).clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_index_finds_what_the_model_finds(
        reports in prop::collection::vec(report(), 0..120),
        asked in prop::collection::vec(0..1_u32 << DEPTH, 8),
    ) {
        let mut index = Index::new(usize::MAX);
        let mut naive = Naive::default();
        let mut held = Held::default();
        for report in &reports {
            apply(&mut index, &mut naive, report);
            for path in &asked {
                let keys = keys(*path);
                index.find(&keys, &mut held);
                for server in 0..SERVERS {
                    prop_assert_eq!(held.of(server), naive.depth(server, &keys), "{} {:?}", server, keys);
                }
            }
        }
        // What nobody holds is not kept: after all is removed, sweeps leave nothing.
        for server in 0..SERVERS {
            index.cleared(server);
        }
        for _ in 0..16 {
            index.removed(0, &[], Level::Device);
        }
        prop_assert_eq!(index.len(), 0);
    }

    #[test]
    fn a_full_index_forgets_ends_and_claims_nothing_false(
        reports in prop::collection::vec(report(), 0..120),
        most in 1_usize..40,
        asked in prop::collection::vec(0..1_u32 << DEPTH, 8),
    ) {
        let mut index = Index::new(most);
        let mut naive = Naive::default();
        let mut held = Held::default();
        for report in &reports {
            apply(&mut index, &mut naive, report);
            prop_assert!(index.len() <= most);
            for path in &asked {
                let keys = keys(*path);
                index.find(&keys, &mut held);
                for server in 0..SERVERS {
                    let (found, true_depth) = (held.of(server), naive.depth(server, &keys));
                    prop_assert!(found.device <= true_depth.device && found.host <= true_depth.host);
                }
            }
        }
    }
}

#[test]
fn reports_in_any_order_and_of_nonsense_do_no_harm() {
    let mut index = Index::new(100);
    let mut held = Held::default();
    assert!(index.is_empty());
    // The end of a prompt before its beginning.
    index.stored(1, Some(12), &[13, 14], Level::Device);
    index.find(&[11, 12, 13, 14], &mut held);
    assert_eq!(held.of(1), Depth::default());
    assert!(!index.is_empty());
    index.stored(1, None, &[11, 12], Level::Device);
    index.find(&[11, 12, 13, 14], &mut held);
    assert_eq!((held.of(1).device, held.servers()), (4, &[1][..]));
    // A circle, a block after itself, the same block twice, what was never there.
    index.stored(2, Some(21), &[22], Level::Device);
    index.stored(2, Some(22), &[21], Level::Device);
    index.stored(2, Some(23), &[23], Level::Device);
    index.stored(2, None, &[31, 31], Level::Device);
    index.removed(3, &[11, 99], Level::Host);
    index.cleared(7);
    index.find(&[31, 31, 31], &mut held);
    assert_eq!(held.of(1), Depth::default());
    assert!(index.is_held(2, 22) && !index.is_held(1, 22));
    index.stored(2, None, &[41], Level::Device);
    index.find(&[41], &mut held);
    assert_eq!(held.servers(), [2]);
    // Of all that nothing is left: a circle would keep itself.
    for server in 0..8 {
        index.cleared(server);
    }
    for _ in 0..16 {
        index.removed(0, &[], Level::Device);
    }
    assert!(index.is_empty());
}

#[test]
fn an_index_holds_as_many_blocks_as_it_may() {
    let mut index = Index::new(3);
    index.stored(1, None, &[11, 12, 13], Level::Device);
    assert_eq!(index.len(), 3);
    index.stored(1, Some(13), &[14], Level::Device);
    assert_eq!(index.len(), 3);
}
