//! What a seed decides before anything runs: how many workers and clients there are, what is asked when, and which
//! faults come; and what follows from it for a time or a worker. Pure.

mod draw;

use std::time::Duration;

use self::draw::Dice;
use crate::question::Question;

/// A fleet is ready within this.
const READY: Duration = Duration::from_secs(5);
/// Of a fault of a worker nothing is left so long after it: a silent connection is given up after 9 s.
pub(crate) const WELL: Duration = Duration::from_secs(15);
/// So long after a fault of a worker, it works for nobody whose connection was lost: the longest answer takes as long.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// A worker that started again after it was seen to end is ready after this: gateways look for it every 2 s.
const BACK: Duration = Duration::from_secs(4);
/// A worker that is silent is known to be: gateways wait 1.5 s.
const SILENT: Duration = Duration::from_millis(2_500);
/// A request that gets no token from so many workers in a row may fail, however well others are.
const LOSSES: usize = 3;
/// A worker's end is known so long after it.
const KNOWN: Duration = Duration::from_millis(500);

/// Each seed of so many has two gateways, time limits of requests over gRPC, and a worker that is away for long. By their
/// number, so that the other seeds keep the histories that they had before there were such.
const WIDE: u64 = 7;

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) workers: Vec<WorkerPlan>,
    pub(crate) clients: Vec<ClientPlan>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) gateway: GatewayPlan,
    /// How many of it there are, each for some of the clients.
    pub(crate) gateways: usize,
    /// Of every message.
    pub(crate) max_latency: Duration,
    /// Segments that a connection holds before its writer waits.
    pub(crate) socket_segments: usize,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    Calm,
    /// Workers are killed one after another, and each is soon back.
    Restarts,
    /// One of several workers is silent for some seconds.
    Silence,
    /// The only worker is away now and then, for some seconds.
    Alone,
    Any,
}

/// The gateway's options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayPlan {
    pub(crate) max_resumes: u32,
    pub(crate) resume_wait_s: u64,
    pub(crate) slow_client_s: u64,
    pub(crate) request_timeout_s: Option<u64>,
    pub(crate) needs_key: bool,
}

impl GatewayPlan {
    /// As users have it, who change nothing.
    const DEFAULT: Self = Self {
        max_resumes: 16,
        resume_wait_s: 30,
        slow_client_s: 60,
        request_timeout_s: None,
        needs_key: false,
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
    /// What the client's header allows.
    pub(crate) deadline: Option<Duration>,
    /// In how many pieces its body is sent.
    pub(crate) pieces: u32,
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
    /// Connections between gateway and worker are reset, again and again.
    Cut(usize),
    /// Messages between gateway and worker are slow.
    Slow(usize),
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let dice = &mut Dice::new(seed);
        let kind = draw::kind(dice);
        let workers = draw::workers(dice, kind);
        let clients = dice.between(2, 7);
        let mut clients: Vec<ClientPlan> = (0..clients).map(|_| draw::client(dice, kind)).collect();
        let mut faults = draw::faults(dice, kind, workers.len(), clients.len());
        if kind == Kind::Calm {
            // Before the workers are ready, there is a reason to refuse.
            clients
                .iter_mut()
                .for_each(|client| client.begins_at += READY);
        }
        let holds_clients = faults.iter().any(|fault| fault.kind.worker().is_none());
        let is_wide = seed % WIDE == WIDE - 1;
        if is_wide {
            let dice = &mut Dice::new(!seed);
            draw::grpc_deadlines(dice, &mut clients);
            if kind == Kind::Any {
                draw::long_absence(dice, &mut faults);
            }
        }
        Self {
            kind,
            gateway: draw::gateway(dice, kind, holds_clients),
            gateways: if is_wide { 2 } else { 1 },
            faults,
            workers,
            clients,
            max_latency: dice.ms(1, 40),
            socket_segments: dice.between(8, 64) as usize,
        }
    }

    /// When a request must have been answered: the earlier one of the client's and the operator's limits.
    pub(crate) fn deadline(&self, ask: &Ask) -> Option<Duration> {
        let operator = self.gateway.request_timeout_s.map(Duration::from_secs);
        match (ask.deadline, operator) {
            (Some(own), Some(operator)) => Some(own.min(operator)),
            (one, other) => one.or(other),
        }
    }

    /// The gateway of a client.
    pub(crate) fn gateway_of(&self, client: usize) -> usize {
        client % self.gateways
    }

    /// Whether no client's connection is held back.
    pub(crate) fn holds_no_client(&self) -> bool {
        self.faults
            .iter()
            .all(|fault| fault.kind.worker().is_some())
    }

    /// Whether no worker had a fault from `from` until `until`, nor works for what was lost in one.
    pub(crate) fn all_were_well(&self, from: Duration, until: Duration) -> bool {
        let mut faults = self.faults.iter();
        faults.all(|fault| fault.until + FORGOTTEN <= from || until < fault.at)
    }

