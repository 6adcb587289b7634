//! A model as one server serves it: its description, its text files, and the protocol to speak. Owns
//! what is known of its sizes; knows nothing of connections.

use std::sync::Arc;

use inflight_kserve::assets::ModelDescription;
use inflight_text::{ChatTemplate, TextModel};

use super::dialect::TritonModel;

/// Model names are a few dozen characters; file systems and URLs bound them alike.
pub const MAX_NAME_BYTES: usize = 256;

/// A model as one server serves it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// The worker's own description. For a plain Triton it is composed from the model's configuration,
    /// with 0 for whatever that leaves out.
    pub description: ModelDescription,
    /// Shared by all servers with the same files. `None`: a Triton model that takes text, without a
    /// `--tokenizer`.
    pub text: Option<Arc<TextModel>>,
    /// For a model without `text`, whose own has one.
    pub template: Option<Arc<ChatTemplate>>,
    pub protocol: Protocol,
}

/// How a server is spoken to.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    /// An Inflight worker: one stream carries all requests, one message per engine step.
    StepBatching,
    /// A plain Triton server: one stream per request, in the model's own dialect.
    Triton(Arc<TritonModel>),
    /// Another maker's server, which does not take requests from here.
    Watched,
}

impl ServedModel {
    /// The model of a plain Triton server.
    pub fn triton(&self) -> Option<&TritonModel> {
        match &self.protocol {
            Protocol::StepBatching | Protocol::Watched => None,
            Protocol::Triton(model) => Some(model),
        }
    }

    /// What makes a conversation a prompt.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        let own = self.text.as_deref().and_then(TextModel::chat_template);
        own.or(self.template.as_deref())
    }

    /// Whether prompts go to the server as text rather than token ids.
    pub fn takes_text(&self) -> bool {
        self.triton().is_some_and(TritonModel::takes_text)
    }

    /// How many of a prompt's `n` sequences go into one request. One on a plain Triton, because not all
    /// of its models can generate several.
    pub fn sequences_per_request(&self, n: u32) -> u32 {
        match self.protocol {
            Protocol::StepBatching | Protocol::Watched => n,
            Protocol::Triton(_) => 1,
        }
    }

    /// Prompt plus generated tokens that fit, if known.
    pub fn context(&self) -> Option<usize> {
        known(self.description.max_seq_len)
    }

    /// Prompt tokens that fit, if known.
    pub fn max_input(&self) -> Option<usize> {
        known(self.description.max_input_len).or(self.context())
    }

    /// How many token ids there are, if known.
    pub fn vocabulary(&self) -> Option<u32> {
        Some(self.description.vocab_size).filter(|size| *size > 0)
    }
}

fn known(length: u32) -> Option<usize> {
    Some(length as usize).filter(|length| *length > 0)
}
