//! Which phases of a request a simulated worker runs, and what the first leaves for the second: how many tokens its
//! prompt has, which is all that there is of it. Pure.

use bytes::Bytes;
use inflight_kserve::names::{CONTEXT_ONLY, CONTEXT_PHASE_PARAMS, GENERATION_ONLY, REQUEST_TYPE};

use crate::executor::Request;

/// Which phases a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phases {
    Both,
    /// The prompt and the first token.
    Context,
    /// All after the prompt, whose cache comes from another worker.
    Generation,
}

impl Phases {
    /// What `request` asks for.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(super) fn of(request: &Request) -> Result<Self, String> {
        let data = |name| {
            let mut tensors = request.tensors.iter();
            tensors
                .find(|tensor| tensor.name == name)
                .map(|tensor| &*tensor.data)
        };
        // Its length in four bytes, then itself.
        let kind = data(REQUEST_TYPE).and_then(|kind| kind.get(4..));
        if kind == Some(CONTEXT_ONLY.as_bytes()) {
            let sequences = request.sampling_config.num_return_sequences.max(1);
            return match sequences {
                1 => Ok(Self::Context),
                _ => Err(format!(
                    "`num_return_sequences` is `{sequences}`, and a `{CONTEXT_ONLY}` request has one sequence; send \
                     it with both phases"
                )),
            };
        }
        if kind == Some(GENERATION_ONLY.as_bytes()) {
            let params = data(CONTEXT_PHASE_PARAMS).unwrap_or_default();
            return match *params == *left_by(request) {
                true => Ok(Self::Generation),
                false => Err(format!(
                    "`{CONTEXT_PHASE_PARAMS}` has `{}` bytes that are not from this prompt's context phase; send what \
                     the `{CONTEXT_ONLY}` request was answered with",
                    params.len()
                )),
            };
        }
        Ok(Self::Both)
    }
}

/// What the context phase of `request` leaves.
pub(super) fn left_by(request: &Request) -> Bytes {
    let tokens = request.input_token_ids.len() as u32;
    Bytes::copy_from_slice(&tokens.to_le_bytes())
}
