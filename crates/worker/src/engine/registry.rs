//! The live requests, by client id. An id is a slot number with the slot's generation above it, so that
//! a row finds its request by one indexed load and a late row of a gone request finds nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::Destination;
use crate::outbox::Outbox;

/// One executor request.
pub(super) struct Slot {
    /// Where rows go; `None` once nobody listens.
    pub(super) outbox: Option<Arc<Outbox>>,
    /// Rows travel in step messages under this handle; plain rows keep their client id.
    pub(super) handle: Option<u64>,
    pub(super) wants_cached_tokens: bool,
    /// The final row has come; the slot goes at the end of the iteration.
    pub(super) ended: bool,
    pub(super) name: Option<Box<str>>,
    pub(super) canary: Option<oneshot::Sender<Result<(), String>>>,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) received: Instant,
    pub(super) handed_over: Option<Instant>,
    pub(super) first_row: Option<Instant>,
    /// The client left before the end.
    pub(super) abandoned: bool,
    /// Of the final row, a [`FinishReason`](inflight_kserve::step::FinishReason) number.
    pub(super) finish_reason: u8,
    /// gRPC code and text of the row that failed.
    pub(super) error: Option<(i32, Box<str>)>,
    /// The final row was passed on: later ones, from a confused executor, go nowhere.
    pub(super) sent_final: bool,
}

impl Slot {
    pub(super) fn new(
        outbox: &Arc<Outbox>,
        destination: &Destination,
        prompt_tokens: usize,
        now: Instant,
    ) -> Self {
        let (handle, wants_cached_tokens, name) = match destination {
            Destination::Step {
                handle,
                wants_cached_tokens,
            } => (Some(*handle), *wants_cached_tokens, None),
            Destination::Plain { id } => (None, true, id.as_deref().map(Into::into)),
        };
        Self {
            outbox: Some(Arc::clone(outbox)),
            handle,
            wants_cached_tokens,
            ended: false,
            name,
            canary: None,
            prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
            output_tokens: 0,
            received: now,
            handed_over: None,
            first_row: None,
            abandoned: false,
            finish_reason: 0,
            error: None,
            sent_final: false,
        }
    }

    pub(super) fn canary(sender: oneshot::Sender<Result<(), String>>, now: Instant) -> Self {
        Self {
            outbox: None,
            handle: None,
            wants_cached_tokens: false,
            ended: false,
            name: None,
            canary: Some(sender),
            prompt_tokens: 1,
            output_tokens: 0,
            received: now,
            handed_over: None,
            first_row: None,
            abandoned: false,
            finish_reason: 0,
            error: None,
            sent_final: false,
        }
    }

    /// Nobody listens any more.
    pub(super) fn silence(&mut self) {
        self.outbox = None;
        self.abandoned = true;
    }
}

#[derive(Default)]
struct Entry {
    generation: u32,
    slot: Option<Slot>,
}

#[derive(Default)]
pub(super) struct Registry {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Request ids that clients may stop by. The newest use of an id is the one that counts.
    names: HashMap<Box<str>, Vec<u64>>,
}

impl Registry {
    pub(super) fn live(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, slot: Slot) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let Some(entry) = self.entries.get_mut(place as usize) else {
            unreachable!("a free place is one of the entries")
        };
        entry.slot = Some(slot);
        u64::from(entry.generation) << 32 | u64::from(place)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, client_id: u64) -> Option<&mut Slot> {
        let entry = self.entries.get_mut(client_id as u32 as usize)?;
        if entry.generation != (client_id >> 32) as u32 {
            return None;
        }
        entry.slot.as_mut()
    }

    pub(super) fn remove(&mut self, client_id: u64) -> Option<Slot> {
        let entry = self.entries.get_mut(client_id as u32 as usize)?;
        if entry.generation != (client_id >> 32) as u32 {
            return None;
        }
        let slot = entry.slot.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(client_id as u32);
        if let Some(name) = &slot.name
            && let Some(ids) = self.names.get_mut(name)
        {
            ids.retain(|id| *id != client_id);
            if ids.is_empty() {
                self.names.remove(name);
            }
        }
        Some(slot)
    }

    /// Gives live requests a name to be stopped by.
    pub(super) fn name(&mut self, name: &str, client_ids: &[u64]) {
        self.names.insert(name.into(), client_ids.to_vec());
    }

    pub(super) fn named(&self, name: &str) -> Vec<u64> {
        self.names.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        let entries = self.entries.iter().enumerate();
        entries
            .filter(|(_, entry)| entry.slot.is_some())
            .map(|(place, entry)| u64::from(entry.generation) << 32 | place as u64)
            .collect()
    }

    /// Removes everything.
    pub(super) fn drain(&mut self) -> Vec<(u64, Slot)> {
        let ids = self.ids();
        ids.into_iter()
            .filter_map(|id| Some((id, self.remove(id)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        Slot::canary(oneshot::channel().0, Instant::now())
    }

    #[test]
    fn a_gone_requests_id_finds_nothing_in_its_reused_slot() {
        let mut registry = Registry::default();
        let first = registry.insert(slot());
        assert!(registry.remove(first).is_some());
        let second = registry.insert(slot());
        assert_eq!(first as u32, second as u32);
        assert!(registry.get_mut(first).is_none());
        assert!(registry.remove(first).is_none());
        assert!(registry.get_mut(second).is_some());
        assert_eq!(registry.live(), 1);
        assert!(registry.get_mut(u64::MAX).is_none());
    }

    #[test]
    fn the_newest_use_of_a_name_is_the_one_that_counts() {
        let mut registry = Registry::default();
        let named = || Slot {
            name: Some("a".into()),
            ..slot()
        };
        let first = registry.insert(named());
        registry.name("a", &[first]);
        let second = registry.insert(named());
        registry.name("a", &[second]);
        registry.remove(first);
        assert_eq!(registry.named("a"), [second]);
        registry.remove(second);
        assert!(registry.named("a").is_empty());
        assert!(registry.names.is_empty());
    }
}
