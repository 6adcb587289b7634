//! What a model is to the requests for it: its description, its text, and what it can be asked. Owns
//! the words of what a model lacks; knows nothing of connections, and of OpenAI only that it is asked
//! for abilities.

use std::sync::Arc;

use inflight_kserve::assets::ModelDescription;
use inflight_kserve::capability;
use inflight_text::TextModel;

use super::triton::dialect::TritonModel;

/// A model as one server serves it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// As the worker describes itself; composed from configuration where the server is a plain Triton,
    /// with 0 for what that does not say.
    pub description: ModelDescription,
    /// Shared by all servers with the same files. `None`: a Triton model that takes text, and no
    /// tokenizer was given for it.
    pub text: Option<Arc<TextModel>>,
    /// How a plain Triton server's model is spoken to; `None`: an Inflight worker's.
    pub triton: Option<Arc<TritonModel>>,
}

/// What a request may ask beyond plain generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    Sequences,
    TokenPrompt,
    TopK,
    TopP,
    Temperature,
    Seed,
    MinP,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    MinTokens,
    LogitBias,
    LogProbs,
    TopLogProbs,
    PromptLogProbs,
    StopTokenIds,
    IgnoreEos,
    ShowSpecialTokens,
    Usage,
}

impl Ability {
    /// The capability that a worker's executor announces for it; `None`: all have it.
    fn capability(self) -> Option<&'static str> {
        match self {
            Self::Sequences => Some(capability::NUM_RETURN_SEQUENCES),
            Self::MinP => Some(capability::MIN_P),
            Self::RepetitionPenalty | Self::PresencePenalty | Self::FrequencyPenalty => {
                Some(capability::PENALTIES)
            }
            Self::MinTokens => Some(capability::MIN_TOKENS),
            Self::LogitBias => Some(capability::EMBEDDING_BIAS),
            Self::LogProbs => Some(capability::LOG_PROBS),
            Self::TopLogProbs => Some(capability::TOP_LOG_PROBS),
            Self::PromptLogProbs => Some(capability::PROMPT_LOG_PROBS),
            Self::TokenPrompt
            | Self::TopK
            | Self::TopP
            | Self::Temperature
            | Self::Seed
            | Self::StopTokenIds
            | Self::IgnoreEos
            | Self::ShowSpecialTokens
            | Self::Usage => None,
        }
    }
}

impl ServedModel {
    /// Why the model cannot do this, as what follows a field's name; `None`: it can.
    pub fn lacks(&self, ability: Ability) -> Option<String> {
        let Some(triton) = &self.triton else {
            let needed = ability.capability()?;
            let announced = &self.description.capabilities;
            let executor = &self.description.executor;
            return (!announced.iter().any(|name| name == needed)).then(|| {
                format!(
                    "needs `{needed}`, which this model's executor (`{executor}`) does not offer"
                )
            });
        };
        triton.lacks(ability, self)
    }

    /// Prompt plus generated tokens that fit, as far as known.
    pub fn context(&self) -> Option<usize> {
        known(self.description.max_seq_len)
    }

    /// Prompt tokens that fit, as far as known.
    pub fn max_input(&self) -> Option<usize> {
        known(self.description.max_input_len).or(self.context())
    }

    /// How many token ids there are, as far as known.
    pub fn vocabulary(&self) -> Option<u32> {
        Some(self.description.vocab_size).filter(|size| *size > 0)
    }

    /// Whether prompts go to the server as text and not as token ids.
    pub fn takes_text(&self) -> bool {
        self.triton.as_ref().is_some_and(|model| model.takes_text())
    }
}

fn known(length: u32) -> Option<usize> {
    Some(length as usize).filter(|length| *length > 0)
}
