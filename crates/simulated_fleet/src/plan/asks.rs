//! How a seed's numbers become what clients ask. Pure.

use std::time::Duration;

use super::draw::Dice;
use super::{Ask, ClientPlan, Fault, FaultKind, Kind, WorkerPlan};
use crate::question::{Question, Stop, Surface};

/// What many prompts begin with: several blocks of the cache, and most of the prompt.
const SHARED: &str = "This is how many prompts begin, so that the caches of workers hold their first blocks, and an \
                      answer that continues at another worker finds most of its prompt there, too. It ends with: ";

pub(super) fn client(dice: &mut Dice, kind: Kind) -> ClientPlan {
    let asks = dice.between(3, 10);
    ClientPlan {
        speaks_http2: dice.chance(40),
        begins_at: dice.ms(0, 3_000),
        asks: (0..asks).map(|_| ask(dice, kind)).collect(),
    }
}

/// Requests to workers themselves. Before a worker is asked to end, one that keeps it for some seconds; and where nothing
/// goes wrong, some whose answers are read slowly.
pub(super) fn visits(
    dice: &mut Dice,
    kind: Kind,
    workers: &[WorkerPlan],
    faults: &[Fault],
) -> Vec<(usize, Ask)> {
    if kind == Kind::Calm {
        let visits = 0..dice.between(1, 3);
        return visits.map(|_| slow_visit(dice, workers.len())).collect();
    }
    let leaves = faults.iter().filter_map(|fault| match fault.kind {
        FaultKind::Leave(worker) if kind == Kind::Departures => Some((worker, fault.at)),
        _ => None,
    });
    let mut visit = |(worker, at): (usize, Duration)| {
        let tokens = dice.between(3_000_000, 7_000_000) / u64::from(workers[worker].step_us);
        let after = at.saturating_sub(dice.ms(300, 1_000));
        (worker, direct(dice, after, tokens.min(600) as u32))
    };
    leaves.map(&mut visit).collect()
}

fn slow_visit(dice: &mut Dice, workers: usize) -> (usize, Ask) {
    let (after, tokens) = (dice.ms(5_500, 12_000), dice.between(50, 300) as u32);
    let ask = Ask {
        reads_every: Some(dice.ms(20, 150)),
        window: Some(dice.between(300, 2_000) as u32),
        ..direct(dice, after, tokens)
    };
    (dice.one(workers), ask)
}

/// For a worker.
fn direct(dice: &mut Dice, after: Duration, max_tokens: u32) -> Ask {
    Ask {
        after,
        question: Question {
            surface: Surface::Grpc,
            is_streamed: true,
            contents: vec![content(dice, Kind::Departures)],
            max_tokens,
            may_end: false,
            ..Question::small()
        },
        leaves_after: None,
        reads_every: None,
        window: None,
        deadline: None,
        has_timeout: false,
        pieces: 1,
    }
}

fn ask(dice: &mut Dice, kind: Kind) -> Ask {
    let surface = surface(dice, kind);
    let question = question(dice, kind, surface);
    let leaves = if kind == Kind::Calm { 25 } else { 10 };
    let is_limited = match kind {
        Kind::Alone => 50,
        Kind::Stalls => 35,
        Kind::LongSilence => 10,
        _ if surface == Surface::Grpc => 40,
        _ => 12,
    };
    let longest = if kind == Kind::Stalls { 3_000 } else { 8_000 };
    // However slowly it is read, it is read in a minute.
    let leaves_after = dice.chance(leaves).then(|| dice.ms(1, 5_000));
    let most = u64::from(question.max_tokens) * u64::from(question.all_choices());
    let slowest = (60_000 / most).clamp(10, 400);
    let (reads_every, window) = match dice.between(1, 100) {
        1..=10 => (Some(dice.ms(10, slowest)), None),
        // What comes in a round trip is more than gateways demand.
        11..=20 => (None, Some(dice.between(2_000, 5_000) as u32)),
        // Who reads so little is cut, but has left before.
        21..=60 if leaves_after.is_some() => (
            Some(dice.ms(1_000, 4_000)),
            Some(dice.between(300, 2_000) as u32),
        ),
        _ => (None, None),
    };
    Ask {
        after: dice.ms(
            0,
            match kind {
                Kind::Twice | Kind::Apart => 300,
                _ => 1_500,
            },
        ),
        question,
        leaves_after,
        reads_every,
        window,
        deadline: dice.chance(is_limited).then(|| dice.ms(200, longest)),
        has_timeout: match surface {
            Surface::Generate => dice.chance(50),
            _ => surface == Surface::Grpc,
        },
        pieces: match dice.chance(15) {
            true => dice.between(2, 4) as u32,
            false => 1,
        },
    }
}

