//! What every other crate builds on and that belongs to no single one: accepting connections and noticing their end,
//! work that may block, threads that last, printing an error with its causes on one line, reading files up to a size
//! limit, the content hash that shows whether two processes have the same files, the time of day, and times in log
//! lines.

pub mod accept;
pub mod blocking;
mod content_hash;
mod error_chain;
pub mod hang_up;
mod milliseconds;
pub mod net;
pub mod text_file;
pub mod thread;
pub mod wall_clock;

pub use content_hash::content_hash;
pub use error_chain::error_chain;
pub use milliseconds::milliseconds;
