//! How a seed's numbers become faults. Pure.

use std::time::Duration;

use super::draw::Dice;
use super::{Fault, FaultKind, Kind};

/// Faults begin within this; then the fleet has time to recover.
const FAULTS_UNTIL_MS: u64 = 15_000;

/// Lets the first worker that is killed be away for long.
pub(super) fn long_absence(dice: &mut Dice, faults: &mut [Fault]) {
    let lasts = dice.ms(20_000, 40_000);
    let is_crash = |fault: &&mut Fault| matches!(fault.kind, FaultKind::Crash(_));
    if let Some(fault) = faults.iter_mut().find(is_crash) {
        fault.until += lasts;
    }
}

pub(super) fn faults(dice: &mut Dice, kind: Kind, workers: usize, clients: usize) -> Vec<Fault> {
    match kind {
        Kind::Calm | Kind::Twice | Kind::Apart => Vec::new(),
        Kind::Restarts => restarts(dice, workers),
        Kind::Silence => silence(dice, workers),
        Kind::LongSilence => vec![long_silence(dice, workers)],
        Kind::Alone => outages(dice),
        Kind::Stalls => stalls(dice, workers),
        Kind::Departures => departures(dice, workers),
        Kind::Any => {
            // Few leave more to be promised, and many meet in more ways.
            let most = if dice.chance(60) { 3 } else { 12 };
            let faults = dice.between(1, most);
            (0..faults).map(|_| fault(dice, workers, clients)).collect()
        }
    }
}

/// Workers are killed one after another, and each is soon back.
fn restarts(dice: &mut Dice, workers: usize) -> Vec<Fault> {
    let mut at = dice.between(5_000, 8_000);
    let mut next = |dice: &mut Dice| {
        at += dice.between(1_500, 3_500);
        Fault {
            at: Duration::from_millis(at),
            until: Duration::from_millis(at + dice.between(1, 700)),
            kind: FaultKind::Crash(dice.one(workers)),
        }
    };
    (0..dice.between(4, 12)).map(|_| next(dice)).collect()
}

/// One worker is silent for some time, in the middle of what it does; another one may end when it gets that.
fn silence(dice: &mut Dice, workers: usize) -> Vec<Fault> {
    let worker = dice.one(workers);
    let at = dice.ms(5_500, 9_000);
    let kind = silent(dice, worker);
    let until = at + dice.ms(3_000, 8_000);
    let mut faults = vec![Fault { at, until, kind }];
    if workers > 2 && dice.chance(50) {
        let other = (worker + 1 + dice.one(workers - 1)) % workers;
        let at = at + dice.ms(1_250, 1_800);
        faults.push(Fault {
            at,
            until: at + dice.ms(1, 500),
            kind: match dice.chance(50) {
                true => FaultKind::Crash(other),
                false => FaultKind::Cut(other),
            },
        });
    }
    faults
}

/// One worker is silent for so long that its connections are given up.
fn long_silence(dice: &mut Dice, workers: usize) -> Fault {
    let worker = dice.one(workers);
    let at = dice.ms(5_500, 9_000);
    let until = at + dice.ms(20_000, 60_000);
    Fault {
        at,
        until,
        kind: silent(dice, worker),
    }
}

/// One of the ways to be silent.
pub(super) fn silent(dice: &mut Dice, worker: usize) -> FaultKind {
    match dice.between(0, 2) {
        0 => FaultKind::PowerLoss(worker),
        1 => FaultKind::Partition(worker),
        _ => FaultKind::Hold(worker),
    }
}

/// The only worker is away for some time.
fn outages(dice: &mut Dice) -> Vec<Fault> {
    let mut at = Duration::ZERO;
    let mut next = |dice: &mut Dice| {
        at += dice.ms(7_000, 14_000);
        Fault {
            at,
            until: at + dice.ms(3_000, 8_000),
            kind: match dice.between(0, 7) {
                0 => FaultKind::PowerLoss(0),
                1 => FaultKind::Leave(0),
                2 => FaultKind::Partition(0),
                3..=4 => FaultKind::Hold(0),
                5 => FaultKind::Cut(0),
                _ => FaultKind::Crash(0),
            },
        }
    };
    (0..dice.between(1, 3)).map(|_| next(dice)).collect()
}

/// Links stall, each time for less than it takes until a worker counts as silent.
fn stalls(dice: &mut Dice, workers: usize) -> Vec<Fault> {
    let mut at = dice.between(4_000, 6_000);
    let mut next = |dice: &mut Dice| {
        at += dice.between(600, 1_800);
        Fault {
            at: Duration::from_millis(at),
            until: Duration::from_millis(at + dice.between(200, 1_000)),
            kind: FaultKind::Hold(dice.one(workers)),
        }
    };
    (0..dice.between(8, 16)).map(|_| next(dice)).collect()
}

/// All workers but one are asked to end, and come back later; and again.
fn departures(dice: &mut Dice, workers: usize) -> Vec<Fault> {
    let mut at = Duration::ZERO;
    let mut faults = Vec::new();
    for _ in 0..2 {
        at += dice.ms(6_000, 8_000);
        let stays = dice.one(workers);
        for worker in (0..workers).filter(|worker| *worker != stays) {
            let at = at + dice.ms(0, 200);
            faults.push(Fault {
                at,
                until: at + Duration::from_secs(18),
                kind: FaultKind::Leave(worker),
            });
        }
        at += Duration::from_secs(19);
    }
    faults
}

fn fault(dice: &mut Dice, workers: usize, clients: usize) -> Fault {
    let worker = dice.one(workers);
    let kind = match dice.between(0, 10) {
        0..=2 => FaultKind::Crash(worker),
        3 => FaultKind::PowerLoss(worker),
        4..=5 => FaultKind::Leave(worker),
        6 => FaultKind::Partition(worker),
        7 => FaultKind::Hold(worker),
        8 => FaultKind::HoldClient(dice.one(clients)),
        9 => FaultKind::Cut(worker),
        _ => FaultKind::Slow(worker),
    };
    let at = dice.between(0, FAULTS_UNTIL_MS);
    let lasts = match dice.chance(50) {
        true => dice.between(1, 500),
        false => dice.between(500, 8_000),
    };
    Fault {
        at: Duration::from_millis(at),
        until: Duration::from_millis(at + lasts),
        kind,
    }
}
