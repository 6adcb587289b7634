//! How a seed's numbers become workers, clients and faults. Pure.

use std::time::Duration;

use super::{Ask, ClientPlan, Fault, FaultKind, GatewayPlan, Kind, WorkerPlan};
use crate::determinism::mix;
use crate::question::{Question, Stop, Surface};

/// Faults begin within this; then the fleet has time to recover.
const FAULTS_UNTIL_MS: u64 = 15_000;
/// What many prompts begin with: several blocks of the cache, and most of the prompt.
const SHARED: &str = "This is how many prompts begin, so that the caches of workers hold their first blocks, and an \
                      answer that continues at another worker finds most of its prompt there, too. It ends with: ";

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

    fn one(&mut self, of: usize) -> usize {
        self.between(0, of as u64 - 1) as usize
    }
}

/// Gives half of the requests over gRPC a time limit.
pub(super) fn grpc_deadlines(dice: &mut Dice, clients: &mut [ClientPlan]) {
    let asks = clients.iter_mut().flat_map(|client| &mut client.asks);
    for ask in asks.filter(|ask| ask.question.surface == Surface::Grpc) {
        let limit = dice.ms(2_000, 12_000);
        if dice.chance(50) {
            ask.deadline = Some(limit);
        }
    }
}

/// Lets the first worker that is killed be away for long.
pub(super) fn long_absence(dice: &mut Dice, faults: &mut [Fault]) {
    let lasts = dice.ms(20_000, 40_000);
    let is_crash = |fault: &&mut Fault| matches!(fault.kind, FaultKind::Crash(_));
    if let Some(fault) = faults.iter_mut().find(is_crash) {
        fault.until += lasts;
    }
}

/// What goes wrong in the run.
pub(super) fn kind(dice: &mut Dice) -> Kind {
    match dice.between(1, 100) {
        // A fleet without faults answers everything: that is worth a look, too.
        1..=15 => Kind::Calm,
        16..=28 => Kind::Restarts,
        29..=45 => Kind::Silence,
        46..=58 => Kind::Alone,
        _ => Kind::Any,
    }
}

pub(super) fn workers(dice: &mut Dice, kind: Kind) -> Vec<WorkerPlan> {
    let workers = match kind {
        Kind::Alone => 1,
        Kind::Restarts => dice.between(1, 2),
        Kind::Silence => dice.between(2, 4),
        Kind::Calm | Kind::Any => dice.between(1, 4),
    };
    let reuses = dice.chance(50);
    (0..workers).map(|_| worker(dice, reuses)).collect()
}

fn worker(dice: &mut Dice, reuses: bool) -> WorkerPlan {
    WorkerPlan {
        step_us: dice.between(1_000, 60_000) as u32,
        // At least the choices of one request.
        max_batch_size: match dice.chance(15) {
            true => dice.between(3, 8) as u32,
            false => dice.between(12, 32) as u32,
        },
        blocks: dice.between(256, 1024) as u32,
        reuses,
        drain: dice.ms(200, 8_000),
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
    if dice.chance(30) {
        plan.request_timeout_s = Some(dice.between(15, 40));
    }
    // Longer than a reader pauses.
    if !holds_clients && dice.chance(if kind == Kind::Calm { 75 } else { 40 }) {
        plan.slow_client_s = dice.between(5, 10);
    }
    plan.needs_key = dice.chance(40);
    plan
}

pub(super) fn client(dice: &mut Dice, kind: Kind) -> ClientPlan {
    let asks = dice.between(3, 10);
    ClientPlan {
        speaks_http2: dice.chance(40),
        begins_at: dice.ms(0, 3_000),
        asks: (0..asks).map(|_| ask(dice, kind)).collect(),
    }
}

fn ask(dice: &mut Dice, kind: Kind) -> Ask {
    let surface = match dice.between(1, 100) {
        1..=40 => Surface::Chat,
        41..=60 => Surface::Completion,
        61..=72 => Surface::Messages,
        73..=88 => Surface::Generate,
        _ => Surface::Grpc,
    };
    let question = question(dice, kind, surface);
    let has_header = surface != Surface::Grpc;
    let leaves = if kind == Kind::Calm { 25 } else { 10 };
    let is_limited = if kind == Kind::Alone { 35 } else { 12 };
    // However slowly it is read, it is read in a minute.
    let slowest = (60_000 / u64::from(question.max_tokens)).min(400);
    Ask {
        after: dice.ms(0, 1_500),
        question,
        leaves_after: dice.chance(leaves).then(|| dice.ms(1, 5_000)),
        reads_every: dice.chance(10).then(|| dice.ms(10, slowest)),
        deadline: (has_header && dice.chance(is_limited)).then(|| dice.ms(200, 8_000)),
        pieces: match dice.chance(15) {
            true => dice.between(2, 4) as u32,
            false => 1,
        },
    }
}

fn question(dice: &mut Dice, kind: Kind, surface: Surface) -> Question {
    let is_streamed = dice.chance(if surface == Surface::Grpc { 50 } else { 70 });
    let prompts = match surface == Surface::Completion && dice.chance(40) {
        true => dice.between(2, 3),
        false => 1,
    };
    // A message of Anthropic's has one, and so has an answer in one piece of `generate`.
    let has_one = prompts > 1
        || surface == Surface::Messages
        || (surface == Surface::Generate && !is_streamed);
    let choices = match !has_one && dice.chance(25) {
        true => dice.between(2, 3) as u32,
        false => 1,
    };
    // What goes wrong should meet answers in their middle.
    let long = if kind == Kind::Any { 8 } else { 30 };
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
        contents: (0..prompts).map(|_| content(dice)).collect(),
        choices,
        max_tokens,
        stop,
    }
}

/// A prompt. No two have the same end: by it a request is found again at a worker.
fn content(dice: &mut Dice) -> String {
    let mut content = match dice.chance(30) {
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

pub(super) fn faults(dice: &mut Dice, kind: Kind, workers: usize, clients: usize) -> Vec<Fault> {
    match kind {
        Kind::Calm => Vec::new(),
        Kind::Restarts => restarts(dice, workers),
        Kind::Silence => silence(dice, workers),
        Kind::Alone => outages(dice),
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
    let kind = match dice.between(0, 2) {
        0 => FaultKind::PowerLoss(worker),
        1 => FaultKind::Partition(worker),
        _ => FaultKind::Hold(worker),
    };
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

/// The only worker is away for some time.
fn outages(dice: &mut Dice) -> Vec<Fault> {
    let mut at = Duration::ZERO;
    let mut next = |dice: &mut Dice| {
        at += dice.ms(7_000, 14_000);
        Fault {
            at,
            until: at + dice.ms(2_500, 7_000),
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
