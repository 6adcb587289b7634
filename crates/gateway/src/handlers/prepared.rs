//! A request that is checked, rendered and tokenized, and what is still changed in it before it is sent. Knows nothing
//! of bodies, clients or workers' connections.

use std::sync::Arc;

use inflight_clients::admission::BodyMemory;
use inflight_images::{Files, Wanted};
use inflight_models::capability::{Capability, has};
use inflight_models::sampling_params::ImageFiles;
use inflight_openai::{Generation, IgnoredFields};
use inflight_streams::answer::{AnswerOptions, CallDemand};
use inflight_upstream::placement::BlockKeys;
use inflight_upstream::survival::Way;

use super::locate::Located;
use super::prompt::PreparedPrompt;

/// The last of a worker's 100 levels, below all that a client may ask for.
const LAST_LEVEL: u32 = 100;

/// See the module.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) model: Located,
    pub(super) generation: Generation,
    pub(super) prompts: Vec<PreparedPrompt>,
    /// `Some(k)`: choices report log probabilities, with k alternatives.
    pub(super) log_probs: Option<u32>,
    /// Where answers may be more than text.
    pub(super) answer: Option<Arc<AnswerOptions>>,
    pub(super) ignored: IgnoredFields,
    /// Of the one prompt of a chat.
    pub(super) images: Pictures,
    /// Of the prompts' blocks.
    pub(super) block_keys: BlockKeys,
}

/// The images of a request.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    pub(super) wanted: Vec<Wanted>,
    /// What their files hold until the answer begins.
    memory: BodyMemory,
}

impl From<Vec<Wanted>> for Pictures {
    fn from(wanted: Vec<Wanted>) -> Self {
        let memory = BodyMemory::default();
        Self { wanted, memory }
    }
}

impl Prepared {
    /// Whether the answer comes from the worker in parts, so that its first token is seen.
    pub(super) fn is_in_parts(&self) -> bool {
        let triton = self.model.served.triton();
        let mut prompts = self.prompts.iter();
        prompts.all(|prompt| prompt.params.streaming) && triton.is_none_or(|model| model.decoupled)
    }

    /// How the model's workers bring what follows after one of them is lost; `None`: another one's output would not match.
    pub(super) fn way(&self) -> Option<Way> {
        let served = &self.model.served;
        if has(served, Capability::Resume) {
            return Some(Way::Resume);
        }
        let mut prompts = self.prompts.iter();
        let is_greedy = prompts.all(|prompt| prompt.params.is_greedy());
        let repeats = is_greedy || has(served, Capability::Seed);
        // An answer in one piece can begin anew, whatever another worker generates.
        (repeats && self.generation.stream).then_some(Way::Replay)
    }

    pub(super) fn has_beams(&self) -> bool {
        let mut prompts = self.prompts.iter();
        prompts.any(|prompt| prompt.params.beams().is_some())
    }

    /// Whether one worker may compute its prompt and another one what follows the first token: it is one sequence of text,
    /// of more than one token.
    pub(super) fn may_split(&self) -> bool {
        let [prompt] = self.prompts.as_slice() else {
            return false;
        };
        let extras = prompt.params.extras.as_deref();
        self.generation.n == 1
            && prompt.params.max_tokens > 1
            && self.generation.max_tokens != Some(0)
            && !self.has_beams()
            && extras.is_none_or(|extras| extras.images.0.is_empty())
            && self.way().is_some()
    }

    /// Asks for the tokens of an answer in one piece as they come; otherwise the first one arrives with the last.
    pub(super) fn ask_for_tokens_early(&mut self) {
        for prompt in &mut self.prompts {
            let params = &mut prompt.params;
            let is_early = !params.streaming && params.beams().is_none();
            params.may_wait = is_early && params.log_probs.is_none();
            params.streaming |= is_early;
        }
    }

    /// What is demanded of the answer's calls.
    pub(super) fn demand(&self) -> Option<&CallDemand> {
        self.answer.as_ref()?.demand.as_ref()
    }

    /// Whether a grammar holds the answer.
    pub(super) fn is_guided(&self) -> bool {
        let extensions = self.generation.extensions.as_ref();
        extensions.is_some_and(|extensions| extensions.guide.is_some())
    }

    /// Gives the prompt its images.
    pub(super) fn add_images(&mut self, Files { files, held }: Files) {
        self.images.memory = held;
        if let Some(prompt) = self.prompts.first_mut() {
            let extras = prompt.params.extras.get_or_insert_default();
            extras.images = ImageFiles(files);
        }
    }

    /// Keeps the parts of the KV cache that its key's prompts fill from the prompts of other keys.
    pub(super) fn salt_cache(&mut self, of_key: &str) {
        if !has(&self.model.served, Capability::CacheSalt) {
            return;
        }
        for prompt in &mut self.prompts {
            let salt = &mut prompt.params.extras.get_or_insert_default().cache_salt;
            // A client's own salt divides its key's part further, and reaches no other.
            *salt = Some(match salt {
                Some(own) => format!("{of_key}{own}"),
                None => of_key.to_owned(),
            });
        }
    }

    /// Has the worker run it after all that clients wait for, where it knows of that.
    pub(super) fn let_others_first(&mut self) {
        if !has(&self.model.served, Capability::Priority) {
            return;
        }
        for prompt in &mut self.prompts {
            prompt.params.extras.get_or_insert_default().priority = Some(LAST_LEVEL);
        }
    }

    /// Leaves the answer to the model; it is checked when it is there.
    pub(super) fn drop_guide(&mut self) {
        if let Some(extensions) = &mut self.generation.extensions {
            extensions.guide = None;
        }
        for prompt in &mut self.prompts {
            if let Some(extras) = &mut prompt.params.extras {
                extras.guide = None;
            }
        }
    }
}
