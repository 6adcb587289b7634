//! How many workers meet a goal for the first token. Owns the search; a run is [`run`]'s.

use crate::fleet::Fleet;
use crate::policy::Policy;
use crate::run::run;
use crate::trace::Trace;

/// The most workers that are tried.
const MOST_WORKERS: u32 = 4096;

/// A share of the requests whose first tokens come in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) seconds: f64,
    pub(crate) percent: f64,
}

/// The fewest workers that meet the goal, if any number does. More workers are assumed to be no worse: doubles until
/// the goal is met, then halves the gap. `tried` is called with each number.
pub(crate) fn workers_for(
    trace: &Trace,
    fleet: &Fleet,
    policy: Policy,
    goal: Goal,
    tried: &mut dyn FnMut(u32),
) -> Option<u32> {
    let mut meets = |workers: u32| {
        tried(workers);
        let figures = run(trace, &Fleet { workers, ..*fleet }, policy, &mut |_| {});
        figures.percentile_s(goal.percent) <= goal.seconds
    };
    let mut enough = 1;
    while !meets(enough) {
        enough *= 2;
        if enough > MOST_WORKERS {
            return None;
        }
    }
    let mut too_few = enough / 2;
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        if meets(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    Some(enough)
}
