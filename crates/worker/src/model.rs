//! The core model `tensorrt_llm` as clients see it: its name, its tensors, its metadata and config.
//!
//! One table ([`inputs`], [`outputs`], [`parameters`]) says what there is; parsing, metadata, config and
//! refusals all read it, and so does Python ([`table`]). The other four models of Triton's TensorRT-LLM
//! repository are in [`text_models`](crate::text_models).

mod describe;
mod inputs;
mod mismatch;
mod outputs;
mod parameters;
pub(crate) mod spec;
mod table;

pub(crate) use describe::{config, metadata};
pub(crate) use inputs::{FLAGS_NONE, Field, Flags, INPUTS, InputSpec, Neutral, Range, input};
pub(crate) use mismatch::{TensorMismatch, check_datatype, checked_rows, fits};
pub(crate) use outputs::{OUTPUTS, OutputSet, output};
pub(crate) use parameters::{PARAMETERS, PRIORITY};
pub use spec::{OutputSpec, TensorSpec};
pub use table::{CoreInput, CoreParameter, Passage, core_inputs, core_outputs, core_parameters};

/// The KServe model that takes token ids, unless the operator names it otherwise.
pub const CORE_MODEL: &str = "tensorrt_llm";
/// Its only version, as Triton numbers a repository's first.
pub const CORE_MODEL_VERSION: &str = "1";
/// Values of the request parameter `priority`, as Triton counts them: 1 goes first, the last goes last.
/// Fine enough for an executor's scale of 0 to 1, and a whole number of them is its middle.
pub(crate) const PRIORITY_LEVELS: u32 = 100;
/// The level of a request that names none.
pub(crate) const DEFAULT_PRIORITY_LEVEL: u32 = PRIORITY_LEVELS / 2;
/// Characters of a model's name or version that an error repeats.
pub(crate) const MAX_SHOWN_NAME: usize = 64;

/// Why a version cannot be asked for, if it cannot: the text of a NOT_FOUND.
pub(crate) fn unknown_version(model: &str, version: &str) -> Option<String> {
    (!version.is_empty() && version != CORE_MODEL_VERSION).then(|| {
        let shown: String = version.chars().take(MAX_SHOWN_NAME).collect();
        format!("model `{model}` has no version `{shown}`: it has `{CORE_MODEL_VERSION}`")
    })
}
