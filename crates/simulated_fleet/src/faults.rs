//! How what goes wrong begins and ends in the simulated network and at its hosts.

use std::net::IpAddr;
use std::time::Duration;

use turmoil::Sim;

use crate::client::{CLIENTS, client_host, gateway_host};
use crate::history::note;
use crate::plan::{Fault, FaultKind};
use crate::shared::Shared;

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

/// Whom it concerns, and the gateways that it is connected to.
fn links(sim: &Sim<'_>, shared: &Shared, kind: FaultKind) -> (IpAddr, Vec<IpAddr>) {
    let (is_worker, place) = kind.target();
    let all = 0..shared.plan.gateways;
    let (name, gateways) = match is_worker {
        true => (shared.workers[place].name.clone(), all),
        false => {
            let own = shared.plan.gateway_of(place);
            let host = match shared.plan.is_gathered {
                true => CLIENTS.to_owned(),
                false => client_host(place),
            };
            (host, own..own + 1)
        }
    };
    let gateways = gateways.map(|gateway| sim.lookup(gateway_host(gateway)));
    (sim.lookup(name), gateways.collect())
}

pub(crate) fn begin_fault(sim: &mut Sim<'_>, shared: &Shared, kind: FaultKind) {
    let (other, gateways) = links(sim, shared, kind);
    for gateway in gateways {
        match kind {
            // What it still had on the way, and the end of its connections, reach nobody.
            FaultKind::PowerLoss(_) | FaultKind::Partition(_) => sim.partition(gateway, other),
            FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.hold(gateway, other),
            FaultKind::Slow(_) => sim.set_link_max_message_latency(gateway, other, SLOW),
            FaultKind::Crash(_) | FaultKind::Leave(_) | FaultKind::Cut(_) => {}
        }
    }
    match kind {
        FaultKind::Crash(place) | FaultKind::PowerLoss(place) => {
            sim.crash(other);
            shared.workers[place].end_process();
        }
        FaultKind::Leave(place) => shared.workers[place].leave.notify_one(),
        FaultKind::Cut(place) => shared.workers[place].cuts.cut(),
        _ => {}
    }
}

/// Does again what a fault that lasts does now and then.
pub(crate) fn repeat_fault(shared: &Shared, fault: Fault, now: Duration) {
    if let FaultKind::Cut(place) = fault.kind {
        let since = now.saturating_sub(fault.at).as_millis();
        if since % CUT_EVERY.as_millis() < shared.plan.tick.as_millis() {
            shared.workers[place].cuts.cut();
        }
    }
}

pub(crate) fn end_fault(sim: &mut Sim<'_>, shared: &Shared, fault: Fault) {
    note("fault", "ends", format!("{:?}", fault.kind).as_bytes());
    let (other, gateways) = links(sim, shared, fault.kind);
    for gateway in gateways {
        match fault.kind {
            FaultKind::PowerLoss(_) | FaultKind::Partition(_) => sim.repair(gateway, other),
            FaultKind::Hold(_) | FaultKind::HoldClient(_) => sim.release(gateway, other),
            FaultKind::Slow(_) => {
                sim.set_link_max_message_latency(gateway, other, shared.plan.max_latency);
            }
            FaultKind::Crash(_) | FaultKind::Leave(_) | FaultKind::Cut(_) => {}
        }
    }
    // A worker that has not ended by then is killed, as a supervisor does.
    if let FaultKind::PowerLoss(_) | FaultKind::Crash(_) | FaultKind::Leave(_) = fault.kind {
        sim.bounce(other);
    }
}
