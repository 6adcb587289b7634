//! The stop-string matcher against the plain reading of its rules, for any text, stops and chunking.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_text::{StopHit, StopMatcher};
use proptest::prelude::*;

/// The rules on a whole text: the stop that is complete first ends it; of several, the longest.
fn reference(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let best = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| {
                !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
            })
            // The first of equal ones: max_by_key would take the last.
            .min_by_key(|(_, stop)| std::cmp::Reverse(stop.len()));
        if let Some((index, stop)) = best {
            return (text[..end - stop.len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

/// The longest end of a text that could still become a stop string.
fn could_stop(text: &str, stops: &[String]) -> usize {
    stops
        .iter()
        .flat_map(|stop| (1..stop.len()).map(move |length| &stop.as_bytes()[..length]))
        .filter(|prefix| text.as_bytes().ends_with(prefix))
        .map(<[u8]>::len)
        .max()
        .unwrap_or(0)
}

fn chunks(text: &str, cuts: &[usize]) -> Vec<String> {
    let mut result = vec![String::new()];
    for (index, character) in text.chars().enumerate() {
        if cuts.contains(&index) {
            result.push(String::new());
        }
        result.last_mut().unwrap().push(character);
    }
    result
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_chunking_equals_the_whole_text(
        // Few characters, so that overlaps happen; two that share their first UTF-8 bytes.
        text in "[abé🎉🎊]{0,30}",
        stops in prop::collection::vec("[abé🎉🎊]{0,5}", 0..6),
        cuts in prop::collection::vec(0usize..30, 0..12),
    ) {
        let (expected, stop) = reference(&text, &stops);
        let mut matcher = StopMatcher::new(&stops);
        prop_assert_eq!(matcher.is_empty(), stops.iter().all(String::is_empty));
        let mut shown = String::new();
        let mut seen = String::new();
        let mut hit = None;
        for chunk in chunks(&text, &cuts) {
            hit = matcher.push(&chunk, &mut shown);
            if hit.is_some() {
                break;
            }
            seen.push_str(&chunk);
            // Exactly what could still become a stop string is held back.
            prop_assert_eq!(&shown, &seen[..seen.len() - could_stop(&seen, &stops)]);
        }
        prop_assert_eq!(hit, stop.map(|index| StopHit { index }));
        prop_assert_eq!(hit, matcher.hit());
        if hit.is_some() {
            prop_assert_eq!(matcher.push("more", &mut shown), hit);
        }
        matcher.finish(&mut shown);
        prop_assert_eq!(shown, expected);
    }
}

#[test]
fn shows_and_holds() {
    // (stops, chunks, what each chunk shows, the stop that hits, what the end shows)
    type Case = (
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
        Option<usize>,
        &'static str,
    );
    let cases: [Case; 9] = [
        (
            &["\n\n"],
            &[("a\n", "a"), ("b", "\nb"), ("\n", ""), ("\nc", "")],
            Some(0),
            "",
        ),
        (
            &["END"],
            &[("the EN", "the "), ("EN", "EN"), ("D", "")],
            Some(0),
            "",
        ),
        (&["END"], &[("the EN", "the ")], None, "EN"),
        // The shorter one is complete first, so it counts, though the longer started earlier.
        (&["abcd", "bc"], &[("xab", "x"), ("cd", "a")], Some(1), ""),
        // Both complete at the same moment: the earlier start.
        (&["c", "abc"], &[("xab", "x"), ("c", "")], Some(1), ""),
        (&["🎉"], &[("a🎊", "a🎊"), ("b🎉", "b")], Some(0), ""),
        (&["a", "a"], &[("ba", "b")], Some(0), ""),
        // What is not the first half of one may be that of the next.
        (&["aab"], &[("aaab", "a")], Some(0), ""),
        (&["abac"], &[("aba", ""), ("bac", "ab")], Some(0), ""),
    ];
    for (stops, chunks, expected, rest) in cases {
        let list: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&list);
        let mut hit = None;
        for (chunk, shows) in chunks {
            let mut shown = String::new();
            hit = matcher.push(chunk, &mut shown);
            assert_eq!(&shown, shows, "{stops:?} at {chunk:?}");
        }
        assert_eq!(hit.map(|hit| hit.index), expected, "{stops:?}");
        let mut end = String::new();
        matcher.finish(&mut end);
        assert_eq!(end, rest, "{stops:?}");
    }
}
