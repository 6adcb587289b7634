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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_has_begun_for_all_of_its_copies() {
        let ending = Ending::default();
        let copy = ending.clone();
        assert!(!copy.has_begun());
        let waits = tokio::spawn(async move { copy.begun().await });
        ending.begin();
        waits.await.unwrap();
        assert!(ending.has_begun());
    }
}
