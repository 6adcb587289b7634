//! How what goes wrong begins and ends in the simulated network and at its hosts.

use std::net::IpAddr;
use std::time::Duration;

use turmoil::Sim;

use crate::client::GATEWAY;
use crate::history::note;
use crate::plan::{Fault, FaultKind};
use crate::shared::{Shared, TICK};

/// How long a message takes at most on a slow link: most take some tenths of it.
const SLOW: Duration = Duration::from_secs(2);
/// How often connections are reset that come again.
const CUT_EVERY: Duration = Duration::from_millis(400);

impl FaultKind {
    /// Whom it concerns: a worker or a client.
    pub(crate) fn target(self) -> (bool, usize) {
        match self {
            Self::HoldClient(client) => (false, client),
            Self::Crash(worker)
            | Self::PowerLoss(worker)
            | Self::Leave(worker)
            | Self::Partition(worker)
            | Self::Hold(worker)
            | Self::Cut(worker)
            | Self::Slow(worker) => (true, worker),
        }
    }
}

fn link(sim: &Sim<'_>, shared: &Shared, kind: FaultKind) -> (IpAddr, IpAddr) {
    let (is_worker, place) = kind.target();
    let name = match is_worker {
        true => shared.workers[place].name.clone(),
        false => format!("client-{place}"),
    };
    (sim.lookup(GATEWAY.0), sim.lookup(name))
}

pub(crate) fn begin_fault(sim: &mut Sim<'_>, shared: &Shared, kind: FaultKind) {
    let (gateway, other) = link(sim, shared, kind);
    match kind {
        FaultKind::Crash(_) => sim.crash(other),
        FaultKind::PowerLoss(_) => {
            // What it still had on the way, and the end of its connections, reach nobody.
            sim.partition(gateway, other);
            sim.crash(other);
        }
        FaultKind::Leave(place) => shared.workers[place].leave.notify_one(),
        FaultKind::Partition(_) => sim.partition(gateway, other),
        FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.hold(gateway, other),
        FaultKind::Cut(place) => shared.workers[place].cuts.cut(),
        FaultKind::Slow(_) => sim.set_link_max_message_latency(gateway, other, SLOW),
    }
}

/// Does again what a fault that lasts does now and then.
pub(crate) fn repeat_fault(shared: &Shared, fault: Fault, now: Duration) {
    if let FaultKind::Cut(place) = fault.kind {
        let since = now.saturating_sub(fault.at).as_millis();
        if since % CUT_EVERY.as_millis() < TICK.as_millis() {
            shared.workers[place].cuts.cut();
        }
    }
}

pub(crate) fn end_fault(sim: &mut Sim<'_>, shared: &Shared, fault: Fault) {
    note("fault", "ends", format!("{:?}", fault.kind).as_bytes());
    let (gateway, other) = link(sim, shared, fault.kind);
    match fault.kind {
        FaultKind::PowerLoss(_) => {
            sim.repair(gateway, other);
            sim.bounce(other);
        }
        // One that has not ended by then is killed, as a supervisor does.
        FaultKind::Crash(_) | FaultKind::Leave(_) => sim.bounce(other),
        FaultKind::Partition(_) => sim.repair(gateway, other),
        FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.release(gateway, other),
        FaultKind::Cut(_) => {}
        FaultKind::Slow(_) => {
            sim.set_link_max_message_latency(gateway, other, shared.plan.max_latency);
        }
    }
}
