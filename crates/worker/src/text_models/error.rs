//! Why a text model refuses a request. The text is for the client; the code says whose turn it is.

use inflight_kserve::tensor::TensorError;
use inflight_text::TextError;
use tonic::Code;

use crate::model::TensorMismatch;

/// A refusal before the core model saw the request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextRequestError {
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Mismatch(#[from] TensorMismatch),
    #[error("unknown input tensor `{tensor}`: model `{model}` lists its inputs in its metadata")]
    UnknownInput { model: String, tensor: String },
    #[error("unknown output tensor `{output}`: model `{model}` lists its outputs in its metadata")]
    UnknownOutput { model: String, output: String },
    #[error("output tensor `{output}` is requested more than once: name each output once")]
    RepeatedOutput { output: String },
    #[error("the required input `{tensor}` is missing")]
    Missing { tensor: &'static str },
    #[error("`{tensor}` is not supported by this model; send the request without it")]
    Unsupported { tensor: &'static str },
    #[error(
        "`{tensor}` is not supported by this model, which has no draft model; send the request without it"
    )]
    NoDraftModel { tensor: &'static str },
    #[error(
        "speculative decoding is not supported with {what}; leave it out, or `num_draft_tokens`"
    )]
    NotSpeculative { what: &'static str },
    #[error("`text_input` has `{texts}` texts: send one")]
    NotOneText { texts: usize },
    #[error(
        "`sampling_param_best_of` is `{best_of}`, and only 1 is supported: send it as 1, or leave it out"
    )]
    BestOf { best_of: i32 },
    #[error(
        "an adapter is named by `lora_id`, `lora_name` and `lora_path`, and `{missing}` is missing: send all three, or \
         none"
    )]
    PartOfAdapter { missing: &'static str },
    #[error(
        "`lora_ckpt_source` is `{given}`, and only `hf` is supported: save the adapter as PEFT does"
    )]
    AdapterSource { given: String },
    #[error("`{tensor}` is not UTF-8")]
    NotText { tensor: &'static str },
    #[error("`{tensor}` cannot be tokenized: {reason}")]
    Encode {
        tensor: &'static str,
        reason: String,
    },
    #[error("`{tensor}` cannot be turned into text: {reason}")]
    Decode {
        tensor: &'static str,
        reason: String,
    },
    #[error(
        "`{tensor}` has about `{tokens}` tokens or more, at most `{limit}` fit: shorten the text"
    )]
    TooLong {
        tensor: &'static str,
        tokens: usize,
        limit: usize,
    },
    #[error("there are `{words}` embedding bias words and `{weights}` weights")]
    BiasWeights { words: usize, weights: usize },
    #[error("all rows of a batch have embedding bias words, or none has")]
    BiasRows,
    #[error("`{tensor}` has length `{length}` for a row of `{held}` ids")]
    SequenceLength {
        tensor: &'static str,
        length: i32,
        held: usize,
    },
}

impl TextRequestError {
    pub(crate) fn encode(tensor: &'static str, error: &TextError) -> Self {
        Self::Encode {
            tensor,
            reason: error.to_string(),
        }
    }

    pub(crate) fn decode(tensor: &'static str, error: &TextError) -> Self {
        Self::Decode {
            tensor,
            reason: error.to_string(),
        }
    }

    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Tensor(TensorError::SharedMemory { .. }) => Code::Unimplemented,
            _ => Code::InvalidArgument,
        }
    }
}
