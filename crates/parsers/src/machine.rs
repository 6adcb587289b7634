//! The state machine of a format. Owns which format is read by which; what each reads is in `formats`.

use crate::format::{Format, ToolFormat};
use crate::formats::{
    gemma, glm, harmony, hermes, invoke, llama_json, mistral, objects, pythonic, qwen_coder,
    sections,
};
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
