//! Requests whose prompt one worker computes and whose answer another one generates. Owns which worker has blocks for
//! another one; what they are is nothing here, since simulated executors have none that travel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use inflight_kserve::names::{CONTEXT_ONLY, CONTEXT_PHASE_PARAMS, GENERATION_ONLY, REQUEST_TYPE};
use inflight_worker::executor::{NamedTensor, Request};
use parking_lot::Mutex;

/// The blocks that workers have for others. Those of a process end with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftBlocks(Arc<Mutex<Left>>);

#[derive(Debug, Default)]
struct Left {
    /// The worker by the prompt.
    blocks: BTreeMap<Vec<u8>, String>,
    /// Prompts of which there were blocks.
    prompts: BTreeSet<Vec<u8>>,
}

impl LeftBlocks {
    /// A worker has computed a prompt for another one.
    pub(super) fn leave(&self, prompt: Vec<u8>, host: &str) {
        let mut left = self.0.lock();
        left.prompts.insert(prompt.clone());
        left.blocks.insert(prompt, host.to_owned());
    }

    /// Whether a worker has computed this prompt for another one, at any time.
    pub(super) fn had(&self, prompt: &[u8]) -> bool {
        self.0.lock().prompts.contains(prompt)
    }

    /// A worker's process has ended.
    pub(crate) fn end_process(&self, host: &str) {
        self.0.lock().blocks.retain(|_, own| own != host);
    }

    /// Lets an executor fetch the blocks of a request that has to. Where they are gone, it computes the prompt itself, as
    /// the reference executor does.
    pub(super) fn fetch(&self, mut request: Request) -> Request {
        let fetched = |prompt: &[u8]| self.0.lock().blocks.remove(prompt).is_some();
        if is_handed_over(&request) && !fetched(&prompt_of(&request)) {
            request.tensors.retain(|tensor| !is_of_phases(tensor));
        }
        request
    }
}

/// Whether an executor is to compute a prompt for another one.
pub(super) fn is_for_context(request: &Request) -> bool {
    is_of_kind(request, CONTEXT_ONLY)
}

/// Whether it continues what another one has computed.
pub(super) fn is_handed_over(request: &Request) -> bool {
    is_of_kind(request, GENERATION_ONLY)
}

/// Whether a tensor says who computes what.
pub(super) fn is_of_phases(tensor: &NamedTensor) -> bool {
    tensor.name == REQUEST_TYPE || tensor.name == CONTEXT_PHASE_PARAMS
}

/// Its prompt: the model's tokens are bytes.
pub(super) fn prompt_of(request: &Request) -> Vec<u8> {
    let tokens = request.input_token_ids.iter();
    tokens.map(|token| *token as u8).collect()
}

fn is_of_kind(request: &Request, kind: &str) -> bool {
    let mut tensors = request.tensors.iter();
    let own = tensors.find(|tensor| tensor.name == REQUEST_TYPE);
    // Its length in four bytes, then itself.
    own.is_some_and(|tensor| tensor.data.get(4..) == Some(kind.as_bytes()))
}
