//! What was written of a window, cut at its times, and where the next window begins: as OpenAI's `whisper/transcribe.py`
//! does it. Pure.

use inflight_text::Transcribing;

/// A part of a transcript; times are seconds from the beginning of its window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) start: f64,
    pub(super) end: f64,
    /// Its times among them.
    pub(super) tokens: Vec<u32>,
}

impl Part {
    /// All that was written without times.
    pub(super) fn whole(tokens: Vec<u32>, seconds: f64) -> Self {
        Self {
            start: 0.0,
            end: seconds,
            tokens,
        }
    }
}

/// The parts with text of a window of so many seconds, and how many of them are heard.
pub(super) fn cut(tokens: &[u32], marks: &Transcribing, seconds: f64) -> (Vec<Part>, f64) {
    let times: Vec<Option<f64>> = tokens.iter().map(|token| marks.time(*token)).collect();
    // Where a part ends and the next begins: after the first of two times.
    let pairs = times.windows(2).enumerate();
    let mut ends: Vec<usize> = pairs
        .filter(|(_, pair)| pair[0].is_some() && pair[1].is_some())
        .map(|(at, _)| at + 1)
        .collect();
    let part = |from: usize, to: usize, least: f64, most: f64| {
        let own = times.get(from..to).unwrap_or_default();
        let said: Vec<f64> = own.iter().flatten().copied().collect();
        let start = said.first().map_or(least, |time| time.min(seconds));
        Part {
            start,
            // The model may write beyond the end of a clip that is short.
            end: most.min(seconds).max(start),
            tokens: tokens.get(from..to).unwrap_or_default().to_vec(),
        }
    };
    let last = times.iter().flatten().next_back().copied();
    let (parts, next) = if ends.is_empty() {
        // One part, to its end if that was heard.
        let end = last
            .filter(|time| *time > 0.0 && tokens.len() > 1 && times.last() == Some(&Some(*time)));
        (
            vec![part(0, tokens.len(), 0.0, end.unwrap_or(seconds))],
            seconds,
        )
    } else {
        let before = times.len().checked_sub(2).and_then(|at| times.get(at));
        let ends_alone = times.last().is_some_and(Option::is_some) && before == Some(&None);
        if ends_alone {
            // What follows it is silence.
            ends.push(tokens.len());
        }
        let mut from = 0;
        let mut parts = Vec::with_capacity(ends.len());
        for to in &ends {
            let end = to
                .checked_sub(1)
                .and_then(|at| times.get(at).copied().flatten());
            parts.push(part(from, *to, 0.0, end.unwrap_or(seconds)));
            from = *to;
        }
        let end = from
            .checked_sub(1)
            .and_then(|at| times.get(at).copied().flatten());
        let next = match ends_alone {
            true => seconds,
            // What was begun and did not end is heard again.
            false => end.filter(|end| *end > 0.0).unwrap_or(seconds),
        };
        (parts, next)
    };
    let has_text = |part: &Part| part.tokens.iter().any(|token| marks.is_text(*token));
    let said = parts.into_iter().filter(has_text);
    (said.collect(), next.min(seconds))
}

#[cfg(test)]
mod tests {
    use inflight_text::{ModelFiles, TextModel};
    use serde_json::json;

    use super::*;

    /// Tokens below 5 are text, 5 to 7 marks, and 8 is 0 seconds.
    fn marks() -> Transcribing {
        let names = ["a", "b", "c", "d", "e"];
        let special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"];
        let names = names.into_iter().chain(special).enumerate();
        let vocabulary: serde_json::Map<String, serde_json::Value> = names
            .map(|(id, name)| (name.to_owned(), json!(id)))
            .collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
        });
        let files = ModelFiles::from([
            (
                "tokenizer.json".to_owned(),
                tokenizer.to_string().into_bytes(),
            ),
            (
                "config.json".to_owned(),
                br#"{"max_source_positions": 100}"#.to_vec(),
            ),
        ]);
        TextModel::load(&files)
            .unwrap()
            .transcribing()
            .unwrap()
            .clone()
    }

    #[test]
    fn windows_are_cut_where_parts_end() {
        let marks = marks();
        let time = |seconds: f64| 8 + (seconds / 0.02).round() as u32;
        let text = [0, 1];
        // Tokens; each part's start, end and number of tokens; where the next window begins.
        type Wanted = &'static [(f64, f64, usize)];
        let cases: [(Vec<u32>, Wanted, f64); 8] = [
            // Without times: all of it is one part.
            (text.to_vec(), &[(0.0, 2.0, 2)], 2.0),
            (vec![], &[], 2.0),
            // One part, and silence after it.
            (
                [&[time(0.2)], &text[..], &[time(1.0)]].concat(),
                &[(0.2, 1.0, 4)],
                2.0,
            ),
            // Two parts, the second of which does not end.
            (
                [&[time(0.0)], &text[..], &[time(0.8), time(0.9)], &text[..]].concat(),
                &[(0.0, 0.8, 4)],
                0.8,
            ),
            // Two parts, and silence after them.
            (
                [
                    &[time(0.0)],
                    &text[..],
                    &[time(0.8), time(0.9)],
                    &text[..],
                    &[time(1.5)],
                ]
                .concat(),
                &[(0.0, 0.8, 4), (0.9, 1.5, 4)],
                2.0,
            ),
            // The next part begins where the first ends, and has no text yet.
            (
                [&[time(0.4)], &text[..], &[time(1.2), time(1.2)]].concat(),
                &[(0.4, 1.2, 4)],
                1.2,
            ),
            // A time beyond the clip.
            (
                [&[time(0.0)], &text[..], &[time(9.0)]].concat(),
                &[(0.0, 2.0, 4)],
                2.0,
            ),
            // Nothing but times makes no part, and the next window begins all the same.
            (vec![time(0.0), time(0.0)], &[], 2.0),
        ];
        for (tokens, wanted, next) in cases {
            let (parts, heard) = cut(&tokens, &marks, 2.0);
            let parts: Vec<_> = parts
                .iter()
                .map(|part| (part.start, part.end, part.tokens.len()))
                .collect();
            assert_eq!(parts.len(), wanted.len(), "{tokens:?} {parts:?}");
            for (part, wanted) in parts.iter().zip(wanted) {
                let is_near = |one: f64, other: f64| (one - other).abs() < 1e-9;
                assert!(
                    is_near(part.0, wanted.0) && is_near(part.1, wanted.1),
                    "{parts:?}"
                );
                assert_eq!(part.2, wanted.2, "{tokens:?}");
            }
            assert!((heard - next).abs() < 1e-9, "{tokens:?} {heard}");
        }
    }
}
