//! The tool formats: one state machine per file. Each takes what it can decide from the start of the text and is
//! shown the rest again, so that no byte is looked at more often than a marker or a name is long.

pub(crate) mod gemma;
mod gemma_object;
pub(crate) mod glm;
pub(crate) mod harmony;
pub(crate) mod hermes;
pub(crate) mod invoke;
pub(crate) mod llama_json;
pub(crate) mod mistral;
pub(crate) mod objects;
pub(crate) mod python;
pub(crate) mod pythonic;
pub(crate) mod qwen_coder;
pub(crate) mod sections;

use crate::marker::{Found, find};
use crate::sink::Sink;

/// Passes text on as content up to the first of `markers`: its index and the length of all that was taken, or
/// `None` for the index if there is none yet.
fn text_until(text: &str, markers: &[&str], sink: &mut Sink<'_>) -> Option<(Option<usize>, usize)> {
    let (before, marker) = before_marker(text, markers)?;
    sink.content(crate::split(text, before).0);
    let length = marker
        .and_then(|marker| markers.get(marker))
        .map_or(0, |marker| marker.len());
    Some((marker, before + length))
}

/// The length of the text before the first marker, and which one it is if it is whole. `None`: nothing can be said
/// without more text.
fn before_marker(text: &str, markers: &[&str]) -> Option<(usize, Option<usize>)> {
    match find(text, markers) {
        Found::Whole { at, marker } => Some((at, Some(marker))),
        Found::Partial { at: 0 } => None,
        Found::Partial { at } => Some((at, None)),
        Found::Nowhere if text.is_empty() => None,
        Found::Nowhere => Some((text.len(), None)),
    }
}

/// A short text before a marker: a name, a key, a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header<'a> {
    /// The text without white space around it, the marker's index, and the length with the marker.
    Whole(&'a str, usize, usize),
    More,
    /// It is longer than allowed.
    Bad,
}

/// Reads up to the first of `markers`.
fn header_until<'a>(text: &'a str, markers: &[&str], longest: usize) -> Header<'a> {
    // Nothing further away matters, and may not be searched for each time.
    let near = crate::split_near(text, longest + 64).0;
    match find(near, markers) {
        Found::Whole { at, marker } if at <= longest => {
            let header = crate::split(near, at).0.trim_matches(crate::is_space);
            let length = markers.get(marker).map_or(0, |marker| marker.len());
            Header::Whole(header, marker, at + length)
        }
        Found::Partial { at } if at <= longest => Header::More,
        Found::Nowhere if near.len() <= longest => Header::More,
        _ => Header::Bad,
    }
}

/// The length of the white space at the start of a text.
fn space(text: &str) -> usize {
    text.len() - crate::skip_space(text).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_short() {
        let header = |length: usize, behind: &str| {
            header_until(&("x".repeat(length) + behind), &["<end>"], 8) == Header::Bad
        };
        for (length, behind, is_bad) in [
            (8, "<end>", false),
            (9, "<end>", true),
            (8, "<e", false),
            (9, "<e", true),
            (8, "", false),
            (9, "", true),
        ] {
            assert_eq!(header(length, behind), is_bad, "{length} {behind}");
        }
        assert_eq!(
            header_until(" a <end> b", &["<end>"], 8),
            Header::Whole("a", 0, 8)
        );
        assert_eq!(header_until(" a <en", &["<end>"], 8), Header::More);
    }
}
