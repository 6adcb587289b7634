//! The items of a conversation: what clients send in `input`, and what a response's `output` lists. Owns their
//! shapes; their parsing is in `read`, and what a model reads of them is `messages`'.

mod read;

use schemars::JsonSchema;
use serde::Serialize;

use crate::chat::{Detail, Role};
use crate::logprobs::TokenLogprob;

/// One item of `input`.
#[derive(Clone, Debug, PartialEq)]
pub enum InputItem {
    Item(Item),
    /// An item of an earlier response, by its id; the number is its place in `input`.
    Reference {
        place: usize,
        id: String,
    },
}

/// One item of a conversation. Serializes as the API lists it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    Message(MessageItem),
    FunctionCall(FunctionCall),
    FunctionCallOutput(FunctionCallOutput),
    CustomToolCall(CustomToolCall),
    /// As of a function.
    CustomToolCallOutput(FunctionCallOutput),
    Reasoning(Reasoning),
}

/// How far an item came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MessageItem {
    pub id: String,
    pub status: Status,
    pub role: Role,
    pub content: Vec<Part>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    InputText {
        text: String,
    },
    InputImage {
        detail: Detail,
        image_url: String,
        /// Where it was in its request, for errors.
        #[serde(skip)]
        path: String,
    },
    OutputText {
        /// Always empty: nothing is cited.
        annotations: [(); 0],
        logprobs: Vec<TokenLogprob>,
        text: String,
    },
    Refusal {
        refusal: String,
    },
}

impl Part {
    /// What a model wrote.
    pub(crate) fn output(text: String, logprobs: Vec<TokenLogprob>) -> Self {
        Self::OutputText {
            annotations: [],
            logprobs,
            text,
        }
    }

    /// Its text; an image has none.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
            Self::InputImage { .. } => "",
        }
    }
}

/// A call that the model made.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionCall {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    /// What the function's tool is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// JSON, as the model wrote it.
    pub arguments: String,
}

/// A call of a custom tool, which takes a text.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CustomToolCall {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    /// What the tool is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub input: String,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FunctionCallOutput {
    pub id: String,
    pub status: Status,
    pub call_id: String,
    pub output: CallOutput,
}

/// A text, or parts of it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum CallOutput {
    Text(String),
    Parts(Vec<Part>),
}

/// What the model thought before it answered.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Reasoning {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    pub summary: Vec<Thought>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Thought>,
    /// Only where the request asks for it; see [`Reasoning::sealed`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// What `encrypted_content` begins with if it is ours.
const SEAL: &str = "inflight:";

impl Reasoning {
    /// `encrypted_content` of this text. Clients that keep the conversation themselves send it back and leave the
    /// text out; it is the text itself, which the client has seen, and nothing is encrypted.
    pub(super) fn sealed(text: &str) -> String {
        format!("{SEAL}{text}")
    }

    /// The text of an `encrypted_content` that is ours: nobody can read another server's.
    fn unsealed(text: &str) -> Option<&str> {
        text.strip_prefix(SEAL)
    }
}

/// A part of the reasoning.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thought {
    SummaryText { text: String },
    ReasoningText { text: String },
}

impl Thought {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::SummaryText { text } | Self::ReasoningText { text } => text,
        }
    }
}

impl Item {
    /// The item's id; empty until it has one.
    pub fn id(&self) -> &str {
        match self {
            Self::Message(item) => &item.id,
            Self::FunctionCall(item) => &item.id,
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => &item.id,
            Self::CustomToolCall(item) => &item.id,
            Self::Reasoning(item) => &item.id,
        }
    }

    /// Gives the item an id, unless its client did. `new` takes the prefix that ids of its kind have.
    pub fn name_with(&mut self, new: impl FnOnce(&'static str) -> String) {
        let (id, prefix) = match self {
            Self::Message(item) => (&mut item.id, "msg"),
            Self::FunctionCall(item) => (&mut item.id, "fc"),
            Self::FunctionCallOutput(item) => (&mut item.id, "fco"),
            Self::CustomToolCall(item) => (&mut item.id, "ctc"),
            Self::CustomToolCallOutput(item) => (&mut item.id, "ctco"),
            Self::Reasoning(item) => (&mut item.id, "rs"),
        };
        if id.is_empty() {
            *id = new(prefix);
        }
    }

    /// Forgets log probabilities, which are of no use to a later answer.
    pub fn forget_logprobs(&mut self) {
        if let Self::Message(message) = self {
            for part in &mut message.content {
                if let Part::OutputText { logprobs, .. } = part {
                    *logprobs = Vec::new();
                }
            }
        }
    }

    /// About how many bytes of memory the item takes.
    pub fn weight(&self) -> usize {
        let content = match self {
            Self::Message(item) => item.content.iter().map(part_weight).sum(),
            Self::FunctionCall(item) => {
                let namespace = item.namespace.as_deref().unwrap_or_default();
                item.call_id.len() + namespace.len() + item.name.len() + item.arguments.len()
            }
            Self::CustomToolCall(item) => {
                let namespace = item.namespace.as_deref().unwrap_or_default();
                item.call_id.len() + namespace.len() + item.name.len() + item.input.len()
            }
            Self::FunctionCallOutput(item) | Self::CustomToolCallOutput(item) => {
                item.call_id.len()
                    + match &item.output {
                        CallOutput::Text(text) => text.len(),
                        CallOutput::Parts(parts) => parts.iter().map(part_weight).sum(),
                    }
            }
            Self::Reasoning(item) => {
                let thoughts = item.summary.iter().chain(&item.content);
                thoughts
                    .map(|thought| thought.text().len() + size_of::<Thought>())
                    .sum()
            }
        };
        size_of::<Self>() + self.id().len() + content
    }

    /// A text that the user says.
    pub(super) fn user(text: String) -> Self {
        Self::Message(MessageItem {
            id: String::new(),
            status: Status::Completed,
            role: Role::User,
            content: vec![Part::InputText { text }],
        })
    }
}

fn part_weight(part: &Part) -> usize {
    let more = match part {
        Part::OutputText { logprobs, .. } => logprobs.len() * 64,
        Part::InputImage {
            image_url, path, ..
        } => image_url.len() + path.len(),
        _ => 0,
    };
    size_of::<Part>() + part.text().len() + more
}
