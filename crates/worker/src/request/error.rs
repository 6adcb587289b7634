//! Why a request was refused, with the gRPC status that says whose turn it is.

use inflight_kserve::tensor::TensorError;
use tonic::Code;

use crate::model::TensorMismatch;

/// A refusal before the executor saw the request. The text is for the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("{0}")]
    UnknownModel(String),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Mismatch(#[from] TensorMismatch),
    #[error("unknown input tensor `{tensor}`: the model lists its inputs in its metadata")]
    UnknownInput { tensor: String },
    #[error("unknown output tensor `{output}`: the model lists its outputs in its metadata")]
    UnknownOutput { output: String },
    #[error("output tensor `{output}` is requested more than once: name each output once")]
    RepeatedOutput { output: String },
    #[error(
        "output tensor `{output}` has parameter `{parameter}`, which is not supported: outputs are sent raw in the message"
    )]
    OutputParameter { output: String, parameter: String },
    #[error(
        "request parameter `{parameter}` has a value that this worker does not support: leave it out"
    )]
    Parameter { parameter: String },
    #[error("request parameter `{parameter}` is `{value}`, expected {expected}")]
    ParameterValue {
        parameter: &'static str,
        value: String,
        expected: String,
    },
    #[error(
        "request parameter `{parameter}` needs `{capability}`, which executor `{executor}` does not have"
    )]
    ParameterCapability {
        parameter: &'static str,
        capability: &'static str,
        executor: String,
    },
    #[error("tensor `{tensor}` is required by the model and missing")]
    Missing { tensor: &'static str },
    #[error("tensor `{tensor}` needs `{capability}`, which executor `{executor}` does not have")]
    Capability {
        tensor: &'static str,
        capability: &'static str,
        executor: String,
    },
    #[error("tensor `{tensor}` has value `{value}`, expected {expected}")]
    Value {
        tensor: &'static str,
        value: String,
        expected: String,
    },
    #[error(
        "tensor `{tensor}` is not a list of words ([2, n]: token ids, then end offsets padded with -1): {reason}"
    )]
    Words {
        tensor: &'static str,
        reason: String,
    },
    #[error("tensor `{tensor}` has `{actual}` values, expected `{expected}`")]
    Length {
        tensor: &'static str,
        actual: usize,
        expected: usize,
    },
    #[error("`input_lengths` is `{length}`, but `input_ids` has `{held}` tokens")]
    PromptLength { length: i64, held: usize },
    #[error("the prompt in `input_ids` is empty: send at least one token")]
    EmptyPrompt,
    #[error("the prompt in `input_ids` has `{tokens}` tokens, at most `{limit}` fit: shorten it")]
    PromptTooLong { tokens: usize, limit: u32 },
    #[error(
        "prompt (`{prompt}` tokens) and `request_output_len` (`{max_tokens}`) exceed the model's `{limit}` tokens: lower `request_output_len`"
    )]
    TooManyTokens {
        prompt: usize,
        max_tokens: u32,
        limit: u32,
    },
    #[error(
        "output `{output}` would take `{bytes}` bytes, a message at most `{limit}`: shorten the prompt or do not ask for it"
    )]
    OutputTooLarge {
        output: &'static str,
        bytes: u64,
        limit: usize,
    },
    #[error(
        "streaming is not supported with `beam_width` `{beam_width}`: set `streaming` to false"
    )]
    StreamingBeams { beam_width: u32 },
    #[error(
        "a request with `inflight_generated_ids` continues where another ended, which beam search cannot: set `beam_width` to 1"
    )]
    ResumedBeams,
    #[error("{what} is not available with `inflight_handle`: use a stream per request")]
    NotInStepBatching { what: &'static str },
    #[error("a request with `stop` needs the request id of what it stops")]
    StopWithoutId,
}

impl RequestError {
    /// The status this refusal has as a gRPC answer or as an error row.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::UnknownModel(_) => Code::NotFound,
            Self::Capability { .. }
            | Self::Parameter { .. }
            | Self::ParameterCapability { .. }
            | Self::OutputParameter { .. }
            | Self::StreamingBeams { .. }
            | Self::ResumedBeams
            | Self::NotInStepBatching { .. }
            | Self::Tensor(TensorError::SharedMemory { .. }) => Code::Unimplemented,
            _ => Code::InvalidArgument,
        }
    }
}

/// A value that is not what its tensor takes.
pub(super) fn value(
    tensor: &'static str,
    value: impl std::fmt::Display,
    expected: &str,
) -> RequestError {
    RequestError::Value {
        tensor,
        value: value.to_string(),
        expected: expected.to_owned(),
    }
}
