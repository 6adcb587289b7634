//! What a server's events say, and what is said of it by our names.

use inflight_blocks::keys;
use inflight_kv_events::Group;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 4;

fn hash(number: u64) -> BlockHash {
    BlockHash::Number(number)
}

/// Blocks named so by the server, with the tokens 0, 1, …
fn stored(hashes: &[u64], parent: Option<u64>) -> Stored {
    let first = parent.map_or(0, |parent| parent as i32 * BLOCK as i32);
    let tokens = first..first + (hashes.len() * BLOCK as usize) as i32;
    Stored {
        hashes: hashes.iter().map(|number| hash(*number)).collect(),
        parent: parent.map(hash),
        tokens: Some(tokens.collect()),
        block_tokens: BLOCK,
        ..Stored::default()
    }
}

fn removed(hashes: &[u64]) -> Event {
    Event::Removed(Removed {
        hashes: hashes.iter().map(|number| hash(*number)).collect(),
        ..Removed::default()
    })
}

fn batch(events: Vec<Event>) -> Batch {
    Batch {
        events,
        ..Batch::default()
    }
}

fn number_of(name: &str) -> Option<u64> {
    (name == "support").then_some(7)
}

/// The keys of a prompt of tokens 0, 1, … that has so many blocks.
fn chain(blocks: usize, seed: Seed) -> Vec<u64> {
    let tokens: Vec<i32> = (0..blocks as i32 * BLOCK as i32).collect();
    keys(&tokens, BLOCK as usize, seed)
}

fn plain() -> Seed {
    Seed::new(None, b"")
}

fn texts(texts: &[&str]) -> Extras {
    Extras {
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        has_others: false,
    }
}

#[test]
fn a_prompt_has_the_names_that_a_request_asks_for() {
    let mut names = Names::default();
    let all = chain(4, plain());
    // Blocks 1 and 2 of the server, then 3 and 4 behind them.
    let first = names.take(
        &batch(vec![Event::Stored(stored(&[1, 2], None))]),
        number_of,
    );
    assert_eq!(
        (&first.device.stored[..], &first.device.after[..]),
        (&all[..2], &[0, all[0]][..])
    );
    let next = names.take(
        &batch(vec![Event::Stored(stored(&[3, 4], Some(2)))]),
        number_of,
    );
    assert_eq!(
        (&next.device.stored[..], &next.device.after[..]),
        (&all[2..], &all[1..3])
    );
    // Said again, nothing changes.
    assert!(
        names
            .take(
                &batch(vec![Event::Stored(stored(&[1, 2], None))]),
                number_of
            )
            .is_empty()
    );
    let gone = names.take(&batch(vec![removed(&[4, 9])]), number_of);
    assert_eq!(gone.device.removed, all[3..]);
    assert_eq!(
        (names.len(), names.block_tokens(), names.unnamed()),
        (3, BLOCK, 0)
    );
    let mut everything: Vec<u64> = names
        .all(2)
        .iter()
        .flat_map(|part| part.device.stored.clone())
        .collect();
    let mut expected = all[..3].to_vec();
    everything.sort_unstable();
    expected.sort_unstable();
    assert_eq!(everything, expected);
    assert!(
        names
            .all(2)
            .iter()
            .all(|part| part.device.stored.len() <= 2)
    );
}

#[test]
fn levels_are_apart_and_what_is_elsewhere_is_not_heard() {
    let mut names = Names::default();
    let at = |medium, event| match event {
        Event::Stored(stored) => Event::Stored(Stored { medium, ..stored }),
        Event::Removed(removed) => Event::Removed(Removed { medium, ..removed }),
        other => other,
    };
    let one = || Event::Stored(stored(&[1], None));
    let key = chain(1, plain());
    let moved = names.take(
        &batch(vec![
            one(),
            at(Medium::Host, one()),
            at(Medium::Elsewhere, one()),
        ]),
        number_of,
    );
    assert_eq!((&moved.device.stored, &moved.host.stored), (&key, &key));
    assert!(
        names
            .take(
                &batch(vec![at(Medium::Elsewhere, removed(&[1]))]),
                number_of
            )
            .is_empty()
    );
    let left = names.take(&batch(vec![removed(&[1])]), number_of);
    assert_eq!((&left.device.removed, left.host.removed.len()), (&key, 0));
    let last = names.take(&batch(vec![at(Medium::Host, removed(&[1]))]), number_of);
    assert_eq!((last.host.removed, names.len()), (key, 0));
}

