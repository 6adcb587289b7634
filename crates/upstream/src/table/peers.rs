//! Which servers a call of KServe's is for. Owns what names a model goes by there; which of them gets the call is
//! [`Criteria`]'s.

use std::sync::Arc;

use super::Table;
use super::choice::{Criteria, MakeQuery, Server, Servers, leave_contexts};
use crate::connection::Connection;
use crate::placement::Placed;
use crate::pool::Pool;
use crate::slot::WorkerSlot;
use crate::visit::Visit;

/// Why no server takes a call of KServe's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// Some server has never said what it serves: the name may yet appear.
    NotYet,
    /// No server has the model.
    Unknown,
    /// Several models go by the name; these are names of one each.
    Ambiguous(Vec<String>),
    /// All that have it are away, or have been tried.
    NoneReady,
}

/// A server that was picked for a call, and the name that the model has there.
#[derive(Clone, Debug)]
pub struct Picked {
    pub slot: Arc<WorkerSlot>,
    pub pool: Arc<Pool>,
    pub model: String,
}

impl Table {
    /// Picks the server of a call for this model, as `Criteria` says; none that does not fit. `OWN:MODEL` is the model at
    /// workers whose own model is called `OWN`, and at others the model of that name. Needs an empty version, or one that
    /// there is.
    ///
    /// # Errors
    /// [`NoPeer`].
    pub fn pick_peer(
        &self,
        name: &str,
        version: &str,
        fits: impl Fn(&Picked) -> bool,
        asks: Option<MakeQuery<'_>>,
    ) -> Result<(Picked, Option<Placed>), NoPeer> {
        let ready = self.ready_peers(name, version, fits)?;
        self.criteria(asks).pick(ready).ok_or(NoPeer::NoneReady)
    }

    /// As [`Table::pick_peer`], for a call that another program sends, with at most so many `others` that would be next.
    ///
    /// # Errors
    /// [`NoPeer`].
    pub fn pick_visited_peer(
        &self,
        (name, version): (&str, &str),
        fits: impl Fn(&Picked) -> bool,
        asks: Option<MakeQuery<'_>>,
        others: usize,
    ) -> Result<Visit, NoPeer> {
        let ready = self.ready_peers(name, version, fits)?;
        let ranked = self.criteria(asks).rank(ready, others);
        Ok(ranked.ok_or(NoPeer::NoneReady)?.visited())
    }

    fn ready_peers(
        &self,
        name: &str,
        version: &str,
        fits: impl Fn(&Picked) -> bool,
    ) -> Result<Servers<Picked>, NoPeer> {
        let mut ready = self.peers(name, version)?;
        ready.retain(|picked| picked.slot.takes_calls() && fits(picked));
        Ok(ready)
    }

    pub(super) fn criteria<'a>(&'a self, asks: Option<MakeQuery<'a>>) -> Criteria<'a> {
        Criteria {
            asks,
            hashes_always: false,
            spares_contexts: self.has_contexts(),
            turns: &self.turns,
        }
    }

    /// Whether any model has workers for contexts.
    pub(super) fn has_contexts(&self) -> bool {
        self.models.load().values().any(|entry| entry.has_contexts)
    }

    /// A worker with this model, if it matters what the prompt of a call is: workers report what they hold, and there is a
    /// choice.
    pub fn placing(&self, name: &str, version: &str) -> Option<Arc<Connection>> {
        // First what costs nothing: most fleets report nothing, or have one worker.
        let workers = self.workers.load();
        let reports = |slot: &Arc<WorkerSlot>| {
            let connections = slot.connections();
            let mut seats = connections.iter().filter_map(|one| one.seat());
            seats.any(|seat| seat.placement().block_tokens().is_some())
        };
        if workers.len() < 2 || !workers.iter().any(reports) {
            return None;
        }
        let mut ready = self.peers(name, version).ok()?;
        ready.retain(|picked| picked.slot.takes_calls());
        if self.has_contexts() {
            leave_contexts(&mut ready);
        }
        let connection = match ready.as_slice() {
            [one, _, ..] => one.generates()?,
            _ => return None,
        };
        connection.seat()?.placement().block_tokens()?;
        Some(connection)
    }

    /// Whether servers of the model end requests whose parameter `timeout` says that there is no time left.
    pub fn ends_late_requests(&self, name: &str, version: &str) -> bool {
        let peers = self.peers(name, version).unwrap_or_default();
        let mut served = peers.iter().filter_map(|picked| picked.slot.peer.served());
        // At a plain Triton no model has such a name.
        served.any(|served| served.of.is_some())
    }

    /// Every configured server that has the model, ready or not.
    fn peers(&self, name: &str, version: &str) -> Result<Servers<Picked>, NoPeer> {
        let mut owners: Vec<Option<String>> = Vec::new();
        let mut is_heard = false;
        let mut is_complete = true;
        let mut found = Servers::new();
        let workers = self.workers.load();
        let configured = workers.iter().filter(|slot| !slot.is_retired());
        for slot in configured {
            if slot.is_watched() {
                // It does not speak KServe.
                is_heard = true;
                continue;
            }
            let Some(served) = slot.peer.served() else {
                is_complete = false;
                continue;
            };
            is_heard = true;
            let qualified = served.of.as_deref().and_then(|of| {
                let rest = name.strip_prefix(of)?.strip_prefix(':')?;
                served.has(rest, version).then_some(rest)
            });
            let model = if served.has(name, version) {
                if !owners.contains(&served.of) {
                    owners.push(served.of.clone());
                }
                name
            } else if let Some(model) = qualified {
                model
            } else {
                continue;
            };
            found.push(Picked {
                slot: Arc::clone(slot),
                pool: served.pool.clone(),
                model: model.to_owned(),
            });
        }
        if owners.len() > 1 {
            let names = owners
                .into_iter()
                .flatten()
                .map(|of| format!("{of}:{name}"));
            return Err(NoPeer::Ambiguous(names.collect()));
        }
        if found.is_empty() {
            return Err(if is_heard && is_complete {
                NoPeer::Unknown
            } else {
                NoPeer::NotYet
            });
        }
        Ok(found)
    }
}

impl Picked {
    /// What generates the model's answers: the model itself, or the first one of its worker.
    pub fn generates(&self) -> Option<Arc<Connection>> {
        let connections = self.slot.connections();
        let own = |one: &&Arc<Connection>| one.served.description.core_model_name == self.model;
        let own = connections.iter().find(own);
        own.or_else(|| connections.first()).cloned()
    }
}

impl Server for Picked {
    fn slot(&self) -> &Arc<WorkerSlot> {
        &self.slot
    }

    fn worker(&self) -> Option<Arc<Connection>> {
        self.generates()
    }
}
