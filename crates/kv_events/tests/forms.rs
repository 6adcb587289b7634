//! Batches as the library that vLLM uses wrote them (`tools/make_kv_event_fixtures.py`), and such as we write.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_kv_events::{
    Adapter, Batch, BlockHash, Event, Extras, Form, Group, Malformed, Medium, ReadError, Removed,
    Stored, read, write,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn fixture(name: &str) -> Vec<u8> {
    // Cargo runs a test in its package's folder.
    std::fs::read(format!("../../fuzz/corpus/kv_event_batch/{name}")).unwrap()
}

fn sha(first: u8) -> BlockHash {
    let bytes: Vec<u8> = (first..first + 32).collect();
    BlockHash::from_bytes(&bytes).unwrap()
}

fn stored() -> Stored {
    Stored {
        hashes: vec![sha(0), sha(32)],
        tokens: Some((1..=8).collect()),
        block_tokens: 4,
        ..Stored::default()
    }
}

fn texts(texts: &[&str]) -> Extras {
    Extras {
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        has_others: false,
    }
}

#[test]
fn both_forms_say_the_same() {
    let group = |index, kind_is_main| Group {
        index,
        kind_is_main,
    };
    let expected = [
        (
            "stored",
            1.5,
            Some(0),
            vec![Event::Stored(Stored {
                extras: vec![texts(&["salt"]), Extras::default()],
                group: group(Some(0), true),
                ..stored()
            })],
        ),
        (
            "rest",
            2.5,
            None,
            vec![
                Event::Stored(Stored {
                    hashes: vec![sha(32)],
                    parent: Some(sha(0)),
                    tokens: Some((5..=8).collect()),
                    adapter: Adapter::Named("support".to_owned()),
                    medium: Medium::Host,
                    extras: vec![texts(&["support"])],
                    ..stored()
                }),
                Event::Removed(Removed {
                    hashes: vec![sha(0), sha(32)],
                    medium: Medium::Device,
                    group: Some(0),
                }),
                Event::Cleared,
            ],
        ),
        (
            "numbers",
            3.5,
            None,
            vec![Event::Stored(Stored {
                hashes: vec![BlockHash::Number(u64::MAX), BlockHash::Number(u64::MAX - 1)],
                parent: Some(BlockHash::Number(7)),
                ..stored()
            })],
        ),
        (
            "other_layers",
            4.5,
            None,
            vec![
                Event::Stored(Stored {
                    hashes: vec![sha(0)],
                    tokens: Some((1..=4).collect()),
                    group: group(Some(1), false),
                    ..stored()
                }),
                Event::Stored(Stored {
                    hashes: vec![sha(0)],
                    tokens: Some((1..=4).collect()),
                    extras: vec![Extras {
                        has_others: true,
                        ..Extras::default()
                    }],
                    group: group(Some(0), true),
                    ..stored()
                }),
            ],
        ),
        (
            "elsewhere",
            5.5,
            None,
            vec![
                Event::Stored(Stored {
                    hashes: vec![sha(0)],
                    tokens: Some((1..=4).collect()),
                    medium: Medium::Elsewhere,
                    ..stored()
                }),
                Event::Stored(Stored {
                    hashes: vec![sha(0)],
                    tokens: None,
                    medium: Medium::Elsewhere,
                    ..stored()
                }),
                Event::Removed(Removed {
                    hashes: vec![sha(0)],
                    medium: Medium::Elsewhere,
                    group: None,
                }),
            ],
        ),
    ];
    for (name, timestamp, rank, events) in expected {
        let batch = Batch {
            timestamp,
            events,
            rank,
        };
        let mut forms = vec!["map", "array"];
        if name == "stored" {
            forms.push("maps");
        }
        for form in forms {
            assert_eq!(
                read(&fixture(&format!("{name}_{form}"))).unwrap(),
                batch,
                "{name}_{form}"
            );
        }
    }
}

#[test]
fn what_other_releases_say_is_read_as_far_as_it_is_known() {
    let numbered = |number| BlockHash::Number(number);
    let short = Stored {
        hashes: vec![numbered(11), numbered(12)],
        ..stored()
    };
    let removed = |number| {
        Event::Removed(Removed {
            hashes: vec![numbered(number)],
            ..Removed::default()
        })
    };
    let events = |name| read(&fixture(name)).unwrap().events;
    assert_eq!(
        events("sglang"),
        [Event::Stored(short), removed(11), Event::Cleared]
    );
    let salted = Stored {
        hashes: vec![numbered(u64::MAX)],
        tokens: Some((1..=4).collect()),
        medium: Medium::Host,
        adapter: Adapter::Named("support".to_owned()),
        salt: Some("pepper".to_owned()),
        ..stored()
    };
    assert_eq!(events("sglang_map"), [Event::Stored(salted)]);
    assert_eq!(events("later"), [removed(1)]);
}

