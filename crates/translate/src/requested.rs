//! What a request asks for, whichever endpoint it came to. Owns the differences between the two endpoints;
//! knows nothing of models.

use inflight_openai::chat::ChatRequest;
use inflight_openai::completions::CompletionRequest;
use inflight_openai::{Extensions, Generation, Sampling};
use inflight_text::Scope;

/// OpenAI's default for completions.
const COMPLETION_MAX_TOKENS: u32 = 16;

/// A request in terms common to both endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// What an error about the prompt names: `messages` or `prompt`.
    pub prompt_field: &'static str,
    pub(crate) n: u32,
    pub(crate) stream: bool,
    pub(crate) has_stop_strings: bool,
    pub(crate) shows_special_tokens: bool,
    /// Whether the request says if special tokens are added to its text.
    pub(crate) chooses_special_tokens: bool,
    /// Whether the answer reports the usage.
    pub(crate) reports_usage: bool,
    pub max_tokens: Option<u32>,
    /// Whether `max_tokens` gives way to the room that the context has.
    pub(crate) fits_context: bool,
    /// Used when `max_tokens` is absent; `None`: the rest of the context.
    pub default_max_tokens: Option<u32>,
    pub(crate) sampling: Sampling,
    /// `Some(k)`: with k alternatives.
    pub log_probs: Option<u32>,
    /// What an error about alternatives names.
    pub(crate) top_log_probs_field: &'static str,
    /// `Some(k)`: log probabilities of the prompt too, with k alternatives.
    pub(crate) prompt_log_probs: Option<u32>,
    /// What few requests have.
    pub extensions: Option<Box<Extensions>>,
    /// The adapter that the model's name asks for, as the server numbers it.
    pub(crate) lora_task_id: Option<u64>,
    /// Whose texts are known by how long its prompt takes.
    pub scope: Scope,
}

impl Requested {
    /// What a chat request asks for.
    pub fn chat(request: &ChatRequest) -> Self {
        Self {
            prompt_field: "messages",
            default_max_tokens: None,
            log_probs: request.logprobs,
            top_log_probs_field: "top_logprobs",
            prompt_log_probs: None,
            ..Self::common(&request.generation)
        }
        .with_named_ids()
    }

    /// What a completions request asks for.
    pub fn completion(request: &CompletionRequest) -> Self {
        Self {
            prompt_field: "prompt",
            default_max_tokens: Some(COMPLETION_MAX_TOKENS),
            log_probs: request.logprobs,
            top_log_probs_field: "logprobs",
            // An echoed prompt is part of the text, and so are its log probabilities.
            prompt_log_probs: request.logprobs.filter(|_| request.echo),
            ..Self::common(&request.generation)
        }
        .with_named_ids()
    }

    /// Tokens that are named are all the alternatives there are.
    fn with_named_ids(self) -> Self {
        let extensions = self.extensions.as_ref();
        match extensions.map_or(0, |extensions| extensions.logprob_token_ids.len()) {
            0 => self,
            count => Self {
                log_probs: self.log_probs.and(u32::try_from(count).ok()),
                top_log_probs_field: "logprob_token_ids",
                ..self
            },
        }
    }

    /// The same with an adapter.
    pub fn with_lora(self, lora_task_id: Option<u64>) -> Self {
        Self {
            lora_task_id,
            ..self
        }
    }

    /// The same in a scope.
    pub fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    fn common(generation: &Generation) -> Self {
        Self {
            prompt_field: "",
            n: generation.n,
            stream: generation.stream,
            has_stop_strings: !generation.stop.is_empty(),
            shows_special_tokens: generation.skip_special_tokens == Some(false),
            chooses_special_tokens: generation.add_special_tokens.is_some(),
            reports_usage: !generation.stream || generation.include_usage,
            max_tokens: generation.max_tokens,
            fits_context: generation.fits_context,
            default_max_tokens: None,
            sampling: generation.sampling.clone(),
            log_probs: None,
            top_log_probs_field: "",
            prompt_log_probs: None,
            extensions: generation.extensions.clone(),
            lora_task_id: None,
            scope: Scope::default(),
        }
    }
}
