//! The tool formats: one state machine per file. Each takes what it can decide from the start of the text and is
//! shown the rest again, so that no byte is looked at more often than a marker is long.

pub(crate) mod hermes;

use crate::format::{Format, ToolFormat};
use crate::marker::{Found, find};
use crate::sink::Sink;

/// The state machine of a format.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    Plain,
    Hermes(hermes::Hermes),
}

impl Machine {
    pub(crate) fn new(format: Format) -> Self {
        match format.tools {
            None => Self::Plain,
            Some(ToolFormat::Hermes) => Self::Hermes(hermes::Hermes::default()),
        }
    }

    /// Takes what can be decided from the start of `text`: its length, which may be 0 if only the state changed, or
    /// `None` if more text is needed.
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        match self {
            Self::Plain if text.is_empty() => None,
            Self::Plain => {
                sink.content(text);
                Some(text.len())
            }
            Self::Hermes(machine) => machine.take(text, sink),
        }
    }

    /// Ends the answer, with the text that was not taken.
    pub(crate) fn finish(&mut self, held: &str, sink: &mut Sink<'_>) {
        let was_in_call = sink.is_call_open();
        sink.give_up();
        // What is held of an open call is part of a marker or of an escape.
        if !was_in_call {
            sink.content(held);
        }
    }
}

/// Passes text on as content up to the first of `markers`: its index and the length of all that was taken, or
/// `None` for the index if there is none yet.
fn text_until(text: &str, markers: &[&str], sink: &mut Sink<'_>) -> Option<(Option<usize>, usize)> {
    let (before, marker) = match find(text, markers) {
        Found::Whole { at, marker } => (at, Some(marker)),
        Found::Partial { at: 0 } => return None,
        Found::Partial { at } => (at, None),
        Found::Nowhere if text.is_empty() => return None,
        Found::Nowhere => (text.len(), None),
    };
    sink.content(crate::split(text, before).0);
    let length = marker
        .and_then(|marker| markers.get(marker))
        .map_or(0, |marker| marker.len());
    Some((marker, before + length))
}
