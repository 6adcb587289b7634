//! Files and batches: what clients upload, the requests of a batch, and what became of each. Owns how they are kept
//! (in SQLite or PostgreSQL, and in a bucket), read and written, and the rules of their lives. Knows nothing of HTTP, of
//! workers or of clocks: the time comes in, in seconds since the epoch.
//!
//! A batch belongs to one holder at a time, which renews its lease; whatever a holder says after it has lost the lease
//! changes nothing. So several gateways may run the batches of one store, and each line has one result.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod batch;
mod file;
mod id;
mod input;
mod lines;
mod message_batch;
mod room;
mod store;
mod usage;
mod window;

pub use batch::{Batch, BatchList, BatchObject, Counts, Dialect, Status};
pub use file::{File, FileList, FileObject, Purpose};
pub use id::{BatchId, FileId, Owner};
pub use inflight_objects::{ObjectError, ObjectsUrl};
pub use input::{Entry, InputError, InputErrors, read_entry};
pub use lines::{Outcome, Unrun, output_line, unrun_line};
pub use message_batch::{MessageBatch, MessageBatchList, MessageCounts};
pub use room::{Load, Share, room};
pub use store::{
    Bounds, Claim, Close, DataUrl, DatabaseError, Done, NewBatch, NewFile, Page, Position,
    Receiving, Store, StoreError, Stored, UrlError, Work, check_lines,
};
pub use usage::Usage;
pub use window::{Window, WindowError};
