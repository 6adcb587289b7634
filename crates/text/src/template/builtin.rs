//! Built-in chat templates, for models without one. Owns their names and which one suits a vocabulary.
//!
//! None writes the token that begins a sequence: a tokenizer adds it, as to any text.

use std::fmt;
use std::str::FromStr;

use crate::tokenizer::Tokenizer;

/// A chat template that comes with the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuiltInTemplate {
    /// `User: …` lines and `ASSISTANT:`, openai_trtllm's default; any model can follow it.
    Plain,
    /// `<|im_start|>` and `<|im_end|>`: Qwen and many others.
    ChatMl,
    /// `[INST]` and `<<SYS>>`: Llama 2.
    Llama2,
    /// `<|start_header_id|>`: Llama 3.
    Llama3,
    /// `<start_of_turn>`: Gemma.
    Gemma,
    /// `<|user|>` and `<|end|>`: Phi 3.
    Phi3,
    /// `USER: … ASSISTANT:` in one line: Vicuna.
    Vicuna,
    /// `<reserved_106>` and `<reserved_107>`: Baichuan 2.
    Baichuan2,
}

impl BuiltInTemplate {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::ChatMl,
        Self::Llama2,
        Self::Llama3,
        Self::Gemma,
        Self::Phi3,
        Self::Vicuna,
        Self::Baichuan2,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ChatMl => "chatml",
            Self::Llama2 => "llama-2",
            Self::Llama3 => "llama-3",
            Self::Gemma => "gemma",
            Self::Phi3 => "phi-3",
            Self::Vicuna => "vicuna",
            Self::Baichuan2 => "baichuan2",
        }
    }

    /// The one whose turn markers are tokens of this tokenizer, else [`Self::Plain`].
    pub fn suiting(tokenizer: &Tokenizer) -> Self {
        let has = |token: &&str| tokenizer.token_id(token).is_some();
        let suits = |template: &&Self| {
            let markers = template.markers();
            !markers.is_empty() && markers.iter().all(has)
        };
        Self::ALL.iter().find(suits).copied().unwrap_or(Self::Plain)
    }

    /// Tokens that only models which were trained on this template have. The last one ends a turn.
    const fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Plain | Self::Llama2 | Self::Vicuna => &[],
            Self::ChatMl => &["<|im_start|>", "<|im_end|>"],
            Self::Llama3 => &["<|start_header_id|>", "<|eot_id|>"],
            Self::Gemma => &["<start_of_turn>", "<end_of_turn>"],
            Self::Phi3 => &["<|user|>", "<|assistant|>", "<|end|>"],
            Self::Baichuan2 => &["<reserved_106>", "<reserved_107>"],
        }
    }

    /// The token that ends the assistant's turn, where it is not the end of the sequence.
    pub(crate) fn turn_end(self) -> Option<&'static str> {
        match self {
            Self::ChatMl | Self::Llama3 | Self::Gemma | Self::Phi3 => {
                self.markers().last().copied()
            }
            Self::Plain | Self::Llama2 | Self::Vicuna | Self::Baichuan2 => None,
        }
    }

    pub(super) const fn source(self) -> &'static str {
        match self {
            Self::Plain => include_str!("builtin/plain.jinja"),
            Self::ChatMl => include_str!("builtin/chatml.jinja"),
            Self::Llama2 => include_str!("builtin/llama-2.jinja"),
            Self::Llama3 => include_str!("builtin/llama-3.jinja"),
            Self::Gemma => include_str!("builtin/gemma.jinja"),
            Self::Phi3 => include_str!("builtin/phi-3.jinja"),
            Self::Vicuna => include_str!("builtin/vicuna.jinja"),
            Self::Baichuan2 => include_str!("builtin/baichuan2.jinja"),
        }
    }
}

impl fmt::Display for BuiltInTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BuiltInTemplate {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let mut all = Self::ALL.into_iter();
        all.find(|template| template.name() == name).ok_or(())
    }
}
