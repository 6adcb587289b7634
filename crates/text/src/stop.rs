//! Stop strings over a stream of text. Owns what may be shown while a stop string could still complete;
//! knows nothing of tokens.
//!
//! The text ends at the first moment at which some stop string is complete, and what is shown ends
//! where that string starts. Where several complete at the same moment the one that starts first
//! counts. (vLLM and OpenAI look at chunks of text; these rules agree with theirs for any chunking in
//! which no chunk completes two stop strings, and do not depend on the chunking.)

use memchr::{memchr, memchr2, memchr3};

/// Which stop string ended the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopHit {
    /// Index into the list given to [`StopMatcher::new`]; the first of equal strings.
    pub index: usize,
}

/// Watches one sequence's text for stop strings, and passes on what can no longer be part of one.
///
/// Held back is exactly the longest end of the text that some stop string starts with. Nothing is
/// allocated per chunk once the hold-back buffer has grown to the longest stop string.
///
/// ```
/// use inflight_text::StopMatcher;
///
/// let mut matcher = StopMatcher::new(&["END".to_owned()]);
/// let mut shown = String::new();
/// assert!(matcher.push("one E", &mut shown).is_none());
/// assert_eq!(shown, "one ", "`E` may be the start of `END`");
/// assert!(matcher.push("ND two", &mut shown).is_some());
/// assert_eq!(shown, "one ");
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text not yet passed on: the longest of the stops' partial matches.
    held: String,
    first_bytes: FirstBytes,
    hit: Option<StopHit>,
    /// Whether the stop string that ends the text is shown.
    is_shown: bool,
}

/// One stop string and how much of it the text ends with.
#[derive(Clone, Debug)]
struct Stop {
    index: usize,
    bytes: Vec<u8>,
    /// `borders[n]`: the longest proper prefix of the string that `bytes[..=n]` ends with.
    borders: Vec<u32>,
    matched: usize,
}

/// Finds the next byte at which any stop string could start.
#[derive(Clone, Debug)]
enum FirstBytes {
    One(u8),
    Two(u8, u8),
    Three(u8, u8, u8),
    Many(Box<[bool; 256]>),
}

impl StopMatcher {
    /// A matcher for these strings; empty ones stop nothing and are passed over.
    pub fn new(stops: &[String]) -> Self {
        let mut list: Vec<Stop> = Vec::with_capacity(stops.len());
        for (index, text) in stops.iter().enumerate() {
            let known = list.iter().any(|stop| stop.bytes == text.as_bytes());
            if !text.is_empty() && !known {
                list.push(Stop::new(index, text));
            }
        }
        let first_bytes = FirstBytes::new(&list);
        Self {
            stops: list,
            held: String::new(),
            first_bytes,
            hit: None,
            is_shown: false,
        }
    }

    /// Shows the stop string that ends the text, instead of ending before it.
    pub fn shown(mut self) -> Self {
        self.is_shown = true;
        self
    }

    /// Whether there is nothing to stop at: text then passes straight through.
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty()
    }

    /// The stop string that ended the text, if one has.
    pub fn hit(&self) -> Option<StopHit> {
        self.hit
    }

    /// Takes the next text and appends to `out` what can no longer be part of a stop string. Once a
    /// stop string is complete, this and every later call returns it, and nothing more is appended.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopHit> {
        if self.hit.is_some() {
            return self.hit;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        let bytes = text.as_bytes();
        let mut longest = self.held.len();
        let mut position = 0;
        while let Some(rest) = bytes.get(position..) {
            if longest == 0 {
                // Nothing is under way: only a first byte of a stop string matters.
                match self.first_bytes.find(rest) {
                    Some(skip) => position += skip,
                    None => break,
                }
            }
            let Some(byte) = bytes.get(position) else {
                break;
            };
            position += 1;
            longest = 0;
            let mut complete: Option<(usize, usize)> = None;
            for stop in &mut self.stops {
                stop.advance(*byte);
                longest = longest.max(stop.matched);
                let length = stop.bytes.len();
                if stop.matched == length && complete.is_none_or(|(best, _)| length > best) {
                    complete = Some((length, stop.index));
                }
            }
            if let Some((length, index)) = complete {
                let hidden = if self.is_shown { 0 } else { length };
                let shown = (self.held.len() + position).saturating_sub(hidden);
                self.pass(text, shown, out);
                self.held.clear();
                self.hit = Some(StopHit { index });
                return self.hit;
            }
        }
        let total = self.held.len() + text.len();
        let shown = total.saturating_sub(longest);
        self.pass(text, shown, out);
        self.hold(text, shown);
        None
    }

    /// Ends the text: what was held back is text after all, unless a stop string was complete.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        for stop in &mut self.stops {
            stop.matched = 0;
        }
    }

    /// Appends the first `count` bytes of the held text and `text`. A partial match starts with a
    /// stop string's first byte, which starts a character, so the cut never splits one.
    fn pass(&self, text: &str, count: usize, out: &mut String) {
        let from_held = count.min(self.held.len());
        out.push_str(self.held.get(..from_held).unwrap_or_default());
        out.push_str(text.get(..count - from_held).unwrap_or_default());
    }

    /// Keeps what comes after the first `count` bytes of the held text and `text`.
    fn hold(&mut self, text: &str, count: usize) {
        let from_held = count.min(self.held.len());
        self.held.drain(..from_held);
        self.held
            .push_str(text.get(count - from_held..).unwrap_or_default());
    }
}

impl Stop {
    fn new(index: usize, text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut borders = vec![0u32; bytes.len()];
        let mut matched = 0usize;
        // Knuth, Morris, Pratt: the failure function.
        for position in 1..bytes.len() {
            while matched > 0 && bytes.get(matched) != bytes.get(position) {
                matched = border(&borders, matched);
            }
            if bytes.get(matched) == bytes.get(position) {
                matched += 1;
            }
            if let Some(slot) = borders.get_mut(position) {
                *slot = u32::try_from(matched).unwrap_or(u32::MAX);
            }
        }
        Self {
            index,
            bytes,
            borders,
            matched: 0,
        }
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = border(&self.borders, self.matched);
        }
        if self.bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
    }
}

/// The longest shorter match that a match of `matched` bytes contains at its end.
fn border(borders: &[u32], matched: usize) -> usize {
    matched
        .checked_sub(1)
        .and_then(|last| borders.get(last))
        .map_or(0, |border| *border as usize)
}

impl FirstBytes {
    fn new(stops: &[Stop]) -> Self {
        let mut set = Box::new([false; 256]);
        let mut distinct = Vec::new();
        for byte in stops.iter().filter_map(|stop| stop.bytes.first()) {
            if let Some(slot) = set.get_mut(usize::from(*byte))
                && !std::mem::replace(slot, true)
            {
                distinct.push(*byte);
            }
        }
        match distinct.as_slice() {
            [one] => Self::One(*one),
            [one, two] => Self::Two(*one, *two),
            [one, two, three] => Self::Three(*one, *two, *three),
            _ => Self::Many(set),
        }
    }

    fn find(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::One(one) => memchr(*one, bytes),
            Self::Two(one, two) => memchr2(*one, *two, bytes),
            Self::Three(one, two, three) => memchr3(*one, *two, *three, bytes),
            Self::Many(set) => bytes
                .iter()
                .position(|byte| set.get(usize::from(*byte)).copied().unwrap_or(false)),
        }
    }
}
