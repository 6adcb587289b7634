//! What the hosts of a run, its faults and the looks at it share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::executor::Moves;
use crate::oracle::{Broken, Invariant};
use crate::plan::{Fault, Plan, STEPS};
use crate::report::Report;
use crate::worker::WorkerHost;

/// What hosts and the run share.
pub(crate) struct Shared {
    pub(crate) workers: Vec<Rc<WorkerHost>>,
    /// Clients that have not ended.
    pub(crate) asking: Cell<usize>,
    pub(crate) plan: Plan,
    pub(crate) moves: Option<Arc<Mutex<Moves>>>,
    pub(crate) report: RefCell<Report>,
}

impl Shared {
    /// How many tokens of the prompt that has this text workers found in their caches, each time one began with it.
    pub(crate) fn cached(&self, text: &str) -> Vec<u32> {
        let workers = self.workers.iter();
        workers
            .flat_map(|worker| worker.said().cached(text))
            .collect()
    }

    /// From when until when workers had no room for one of these prompts.
    pub(crate) fn waited(&self, texts: &[String]) -> Vec<(Duration, Duration)> {
        let workers = self.workers.iter();
        workers
            .flat_map(|worker| {
                let said = worker.said();
                let waits = texts.iter().flat_map(|text| said.waited(text));
                waits.collect::<Vec<_>>()
            })
            .collect()
    }

    /// The fault of the worker that has just got the request which the plan lies in wait for.
    pub(crate) fn spring(&self, now: Duration) -> Option<Fault> {
        let (ambush, moves) = (self.plan.ambush.as_ref()?, self.moves.as_ref()?);
        let place = self.plan.sprung.borrow().len();
        let trap = ambush.traps.get(place)?;
        let moves = moves.lock();
        let (then, worker) = (moves.when(trap.on)?, moves.worker(trap.place)?);
        let mut workers = self.workers.iter();
        let worker = workers.position(|one| one.name == worker)?;
        let fault = Fault {
            at: now,
            until: now + trap.lasts,
            kind: trap.kind.at_worker(worker),
        };
        let is_due = then + trap.after <= now;
        is_due.then(|| self.plan.sprung.borrow_mut().push(fault))?;
        if let Some(step) = ambush.step.filter(|_| place == 0) {
            let mut report = self.report.borrow_mut();
            let steps = report.steps.iter_mut().zip(STEPS);
            let own = steps.filter(|(_, one)| *one == step);
            own.for_each(|(count, _)| *count += 1);
        }
        Some(fault)
    }

    pub(crate) fn breaks(&self, invariant: Invariant, how: String) {
        let broken = Broken { invariant, how };
        self.report.borrow_mut().broken.push(broken.to_string());
    }
}
