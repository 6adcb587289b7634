//! Faults that lie in wait for the workers of one request, and how a seed's numbers become such. Pure.

use std::time::Duration;

use super::FaultKind;
use super::draw::Dice;
use super::faults::silent;

/// What happens to the workers that get a request.
#[derive(Clone, Debug)]
pub(crate) struct Ambush {
    /// It is the first one from then on that asks for so many tokens.
    pub(crate) from: Duration,
    pub(crate) tokens: u32,
    /// Only for a hand-over: the step at which the first worker is lost. The request is then one that is split.
    pub(crate) step: Option<Step>,
    /// One after another.
    pub(crate) traps: Vec<Trap>,
}

/// A fault of a worker that has a request, soon after something has become of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trap {
    pub(crate) on: Event,
    pub(crate) after: Duration,
    pub(crate) lasts: Duration,
    /// The worker: the first that got the request, or the one after that.
    pub(crate) place: usize,
    /// At whichever worker.
    pub(crate) kind: FaultKind,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It has come to its first worker, or the one after that.
    Came(usize),
    /// Its first worker has left the context to another one.
    Left,
}

/// The steps of a hand-over at which a worker may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The context worker has just got the request.
    Asked,
    /// The context worker computes the prompt.
    Computing,
    /// The context worker has answered, and no other one has the request.
    Answered,
    /// The generation worker fetches from the context worker, which is lost. Simulated executors get all blocks
    /// nevertheless, so that only the gateway has to do with this loss.
    Fetched,
    /// The generation worker fetches, and is lost.
    Fetching,
    /// The generation worker generates.
    Generating,
}

/// All of them, in their order.
pub(crate) const STEPS: [Step; 6] = [
    Step::Asked,
    Step::Computing,
    Step::Answered,
    Step::Fetched,
    Step::Fetching,
    Step::Generating,
];

impl Step {
    /// The event from which it begins, how long it lasts at least and at most, and whose worker is lost.
    fn moment(self) -> (Event, (u64, u64), usize) {
        match self {
            Self::Asked => (Event::Came(0), (0, 5), 0),
            Self::Computing => (Event::Came(0), (10, 80), 0),
            Self::Answered => (Event::Left, (0, 0), 0),
            Self::Fetched => (Event::Came(1), (0, 12), 0),
            Self::Fetching => (Event::Came(1), (0, 12), 1),
            Self::Generating => (Event::Came(1), (100, 1_500), 1),
        }
    }
}

/// The worker that gets a request is silent or ends, before its first token or after it, and then the next one.
pub(super) fn of_one_worker_and_the_next(dice: &mut Dice) -> Ambush {
    let has_begun = dice.chance(65);
    let silent = |dice: &mut Dice, place, after| Trap {
        on: Event::Came(place),
        place,
        after,
        lasts: dice.ms(11_000, 15_000),
        kind: silent(dice, 0),
    };
    let ended = |dice: &mut Dice, place, after| Trap {
        on: Event::Came(place),
        place,
        after,
        lasts: dice.ms(1, 700),
        kind: FaultKind::Crash(0),
    };
    let first = match has_begun {
        true => dice.ms(500, 1_200),
        false => dice.ms(0, 60),
    };
    let second = dice.ms(0, 150);
    Ambush {
        from: dice.ms(5_500, 8_000),
        tokens: if has_begun { 250 } else { 0 },
        step: None,
        traps: match has_begun {
            true if dice.chance(85) => vec![silent(dice, 0, first), ended(dice, 1, second)],
            false if dice.chance(40) => vec![ended(dice, 0, first), silent(dice, 1, second)],
            _ => vec![silent(dice, 0, first), silent(dice, 1, second)],
        },
    }
}

/// One of the workers of a request that is split is lost at one of the [`STEPS`], and sometimes the next one, too.
pub(super) fn of_a_hand_over(dice: &mut Dice) -> Ambush {
    let step = STEPS[dice.one(STEPS.len())];
    let (on, (least, most), place) = step.moment();
    let after = dice.ms(least, most);
    let mut traps = vec![loss(dice, on, after, place)];
    if dice.chance(35) {
        let next = place + 1;
        let after = dice.ms(0, 150);
        traps.push(loss(dice, Event::Came(next), after, next));
    }
    Ambush {
        from: dice.ms(5_500, 8_000),
        tokens: 150,
        step: Some(step),
        traps,
    }
}

/// Most workers are killed; some are silent.
fn loss(dice: &mut Dice, on: Event, after: Duration, place: usize) -> Trap {
    let is_killed = dice.chance(75);
    Trap {
        on,
        after,
        place,
        lasts: match is_killed {
            true => dice.ms(1, 700),
            false => dice.ms(4_000, 12_000),
        },
        kind: match is_killed {
            true => FaultKind::Crash(0),
            false => silent(dice, 0),
        },
    }
}
