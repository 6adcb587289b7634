//! What a chat answer calls the model's reasoning. Servers disagree, and clients read one name or the other.

use std::fmt;
use std::str::FromStr;

/// The field of a message, and of a stream's delta, that has the reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningField {
    /// `reasoning_content`, as in DeepSeek's API, SGLang and llama.cpp.
    #[default]
    ReasoningContent,
    /// `reasoning`, as in vLLM and OpenRouter.
    Reasoning,
    /// Both, each with the whole text.
    Both,
}

impl ReasoningField {
    const ALL: [Self; 3] = [Self::ReasoningContent, Self::Reasoning, Self::Both];

    /// As an option names them.
    pub const NAMES: [&str; 3] = [
        Self::ALL[0].as_str(),
        Self::ALL[1].as_str(),
        Self::ALL[2].as_str(),
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::ReasoningContent => "reasoning_content",
            Self::Reasoning => "reasoning",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for ReasoningField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ReasoningField {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|field| field.as_str() == name);
        found.ok_or_else(|| "must be `reasoning_content`, `reasoning` or `both`".to_owned())
    }
}
