//! The parameters of a request, next to its tensors, that the core model reads.

use crate::executor::capability;

/// A level from 1 (first) to [`PRIORITY_LEVELS`](super::PRIORITY_LEVELS); 0 is "not set".
pub(crate) use inflight_kserve::names::PRIORITY;
use inflight_kserve::names::REQUEST_TYPE;

/// One parameter. Its value travels in `Request::tensors` under its name.
pub(crate) struct ParameterSpec {
    pub(crate) name: &'static str,
    pub(crate) capability: &'static str,
}

pub(crate) static PARAMETERS: &[ParameterSpec] = &[
    ParameterSpec {
        name: REQUEST_TYPE,
        capability: capability::CONTEXT_PHASE,
    },
    ParameterSpec {
        name: PRIORITY,
        capability: capability::PRIORITY,
    },
];
