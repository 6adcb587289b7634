//! Whether the grace of a shutdown is over: nothing continues elsewhere from then on, and what is still open ends.
//! Requests hold it and ask it; a cancellation token, which can also be waited for, takes a lock for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<AtomicBool>);

impl Ending {
    /// Whether it is over.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It is over.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
