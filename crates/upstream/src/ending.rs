//! Whether the grace of a shutdown is over: nothing continues elsewhere from then on, and what is still open ends.

use std::sync::Arc;

use tokio::sync::watch;

/// See the module. Its copies are one.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<watch::Sender<bool>>);

impl Ending {
    /// Whether it is over.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// It is over.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Resolves when it is over.
    pub async fn begun(&self) {
        // The sender is this one.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}
