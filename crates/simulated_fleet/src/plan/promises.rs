//! What a plan promises for a time or a worker: whose answer must be whole, and when a worker must be ready. Pure.

use std::time::Duration;

use super::{Ask, Fault, FaultKind, GatewayPlan, Kind, Plan, WorkerPlan};

/// A fleet is ready within this.
pub(super) const READY: Duration = Duration::from_secs(5);
/// Of a fault of a worker nothing is left so long after it: a silent connection is given up after 9 s.
const WELL: Duration = Duration::from_secs(15);
/// Where one of a worker's connections lost messages and another one still says that it is well, the first is given up so
/// late: HTTP/2's own probes come every 10 s, and have 10 s.
const PROBED: Duration = Duration::from_secs(25);
/// So long after a fault of a worker, it works for nobody whose connection was lost: the longest answer takes as long.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// A worker that started again after it was seen to end is ready after this: gateways look for it every 2 s.
const BACK: Duration = Duration::from_secs(4);
/// A worker whose connections were given up is ready so long after it can be reached: an attempt to connect waits 5 s, and
/// the next one begins 2 s later.
const REACHED: Duration = Duration::from_secs(9);
/// A worker that is silent is known to be: gateways wait 1.5 s.
const SILENT: Duration = Duration::from_millis(2_500);
/// A request that gets no token from so many workers in a row may fail, however well others are.
const LOSSES: usize = 3;
/// A look at a worker is over so long after it began.
const LOOKED: Duration = Duration::from_millis(500);
/// That a worker leaves is known so long after it was asked to.
const NOTICED: Duration = Duration::from_millis(250);
/// A worker's end is known so long after it.
const KNOWN: Duration = Duration::from_millis(500);

impl GatewayPlan {
    fn survives(self) -> bool {
        self.max_resumes == Self::DEFAULT.max_resumes
            && self.resume_wait_s == Self::DEFAULT.resume_wait_s
    }
}

impl Plan {
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

