//! The ground floor: what every other part stands on and that is about none of their subjects. Accepting connections,
//! errors in one line, files that are read within a bound, and the hash by which two ends know that they have the same
//! files.

pub mod accept;
mod content_hash;
mod error_chain;
pub mod text_file;

pub use content_hash::content_hash;
pub use error_chain::error_chain;
