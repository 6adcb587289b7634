//! Which formats a model writes reasoning and tool calls in: as the gateway's options say, else as the model's own
//! files show. Owns the options' values.

use std::str::FromStr;

use inflight_parsers::{Format, ReasoningFormat, ToolFormat};
use inflight_text::TextModel;

use super::for_model::{ForModel, for_model};

/// A format as an option names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatChoice<T> {
    /// As the model's chat template shows.
    Auto,
    /// The model has none, or its answers are not to be read.
    None,
    Named(T),
}

impl<T: FromStr> FromStr for FormatChoice<T> {
    type Err = T::Err;

    fn from_str(name: &str) -> Result<Self, T::Err> {
        Ok(match name {
            "auto" => Self::Auto,
            "none" => Self::None,
            name => Self::Named(name.parse()?),
        })
    }
}

impl<T: Copy> FormatChoice<T> {
    fn or(self, detected: Option<T>) -> Option<T> {
        match self {
            Self::Auto => detected,
            Self::None => None,
            Self::Named(format) => Some(format),
        }
    }
}

/// What the options say.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    tools: Vec<ForModel<FormatChoice<ToolFormat>>>,
    reasoning: Vec<ForModel<FormatChoice<ReasoningFormat>>>,
}

impl FormatOptions {
    pub fn new(
        tools: &[ForModel<FormatChoice<ToolFormat>>],
        reasoning: &[ForModel<FormatChoice<ReasoningFormat>>],
    ) -> Self {
        Self {
            tools: tools.to_vec(),
            reasoning: reasoning.to_vec(),
        }
    }

    /// The formats of the model served under this name; without its `text`, what the options say.
    pub fn of(&self, model: &str, text: Option<&TextModel>) -> Format {
        let detected = text.map_or(
            Format {
                tools: None,
                reasoning: None,
            },
            TextModel::format,
        );
        let tools = for_model(&self.tools, model).copied();
        let reasoning = for_model(&self.reasoning, model).copied();
        Format {
            tools: tools.unwrap_or(FormatChoice::Auto).or(detected.tools),
            reasoning: reasoning
                .unwrap_or(FormatChoice::Auto)
                .or(detected.reasoning),
        }
    }
}