fn surface(dice: &mut Dice, kind: Kind) -> Surface {
    // The worker alone keeps the time limits of KServe's requests, and marks their ends.
    let kserve = match kind {
        Kind::Restarts => 50,
        Kind::Stalls => 65,
        Kind::LongSilence => 75,
        // Calls of KServe are not split.
        Kind::Apart => 10,
        _ => 27,
    };
    if dice.chance(kserve) {
        return match dice.chance(50) {
            true => Surface::Generate,
            false => Surface::Grpc,
        };
    }
    match dice.between(1, 100) {
        1..=55 => Surface::Chat,
        56..=83 => Surface::Completion,
        _ => Surface::Messages,
    }
}

fn question(dice: &mut Dice, kind: Kind, surface: Surface) -> Question {
    let is_streamed = dice.chance(match kind {
        Kind::Twice | Kind::LongSilence | Kind::Apart => 90,
        _ => 70,
    });
    let prompts = match surface == Surface::Completion && dice.chance(40) {
        true => dice.between(2, 3),
        false => 1,
    };
    // A message of Anthropic's has one, and so has an answer in one piece of `generate`.
    let has_one = prompts > 1
        || surface == Surface::Messages
        || (surface == Surface::Generate && !is_streamed);
    let several = match kind {
        Kind::LongSilence => 85,
        // It would not be split.
        Kind::Apart => 10,
        _ => 25,
    };
    let choices = match !has_one && dice.chance(several) {
        true => dice.between(2, 3) as u32,
        false => 1,
    };
    // What goes wrong should meet answers in their middle.
    let long = match kind {
        Kind::Any => 8,
        Kind::Departures | Kind::Stalls => 50,
        Kind::Twice | Kind::Apart => 60,
        Kind::LongSilence => 80,
        _ => 30,
    };
    let max_tokens = match dice.chance(long) {
        true => dice.between(150, 450) as u32,
        false if dice.chance(15) => dice.between(1, 3) as u32,
        false => dice.between(4, 150) as u32,
    };
    let takes_stop = !matches!(surface, Surface::Generate | Surface::Grpc);
    let stop = (takes_stop && dice.chance(25)).then(|| stop(dice, max_tokens));
    Question {
        surface,
        is_streamed,
        contents: (0..prompts).map(|_| content(dice, kind)).collect(),
        choices,
        max_tokens,
        stop,
        may_end: takes_stop || dice.chance(50),
        priority: (!takes_stop && dice.chance(50)).then(|| dice.between(1, 10) as u32),
    }
}

/// A prompt. No two have the same end: by it a request is found again at a worker.
fn content(dice: &mut Dice, kind: Kind) -> String {
    let is_long = matches!(kind, Kind::Twice | Kind::Apart);
    let shared = if is_long { 70 } else { 30 };
    let mut content = match dice.chance(shared) {
        true => SHARED.to_owned(),
        false => String::new(),
    };
    for _ in 0..dice.between(12, 60) {
        content.push(char::from(b'a' + dice.between(0, 25) as u8));
    }
    content
}

/// One that ends the answer, or one whose beginning the answer ends with.
fn stop(dice: &mut Dice, max_tokens: u32) -> Stop {
    let length = dice.between(1, 5) as u32;
    match dice.chance(50) {
        true => Stop {
            at: dice.between(0, max_tokens.into()) as u32,
            length,
            is_longer: false,
        },
        false => Stop {
            at: max_tokens.saturating_sub(length),
            length: length.min(max_tokens),
            is_longer: true,
        },
    }
}
