//! Threads that last, for work that no runtime does. Owns that each has a name, and that they begin in one place, which a
//! test can find.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread of this name.
///
/// # Errors
/// The system starts no thread.
#[allow(clippy::disallowed_methods, reason = "the one place where they begin")]
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(work)
}
