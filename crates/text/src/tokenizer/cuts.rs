//! Where a long segment can be cut so that its parts have the ids that they have in the whole. Prompts that begin
//! alike, or have a document in common, then share the parts. Owns the tokenizers for which that is proved, and
//! where a cut is; knows nothing of what is kept.
//!
//! A splitter's pattern takes the next word from what is left of the text, so a cut can only change words that
//! would have gone across it or looked beyond it. No word of the patterns listed here holds the end of a word and
//! the space after it, and each stops at such a space as it does at the end of the text. Without a splitter, words
//! are apart where the vocabulary has no token that spans them.

use std::ops::Range;

use serde_json::Value;
use tokenizers::{Model, ModelWrapper, Tokenizer};

/// Bytes that a part has at least.
const LEAST: usize = 512;
/// From here on, the next place for a cut is taken.
const MOST: usize = 4 << 10;
/// One place of so many is taken before, by what is written there: the same document then has the same cuts, whatever
/// comes before it.
const ONE_OF: u64 = 128;
/// Bytes before a place that decide.
const WINDOW: usize = 8;
/// SentencePiece's space.
const VISIBLE_SPACE: char = '▁';

/// What the patterns consist of: GPT-2's, those of `cl100k_base` and `o200k_base` of OpenAI, which Llama 3 and 4,
/// Qwen, GLM, Phi and gpt-oss use, too, Mistral's, and DeepSeek's. See the module for what holds of each.
const ALTERNATIVES: [&str; 36] = [
    // Endings of words.
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    // Words.
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    "[一-龥぀-ゟ゠-ヿ]+",
    // Numbers.
    r"\p{N}",
    r"\p{N}{1,3}",
    r" ?\p{N}+",
    // Punctuation.
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    // White space.
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"\s*\r?\n+",
    r"\s+$",
    r"\s+(?!\S)",
    r"\s+",
];
/// Those that take any punctuation.
const PUNCTUATION: Range<usize> = 24..30;
/// Takes any white space.
const SPACES: &str = r"\s+";

/// Where segments of one tokenizer may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// At the end of a word.
    Words,
    /// Before SentencePiece's space.
    VisibleSpaces,
}

impl Cuts {
    /// `None`: no place is known to be safe.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let splitter = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let mut steps = vec![];
        flatten(&splitter, &mut steps);
        let divides = |step: &&Value| step["type"] != "Split" || step["pattern"]["String"] != " ";
        if !steps.iter().any(divides) {
            return keeps_words_apart(tokenizer.get_model()).then_some(Self::VisibleSpaces);
        }
        let steps: Option<Vec<Step>> = steps.into_iter().map(step).collect();
        steps?.contains(&Step::Words).then_some(Self::Words)
    }

    /// A segment's parts, in order.
    pub(super) fn parts(self, segment: &str) -> impl Iterator<Item = &str> {
        let mut rest = segment;
        std::iter::from_fn(move || {
            let (part, after) = rest.split_at(self.first(rest));
            rest = after;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Where the first part of a text ends.
    fn first(self, text: &str) -> usize {
        let places = (LEAST..text.len()).filter(|at| self.is_place(text, *at));
        let mut taken = places.filter(|at| *at >= MOST || is_taken(text.as_bytes(), *at));
        taken.next().unwrap_or(text.len())
    }

    fn is_place(self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let before = || text.get(..at)?.chars().next_back();
        match (self, bytes.get(at).copied().unwrap_or_default()) {
            (Self::Words, b' ') => before().is_some_and(|before| {
                before.is_ascii_graphic() || !(before.is_ascii() || before.is_whitespace())
            }),
            (Self::Words, b'\n' | b'"' | b',' | b'.' | b':' | b';' | b')' | b'<') => {
                before().is_some_and(|before| before.is_ascii_alphabetic())
            }
            // Chinese has no spaces.
            (Self::Words, 0xe3 | 0xef) => {
                let next = text.get(at..).and_then(|rest| rest.chars().next());
                next.is_some_and(|next| matches!(next, '、' | '。' | '，'))
                    && before().is_some_and(|before| matches!(before, '一'..='龥'))
            }
            (Self::VisibleSpaces, 0xe2) => {
                text.get(at..)
                    .is_some_and(|rest| rest.starts_with(VISIBLE_SPACE))
                    && before().is_some_and(|before| before != VISIBLE_SPACE)
            }
            _ => false,
        }
    }
}

/// Whether a place is one of the few, by what is before it.
fn is_taken(text: &[u8], at: usize) -> bool {
    let window = text.get(..at).and_then(<[u8]>::last_chunk::<WINDOW>);
    window.is_some_and(|window| {
        // The golden ratio's multiplier: the upper bits depend on all of them.
        let mixed = u64::from_le_bytes(*window).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) % ONE_OF == 0
    })
}

/// What a step of a splitter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Takes words, punctuation and white space.
    Words,
    /// Takes some characters, and leaves others.
    Characters,
}