    /// Whether no other fault of this worker is there from `from` until `until`.
    pub(crate) fn is_undisturbed(&self, worker: usize, from: Duration, until: Duration) -> bool {
        let mut later = self.faults_of(worker).filter(|fault| fault.at > from);
        later.all(|fault| fault.at > until)
    }

    /// Whether this worker had no fault then, nor what is left of one.
    pub(crate) fn was_well(&self, worker: usize, then: Duration) -> bool {
        let own = self.faults_of(worker);
        let mut own = own.filter(|fault| fault.at <= then);
        then >= READY && own.all(|fault| fault.until + WELL <= then)
    }

    fn faults_of(&self, worker: usize) -> impl Iterator<Item = &Fault> {
        let faults = self.faults.iter();
        faults.filter(move |fault| fault.kind.worker() == Some(worker))
    }

    /// Whether a worker was well from [`READY`] after the start, or [`WELL`] after its last fault, at `from` and until
    /// `until`, and fewer than [`LOSSES`] faults of others showed meanwhile.
    pub(crate) fn had_worker(&self, from: Duration, until: Duration) -> bool {
        let of_workers = self.faults.iter();
        let of_workers = of_workers.filter(|fault| fault.kind.worker().is_some());
        let showed = of_workers.filter(|fault| fault.at <= until && from < fault.until + WELL);
        if showed.count() >= LOSSES {
            return false;
        }
        let is_well = |worker: usize| {
            let mut others = self
                .faults_of(worker)
                .map(|fault| (fault.at, fault.until + WELL));
            others.all(|(began, over)| over <= from || until < began)
        };
        from >= READY && self.gateway.survives() && (0..self.workers.len()).any(is_well)
    }

    /// Whether an answer of which something was read at these times, from its request to its end, survives its workers:
    /// they only end and start again, and fewer than [`LOSSES`] ended from one time to the next.
    pub(crate) fn restarts_are_survived(&self, times: &[Duration]) -> bool {
        let ends = |pair: &[Duration]| match pair {
            [from, until] => {
                let faults = self.faults.iter();
                let meanwhile =
                    faults.filter(|fault| *from < fault.at + KNOWN && fault.at <= *until);
                meanwhile.count()
            }
            _ => 0,
        };
        let is_ready = times.first().is_some_and(|first| *first >= READY);
        let mut gaps = times.windows(2);
        self.kind == Kind::Restarts
            && self.gateway.survives()
            && is_ready
            && gaps.all(|pair| ends(pair) < LOSSES)
    }

    /// When which worker must be ready, or must not be: it is away, or was, and none of its other faults is near.
    pub(crate) fn looks(&self) -> Vec<(Duration, usize, bool)> {
        let of_workers = self.faults.iter();
        let of_workers = of_workers.filter_map(|fault| Some((fault, fault.kind.worker()?)));
        let looks = of_workers.flat_map(|(fault, worker)| {
            let others = || {
                self.faults_of(worker)
                    .filter(|other| !std::ptr::eq(*other, fault))
            };
            let back = fault.until + fault.kind.back_after();
            let is_back = others()
                .all(|other| back < other.at || other.until + other.kind.back_after() <= fault.at);
            let away = fault.kind.missed_after().map(|after| fault.at + after);
            let away = away.filter(|away| {
                let mut others = others();
                READY <= fault.at
                    && *away < fault.until
                    && others.all(|other| *away < other.at || other.until <= fault.at)
            });
            let away = away.map(|away| (away, worker, false));
            let back = Some((back, worker, true)).filter(|_| is_back);
            [away, back].into_iter().flatten()
        });
        let mut looks: Vec<_> = looks.collect();
        looks.sort_unstable();
        looks
    }
}

impl FaultKind {
    /// The worker at which it may show.
    pub(crate) fn worker(self) -> Option<usize> {
        match self {
            Self::HoldClient(_) => None,
            Self::Crash(one)
            | Self::PowerLoss(one)
            | Self::Leave(one)
            | Self::Partition(one)
            | Self::Hold(one)
            | Self::Cut(one)
            | Self::Slow(one) => Some(one),
        }
    }

    /// How long after its beginning its worker is no longer ready.
    fn missed_after(self) -> Option<Duration> {
        match self {
            Self::Crash(_) => Some(Duration::from_secs(1)),
            Self::PowerLoss(_) | Self::Partition(_) | Self::Hold(_) => Some(SILENT),
            _ => None,
        }
    }

    /// How long after its end its worker is ready at the latest.
    fn back_after(self) -> Duration {
        match self {
            Self::Crash(_) | Self::Leave(_) | Self::Cut(_) => BACK,
            _ => WELL,
        }
    }
}
