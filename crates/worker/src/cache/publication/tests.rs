//! What a reader makes of the events, which names each block anew from its tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use inflight_blocks::{Chain, Seed};
use inflight_kv_events::{Form, read, write};
use proptest::prelude::*;
use tokio::time::timeout;

use super::*;
use crate::cache::Parent;

const SIZE: u32 = 2;

fn name_of(id: u64) -> Option<String> {
    (id == 7).then(|| "support".to_owned())
}

fn origin(lora_task_id: Option<u64>, salt: &[u8]) -> Origin {
    Origin {
        lora_task_id,
        salt: salt.to_vec(),
    }
}

fn block(number: i32) -> [i32; SIZE as usize] {
    [number; SIZE as usize]
}

/// A reader that has only the events.
#[derive(Debug, Default)]
struct Reader {
    /// By hash: at the device, at the host, and the seed; `None`: it came after a block that was never heard of.
    held: BTreeMap<u64, ([bool; 2], Option<Seed>)>,
    /// How many such there were.
    orphans: usize,
}

impl Reader {
    /// Panics where a block's name does not follow from what was said of it.
    fn take(&mut self, events: &[Event]) {
        let number = |hash: &BlockHash| match hash {
            BlockHash::Number(number) => *number,
            other => panic!("{other:?}"),
        };
        for event in events {
            match event {
                Event::Cleared => self.held.clear(),
                Event::Stored(stored) => {
                    assert_eq!(stored.block_tokens, SIZE);
                    let tokens = stored.tokens.as_ref().unwrap();
                    assert_eq!(tokens.len(), stored.hashes.len() * SIZE as usize);
                    let (seed, mut chain) = match &stored.parent {
                        Some(parent) => {
                            let seed = self.held.get(&number(parent)).and_then(|held| held.1);
                            (seed, seed.map(|seed| Chain::after(seed, number(parent))))
                        }
                        None => {
                            let seed = first_seed(stored);
                            (Some(seed), Some(Chain::new(seed)))
                        }
                    };
                    // One that moves is known.
                    let is_known = self.held.contains_key(&number(&stored.hashes[0]));
                    self.orphans += usize::from(seed.is_none() && !is_known);
                    for (hash, tokens) in stored.hashes.iter().zip(tokens.chunks(SIZE as usize)) {
                        if let Some(chain) = &mut chain {
                            assert_eq!(chain.push(tokens), number(hash));
                        }
                        let (levels, _) =
                            self.held.entry(number(hash)).or_insert(([false; 2], seed));
                        let level = &mut levels[usize::from(stored.medium == Medium::Host)];
                        assert!(!std::mem::replace(level, true), "stored twice");
                    }
                }
                Event::Removed(removed) => {
                    for hash in &removed.hashes {
                        let (levels, _) = self.held.get_mut(&number(hash)).unwrap();
                        let level = &mut levels[usize::from(removed.medium == Medium::Host)];
                        assert!(std::mem::replace(level, false), "removed and not there");
                    }
                    self.held.retain(|_, (levels, _)| *levels != [false; 2]);
                }
                Event::Unknown => panic!("an unknown event"),
            }
        }
    }

    fn knows(&self, board: &Board) -> bool {
        let at = |level: usize| {
            let held = self
                .held
                .iter()
                .filter(move |(_, (levels, _))| levels[level]);
            held.map(|(key, _)| *key).collect::<Vec<u64>>()
        };
        let keys = board.state.lock().blocks.keys().map(|keys| {
            let mut keys: Vec<u64> = keys.into_iter().map(|(key, _)| key).collect();
            keys.sort_unstable();
            keys
        });
        [at(0), at(1)] == keys
    }
}

/// What a prompt's first block says of the seed.
fn first_seed(stored: &Stored) -> Seed {
    let (task, name) = match &stored.adapter {
        Adapter::None => (None, None),
        Adapter::Named(name) => (Some(7), Some(name)),
        Adapter::Numbered(number) => (u64::try_from(*number).ok(), None),
    };
    let texts = stored.extras.first().map(|extras| extras.texts.as_slice());
    let mut texts = texts.unwrap_or_default().iter();
    let salt = texts.find(|text| Some(*text) != name);
    Seed::new(task, salt.map_or("", String::as_str).as_bytes())
}

