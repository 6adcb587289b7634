//! The events by which vLLM, and SGLang after it, publish what their KV caches hold: what they say, their form on the
//! wire (`read` and `write`, both pure), and how they are [followed](follow()) and [published](Publisher) over ZeroMQ.
//! Knows nothing of prompts, of models, or of who wants to know.
//!
//! A batch is an array of a time, its events and a rank, in MessagePack; some releases write a map. An event is a map
//! with its name under `type`, or, in earlier releases, an array that begins with its name. All are read; fields and
//! events of later releases are skipped. Maps in an array are written, as vLLM 0.33 does, or arrays alone.

mod event;
mod follow;
mod order;
mod publish;
mod read;
mod scan;
mod write;
pub mod zmtp;

pub use event::{Adapter, Batch, BlockHash, Event, Extras, Group, Medium, Removed, Stored};
pub use follow::{Dialing, Heard, Source, follow};
pub use publish::Publisher;
pub use read::{MOST_BLOCKS, MOST_BYTES, MOST_EVENTS, MOST_TOKENS, ReadError, read};
pub use scan::Malformed;
pub use write::{Form, write};
