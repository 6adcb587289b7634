//! Log probabilities with the text they belong to. Owns which tokens may be shown, so that the
//! tokens of a hidden stop string stay hidden, and the two shapes of the API.

use std::collections::VecDeque;
use std::sync::Arc;

use inflight_kserve::step::PromptLogProbs;
use inflight_openai::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob, TopLogprobs};
use inflight_text::Tokenizer;
use inflight_upstream::inbox::OutputDetails;

/// The end of a token whose text has not come out yet.
const UNKNOWN: usize = usize::MAX;

#[derive(Debug)]
struct Entry {
    token: i32,
    /// `None`: nothing precedes the token, so it has no probability; or nobody reported that of an end token.
    value: Option<f32>,
    alternatives: Vec<(i32, f32)>,
    /// Where the token's text starts and ends in the choice's decoded bytes.
    start: usize,
    end: usize,
    /// Where it starts in characters.
    start_characters: u32,
}

/// The log probabilities of one choice.
#[derive(Debug)]
pub struct LogProbs {
    tokenizer: Arc<Tokenizer>,
    /// Alternatives asked for.
    top: usize,
    waiting: VecDeque<Entry>,
    released: VecDeque<Entry>,
    decoded_bytes: usize,
    decoded_characters: u32,
    shown_bytes: usize,
    /// Whether tokens are named by their ids.
    names_ids: bool,
    /// Whether chat lists a token before its alternatives.
    lists_own: bool,
}

impl LogProbs {
    /// For a choice that reports `top` alternatives per token.
    pub fn new(tokenizer: Arc<Tokenizer>, top: usize) -> Self {
        Self {
            tokenizer,
            top,
            waiting: VecDeque::new(),
            released: VecDeque::new(),
            decoded_bytes: 0,
            decoded_characters: 0,
            shown_bytes: 0,
            names_ids: false,
            lists_own: false,
        }
    }

    /// Names tokens `token_id:ID`, as vLLM does where it is asked to.
    pub fn with_ids_for_names(mut self) -> Self {
        self.names_ids = true;
        self
    }

    /// Lists each token before its alternatives in chat's shape, as vLLM does where these are named.
    pub fn with_own_first(mut self) -> Self {
        self.lists_own = true;
        self
    }

    /// Puts an echoed prompt before the generated tokens. `text` is what the choice's text starts with.
    pub(crate) fn echo(&mut self, prompt: &[i32], values: &PromptLogProbs, text: &str) {
        let width = values.width as usize;
        let (mut cursor, mut characters) = (0, 0u32);
        for (position, &token) in prompt.iter().enumerate() {
            let range = position * width..(position + 1) * width;
            let ids = values.top_ids.get(range.clone()).unwrap_or_default();
            let tops = values.top_values.get(range).unwrap_or_default();
            let value = values
                .values
                .get(position)
                .copied()
                .filter(|value| !value.is_nan());
            let alternatives = match value {
                Some(_) => ids
                    .iter()
                    .copied()
                    .zip(tops.iter().copied())
                    .take(self.top)
                    .collect(),
                None => Vec::new(),
            };
            self.released.push_back(Entry {
                token,
                value: if position == 0 { None } else { value },
                alternatives,
                start: 0,
                end: 0,
                start_characters: characters,
            });
            let next = self.echoed_to(text, cursor, token);
            characters += characters_between(text, cursor, next);
            cursor = next;
        }
        self.decoded_characters = text.chars().count() as u32;
    }

    /// Where `token` ends in an echoed text that is explained up to byte `from`. A token whose text is
    /// not there, as the one that begins a sequence, takes none of it.
    fn echoed_to(&self, text: &str, from: usize, token: i32) -> usize {
        let rest = text.as_bytes().get(from..).unwrap_or_default();
        let id = u32::try_from(token).unwrap_or(u32::MAX);
        let Some(token) = self.tokenizer.token_text(id) else {
            return from;
        };
        let bytes = token.bytes();
        // Some tokenizers put a space before the first word that the text does not have.
        let without_space = bytes.strip_prefix(b" ").filter(|rest| !rest.is_empty());
        let length = if rest.starts_with(bytes) {
            bytes.len()
        } else {
            without_space
                .filter(|bytes| rest.starts_with(bytes))
                .map_or(0, <[u8]>::len)
        };
        from + length
    }

    /// Takes a generated token whose decoding added `decoded` to the text.
    pub(crate) fn push(
        &mut self,
        token: i32,
        position: usize,
        details: Option<&OutputDetails>,
        decoded: &str,
    ) {
        let (value, alternatives) = self.values(position, details);
        let start = self.decoded_bytes;
        let start_characters = self.decoded_characters;
        self.decoded_bytes += decoded.len();
        self.decoded_characters += decoded.chars().count() as u32;
        // A part of a character, or a token without text, is reported with the text that comes next.
        let end = if decoded.is_empty() {
            UNKNOWN
        } else {
            let waiting = self.waiting.iter_mut().rev();
            for entry in waiting.take_while(|entry| entry.end == UNKNOWN) {
                entry.end = self.decoded_bytes;
            }
            self.decoded_bytes
        };
        let value = Some(value.unwrap_or(f32::NAN));
        self.waiting.push_back(Entry {
            token,
            value,
            alternatives,
            start,
            end,
            start_characters,
        });
    }

