//! The live requests, by client id. A row finds its request by one indexed load, and a late row of a
//! finished request finds nothing: an id is a slot map's key, which is never used again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use inflight_kserve::step::Handle;
use slotmap::{Key as _, KeyData, SlotMap, new_key_type};
use tokio::sync::oneshot;
use tonic::Code;

use super::Destination;
use crate::executor::ClientId;
use crate::outbox::Outbox;

/// One executor request, from its submission to its final row.
pub(super) struct LiveRequest {
    /// Where rows go; `None` once the client has left.
    pub(super) outbox: Option<Arc<Outbox>>,
    /// Rows travel in step messages under this handle; plain rows keep their client id.
    pub(super) handle: Option<Handle>,
    pub(super) wants_cached_tokens: bool,
    /// The final row has come; the request goes at the end of the iteration.
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
    pub(super) error: Option<(Code, Box<str>)>,
    /// The final row was passed on; later ones, which a broken executor might send, are dropped.
    pub(super) sent_final: bool,
}

impl LiveRequest {
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

    /// Drops the rows to come, because the client has left.
    pub(super) fn silence(&mut self) {
        self.outbox = None;
        self.abandoned = true;
    }
}

new_key_type! {
    struct Key;
}

impl From<ClientId> for Key {
    fn from(client_id: ClientId) -> Self {
        KeyData::from_ffi(client_id.0).into()
    }
}

impl From<Key> for ClientId {
    fn from(key: Key) -> Self {
        Self(key.data().as_ffi())
    }
}

#[derive(Default)]
pub(super) struct Registry {
    requests: SlotMap<Key, LiveRequest>,
    /// Request ids that clients may stop by. The newest use of an id is the one that counts.
    names: HashMap<Box<str>, Vec<ClientId>>,
}

impl Registry {
    pub(super) fn live(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn insert(&mut self, request: LiveRequest) -> ClientId {
        self.requests.insert(request).into()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, client_id: ClientId) -> Option<&mut LiveRequest> {
        self.requests.get_mut(client_id.into())
    }

    pub(super) fn remove(&mut self, client_id: ClientId) -> Option<LiveRequest> {
        let request = self.requests.remove(client_id.into())?;
        if let Some(name) = &request.name
            && let Some(ids) = self.names.get_mut(name)
        {
            ids.retain(|id| *id != client_id);
            if ids.is_empty() {
                self.names.remove(name);
            }
        }
        Some(request)
    }

    /// Gives live requests a name to be stopped by.
    pub(super) fn name(&mut self, name: &str, client_ids: &[ClientId]) {
        self.names.insert(name.into(), client_ids.to_vec());
    }

    pub(super) fn named(&self, name: &str) -> Vec<ClientId> {
        self.names.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn ids(&self) -> Vec<ClientId> {
        self.requests.keys().map(ClientId::from).collect()
    }

    /// Removes everything.
    pub(super) fn drain(&mut self) -> Vec<(ClientId, LiveRequest)> {
        self.names.clear();
        self.requests
            .drain()
            .map(|(key, request)| (key.into(), request))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LiveRequest {
        LiveRequest::canary(oneshot::channel().0, Instant::now())
    }

    #[test]
    fn the_id_of_a_finished_request_is_not_used_again() {
        let mut registry = Registry::default();
        let first = registry.insert(request());
        assert!(registry.remove(first).is_some());
        let second = registry.insert(request());
        assert!(registry.get_mut(first).is_none());
        assert!(registry.remove(first).is_none());
        assert!(registry.get_mut(second).is_some());
        assert_eq!(registry.live(), 1);
        assert!(registry.get_mut(ClientId(u64::MAX)).is_none());
        assert!(registry.get_mut(ClientId::default()).is_none());
        assert_eq!(registry.drain().len(), 1);
        assert_eq!(registry.live(), 0);
        assert!(registry.get_mut(second).is_none());
    }

    #[test]
    fn the_newest_use_of_a_name_is_the_one_that_counts() {
        let mut registry = Registry::default();
        let named = || LiveRequest {
            name: Some("a".into()),
            ..request()
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
