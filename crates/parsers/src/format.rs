//! The names of the formats. Owns what a format is called and which markers must stay visible; how one is read is in
//! `formats` and `reasoning`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::formats;
use crate::reasoning::Tags;

/// How a model writes reasoning and tool calls; each is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// How calls are written; `None`: the text is not searched for calls.
    pub tools: Option<ToolFormat>,
    /// How reasoning is written; `None`: the text is not searched for reasoning.
    pub reasoning: Option<ReasoningFormat>,
}

/// How a model writes tool calls. The names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, the embedded model.
    Hermes,
}

/// How a model writes reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>…</think>`: DeepSeek R1, Qwen 3, GLM 4.5, Kimi K2, and most others.
    Think,
}

/// A name that is not a format's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {what} parser `{name}`; known are {known}")]
pub struct UnknownFormat {
    what: &'static str,
    name: String,
    known: String,
}

impl UnknownFormat {
    fn new(what: &'static str, name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        const LONGEST: usize = 64;
        let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
        Self {
            what,
            name: name
                .chars()
                .take(LONGEST)
                .flat_map(char::escape_debug)
                .collect(),
            known: known.join(", "),
        }
    }
}

impl ToolFormat {
    /// Every format, each with its names; the first one is its own, the others are vLLM's aliases.
    const NAMES: [(Self, &'static [&'static str]); 1] = [(Self::Hermes, &["hermes"])];

    /// Every format.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(format, _)| *format)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        first_name(&Self::NAMES, self)
    }

    /// The markers that are special tokens in the tokenizers of the models that write this format. The detokenizer
    /// must show them even where `skip_special_tokens` drops the others.
    pub const fn special_markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => formats::hermes::SPECIAL,
        }
    }

    /// The special tokens that start a call, and so end reasoning that was not closed.
    pub(crate) const fn call_tokens(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[],
        }
    }
}

impl ReasoningFormat {
    /// Every format, each with its names; the first one is its own, the others are vLLM's names of the same format.
    const NAMES: [(Self, &'static [&'static str]); 1] =
        [(Self::Think, &["think", "deepseek_r1", "qwen3"])];

    /// Every format.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(format, _)| *format)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        first_name(&Self::NAMES, self)
    }

    /// The markers that are special tokens in some tokenizers: see [`ToolFormat::special_markers`].
    pub const fn special_markers(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>", "</think>"],
        }
    }

    pub(crate) fn tags(self) -> Option<Tags> {
        match self {
            Self::Think => Some(Tags {
                open: &["<think>"],
                close: &["</think>"],
            }),
        }
    }
}

impl Format {
    /// Whether there is nothing to parse: text is content as it is.
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }

    /// The markers that must be visible in the text that the parser gets, of tools and of reasoning.
    pub fn special_markers(self) -> impl Iterator<Item = &'static str> {
        let tools = self.tools.map_or(&[][..], ToolFormat::special_markers);
        let reasoning = self
            .reasoning
            .map_or(&[][..], ReasoningFormat::special_markers);
        tools.iter().chain(reasoning).copied()
    }

    /// Whether this prompt, as rendered, leaves the reasoning open, so that the answer starts within it.
    pub fn opens_reasoning(self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        self.reasoning
            .and_then(ReasoningFormat::tags)
            .is_some_and(|tags| tags.open.iter().any(|open| prompt.ends_with(open)))
    }
}

impl FromStr for ToolFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(&Self::NAMES, name).ok_or_else(|| {
            let known = Self::NAMES.iter().flat_map(|(_, names)| *names);
            UnknownFormat::new("tool", name, known.copied())
        })
    }
}

impl FromStr for ReasoningFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(&Self::NAMES, name).ok_or_else(|| {
            let known = Self::NAMES.iter().flat_map(|(_, names)| *names);
            UnknownFormat::new("reasoning", name, known.copied())
        })
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

fn find<T: Copy>(names: &[(T, &[&str])], name: &str) -> Option<T> {
    let entry = names.iter().find(|(_, names)| names.contains(&name));
    entry.map(|(format, _)| *format)
}

fn first_name<T: PartialEq>(names: &[(T, &'static [&'static str])], format: T) -> &'static str {
    let entry = names.iter().find(|(of, _)| *of == format);
    entry
        .and_then(|(_, names)| names.first().copied())
        .unwrap_or_default()
}
