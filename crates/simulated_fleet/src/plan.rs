//! What a seed decides before anything runs: how many workers and clients there are, what is asked when, and which
//! faults come. Pure.

use std::time::Duration;

use crate::determinism::mix;
use crate::question::Question;

/// Faults begin and end within this; then the fleet has time to recover.
const FAULTS_UNTIL_MS: u64 = 15_000;

/// A fleet is ready within this.
const READY: Duration = Duration::from_secs(5);
/// Of a fault of a worker nothing is left so long after it: a silent connection is given up after 9 s.
const WELL: Duration = Duration::from_secs(15);
/// A request that gets no token from so many workers in a row may fail, however well others are.
const LOSSES: usize = 3;

/// Numbers that a seed decides.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + mix(&mut self.0) % (most - least + 1)
    }

    /// True in so many of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    fn ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }
}

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workers: Vec<WorkerPlan>,
    pub(crate) clients: Vec<ClientPlan>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) gateway: GatewayPlan,
    /// Of every message.
    pub(crate) max_latency: Duration,
    /// Segments that a connection holds before its writer waits.
    pub(crate) socket_segments: usize,
}

/// How the gateway treats answers that lose their worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayPlan {
    pub(crate) max_resumes: u32,
    pub(crate) resume_wait_s: u64,
}

impl GatewayPlan {
    /// As users have it, who change nothing.
    const DEFAULT: Self = Self {
        max_resumes: 16,
        resume_wait_s: 30,
    };

    fn survives(self) -> bool {
        self.max_resumes == Self::DEFAULT.max_resumes
            && self.resume_wait_s == Self::DEFAULT.resume_wait_s
    }
}

/// How a worker is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) step_us: u32,
    pub(crate) max_batch_size: u32,
    pub(crate) blocks: u32,
    pub(crate) reuses: bool,
    pub(crate) drain: Duration,
}

/// What a client does.
#[derive(Clone, Debug)]
pub(crate) struct ClientPlan {
    pub(crate) speaks_http2: bool,
    pub(crate) begins_at: Duration,
    pub(crate) asks: Vec<Ask>,
}

/// One request of a client.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// From the end of the one before.
    pub(crate) after: Duration,
    pub(crate) question: Question,
    /// The client leaves so long after it has asked, whatever it has read.
    pub(crate) leaves_after: Option<Duration>,
    /// The client pauses so long between two reads.
    pub(crate) reads_every: Option<Duration>,
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Duration,
    pub(crate) until: Duration,
    pub(crate) kind: FaultKind,
}

/// What goes wrong; workers and clients by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// A worker's process is killed; its machine closes its connections.
    Crash(usize),
    /// A worker's machine vanishes: nothing says that it has gone.
    PowerLoss(usize),
    /// A worker is asked to end.
    Leave(usize),
    /// What gateway and worker send each other is lost, for connections that are open for good.
    Partition(usize),
    /// What they send each other arrives when the fault is over.
    Hold(usize),
    /// What one client and the gateway send each other arrives when the fault is over.
    HoldClient(usize),
    /// Messages between gateway and worker are slow.
    Slow(usize),
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let workers = dice.between(1, 4);
        let reuses = dice.chance(50);
        let workers: Vec<WorkerPlan> = (0..workers).map(|_| worker(dice, reuses)).collect();
        let clients = dice.between(2, 7);
        let mut clients: Vec<ClientPlan> = (0..clients).map(|_| client(dice)).collect();
        // A fleet without faults answers everything: that is worth a look, too.
        let faults = match dice.chance(15) {
            true => 0,
            false => dice.between(1, 12),
        };
        let faults = (0..faults).map(|_| fault(dice, workers.len(), clients.len()));
        let faults: Vec<Fault> = faults.collect();
        if faults.is_empty() {
            // Before the workers are ready, there is a reason to refuse.
            clients
                .iter_mut()
                .for_each(|client| client.begins_at += READY);
        }
        // Most answers survive, so that other failures in their middle would be rare.
        let gateway = match dice.chance(65) {
            true => GatewayPlan::DEFAULT,
            false => GatewayPlan {
                max_resumes: dice.between(0, 1) as u32,
                resume_wait_s: dice.between(0, 3),
            },
        };
        Self {
            gateway,
            faults,
            workers,
            clients,
            max_latency: dice.ms(1, 40),
            socket_segments: dice.between(8, 64) as usize,
        }
    }

    /// Whether nothing goes wrong.
    pub(crate) fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }

    /// Whether no client's connection is held back.
    pub(crate) fn holds_no_client(&self) -> bool {
        let mut kinds = self.faults.iter().map(|fault| fault.kind);
        !kinds.any(|kind| matches!(kind, FaultKind::HoldClient(_)))
    }

    /// Whether no worker had a fault, nor what is left of one, from `from` until `until`.
    pub(crate) fn all_were_well(&self, from: Duration, until: Duration) -> bool {
        let mut faults = self.faults.iter();
        faults.all(|fault| fault.until + WELL <= from || until < fault.at)
    }

    /// Whether a worker was well from [`READY`] after the start, or [`WELL`] after its last fault, at `from` and until
    /// `until`, and fewer than [`LOSSES`] faults of others showed meanwhile.
    pub(crate) fn had_worker(&self, from: Duration, until: Duration) -> bool {
        let of_workers = self
            .faults
            .iter()
            .filter(|fault| !matches!(fault.kind, FaultKind::HoldClient(_)));
        let showed = of_workers.filter(|fault| fault.at <= until && from < fault.until + WELL);
        if showed.count() >= LOSSES {
            return false;
        }
        let is_well = |worker: usize| {
            let own = self
                .faults
                .iter()
                .filter(|fault| fault.kind.concerns(worker));
            let mut others = own.map(|fault| (fault.at, fault.until + WELL));
            others.all(|(began, over)| over <= from || until < began)
        };
        from >= READY && self.gateway.survives() && (0..self.workers.len()).any(is_well)
    }
}

