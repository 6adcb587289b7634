//! Where a stream's rows wait, as those see it who wake it.

use crate::Woken;

#[derive(Debug, Default)]
pub struct Outbox(std::sync::Arc<Woken>);

impl Outbox {
    pub fn wake(&self) {
        std::task::Wake::wake_by_ref(&self.0);
    }

    /// How often it was woken.
    pub fn woken(&self) -> usize {
        self.0.count()
    }
}
