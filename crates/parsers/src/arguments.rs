//! The arguments of a call that are written as one JSON object. Owns how they pass through, and nothing around them.

use crate::json::{Scan, Scanner};
use crate::sink::Sink;

/// What a part of a call did with the text it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This many bytes were read, and the part continues; show it the rest.
    Took(usize),
    /// More text is needed to decide.
    More,
    /// The part ends after this many bytes.
    Done(usize),
    /// The text does not fit behind this many bytes.
    Bad(usize),
}

/// Passes the JSON object of a call that has begun on to the sink, and ends the call with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arguments {
    scanner: Scanner,
}

impl Arguments {
    /// Reads on. The text starts with `{` the first time.
    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Step {
        match self.scanner.scan(text, &mut |json| sink.arguments(json)) {
            Scan::More(0) => Step::More,
            Scan::More(read) => Step::Took(read),
            Scan::Done(read) => {
                sink.end(true);
                Step::Done(read)
            }
            Scan::Bad(read) => Step::Bad(read),
        }
    }
}
