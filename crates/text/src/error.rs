//! What can go wrong with a model's text files and with encoding and decoding. Owns the wording; knows
//! nothing of HTTP: callers decide whose fault an error is. Chat templates have their own error type.

use crate::template::TemplateError;

/// A model's text could not be loaded, encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file without which there is no text.
    #[error(
        "the model has neither `{name}` nor a tokenizer that can be converted to it; add one to the model directory"
    )]
    MissingFile { name: &'static str },
    /// A file that is not JSON, or not of the expected shape.
    #[error("`{name}` is not valid")]
    InvalidFile {
        name: &'static str,
        #[source]
        source: serde_json::Error,
    },
    /// A `tokenizer.json` that the tokenizers library refuses.
    #[error("`tokenizer.json` cannot be loaded: {reason}")]
    Load { reason: String },
    /// A tokenizer file of another format, for which there is no `tokenizer.json`.
    #[error("`{name}` cannot be converted to a `tokenizer.json`: {reason}")]
    Convert { name: &'static str, reason: String },
    /// Ids so sparse that a table indexed by id would be too large.
    #[error("`tokenizer.json` has the token id `{id}`, above the limit of `{limit}`")]
    SparseVocabulary { id: u32, limit: u32 },
    /// A chat template that was given for the model.
    #[error("the given chat template cannot be used")]
    Template(#[source] TemplateError),
    /// The tokenizer failed on this text.
    #[error("the text cannot be tokenized: {reason}")]
    Encode { reason: String },
    /// The tokenizer's decoder failed on these ids.
    #[error("the token ids cannot be decoded: {reason}")]
    Decode { reason: String },
}
