//! Of `crates/worker/src`.

#[path = "../../crates/worker/src/engine/queue.rs"]
mod queue;
// Its tests are in a file that it is not next to from here.
#[rustfmt::skip]
#[path = "../../crates/worker/src/outbox.rs"]
mod stream_outbox;
#[path = "../../crates/worker/src/engine/wake.rs"]
mod wake;

pub mod outbox_models;
pub mod submit_queue;
pub mod wake_list;
