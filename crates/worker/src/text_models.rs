//! The four text models of Triton's TensorRT-LLM repository besides the core model: `preprocessing`,
//! `postprocessing`, `ensemble` and `tensorrt_llm_bls`.
//!
//! Pure: messages in, messages out. The worker serves them from here, and Triton's Python-backend models call
//! the same code. Knows nothing of streams, engines or sockets.

mod error;
mod generation;
mod inputs;
pub(crate) mod llmapi;
mod postprocessing;
mod prepare;
mod preprocessing;
mod sequence;
mod source;
mod spec;
mod speculation;
mod table;
mod wanted;

use std::sync::Arc;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_text::{ModelFiles, TextError, TextModel};

use crate::embedded::Refusal;
pub(crate) use error::TextRequestError;
pub use generation::{Generation, TextAnswer};
pub use source::TextOptions;
use source::TextSource;
pub(crate) use spec::TextInput;
pub(crate) use speculation::Speculation;
pub use table::{TextModelKind, TextModelTable, text_model_tables};

impl From<TextRequestError> for Refusal {
    fn from(error: TextRequestError) -> Self {
        Self {
            status: error.code() as i32,
            text: error.to_string(),
        }
    }
}

/// The text models over one model's files. Immutable; share it in an `Arc`.
#[derive(Clone, Debug)]
pub struct TextModels {
    source: TextSource,
}

/// What a request of a text model became.
#[derive(Debug)]
pub(crate) enum TextWork {
    /// The whole answer.
    Answer(ModelInferResponse),
    /// Work for the core model.
    Generation(Box<Generation>),
    /// Work for the core model and a draft model in turn.
    Speculation(Box<Speculation>, Box<TextAnswer>),
}

impl TextModels {
    /// Reads a model's files; takes time in proportion to the tokenizer.
    ///
    /// # Errors
    /// Files that are missing or malformed.
    pub fn load(files: &ModelFiles, options: TextOptions) -> Result<Self, TextError> {
        Ok(Self::new(Arc::new(TextModel::load(files)?), options))
    }

    /// Over a model whose files are loaded.
    pub fn new(model: Arc<TextModel>, options: TextOptions) -> Self {
        Self {
            source: TextSource::new(model, options),
        }
    }

    /// The answer of `preprocessing`, with every row of the batch.
    ///
    /// # Errors
    /// Whatever of the request is malformed or unsupported; names its tensor.
    pub fn preprocess(&self, message: &ModelInferRequest) -> Result<ModelInferResponse, Refusal> {
        Ok(preprocessing::answer(message, &self.source)?)
    }

    /// The answer of `postprocessing`, with every row of the batch.
    ///
    /// # Errors
    /// Whatever of the request is malformed; names its tensor.
    pub fn postprocess(&self, message: &ModelInferRequest) -> Result<ModelInferResponse, Refusal> {
        Ok(postprocessing::answer(message, &self.source)?)
    }

    /// A request of ensemble or BLS.
    ///
    /// # Errors
    /// Whatever of the request is malformed or unsupported; names its tensor.
    pub fn generation(
        &self,
        kind: TextModelKind,
        message: &ModelInferRequest,
    ) -> Result<Generation, Refusal> {
        Ok(Generation::read(kind, message, &self.source)?)
    }

    pub(crate) fn work(
        &self,
        kind: TextModelKind,
        message: &ModelInferRequest,
        lora_task_id: Option<u64>,
    ) -> Result<TextWork, TextRequestError> {
        Ok(match kind {
            TextModelKind::Preprocessing => {
                TextWork::Answer(preprocessing::answer(message, &self.source)?)
            }
            TextModelKind::Postprocessing => {
                TextWork::Answer(postprocessing::answer(message, &self.source)?)
            }
            TextModelKind::LlmApi => TextWork::Generation(Box::new(llmapi::generation(
                message,
                &self.source,
                lora_task_id,
            )?)),
            TextModelKind::Ensemble | TextModelKind::Bls => {
                let generation = Generation::read(kind, message, &self.source)?;
                match (generation.plan, &self.source.options.draft_model) {
                    (Some(plan), Some(draft_model)) => {
                        let Generation {
                            request, answer, ..
                        } = generation;
                        let rounds = Speculation::new(plan, request, draft_model)?;
                        TextWork::Speculation(Box::new(rounds), Box::new(answer))
                    }
                    _ => TextWork::Generation(Box::new(generation)),
                }
            }
        })
    }
}
