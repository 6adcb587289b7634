//! Which phases of a request a server runs. Prefill and decode can be apart: a server for contexts computes the prompt and
//! the first token, and another one continues from its KV cache.

use bytes::Bytes;
use inflight_kserve::assets;

use crate::model::capability::{Capability, lacks};
use crate::model::served::ServedModel;

/// What a server is to do of a request.
#[derive(Clone, Copy, Debug, Default)]
pub enum Phases<'a> {
    /// All of it.
    #[default]
    Both,
    /// The prompt and the first token.
    Context,
    /// What follows, from what the context phase left.
    Generation(&'a Bytes),
}

impl Phases<'_> {
    /// Whether a server that serves `model` so can take that.
    pub(crate) fn suit(self, model: &ServedModel) -> bool {
        let can = || lacks(model, Capability::ContextPhase).is_none();
        match self {
            Self::Both => true,
            Self::Context => is_for_contexts(model) && can(),
            Self::Generation(_) => !is_for_contexts(model) && can(),
        }
    }
}

/// Whether a server is for contexts. It can still do all of a request, and does where there is no other.
pub(crate) fn is_for_contexts(model: &ServedModel) -> bool {
    model.description.phases() == assets::Phases::Context
}
