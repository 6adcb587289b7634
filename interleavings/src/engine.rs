//! Of `crates/worker/src/engine`.

#[path = "../../crates/worker/src/engine/queue.rs"]
mod queue;
#[path = "../../crates/worker/src/engine/wake.rs"]
mod wake;

pub mod submit_queue;
pub mod wake_list;