#[test]
fn adapters_and_salts_are_in_the_names_and_what_cannot_be_known_is_left_out() {
    let support = || Adapter::Named("support".to_owned());
    let plain_prompt = |change: &dyn Fn(&mut Stored)| {
        let mut prompt = stored(&[1, 2], None);
        change(&mut prompt);
        prompt
    };
    let image = Extras {
        has_others: true,
        ..Extras::default()
    };
    // What changes of a prompt of two blocks, what it is named with, and how many blocks are.
    type Change<'a> = &'a dyn Fn(&mut Stored);
    let cases: [(Change<'_>, Seed, usize); 17] = [
        (&|_| {}, plain(), 2),
        (
            &|one| one.extras = vec![texts(&["salt"]), Extras::default()],
            Seed::new(None, b"salt"),
            2,
        ),
        (&|one| one.adapter = support(), Seed::new(Some(7), b""), 2),
        (
            &|one| {
                one.adapter = support();
                one.extras = vec![texts(&["support", "salt"]), texts(&["support"])];
            },
            Seed::new(Some(7), b"salt"),
            2,
        ),
        (
            &|one| one.salt = Some("salt".to_owned()),
            Seed::new(None, b"salt"),
            2,
        ),
        (
            &|one| {
                one.salt = Some("salt".to_owned());
                one.extras = vec![texts(&["salt"]), Extras::default()];
            },
            Seed::new(None, b"salt"),
            2,
        ),
        (
            &|one| {
                one.salt = Some("salt".to_owned());
                one.extras = vec![texts(&["image"])];
            },
            plain(),
            0,
        ),
        (
            &|one| one.adapter = Adapter::Named("other".to_owned()),
            plain(),
            0,
        ),
        (&|one| one.adapter = Adapter::Numbered(3), plain(), 0),
        (
            &|one| one.extras = vec![texts(&["image", "salt"])],
            plain(),
            0,
        ),
        (&|one| one.extras = vec![image.clone()], plain(), 0),
        (
            &|one| one.extras = vec![Extras::default(), image.clone()],
            plain(),
            1,
        ),
        (
            &|one| one.extras = vec![Extras::default(), texts(&["image"])],
            plain(),
            1,
        ),
        (&|one| one.tokens = None, plain(), 0),
        (&|one| one.tokens = Some(vec![1; 7]), plain(), 0),
        (&|one| one.parent = Some(hash(77)), plain(), 0),
        (&|one| one.block_tokens = 0, plain(), 0),
    ];
    for (place, (change, seed, named)) in cases.into_iter().enumerate() {
        let mut names = Names::default();
        let prompt = plain_prompt(change);
        let more = stored(&[3], Some(2));
        let changes = names.take(&batch(vec![Event::Stored(prompt)]), number_of);
        assert_eq!(
            changes.device.stored,
            chain(2, seed)[..named],
            "case {place}"
        );
        assert_eq!(names.unnamed(), 2 - named as u64, "case {place}");
        // What follows is named as the prompt's beginning was.
        let changes = names.take(&batch(vec![Event::Stored(more)]), number_of);
        let follows = if named == 2 { 2..3 } else { 0..0 };
        assert_eq!(
            changes.device.stored,
            chain(3, seed)[follows],
            "case {place}"
        );
    }
}

#[test]
fn only_one_group_of_layers_counts() {
    let mut names = Names::default();
    let of = |index, kind_is_main, hashes: &[u64]| {
        Event::Stored(Stored {
            group: Group {
                index,
                kind_is_main,
            },
            ..stored(hashes, None)
        })
    };
    let windows = of(Some(0), false, &[1]);
    let changes = names.take(
        &batch(vec![
            windows,
            of(Some(1), true, &[1]),
            of(Some(2), true, &[2]),
        ]),
        number_of,
    );
    assert_eq!((changes.device.stored, names.len()), (chain(1, plain()), 1));
    let remove = |group| {
        batch(vec![Event::Removed(Removed {
            hashes: vec![hash(1)],
            group,
            ..Removed::default()
        })])
    };
    assert!(names.take(&remove(Some(0)), number_of).is_empty());
    assert!(!names.take(&remove(Some(1)), number_of).is_empty());
}

#[test]
fn no_more_blocks_are_named_than_there_is_room_for() {
    let mut names = Names::default();
    let hashes: Vec<u64> = (1..=MOST_BLOCKS as u64 + 5).collect();
    names.take(
        &batch(vec![Event::Stored(stored(&hashes, None))]),
        number_of,
    );
    assert_eq!((names.len(), names.unnamed()), (MOST_BLOCKS, 5));
}

/// Events about a few blocks in chains of three, in any order.
fn event() -> impl Strategy<Value = Event> {
    let medium = prop_oneof![Just(Medium::Device), Just(Medium::Host)];
    let one = (0..4u64, 0..3u64, medium, 0..10u8);
    one.prop_map(|(prompt, place, medium, kind)| {
        let number = 1 + prompt * 3 + place;
        let tokens = vec![number as i32; BLOCK as usize];
        match kind {
            0 => Event::Cleared,
            1..5 => Event::Removed(Removed {
                hashes: vec![hash(number)],
                medium,
                group: None,
            }),
            _ => Event::Stored(Stored {
                hashes: vec![hash(number)],
                parent: (place > 0).then(|| hash(number - 1)),
                tokens: Some(tokens),
                block_tokens: BLOCK,
                medium,
                ..Stored::default()
            }),
        }
    })
}

proptest! {
    /// Who applies the changes has what a snapshot says, and no key is stored and removed at once.
    #[test]
    fn changes_add_up(batches in vec(vec(event(), 0..8), 0..12)) {
        let mut names = Names::default();
        let mut held = [std::collections::BTreeSet::new(), std::collections::BTreeSet::new()];
        for events in batches {
            let changes = names.take(&batch(events), number_of);
            for (held, changes_of_level) in held.iter_mut().zip([&changes.device, &changes.host]) {
                if changes.cleared {
                    held.clear();
                }
                for key in &changes_of_level.removed {
                    prop_assert!(held.remove(key));
                    prop_assert!(!changes_of_level.stored.contains(key));
                }
                for key in &changes_of_level.stored {
                    prop_assert!(held.insert(*key));
                }
                prop_assert_eq!(changes_of_level.stored.len(), changes_of_level.after.len());
            }
        }
        let all = names.all(3);
        for (level, held) in held.iter().enumerate() {
            let said = all.iter().flat_map(|part| [&part.device, &part.host][level].stored.clone());
            prop_assert_eq!(&said.collect::<std::collections::BTreeSet<_>>(), held);
        }
    }
}
