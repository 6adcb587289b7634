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

use crate::format::{Format, ToolFormat};
use crate::marker::{Found, find};
use crate::sink::Sink;

/// The state machine of a format.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    Plain,
    Hermes(hermes::Hermes),
    QwenCoder(qwen_coder::QwenCoder),
    LlamaJson(llama_json::LlamaJson),
    Pythonic(pythonic::Pythonic),
    Mistral(mistral::Mistral),
    Sections(sections::Sections),
    Glm(glm::Glm),
    Invoke(invoke::Invoke),
    Objects(objects::Objects),
    Gemma(gemma::Gemma),
    Harmony(harmony::Harmony),
}

impl Machine {
    /// The machine of a format; `is_reasoning_open` as in the parser's options.
    pub(crate) fn new(format: Format, is_reasoning_open: bool) -> Self {
        // Harmony's messages hold all of an answer, so one machine reads both.
        if format.is_harmony() {
            let has_calls = format.tools == Some(ToolFormat::Harmony);
            return Self::Harmony(harmony::Harmony::new(has_calls, is_reasoning_open));
        }
        match format.tools {
            None | Some(ToolFormat::Harmony) => Self::Plain,
            Some(ToolFormat::Hermes) => Self::Hermes(hermes::Hermes::default()),
            Some(ToolFormat::Qwen3Coder) => Self::QwenCoder(qwen_coder::QwenCoder::default()),
            Some(ToolFormat::Llama3Json) => Self::LlamaJson(llama_json::LlamaJson::default()),
            Some(ToolFormat::Pythonic) => Self::Pythonic(pythonic::Pythonic::default()),
            Some(ToolFormat::Mistral) => Self::Mistral(mistral::Mistral::default()),
            Some(ToolFormat::DeepseekV3 | ToolFormat::DeepseekV31) => {
                Self::Sections(sections::Sections::new(&sections::DEEPSEEK))
            }
            Some(ToolFormat::KimiK2) => Self::Sections(sections::Sections::new(&sections::KIMI)),
            Some(ToolFormat::Glm45) => Self::Glm(glm::Glm::default()),
            Some(ToolFormat::DeepseekV32) => Self::Invoke(invoke::Invoke::new(&invoke::DEEPSEEK)),
            Some(ToolFormat::MinimaxM2) => Self::Invoke(invoke::Invoke::new(&invoke::MINIMAX)),
            Some(ToolFormat::Gemma4) => Self::Gemma(gemma::Gemma::default()),
            Some(ToolFormat::Phi4MiniJson) => {
                Self::Objects(objects::Objects::new(&objects::PHI4_MINI))
            }
            Some(ToolFormat::Granite) => Self::Objects(objects::Objects::new(&objects::GRANITE)),
            Some(ToolFormat::Jamba) => Self::Objects(objects::Objects::new(&objects::JAMBA)),
            Some(ToolFormat::Xlam) => Self::Objects(objects::Objects::new(&objects::XLAM)),
            Some(ToolFormat::Internlm) => Self::Objects(objects::Objects::new(&objects::INTERNLM)),
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
            Self::QwenCoder(machine) => machine.take(text, sink),
            Self::LlamaJson(machine) => machine.take(text, sink),
            Self::Pythonic(machine) => machine.take(text, sink),
            Self::Mistral(machine) => machine.take(text, sink),
            Self::Sections(machine) => machine.take(text, sink),
            Self::Glm(machine) => machine.take(text, sink),
            Self::Invoke(machine) => machine.take(text, sink),
            Self::Objects(machine) => machine.take(text, sink),
            Self::Gemma(machine) => machine.take(text, sink),
            Self::Harmony(machine) => machine.take(text, sink),
        }
    }

    /// No more text comes. Whether that may decide what was not taken, which then has to be shown again.
    pub(crate) fn end_text(&mut self) -> bool {
        match self {
            Self::Pythonic(machine) => machine.end_text(),
            _ => false,
        }
    }

    /// Ends the answer, with the text that was not taken.
    pub(crate) fn finish(&mut self, held: &str, sink: &mut Sink<'_>) {
        if let Self::Harmony(machine) = self
            && machine.finish(held, sink)
        {
            return;
        }
        // What is held in an open call is part of a marker or of an escape; behind a call, of what closes it.
        if sink.is_behind_call() {
            sink.forget();
        } else if sink.is_call_open() {
            sink.give_up();
        } else {
            sink.give_up();
            sink.content(held);
        }
    }
}

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
