//! What the hosts of a run, its faults and the looks at it share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::oracle::{Broken, Invariant};
use crate::plan::Plan;
use crate::report::Report;
use crate::worker::WorkerHost;

/// Hosts run for so long, one after another; messages arrive in between.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// What hosts and the run share.
pub(crate) struct Shared {
    pub(crate) workers: Vec<Rc<WorkerHost>>,
    /// Clients that have not ended.
    pub(crate) asking: Cell<usize>,
    pub(crate) plan: Plan,
    pub(crate) report: RefCell<Report>,
}

impl Shared {
    pub(crate) fn breaks(&self, invariant: Invariant, how: String) {
        let broken = Broken { invariant, how };
        self.report.borrow_mut().broken.push(broken.to_string());
    }
}
