//! Of a worker's `batch`: rows stay as they are, since merging them is not about their order in time.

use crate::executor::ResponseBatch;
use crate::step::{Handle, StepBatch};
use crate::{Code, executor::ClientId};

pub fn merge(batch: &StepBatch) -> StepBatch {
    batch.clone()
}

pub fn merge_responses(batch: &ResponseBatch) -> ResponseBatch {
    batch.clone()
}

/// The only row of a refused request.
pub fn error_row(handle: Handle, _: Code, _: String, _: u32) -> StepBatch {
    StepBatch::of(handle, -1, true)
}

/// Of a plain request.
pub fn plain(client_id: ClientId) -> StepBatch<ClientId> {
    StepBatch::of(client_id, 0, true)
}
