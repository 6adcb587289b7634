//! Every output tensor of the core model, and sets of them.

use inflight_kserve::names;
use inflight_kserve::tensor::DataType::{self, Fp32, Int32, Int64, Uint8};

use super::spec::OutputSpec;

const fn triton(name: &'static str, datatype: DataType, dims: &'static [i64]) -> OutputSpec {
    OutputSpec::new(name, datatype, dims)
}

/// Sent only when named, so that Triton's clients see what they know.
const fn ours(name: &'static str, datatype: DataType, dims: &'static [i64]) -> OutputSpec {
    OutputSpec::new(name, datatype, dims).undeclared()
}

/// Triton's outputs in the order of its config.pbtxt, then ours.
pub(crate) static OUTPUTS: &[OutputSpec] = &[
    triton(names::OUTPUT_IDS, Int32, &[-1, -1]),
    triton("sequence_length", Int32, &[-1]),
    triton("cum_log_probs", Fp32, &[-1]),
    triton(names::OUTPUT_LOG_PROBS, Fp32, &[-1, -1]),
    triton("context_logits", Fp32, &[-1, -1]),
    triton("generation_logits", Fp32, &[-1, -1, -1]),
    triton("batch_index", Int32, &[1]),
    triton("sequence_index", Int32, &[1]),
    triton("context_phase_params", Uint8, &[-1]),
    triton("kv_cache_alloc_new_blocks", Int32, &[1]),
    triton("kv_cache_reused_blocks", Int32, &[1]),
    triton("kv_cache_alloc_total_blocks", Int32, &[1]),
    triton("arrival_time_ns", Int64, &[1]),
    triton("first_scheduled_time_ns", Int64, &[1]),
    triton("first_token_time_ns", Int64, &[1]),
    triton("last_token_time_ns", Int64, &[1]),
    triton("acceptance_rate", Fp32, &[1]),
    triton("total_accepted_draft_tokens", Int32, &[1]),
    triton("total_draft_tokens", Int32, &[1]),
    triton("num_input_tokens", Int32, &[1]),
    triton("num_output_tokens", Int32, &[1]),
    ours(names::FINISH_REASON, Int32, &[-1]),
    ours(names::CACHED_TOKENS, Int32, &[1]),
    ours(names::TOP_LOG_PROB_IDS, Int32, &[-1, -1, -1]),
    ours(names::TOP_LOG_PROBS, Fp32, &[-1, -1, -1]),
    ours(names::PROMPT_LOG_PROBS, Fp32, &[-1]),
    ours(names::PROMPT_TOP_LOG_PROB_IDS, Int32, &[-1, -1]),
    ours(names::PROMPT_TOP_LOG_PROBS, Fp32, &[-1, -1]),
    ours(names::EMBEDDING, Fp32, &[-1]),
];

/// The place of the output with this name in [`OUTPUTS`].
pub(crate) fn output(name: &str) -> Option<usize> {
    OUTPUTS.iter().position(|spec| spec.name == name)
}

/// Which outputs a request wants: one bit for each row of [`OUTPUTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputSet(u64);

impl OutputSet {
    /// What a request that names none gets where its value exists: Triton's.
    pub(crate) fn by_default() -> Self {
        let mut set = Self(0);
        for (place, spec) in OUTPUTS.iter().enumerate() {
            if spec.declared {
                set.insert(place);
            }
        }
        set
    }

    pub(crate) fn empty() -> Self {
        Self(0)
    }

    /// Adds an output; false: it was there. `place`: as [`output`] gives it.
    pub(crate) fn insert(&mut self, place: usize) -> bool {
        let before = self.0;
        self.0 |= 1_u64.checked_shl(place as u32).unwrap_or(0);
        self.0 != before
    }

    pub(crate) fn has(self, name: &str) -> bool {
        output(name).is_some_and(|place| self.0 >> place & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_has_its_bit() {
        assert!(OUTPUTS.len() <= 64);
        for (place, spec) in OUTPUTS.iter().enumerate() {
            let mut set = OutputSet::empty();
            set.insert(place);
            assert!(set.has(spec.name));
            assert_eq!(OutputSet::by_default().has(spec.name), spec.declared);
        }
    }
}