    /// What goes wrong, as far as it is known.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Fault> {
        let sprung = self.sprung.borrow().clone();
        self.faults.iter().copied().chain(sprung)
    }

    /// Whether no client's connection is held back.
    pub(crate) fn holds_no_client(&self) -> bool {
        self.faults().all(|fault| fault.kind.worker().is_some())
    }

    /// Whether no worker had a fault from `from` until `until`, nor works for what was lost in one.
    pub(crate) fn all_were_well(&self, from: Duration, until: Duration) -> bool {
        let mut faults = self.faults();
        faults.all(|fault| fault.until + FORGOTTEN <= from || until < fault.at)
    }

    /// Whether no other fault of this worker than the one that began at `from` is there until `until`, nor what is left
    /// of one: on a connection that lost messages, no reset arrives.
    pub(crate) fn is_undisturbed(&self, worker: usize, from: Duration, until: Duration) -> bool {
        let is_gone = |fault: &Fault| fault.until + WELL <= from || fault.at > until;
        let mut faults = self.faults_of(worker);
        faults.all(|fault| is_gone(&fault) || matches!(fault.kind, FaultKind::Cut(_)))
    }

    /// How often connections of this worker lost messages. One that it was writing to then never ends there: in the simulated
    /// network nothing ends a write that waits, as a machine's TCP does, nor arrives what resets it.
    pub(crate) fn partitions(&self, worker: usize) -> usize {
        let lost = |fault: &Fault| matches!(fault.kind, FaultKind::Partition(_));
        self.faults_of(worker).filter(lost).count()
    }

    /// How long a request that has begun may wait for a place, where a worker refuses some of its prompts: the gateway
    /// offers them again until then.
    pub(crate) fn longest_refusal(&self) -> Duration {
        let mut workers = self.workers.iter();
        match workers.any(|worker| worker.max_queued_requests < WorkerPlan::MANY_QUEUED) {
            true => Duration::from_secs(self.gateway.resume_wait_s),
            false => Duration::ZERO,
        }
    }

    /// Whether a worker's connections lost messages for too short a time to make it silent. One that carries nothing but a
    /// stream of KServe's is then given up by HTTP/2's own probes alone; a machine's TCP would send again what was lost.
    pub(crate) fn loses_unnoticed(&self, from: Duration, until: Duration) -> bool {
        self.faults().any(|fault| {
            matches!(fault.kind, FaultKind::Partition(_))
                && fault.until - fault.at < SILENT
                && (fault.at <= until && from < fault.until + PROBED)
        })
    }

    /// Whether this worker had no fault then, nor what is left of one.
    pub(crate) fn was_well(&self, worker: usize, then: Duration) -> bool {
        let own = self.faults_of(worker);
        let mut own = own.filter(|fault| fault.at <= then);
        then >= READY && own.all(|fault| fault.until + fault.kind.gone_after() <= then)
    }

    fn faults_of(&self, worker: usize) -> impl Iterator<Item = Fault> {
        let faults = self.faults();
        faults.filter(move |fault| fault.kind.worker() == Some(worker))
    }

    /// Whether a worker was well from [`READY`] after the start, or [`WELL`] after its last fault, at `from` and until
    /// `until`, and fewer than [`LOSSES`] faults of others showed meanwhile.
    pub(crate) fn had_worker(&self, from: Duration, until: Duration) -> bool {
        let of_workers = self.faults();
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
                let faults = self.faults();
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

    /// Whether workers only leave, and none does near these times: to a worker that is known to leave, no request goes.
    pub(crate) fn is_served(&self, from: Duration, until: Duration) -> bool {
        let mut faults = self.faults();
        self.kind == Kind::Departures
            && from >= READY
            && faults.all(|fault| fault.at + NOTICED <= from || until < fault.at)
    }

    /// Whether a request that cannot leave a silent worker leaves it once its connection is given up, and is soon generated
    /// again.
    pub(crate) fn gives_up(&self) -> bool {
        self.kind == Kind::LongSilence
    }

    /// Whether no request has to wait for its turn.
    pub(crate) fn is_roomy(&self) -> bool {
        matches!(self.kind, Kind::Twice | Kind::Apart)
    }

    /// When which worker must be ready, or must not be: it is away, or was, and none of its other faults is near.
    pub(crate) fn looks(&self) -> Vec<(Duration, usize, bool)> {
        let of_workers = self.faults();
        let of_workers = of_workers.filter_map(|fault| Some((fault, fault.kind.worker()?)));
        let looks = of_workers.flat_map(|(fault, worker)| {
            let others = || self.faults_of(worker).filter(|other| *other != fault);
            let is_long = self.kind == Kind::LongSilence;
            let back = fault.until
                + match is_long {
                    true => REACHED,
                    false => fault.kind.back_after(),
                };
            let is_back = others().all(|other| {
                back + LOOKED < other.at || other.until + other.kind.back_after() <= fault.at
            });
            let away = fault.kind.missed_after().map(|after| fault.at + after);
            let away = away.filter(|away| {
                let mut others = others();
                READY <= fault.at
                    && *away < fault.until
                    // A connection that lost messages does not say that its worker has ended.
                    && others.all(|other| {
                        *away + LOOKED < other.at
                            || other.until + other.kind.back_after() <= fault.at
                    })
            });
            // To the end.
            let still = away.and(fault.until.checked_sub(LOOKED * 2));
            let still = still.filter(|_| is_long).map(|at| (at, worker, false));
            let away = away.map(|away| (away, worker, false));
            let back = Some((back, worker, true)).filter(|_| is_back);
            [away, still, back].into_iter().flatten()
        });
        let mut looks: Vec<_> = looks.collect();
        looks.sort_unstable();
        looks
    }
}

impl FaultKind {
    /// The same at another worker.
    pub(crate) fn at_worker(self, worker: usize) -> Self {
        match self {
            Self::Crash(_) => Self::Crash(worker),
            Self::PowerLoss(_) => Self::PowerLoss(worker),
            Self::Leave(_) => Self::Leave(worker),
            Self::Partition(_) => Self::Partition(worker),
            Self::Hold(_) => Self::Hold(worker),
            Self::Cut(_) => Self::Cut(worker),
            Self::Slow(_) => Self::Slow(worker),
            Self::HoldClient(_) => self,
        }
    }

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
            _ => self.gone_after(),
        }
    }

    /// How long after its end nothing is left of it.
    fn gone_after(self) -> Duration {
        match self {
            Self::Partition(_) => PROBED,
            _ => WELL,
        }
    }
}