    /// Takes the token that ended the sequence, which has no text. An executor that does not report it leaves
    /// its value unknown.
    pub(crate) fn push_end(
        &mut self,
        token: i32,
        position: usize,
        details: Option<&OutputDetails>,
    ) {
        let (value, alternatives) = self.values(position, details);
        self.released.push_back(Entry {
            token,
            value,
            alternatives,
            start: self.decoded_bytes,
            end: self.decoded_bytes,
            start_characters: self.decoded_characters,
        });
    }

    /// The log probability and the alternatives of a row's token.
    fn values(
        &self,
        position: usize,
        details: Option<&OutputDetails>,
    ) -> (Option<f32>, Vec<(i32, f32)>) {
        let Some(details) = details else {
            return (None, Vec::new());
        };
        let width = details.top_width;
        let range = position * width..(position + 1) * width;
        let ids = details.top_ids.get(range.clone()).unwrap_or_default();
        let values = details.top_values.get(range).unwrap_or_default();
        let pairs = ids.iter().copied().zip(values.iter().copied());
        let value = details.log_probs.get(position).copied();
        (value, pairs.take(self.top).collect())
    }

    /// So many more bytes of the text may be shown: releases the tokens that lie within.
    pub(crate) fn shown(&mut self, bytes: usize) {
        self.shown_bytes += bytes;
        while self
            .waiting
            .front()
            .is_some_and(|entry| entry.end <= self.shown_bytes)
        {
            self.released.extend(self.waiting.pop_front());
        }
    }

    /// A stop string cut the text: what starts behind the cut is never shown.
    pub(crate) fn cut(&mut self) {
        while self
            .waiting
            .front()
            .is_some_and(|entry| entry.start < self.shown_bytes)
        {
            self.released.extend(self.waiting.pop_front());
        }
        self.waiting.clear();
    }

    /// The text ended by itself: everything is shown.
    pub(crate) fn release_all(&mut self) {
        self.released.extend(self.waiting.drain(..));
    }

    /// How many tokens wait to be written.
    pub(crate) fn released(&self) -> usize {
        self.released.len()
    }

    /// How many bytes of the text shown so far belong to the waiting token `index` and those after it.
    pub(crate) fn shown_from(&self, index: usize) -> usize {
        let entry = self.released.get(index);
        entry.map_or(0, |entry| self.shown_bytes.saturating_sub(entry.start))
    }

    /// The next `count` tokens that may be shown, in chat's shape.
    pub(crate) fn take_chat(&mut self, count: usize) -> ChatLogprobs {
        let entries = self.take(count);
        let content = entries
            .into_iter()
            // Chat's shape cannot express an unknown value, and it never echoes a prompt.
            .filter(|entry| entry.value.is_some())
            .map(|entry| {
                let (token, bytes) = self.text(entry.token);
                let logprob = entry.value.unwrap_or(f32::NAN);
                let own = self.lists_own.then_some((entry.token, logprob));
                let others = entry.alternatives.iter().copied();
                let others = others.filter(|(id, _)| !self.lists_own || *id != entry.token);
                let top_logprobs = own.into_iter().chain(others);
                let top_logprobs = top_logprobs
                    .map(|(id, logprob)| {
                        let (token, bytes) = self.text(id);
                        TopLogprob {
                            token,
                            logprob,
                            bytes,
                        }
                    })
                    .collect();
                TokenLogprob {
                    token,
                    logprob,
                    bytes,
                    top_logprobs,
                }
            })
            .collect();
        ChatLogprobs {
            content,
            refusal: None,
        }
    }

    fn take(&mut self, count: usize) -> Vec<Entry> {
        let count = count.min(self.released.len());
        self.released.drain(..count).collect()
    }

    /// The next `count` tokens that may be shown, in the completions' shape.
    pub(crate) fn take_completion(&mut self, count: usize) -> CompletionLogprobs {
        let entries = self.take(count);
        let mut columns = CompletionLogprobs::default();
        let mut tops = Vec::new();
        for entry in entries {
            columns.tokens.push(self.text(entry.token).0);
            columns.token_logprobs.push(entry.value);
            columns.text_offset.push(entry.start_characters);
            tops.push(entry.value.map(|value| {
                // The token itself is always reported, also where it is not one of the likeliest.
                let own = (entry.token, value);
                let listed = entry.alternatives.iter().any(|(id, _)| *id == own.0);
                let own = (!listed).then_some(own);
                let pairs = entry.alternatives.iter().copied().chain(own);
                TopLogprobs(pairs.map(|(id, value)| (self.text(id).0, value)).collect())
            }));
        }
        // With no alternatives asked for, each still lists the token itself, as OpenAI's "up to `logprobs` + 1".
        columns.top_logprobs = Some(tops);
        columns
    }

    /// A token's text and its bytes, those of a special token's name too; `None` beyond the vocabulary.
    fn text(&self, token: i32) -> (String, Option<Vec<u8>>) {
        let (text, bytes) = self.own_text(token);
        match self.names_ids {
            true => (format!("token_id:{token}"), bytes),
            false => (text, bytes),
        }
    }

    fn own_text(&self, token: i32) -> (String, Option<Vec<u8>>) {
        let id = u32::try_from(token).unwrap_or(u32::MAX);
        match self.tokenizer.token_text(id) {
            Some(text) => (text.text().into_owned(), Some(text.bytes().to_vec())),
            None => (String::new(), None),
        }
    }
}

/// Characters that begin in `text[from..to]`; either may lie within one.
fn characters_between(text: &str, from: usize, to: usize) -> u32 {
    let bytes = text.as_bytes().get(from..to).unwrap_or_default();
    // UTF-8 continuation bytes begin nothing.
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as u32
}
