//! What a seed decides before anything runs: how many workers and clients there are, what is asked when, and which
//! faults come. What follows from it for a time or a worker is in `promises`. Pure.

mod ambush;
mod asks;
mod draw;
mod faults;
mod promises;

use std::cell::RefCell;
use std::time::Duration;

use inflight_kserve::assets::Phases;

pub(crate) use self::ambush::{Ambush, Event, STEPS};
use self::draw::Dice;
use self::promises::READY;
use crate::question::Question;

/// Each seed of so many has two gateways, and a worker that is away for long.
const WIDE: u64 = 7;
/// The seeds from this one on have all their clients at one host and longer ticks: what a seed costs is hosts, links and
/// ticks. Those before keep the histories that they had.
const GATHERED_FROM: u64 = 10_000_000;
/// Hosts run for so long, one after another; messages arrive in between.
const TICK: Duration = Duration::from_millis(2);
const TICK_OF_GATHERED: Duration = Duration::from_millis(5);

/// A run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) workers: Vec<WorkerPlan>,
    pub(crate) clients: Vec<ClientPlan>,
    /// Whether they are all at one host, also with who looks at the fleet unless clients are held back.
    pub(crate) is_gathered: bool,
    pub(crate) tick: Duration,
    pub(crate) faults: Vec<Fault>,
    /// What happens to the workers that get a request.
    pub(crate) ambush: Option<Ambush>,
    /// The faults that this has become.
    pub(crate) sprung: RefCell<Vec<Fault>>,
    /// Requests to workers without a gateway between, when each is sent.
    pub(crate) visits: Vec<(usize, Ask)>,
    pub(crate) gateway: GatewayPlan,
    /// How many of it there are, each for some of the clients.
    pub(crate) gateways: usize,
    /// Of every message.
    pub(crate) max_latency: Duration,
    /// Segments that a connection holds before its writer waits, and connections that a port holds before it accepts them.
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
    /// One of several workers is silent for longer than any connection may be, and many requests cannot leave it before.
    LongSilence,
    /// The only worker is away now and then, for some seconds.
    Alone,
    /// A worker that gets a request is silent or ends, and so is the next one that gets it.
    Twice,
    /// Workers for prompts and workers for what follows: one of the two that have a request is silent or ends, at any step
    /// from the one to the other.
    Apart,
    /// Links of workers stall for moments, again and again, while requests have little time.
    Stalls,
    /// All workers but one are asked to end at about the same time.
    Departures,
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
    /// Whether each prompt goes to a worker for prompts.
    pub(crate) splits: bool,
}

impl GatewayPlan {
    /// As users have it, who change nothing.
    const DEFAULT: Self = Self {
        max_resumes: 16,
        resume_wait_s: 30,
        slow_client_s: 60,
        request_timeout_s: None,
        needs_key: false,
        splits: false,
    };
}

/// How a worker is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) phases: Phases,
    pub(crate) step_us: u32,
    pub(crate) max_batch_size: u32,
    pub(crate) blocks: u32,
    pub(crate) reuses: bool,
    /// Of a token of a prompt.
    pub(crate) prefill_us: u32,
    /// Tokens of an iteration.
    pub(crate) max_num_tokens: u32,
    /// Requests that may wait for a place.
    pub(crate) max_queued_requests: usize,
    pub(crate) drain: Duration,
}

impl WorkerPlan {
    /// Requests that may wait at a worker which refuses nobody.
    pub(crate) const MANY_QUEUED: usize = 4096;
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
    /// Bytes of an answer that it lets come before it has read them, over HTTP/2.
    pub(crate) window: Option<u32>,
    /// How long the answer may take, for its client.
    pub(crate) deadline: Option<Duration>,
    /// Whether KServe's parameter says so, and not a header.
    pub(crate) has_timeout: bool,
    /// In how many pieces its body is sent.
    pub(crate) pieces: u32,
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let kind = draw::kind(seed);
        let is_crowded = draw::is_crowded(dice, kind);
        let workers = draw::workers(dice, kind, is_crowded);
        let clients = draw::clients(dice, kind, is_crowded);
        let mut clients: Vec<ClientPlan> = (0..clients).map(|_| asks::client(dice, kind)).collect();
        let mut faults = faults::faults(dice, kind, workers.len(), clients.len());
        if kind == Kind::Calm {
            // Before the workers are ready, there is a reason to refuse.
            clients
                .iter_mut()
                .for_each(|client| client.begins_at += READY);
        }
        let visits = asks::visits(dice, kind, &workers, &faults);
        let holds_clients = faults.iter().any(|fault| fault.kind.worker().is_none());
        let is_wide = seed % WIDE == WIDE - 1;
        let is_gathered = seed >= GATHERED_FROM;
        if is_wide {
            let dice = &mut Dice::new(!seed);
            if kind == Kind::Any {
                faults::long_absence(dice, &mut faults);
            }
        }
        Self {
            kind,
            gateway: draw::gateway(dice, kind, holds_clients),
            gateways: if is_wide { 2 } else { 1 },
            faults,
            ambush: match kind {
                Kind::Twice => Some(ambush::of_one_worker_and_the_next(dice)),
                Kind::Apart => Some(ambush::of_a_hand_over(dice)),
                _ => None,
            },
            sprung: RefCell::default(),
            visits,
            workers,
            clients,
            is_gathered,
            tick: if is_gathered { TICK_OF_GATHERED } else { TICK },
            max_latency: dice.ms(1, 40),
            socket_segments: draw::socket_segments(dice, kind).max(match is_gathered {
                true => draw::held_connections(kind),
                false => 0,
            }),
        }
    }
}
