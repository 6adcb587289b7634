//! Of `crates/upstream/src`.

#[path = "../../crates/upstream/src/handles.rs"]
mod handles;
#[path = "../../crates/upstream/src/inbox.rs"]
mod inbox;
#[path = "../../crates/upstream/src/shared_stream/mailbox.rs"]
mod mailbox;
#[path = "../../crates/upstream/src/request_queue.rs"]
mod request_queue;
// Its tests are in a file that it is not next to from here.
#[rustfmt::skip]
#[path = "../../crates/upstream/src/registry.rs"]
mod registry;

/// As the gateway bounds what a worker says.
mod rpc {
    pub fn abbreviated(text: &str) -> &str {
        text
    }
}

pub mod handle_models;
pub mod inbox_models;
pub mod mailbox_models;
pub mod queue_models;
pub mod registry_models;