/// What has changed; empty: nothing.
async fn next(publication: &mut Publication) -> Vec<Event> {
    let waiting = publication.next(name_of);
    let events = timeout(Duration::from_millis(1), waiting).await;
    events.map_or(Vec::new(), |events| events.unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_event_says_what_was_asked_with() {
    let board = Board::new(SIZE, true, true, false);
    let mut publication = Publication::new(Arc::clone(&board));
    let told = |adapter, extras: &[&[&str]], has_others| Stored {
        adapter,
        extras: extras
            .iter()
            .map(|texts| Extras {
                texts: texts.iter().map(|text| (*text).to_owned()).collect(),
                has_others,
            })
            .collect(),
        ..Stored::default()
    };
    let support = || Adapter::Named("support".to_owned());
    let (mut name, reports) = (0, board.reports());
    for (origin, expected) in [
        (origin(None, b""), told(Adapter::None, &[], false)),
        (
            origin(None, b"salt"),
            told(Adapter::None, &[&["salt"], &[]], false),
        ),
        (
            origin(Some(7), b""),
            told(support(), &[&["support"], &["support"]], false),
        ),
        (
            origin(Some(7), b"salt"),
            told(support(), &[&["support", "salt"], &["support"]], false),
        ),
        (
            origin(Some(8), b""),
            told(Adapter::Numbered(8), &[&[], &[]], false),
        ),
    ] {
        reports.report(|blocks| {
            blocks.stored(name + 1, Parent::First(&origin), &block(1), Level::Device);
            let before = Parent::Block(name + 1);
            blocks.stored(name + 2, before, &block(2), Level::Device);
            blocks.moved(name + 2, Level::Host);
            blocks.moved(name + 2, Level::Device);
        });
        name += 2;
        let events = next(&mut publication).await;
        let [Event::Stored(stored)] = events.as_slice() else {
            panic!("{events:?}");
        };
        let mut chain = Chain::new(origin.seed());
        let hashes = [1, 2].map(|number| BlockHash::Number(chain.push(&block(number))));
        let expected = Stored {
            hashes: hashes.to_vec(),
            tokens: Some([block(1), block(2)].concat()),
            block_tokens: SIZE,
            salt: String::from_utf8(origin.salt)
                .ok()
                .filter(|salt| !salt.is_empty()),
            ..expected
        };
        assert_eq!(*stored, expected);
        // A later event says the same of its adapter and salt. The salt is among the extra keys of a prompt's first block.
        reports.report(|blocks| blocks.removed(name));
        let events = next(&mut publication).await;
        assert!(matches!(&events[..], [Event::Removed(removed)] if removed.hashes == hashes[1..]));
        reports.report(|blocks| {
            blocks.stored(name, Parent::Block(name - 1), &block(2), Level::Host);
        });
        let events = next(&mut publication).await;
        let [Event::Stored(stored)] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!(stored.parent.as_ref(), hashes.first());
        assert_eq!(
            (stored.medium, &stored.adapter, &stored.salt),
            (Medium::Host, &expected.adapter, &expected.salt)
        );
        let extras = expected.extras.get(1..).unwrap_or_default();
        assert_eq!(stored.extras, extras);
    }
    // A salt that is not text cannot be said, and that shows.
    let bytes = origin(None, &[0xff]);
    reports.report(|blocks| blocks.stored(99, Parent::First(&bytes), &block(1), Level::Device));
    let events = next(&mut publication).await;
    assert!(matches!(
        &events[..],
        [Event::Stored(stored)] if stored.extras[0].has_others && stored.salt.is_none()
    ));
    reports.report(CacheBlocks::cleared);
    assert_eq!(next(&mut publication).await, [Event::Cleared]);
    board.close();
    assert_eq!(publication.next(name_of).await, None);
}

#[tokio::test(start_paused = true)]
async fn one_who_comes_too_late_for_changes_gets_everything_anew() {
    let board = Board::new(SIZE, true, true, false);
    let mut publication = Publication::new(Arc::clone(&board));
    let plain = Origin::default();
    let mut reader = Reader::default();
    let all = 100_000;
    for from in [0, all] {
        board.reports().report(|blocks| {
            for name in from..from + all {
                let parent = match name % 1000 {
                    0 => Parent::First(&plain),
                    _ => Parent::Block(name - 1),
                };
                blocks.stored(name, parent, &block(name as i32), Level::Device);
            }
            for name in 0..from {
                blocks.removed(name);
            }
        });
        let events = next(&mut publication).await;
        assert_eq!(events[0], Event::Cleared);
        for batch in batches(events) {
            let tokens = batch.iter().map(|event| match event {
                Event::Stored(stored) => stored.tokens.as_ref().map_or(0, Vec::len),
                _ => 0,
            });
            assert!(tokens.sum::<usize>() <= MOST_TOKENS + SIZE as usize);
            // As it travels.
            let batch = Batch {
                events: batch,
                ..Batch::default()
            };
            let bytes = write(&batch, Form::Arrays);
            assert!(bytes.len() < 1 << 20, "{}", bytes.len());
            assert_eq!(read(&bytes).as_ref(), Ok(&batch));
            reader.take(&batch.events);
        }
        assert!(reader.knows(&board));
        assert_eq!(reader.orphans, 0);
        // Who asks for more than is kept gets the same.
        let mut late = Reader::default();
        for batch in everything(&board, name_of) {
            late.take(&batch.events);
        }
        assert!(late.knows(&board));
        assert_eq!(late.orphans, 0);
    }
}

#[test]
fn what_blocks_hold_is_kept_only_where_it_is_published_and_as_long_as_they_are_held() {
    let blocks = |is_published| {
        let mut blocks = CacheBlocks::new(SIZE, is_published);
        for number in 0..1000_u64 {
            let salted = origin(None, &number.to_le_bytes());
            blocks.stored(number, Parent::First(&salted), &block(1), Level::Device);
            blocks.removed(number);
        }
        blocks.stored(7, Parent::First(&Origin::default()), &block(1), Level::Host);
        blocks
    };
    let key = Chain::new(Origin::default().seed()).push(&block(1));
    let kept = blocks(true);
    assert_eq!(*kept.content(key).unwrap().tokens, block(1));
    let others = kept.keys().map(|keys| keys.len());
    assert_eq!(others, [0, 1]);
    assert!(blocks(false).content(key).is_none());
    assert_eq!(
        [true, false].map(|is| blocks(is).wants_tokens()),
        [true, false]
    );
}

proptest! {
    #[test]
    fn a_reader_of_the_events_knows_what_is_held(
        // What happens, to which name, behind which, with which tokens and origin, and whether events are taken then.
        steps in proptest::collection::vec(
            (0..8_u8, 0..12_u64, proptest::option::of(0..12_u64), 0..3_i32, 0..4_usize, any::<bool>()),
            1..80,
        ),
        takes_all: bool,
    ) {
        let origins = [origin(None, b""), origin(Some(7), b"s"), origin(Some(8), b""), origin(None, b"t")];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let board = Board::new(SIZE, true, true, false);
            let mut publication = Publication::new(Arc::clone(&board));
            let mut reader = Reader::default();
            for (kind, name, before, number, of, is_taken) in steps {
                let level = if kind % 2 == 0 { Level::Device } else { Level::Host };
                board.reports().report(|blocks| match kind {
                    0..4 => {
                        // Only behind what is held: who comes later never heard of what is gone.
                        let parent = before.filter(|before| *before != name && blocks.holds_name(*before));
                        let parent = parent.map_or(Parent::First(&origins[of]), Parent::Block);
                        blocks.stored(name, parent, &block(number), level);
                    }
                    4 | 5 => blocks.moved(name, level),
                    6 => blocks.removed(name),
                    _ if number == 0 => blocks.cleared(),
                    _ => {}
                });
                if is_taken || takes_all {
                    reader.take(&next(&mut publication).await);
                    assert!(reader.knows(&board));
                }
            }
            reader.take(&next(&mut publication).await);
            assert!(reader.knows(&board));
            // What is stored and gone again before anybody looks is not published, and then not what comes after it.
            assert!(reader.orphans == 0 || !takes_all);
        });
    }
}
