//! How a seed's numbers become workers and a gateway; requests and faults are drawn in their own files. Pure.

use std::ops::Range;
use std::time::Duration;

use inflight_kserve::assets::Phases;

use super::{GatewayPlan, Kind, WorkerPlan};
use crate::determinism::mix;

/// Numbers that a seed decides.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from `least` to `most`.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + mix(&mut self.0) % (most - least + 1)
    }

    /// True in so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    pub(super) fn ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub(super) fn one(&mut self, of: usize) -> usize {
        self.between(0, of as u64 - 1) as usize
    }
}

/// What goes wrong in runs, in turn, so that a few dozen seeds have some of each.
const KINDS: [Kind; 16] = [
    Kind::Any,
    Kind::Restarts,
    Kind::Twice,
    // A fleet without faults answers everything: that is worth a look, too.
    Kind::Calm,
    Kind::Departures,
    Kind::Silence,
    Kind::Alone,
    Kind::Any,
    Kind::Twice,
    Kind::Stalls,
    Kind::Restarts,
    Kind::Calm,
    Kind::Silence,
    Kind::Alone,
    Kind::Twice,
    Kind::Any,
];

/// Seeds with this remainder have a long silence: none that a test keeps has it.
const LONG_SILENCE: (u64, u64) = (32, 24);

/// Seeds whose workers are for prompts or for what follows them; of later ones, those with this remainder.
const APART: Range<u64> = 50_000_000..60_000_000;
const LATER_APART: (u64, u64) = (8, 5);

/// What goes wrong in a seed's run.
pub(super) fn kind(seed: u64) -> Kind {
    let is_later = seed >= APART.end && seed % LATER_APART.0 == LATER_APART.1;
    if APART.contains(&seed) || is_later {
        return Kind::Apart;
    }
    if seed % LONG_SILENCE.0 == LONG_SILENCE.1 {
        return Kind::LongSilence;
    }
    KINDS[(seed % KINDS.len() as u64) as usize]
}

/// Many ask for few places: much waits, and much is refused.
pub(super) fn is_crowded(dice: &mut Dice, kind: Kind) -> bool {
    dice.chance(match kind {
        Kind::Calm => 40,
        Kind::Any | Kind::Alone => 15,
        _ => 0,
    })
}

pub(super) fn workers(dice: &mut Dice, kind: Kind, is_crowded: bool) -> Vec<WorkerPlan> {
    let workers = match kind {
        Kind::Alone => 1,
        _ if is_crowded => dice.between(1, 2),
        Kind::Restarts | Kind::Stalls => dice.between(1, 2),
        Kind::Silence | Kind::LongSilence => dice.between(2, 4),
        Kind::Twice => 3,
        Kind::Departures | Kind::Apart => 4,
        Kind::Calm | Kind::Any => dice.between(1, 4),
    };
    let reuses = dice.chance(50);
    let phases = |place| match kind {
        Kind::Apart if place < workers / 2 => Phases::Context,
        Kind::Apart => Phases::Generation,
        _ => Phases::Both,
    };
    (0..workers)
        .map(|place| WorkerPlan {
            phases: phases(place),
            ..worker(dice, kind, is_crowded, reuses)
        })
        .collect()
}

fn worker(dice: &mut Dice, kind: Kind, is_crowded: bool, reuses: bool) -> WorkerPlan {
    let plan = WorkerPlan {
        phases: Phases::Both,
        step_us: dice.between(1_000, 60_000) as u32,
        // At least the choices of one request.
        max_batch_size: match is_crowded || dice.chance(10) {
            true => dice.between(3, 8) as u32,
            false => dice.between(12, 32) as u32,
        },
        blocks: dice.between(256, 1024) as u32,
        reuses,
        prefill_us: 100,
        max_num_tokens: 8192,
        max_queued_requests: match is_crowded {
            true => dice.between(0, 3) as usize,
            false => WorkerPlan::MANY_QUEUED,
        },
        drain: dice.ms(200, 8_000),
    };
    match kind {
        // What waits for its first token, or is computed again, should meet what goes wrong; and there is room for all.
        Kind::Twice | Kind::Apart => WorkerPlan {
            step_us: dice.between(8_000, 25_000) as u32,
            max_batch_size: 32,
            blocks: 1024,
            prefill_us: dice.between(800, 1_600) as u32,
            max_num_tokens: 64,
            max_queued_requests: WorkerPlan::MANY_QUEUED,
            ..plan
        },
        // What is generated again is soon where it was.
        Kind::LongSilence => WorkerPlan {
            step_us: dice.between(6_000, 11_000) as u32,
            max_batch_size: 32,
            blocks: 1024,
            ..plan
        },
        // What is generated waits for its link, and much of it is refused.
        Kind::Stalls => WorkerPlan {
            step_us: dice.between(300, 3_000) as u32,
            max_batch_size: dice.between(3, 16) as u32,
            max_queued_requests: dice.between(0, 6) as usize,
            ..plan
        },
        // It can end what it has begun.
        Kind::Departures => WorkerPlan {
            step_us: dice.between(5_000, 25_000) as u32,
            max_batch_size: 32,
            max_queued_requests: WorkerPlan::MANY_QUEUED,
            drain: dice.ms(13_000, 16_000),
            ..plan
        },
        _ => plan,
    }
}

pub(super) fn clients(dice: &mut Dice, kind: Kind, is_crowded: bool) -> u64 {
    match kind {
        _ if is_crowded => dice.between(6, 8),
        Kind::Twice | Kind::Apart => dice.between(5, 7),
        Kind::Stalls => dice.between(4, 7),
        Kind::Departures => dice.between(7, 9),
        _ => dice.between(2, 7),
    }
}

/// A connection that stalls is to hold little, so that its writer has to wait.
pub(super) fn socket_segments(dice: &mut Dice, kind: Kind) -> usize {
    match kind {
        Kind::Stalls => dice.between(8, 16) as usize,
        _ => dice.between(8, 64) as usize,
    }
}

/// Connections that a port must hold at least: all attempts to connect that a silence has held back arrive when it ends, and
/// turmoil panics where there are too many.
pub(super) fn held_connections(kind: Kind) -> usize {
    match kind {
        Kind::LongSilence => 32,
        _ => 0,
    }
}

/// How the gateway is, where clients are held back or not.
pub(super) fn gateway(dice: &mut Dice, kind: Kind, holds_clients: bool) -> GatewayPlan {
    let mut plan = GatewayPlan::DEFAULT;
    // Most answers survive, so that other failures in their middle would be rare.
    let promises_little = matches!(kind, Kind::Any | Kind::Alone | Kind::Restarts);
    if promises_little && dice.chance(40) {
        plan.max_resumes = dice.between(0, 1) as u32;
        plan.resume_wait_s = dice.between(0, 3);
    }
    // What has begun then keeps its worker from ending at once.
    if kind == Kind::Departures && dice.chance(70) {
        plan.max_resumes = 0;
    }
    if dice.chance(30) {
        plan.request_timeout_s = Some(dice.between(15, 40));
    }
    // Longer than a reader pauses.
    if !holds_clients && dice.chance(if kind == Kind::Calm { 75 } else { 40 }) {
        plan.slow_client_s = dice.between(5, 10);
    }
    plan.needs_key = dice.chance(40);
    plan.splits = kind == Kind::Apart;
    plan
}