fn flatten<'a>(splitter: &'a Value, steps: &mut Vec<&'a Value>) {
    match splitter["pretokenizers"].as_array() {
        Some(parts) => parts.iter().for_each(|part| flatten(part, steps)),
        None if splitter.is_null() => {}
        None => steps.push(splitter),
    }
}

/// `None`: nothing is known of it.
fn step(splitter: &Value) -> Option<Step> {
    match splitter["type"].as_str()? {
        "Digits" => Some(Step::Characters),
        "ByteLevel" if splitter["add_prefix_space"] == false => {
            // Its pattern is GPT-2's.
            Some(match splitter["use_regex"] == false {
                true => Step::Characters,
                false => Step::Words,
            })
        }
        "Split" => {
            // Removed and inverted, the words are what is kept.
            let (behavior, invert) = (&splitter["behavior"], &splitter["invert"]);
            if behavior != "Isolated" && !(behavior == "Removed" && invert == true) {
                return None;
            }
            let found = alternatives(splitter["pattern"]["Regex"].as_str()?)?;
            let takes_punctuation = found.iter().any(|index| PUNCTUATION.contains(index));
            let takes_spaces = found
                .iter()
                .any(|index| ALTERNATIVES.get(*index) == Some(&SPACES));
            Some(match takes_punctuation && takes_spaces {
                true => Step::Words,
                false => Step::Characters,
            })
        }
        _ => None,
    }
}

/// The alternatives of a pattern, by their index; `None`: one of them is not known.
fn alternatives(pattern: &str) -> Option<Vec<usize>> {
    let (mut depth, mut in_class, mut is_escaped, mut start) = (0usize, false, false, 0);
    let mut found = Vec::new();
    let mut add = |alternative: Option<&str>| {
        found.push(
            ALTERNATIVES
                .iter()
                .position(|known| Some(*known) == alternative)?,
        );
        Some(())
    };
    for (at, character) in pattern.char_indices() {
        match character {
            _ if is_escaped => {
                is_escaped = false;
                continue;
            }
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => {
                add(pattern.get(start..at))?;
                start = at + 1;
            }
            _ => {}
        }
    }
    add(pattern.get(start..))?;
    Some(found)
}

/// Whether no token of a vocabulary holds the end of a word and the space after it.
fn keeps_words_apart(model: &ModelWrapper) -> bool {
    let ModelWrapper::BPE(bpe) = model else {
        return false;
    };
    let spans = |token: &String| {
        let mut words = token.trim_start_matches(VISIBLE_SPACE);
        words = words.trim_end_matches(|character| character != VISIBLE_SPACE);
        !words.is_empty()
    };
    let is_plain = bpe.continuing_subword_prefix.is_none()
        && bpe.end_of_word_suffix.is_none()
        && bpe.dropout.is_none()
        && !bpe.ignore_merges;
    is_plain && bpe.token_to_id("▁").is_some() && !bpe.get_vocab().keys().any(spans)
}

#[cfg(test)]
mod tests;