#[test]
fn what_is_no_batch_or_too_large_is_refused() {
    let too_many = |what: &'static str| move |error: &ReadError| matches!(error, ReadError::TooMany { what: found, .. } if *found == what);
    let malformed =
        |error: &ReadError| matches!(error, ReadError::Malformed(Malformed { at: _, .. }));
    let missing = |error: &ReadError| matches!(error, ReadError::Missing { .. });
    // An array of a time and of one event, which is an array or a map of one value.
    let batch = |event: &[u8]| [&[0x92, 0x00, 0x91][..], event].concat();
    let named = |name: &str, rest: &[u8]| {
        let length = 0xa0 | u8::try_from(name.len()).unwrap();
        [&[length], name.as_bytes(), rest].concat()
    };
    let long = |marker: u8| [&[0x92, marker][..], &[0xff; 4]].concat();
    type Check<'a> = &'a dyn Fn(&ReadError) -> bool;
    let cases: [(Vec<u8>, Check<'_>); 12] = [
        (vec![], &malformed),
        (vec![0xc1], &malformed),
        (vec![0x91, 0x00], &malformed),
        (vec![0x80], &malformed),
        (vec![0x81, 0x01, 0x00], &malformed),
        (batch(&[0x91, 0x00]), &malformed),
        (
            batch(&[&[0x91][..], &named("BlockStored", &[])].concat()),
            &missing,
        ),
        (
            batch(&[&[0x91][..], &named("BlockRemoved", &[])].concat()),
            &missing,
        ),
        // Lengths that the bytes do not have room for.
        (
            [&[0x92, 0x00][..], &[0xdd, 0xff, 0xff, 0xff, 0xff]].concat(),
            &too_many("events"),
        ),
        (
            batch(&[&[0x92][..], &named("BlockRemoved", &long(0xdd)[1..])].concat()),
            &too_many("blocks"),
        ),
        (
            batch(
                &[
                    &[0x94][..],
                    &named("BlockStored", &[0x90, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff]),
                ]
                .concat(),
            ),
            &too_many("tokens"),
        ),
        (vec![0; inflight_kv_events::MOST_BYTES + 1], &|error| {
            matches!(error, ReadError::TooLarge { .. })
        }),
    ];
    for (place, (bytes, is_expected)) in cases.iter().enumerate() {
        let error = read(bytes).unwrap_err();
        assert!(is_expected(&error), "case {place}: {error:?}");
    }
}

fn hash() -> impl Strategy<Value = BlockHash> {
    prop_oneof![
        any::<u64>().prop_map(BlockHash::Number),
        vec(any::<u8>(), 0..=BlockHash::MOST_BYTES)
            .prop_map(|bytes| BlockHash::from_bytes(&bytes).unwrap()),
    ]
}

fn medium() -> impl Strategy<Value = Medium> {
    prop_oneof![
        Just(Medium::Device),
        Just(Medium::Host),
        Just(Medium::Elsewhere)
    ]
}

fn adapter() -> impl Strategy<Value = Adapter> {
    prop_oneof![
        Just(Adapter::None),
        any::<String>().prop_map(Adapter::Named),
        any::<i64>().prop_map(Adapter::Numbered),
    ]
}

fn extras() -> impl Strategy<Value = Extras> {
    (vec(any::<String>(), 0..3), any::<bool>())
        .prop_map(|(texts, has_others)| Extras { texts, has_others })
}

fn event() -> impl Strategy<Value = Event> {
    let group =
        (proptest::option::of(any::<u32>()), any::<bool>()).prop_map(|(index, main)| Group {
            index,
            kind_is_main: main,
        });
    let stored = (
        vec(hash(), 0..4),
        proptest::option::of(hash()),
        vec(0..=i32::MAX, 0..40),
        any::<u32>(),
        adapter(),
        medium(),
        proptest::option::of(any::<String>()),
        vec(extras(), 0..4),
        group,
    );
    prop_oneof![
        stored.prop_map(
            |(hashes, parent, tokens, block_tokens, adapter, medium, salt, extras, group)| {
                Event::Stored(Stored {
                    hashes,
                    parent,
                    tokens: Some(tokens),
                    block_tokens,
                    adapter,
                    medium,
                    salt,
                    extras,
                    group,
                })
            }
        ),
        (
            vec(hash(), 0..4),
            medium(),
            proptest::option::of(any::<u32>())
        )
            .prop_map(|(hashes, medium, group)| Event::Removed(Removed {
                hashes,
                medium,
                group
            })),
        Just(Event::Cleared),
    ]
}

/// An array has no place for it.
fn without_salt(event: &mut Event) {
    if let Event::Stored(stored) = event {
        stored.salt = None;
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        timestamp in any::<u32>(),
        events in vec(event(), 0..5),
        rank in proptest::option::of(any::<u32>()),
    ) {
        let mut batch = Batch { timestamp: timestamp.into(), events, rank };
        for form in [Form::Maps, Form::Arrays] {
            let bytes = write(&batch, form);
            if form == Form::Arrays {
                batch.events.iter_mut().for_each(without_salt);
            }
            prop_assert_eq!(&read(&bytes).unwrap(), &batch);
            // Cut anywhere it is no batch.
            for end in 0..bytes.len() {
                prop_assert!(read(&bytes[..end]).is_err());
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
    }
}
