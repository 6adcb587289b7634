//! Everything between token ids and the text that people read and write: tokenizers, chat templates,
//! incremental detokenization, stop strings, and the text-side defaults of a model.
//!
//! Owns the Hugging Face file formats and their exact semantics. Knows nothing of OpenAI, KServe or
//! servers: bytes in, values out. Encoding and rendering cost time in proportion to their input; callers
//! put large inputs on a blocking pool. Chat templates are untrusted code: a server that has called
//! [`use_template_helper`] renders them in separate processes.
//!
//! ```
//! use inflight_text::{ModelFiles, TextModel};
//!
//! let mut files = ModelFiles::new();
//! files.insert(
//!     "tokenizer.json".into(),
//!     br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
//!          "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
//!          "model":{"type":"WordLevel","vocab":{"hello":0,"world":1,"?":2},"unk_token":"?"}}"#
//!         .to_vec(),
//! );
//! let model = TextModel::load(&files)?;
//! let ids = model.tokenizer().encode("hello world", true)?;
//! assert_eq!(ids, [0, 1]);
//! assert_eq!(model.tokenizer().decode(&ids, true)?, "hello world");
//! # Ok::<(), inflight_text::TextError>(())
//! ```

mod convert;
mod detokenizer;
mod error;
mod files;
mod generation;
mod model;
mod stop;
mod template;
mod tokenizer;
mod transcribing;

pub use convert::{CONVERTED_FILES, tokenizer_json};
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use files::ModelFiles;
pub use generation::GenerationConfig;
pub use model::TextModel;
pub use stop::{StopHit, StopMatcher};
pub use template::{
    BuiltInTemplate, ChatTemplate, ContentForm, HelperCommand, TemplateError, TemplateInput,
    TemplateLimits, TemplateSource, run_template_helper, use_template_helper,
};
pub use tokenizer::{Scope, TokenText, Tokenizer};
pub use transcribing::Transcribing;
