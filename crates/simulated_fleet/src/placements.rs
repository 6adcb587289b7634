//! The choice of a worker as a state machine: workers of one model come, go, report and fall silent, and requests are placed
//! and end, in thousands of steps without a network. Owns a model of it, with which each choice is compared; what else
//! becomes of a request is the fleet's.

use std::sync::Arc;

use inflight_kserve::cache_state::{CacheShape, CacheUpdate, WorkerLoad};
use inflight_upstream::metrics::Placements;
use inflight_upstream::placement::{CacheQuery, Fault, Placed, Placement, Seat};

use crate::determinism::mix;
use crate::oracle::{Broken, Invariant};

const STEPS: u64 = 1_500;
/// Workers at once.
const MOST_WORKERS: usize = 6;
/// How often one worker comes and goes: more often than there are seats.
const RETURNS: u64 = 4_200;

/// A worker, and what it has.
struct Worker {
    seat: Arc<Seat>,
    /// The number of its last report; `None`: it does not report.
    reports: Option<u64>,
    open: Vec<Placed>,
}

struct Machine {
    dice: u64,
    placement: Arc<Placement>,
    workers: Vec<Worker>,
    broken: Vec<Broken>,
}

/// Runs it. Returns what did not hold.
pub(crate) fn check(seed: u64) -> Vec<Broken> {
    let mut machine = Machine {
        dice: seed,
        placement: Arc::new(Placement::new(Placements::default())),
        workers: Vec::new(),
        broken: Vec::new(),
    };
    for _ in 0..STEPS {
        machine.step();
    }
    // Often enough in every few seeds.
    for _ in 0..if seed.is_multiple_of(4) { RETURNS } else { 0 } {
        machine.come();
        machine.workers.pop();
        if !machine.broken.is_empty() {
            break;
        }
    }
    machine.broken
}

impl Machine {
    fn below(&mut self, most: usize) -> usize {
        (mix(&mut self.dice) % most.max(1) as u64) as usize
    }

    fn step(&mut self) {
        let worker = self.below(self.workers.len());
        match self.below(100) {
            _ if self.workers.is_empty() => self.come(),
            0..4 if self.workers.len() < MOST_WORKERS => self.come(),
            // With what it had, which ends after it or before.
            4..7 => drop(self.workers.swap_remove(worker)),
            7..17 => self.workers[worker].report(),
            17..20 => self.workers[worker].fall_silent(),
            20..60 => self.place(),
            _ => {
                let open = self.workers[worker].open.len();
                let place = self.below(open);
                if open > 0 {
                    self.workers[worker].open.swap_remove(place);
                }
            }
        }
    }

    fn come(&mut self) {
        match self.placement.join() {
            Some(seat) => self.workers.push(Worker {
                seat,
                reports: None,
                open: Vec::new(),
            }),
            None => {
                let how = format!("none, next to {} workers", self.workers.len());
                self.breaks(Invariant::WorkersHaveSeats, how);
            }
        }
    }

    /// A request of whose prompt no cache has anything.
    fn place(&mut self) {
        let ask = CacheQuery::of_one(&[1; 64], None, false, 0);
        let seats = self.workers.iter().map(|worker| &worker.seat);
        let Some((chosen, mut placed)) = self.placement.assign(&ask, seats) else {
            return;
        };
        placed.started();
        let open = self.workers.iter().map(|worker| worker.open.len());
        let open: Vec<usize> = open.collect();
        self.workers[chosen].open.push(placed);
        if open.iter().any(|other| *other < open[chosen]) {
            let how = format!("worker {chosen} of those that have {open:?} requests");
            self.breaks(Invariant::LeastBusyIsChosen, how);
        }
    }

    fn breaks(&mut self, invariant: Invariant, how: String) {
        if self.broken.is_empty() {
            self.broken.push(Broken { invariant, how });
        }
    }
}

impl Worker {
    fn report(&mut self) {
        let last = self.reports.unwrap_or(0);
        let load = WorkerLoad {
            running_requests: self.open.len() as u32,
            ..WorkerLoad::default()
        };
        let update = CacheUpdate {
            sequence: last + 1,
            snapshot_begin: last == 0,
            shape: (last == 0).then(CacheShape::default),
            load: Some(load),
            ..CacheUpdate::default()
        };
        if last == 0 {
            self.seat.begin();
        }
        self.reports = self.seat.take(&update).is_ok().then_some(last + 1);
    }

    fn fall_silent(&mut self) {
        self.seat.doubt(Fault::Late);
        self.reports = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_those_of_the_model() {
        for seed in 0..5 {
            let broken = check(seed);
            assert!(broken.is_empty(), "seed {seed}: {broken:?}");
        }
    }
}
