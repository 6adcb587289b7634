//! What the text models know of their model: its tokenizer, the ids that end and fill a sequence, and how the
//! server wants answers. Owns no tensor.

use std::sync::Arc;

use inflight_text::{TextModel, Tokenizer};

use super::error::TextRequestError;

/// How the text models answer: the parameters of Triton's models of the same names.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// As the model pads it; an embedding bias has a value for each id. `None`: the tokenizer's own size.
    pub vocab_size: Option<u32>,
    /// Prompts that cannot be shorter than this many tokens are refused before they are tokenized.
    pub max_input_len: Option<u32>,
    /// Rows of a batch at most.
    pub max_batch_size: usize,
    /// Whether the tokenizer puts its special tokens around a prompt. Default: true.
    pub add_special_tokens: bool,
    /// Whether special tokens are left out of answers. Default: true.
    pub skip_special_tokens: bool,
    /// What holds for a request without `exclude_input_in_output`. Default: false.
    pub exclude_input_in_output: bool,
    /// Whether each streamed answer of BLS repeats the text before it. Default: false.
    pub accumulate_tokens: bool,
    /// The name of the core model.
    pub core_model: String,
    /// The model that guesses for `num_draft_tokens` of BLS. `None`: such requests are refused.
    pub draft_model: Option<String>,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            vocab_size: None,
            max_input_len: None,
            max_batch_size: usize::MAX,
            add_special_tokens: true,
            skip_special_tokens: true,
            exclude_input_in_output: false,
            accumulate_tokens: false,
            core_model: crate::model::CORE_MODEL.to_owned(),
            draft_model: None,
        }
    }
}

/// A model's text with the server's options.
#[derive(Clone, Debug)]
pub(crate) struct TextSource {
    model: Arc<TextModel>,
    pub(crate) options: TextOptions,
}

impl TextSource {
    pub(crate) fn new(model: Arc<TextModel>, options: TextOptions) -> Self {
        Self { model, options }
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.model.tokenizer()
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.options
            .vocab_size
            .map_or_else(|| self.tokenizer().vocab_size(), |size| size as usize)
    }

    /// The ids that end a sequence, besides [`end_id`](Self::end_id).
    pub(crate) fn other_end_ids(&self) -> impl Iterator<Item = i32> {
        let ids = self.model.generation().eos_token_ids.iter().skip(1);
        ids.filter_map(|id| i32::try_from(*id).ok())
    }

    /// The id that ends a sequence; -1 where the model names none.
    pub(crate) fn end_id(&self) -> i32 {
        let first = self.model.generation().eos_token_ids.first();
        first.and_then(|id| i32::try_from(*id).ok()).unwrap_or(-1)
    }

    /// The padding id; the end id where the model names none.
    pub(crate) fn pad_id(&self) -> i32 {
        let pad = self.model.generation().pad_token_id;
        pad.and_then(|id| i32::try_from(id).ok())
            .unwrap_or_else(|| self.end_id())
    }

    /// What fills a tensor where a row is shorter: an id even where the model names no padding.
    pub(crate) fn fill_id(&self) -> i32 {
        self.pad_id().max(0)
    }

    /// A prompt's ids.
    pub(crate) fn encode(
        &self,
        tensor: &'static str,
        text: &str,
    ) -> Result<Vec<i32>, TextRequestError> {
        let tokens = self.tokenizer().fewest_tokens(text.len());
        if let Some(limit) = self.options.max_input_len.map(|limit| limit as usize)
            && tokens > limit
        {
            return Err(TextRequestError::TooLong {
                tensor,
                tokens,
                limit,
            });
        }
        self.ids(tensor, text, self.options.add_special_tokens)
    }

    /// A word's ids, without special tokens.
    pub(crate) fn encode_word(
        &self,
        tensor: &'static str,
        word: &str,
    ) -> Result<Vec<i32>, TextRequestError> {
        self.ids(tensor, word, false)
    }

    fn ids(
        &self,
        tensor: &'static str,
        text: &str,
        special: bool,
    ) -> Result<Vec<i32>, TextRequestError> {
        let ids = self
            .tokenizer()
            .encode(text, special)
            .map_err(|error| TextRequestError::encode(tensor, &error))?;
        // A vocabulary is far smaller than i32.
        Ok(ids.into_iter().map(|id| id as i32).collect())
    }
}