impl FaultKind {
    /// Whether it may show at this worker.
    fn concerns(self, worker: usize) -> bool {
        match self {
            Self::HoldClient(_) => false,
            Self::Crash(one)
            | Self::PowerLoss(one)
            | Self::Leave(one)
            | Self::Partition(one)
            | Self::Hold(one)
            | Self::Slow(one) => one == worker,
        }
    }
}

fn worker(dice: &mut Dice, reuses: bool) -> WorkerPlan {
    WorkerPlan {
        step_us: dice.between(1_000, 60_000) as u32,
        max_batch_size: dice.between(8, 32) as u32,
        blocks: dice.between(256, 1024) as u32,
        reuses,
        drain: dice.ms(200, 8_000),
    }
}

fn client(dice: &mut Dice) -> ClientPlan {
    let asks = dice.between(3, 12);
    ClientPlan {
        speaks_http2: dice.chance(30),
        begins_at: dice.ms(0, 3_000),
        asks: (0..asks).map(|_| ask(dice)).collect(),
    }
}

fn ask(dice: &mut Dice) -> Ask {
    // No two requests have the same: by it a request is found again at a worker.
    let letters = dice.between(12, 60);
    let letter = |dice: &mut Dice| char::from(b'a' + dice.between(0, 25) as u8);
    let question = Question {
        is_chat: dice.chance(60),
        is_streamed: dice.chance(70),
        content: (0..letters).map(|_| letter(dice)).collect(),
        choices: if dice.chance(20) {
            dice.between(2, 3) as u32
        } else {
            1
        },
        max_tokens: match dice.chance(20) {
            true => dice.between(1, 3) as u32,
            false => dice.between(4, 150) as u32,
        },
    };
    Ask {
        after: dice.ms(0, 1_500),
        question,
        leaves_after: dice.chance(12).then(|| dice.ms(1, 5_000)),
        reads_every: dice.chance(10).then(|| dice.ms(10, 400)),
    }
}

fn fault(dice: &mut Dice, workers: usize, clients: usize) -> Fault {
    let one = |dice: &mut Dice, of: usize| dice.between(0, of as u64 - 1) as usize;
    let worker = one(dice, workers);
    let kind = match dice.between(0, 9) {
        0..=2 => FaultKind::Crash(worker),
        3 => FaultKind::PowerLoss(worker),
        4..=5 => FaultKind::Leave(worker),
        6 => FaultKind::Partition(worker),
        7 => FaultKind::Hold(worker),
        8 => FaultKind::HoldClient(one(dice, clients)),
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
