//! One configured server, connected or not. Owns what is known of it while it comes and goes; knows nothing of
//! the other servers, nor of how it is connected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use inflight_discovery::address::{WATCHED, is_watched};
use inflight_routing::LastTurn;
use inflight_text::TextModel;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::connection::Connection;
use super::inbox::Notice;
use super::peer::Peer;
use super::process::Life;
use super::pulse::Pulse;

/// How long requests that are being prepared may still be sent to a server that was taken out.
pub(super) const PREPARING: Duration = Duration::from_secs(1);
/// How often a server that was taken out is asked whether its last request has ended.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// One configured server, connected or not.
#[derive(Debug)]
pub struct WorkerSlot {
    /// `host:port` as given.
    pub address: Arc<str>,
    /// Whether it still answers, while it is connected.
    pub pulse: Arc<Pulse>,
    /// For KServe's clients.
    pub peer: Peer,
    /// When it was last picked, for a request of whatever model and API.
    pub(super) last_turn: LastTurn,
    /// One for each model it serves.
    pub(super) connections: ArcSwap<Vec<Arc<Connection>>>,
    /// The models it last served, and why it is not ready now.
    pub(super) past: Mutex<Past>,
    /// The process that it was connected to last.
    life: ArcSwap<Life>,
    /// Set once it is no longer configured.
    pub(super) retired: watch::Sender<bool>,
    /// Signals each [`Notice`], and that it is met anew.
    notices: watch::Sender<()>,
}

#[derive(Clone, Debug)]
pub(super) struct PastModel {
    pub name: String,
    pub created: i64,
    pub max_seq_len: Option<u32>,
    pub is_for_contexts: bool,
    /// Names of its LoRA adapters.
    pub adapters: Vec<String>,
    /// Kept while the worker is away, so that its return costs no loading.
    pub _text: Option<Arc<TextModel>>,
}

#[derive(Debug, Default)]
pub(super) struct Past {
    pub models: Vec<PastModel>,
    /// Models that it has and that cannot be served, and why; `None`: it has not said what it has.
    pub refused: Option<BTreeMap<String, String>>,
    pub reason: String,
}

impl WorkerSlot {
    pub(super) fn new(address: &str) -> Self {
        let past = Past {
            models: Vec::new(),
            refused: None,
            reason: "not connected yet".to_owned(),
        };
        Self {
            address: address.into(),
            pulse: Arc::default(),
            peer: Peer::default(),
            last_turn: LastTurn::default(),
            connections: ArcSwap::default(),
            past: Mutex::new(past),
            life: ArcSwap::default(),
            retired: watch::Sender::new(false),
            notices: watch::Sender::new(()),
        }
    }

    /// Waits until it is no longer configured and its last request has ended.
    pub async fn released(&self) {
        let mut retired = self.retired.subscribe();
        // The sender lives as long as `self`.
        let _ = retired.wait_for(|retired| *retired).await;
        tokio::time::sleep(PREPARING).await;
        while self.active() > 0 {
            tokio::time::sleep(IDLE_POLL).await;
        }
    }

    /// Whether it does not take requests from here; see [`Connection::is_watched`].
    pub fn is_watched(&self) -> bool {
        is_watched(&self.address)
    }

    /// Where it is, without the scheme of those that are only watched.
    pub fn host_port(&self) -> &str {
        self.address.strip_prefix(WATCHED).unwrap_or(&self.address)
    }

    /// Whether it is no longer configured, and only finishes its requests.
    pub(super) fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    /// The connections of all its models; none when it is not ready.
    pub fn connections(&self) -> Arc<Vec<Arc<Connection>>> {
        self.connections.load_full()
    }

    /// It is connected anew, and says when it loaded its model.
    pub(super) fn met(&self, created: i64) {
        self.life.store(Arc::new(self.life.load().next(created)));
        self.notices.send_replace(());
    }

    /// It is lost.
    pub(super) fn part(&self) {
        self.life.load().part();
        self.notices.send_replace(());
    }

    /// The process that it is connected to, or was last.
    pub(super) fn life(&self) -> Life {
        Life::clone(&self.life.load())
    }

    /// Whether any of its models can take requests.
    pub fn is_ready(&self) -> bool {
        let connections = self.connections.load();
        let mut connections = connections.iter();
        connections.any(|connection| !connection.is_leaving())
            && !self.pulse.is_silent()
            && !self.is_retired()
    }

    /// Watches the server until it counts as lost, and says when it stops answering and begins again; see
    /// [`Pulse::watch`]. Returns why it is lost.
    pub async fn watch_pulse<P: Future<Output = bool>>(
        &self,
        limit: Duration,
        probe: impl Fn() -> P,
    ) -> String {
        let changed = |silent| {
            if silent {
                self.set_reason("the server has stopped answering");
                self.notify(Notice::Silent);
                tracing::warn!(worker = %self.address, "worker silent");
            } else {
                self.set_reason("");
                tracing::info!(worker = %self.address, "worker answers again");
            }
        };
        self.pulse.watch(limit, probe, changed).await;
        "the server has not answered for too long".to_owned()
    }

    /// Whether it is an Inflight worker with this model, as far as it has ever said.
    pub(super) fn serves(&self, model: &str) -> bool {
        let served = self.peer.served();
        !self.is_retired() && served.is_some_and(|served| served.of.as_deref() == Some(model))
    }

    /// Whether KServe's calls may be sent to it.
    pub fn takes_calls(&self) -> bool {
        self.peer.is_up() && !self.pulse.is_silent() && !self.is_leaving()
    }

    /// Whether it is no longer configured, or about to end.
    pub(super) fn is_leaving(&self) -> bool {
        let connections = self.connections.load();
        let ends = !connections.is_empty() && connections.iter().all(|one| one.is_leaving());
        ends || self.is_retired()
    }

    /// Leaves a notice for every request that it has.
    pub(super) fn notify(&self, notice: Notice) {
        for connection in self.connections.load().iter() {
            connection.notify(notice);
        }
        self.notices.send_replace(());
    }

    /// It said nothing in time: requests of KServe's clients leave it.
    pub(super) fn give_up(&self) {
        self.peer.set_down();
        self.pulse.fall_silent();
        self.notices.send_replace(());
    }

    /// It is no longer configured.
    pub(super) fn retire(&self) {
        for connection in self.connections.load().iter() {
            connection.leave();
        }
        self.notices.send_replace(());
    }

    /// One of its models is about to end; see [`Connection::leave`].
    pub(super) fn leave(&self, connection: &Connection) {
        connection.leave();
        self.notices.send_replace(());
    }

    /// The notices from now on.
    pub(super) fn notices(&self) -> watch::Receiver<()> {
        self.notices.subscribe()
    }

    /// Ends every request that it has with an error.
    pub fn fail_all(&self, text: &str) {
        for connection in self.connections.load().iter() {
            connection.fail_all(text);
        }
    }

    /// Requests that wait for its output, of all its models and whichever way they came: its load.
    pub fn active(&self) -> usize {
        let connections = self.connections.load();
        let of_models = connections.iter().map(|connection| connection.active());
        of_models.sum::<usize>() + self.peer.active()
    }

    /// Bytes of responses that wait for KServe's clients that read slowly.
    pub fn unread_bytes(&self) -> usize {
        self.peer.unread_bytes()
    }

    /// The connection of this model, when ready.
    pub(super) fn connection(&self, model: &str) -> Option<Arc<Connection>> {
        if self.pulse.is_silent() || self.is_retired() {
            return None;
        }
        let connections = self.connections.load();
        let serves = |connection: &&Arc<Connection>| {
            connection.served.description.served_model_name == model && !connection.is_leaving()
        };
        connections.iter().find(serves).cloned()
    }

    /// Why the worker is not ready; empty when it is.
    pub fn reason(&self) -> String {
        if self.is_retired() {
            return "taken out; it finishes its requests".to_owned();
        }
        let connections = self.connections.load();
        if !connections.is_empty() && connections.iter().all(|one| one.is_leaving()) {
            return "the worker is about to end; it finishes its requests".to_owned();
        }
        self.past.lock().reason.clone()
    }

    /// What is wrong with its reports of what its caches hold; empty: nothing, or it does not report.
    pub fn cache_reason(&self) -> &'static str {
        let connections = self.connections.load();
        let mut seats = connections.iter().filter_map(|one| one.seat());
        let reason = seats.find_map(|seat| seat.cache_reports().reason());
        reason.unwrap_or_default()
    }

    /// Remembers which of a server's models cannot be served, and why. Returns those for which that is new: a server
    /// may be looked at every second.
    pub fn set_refused(&self, refused: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let before = self.past.lock().refused.replace(refused.clone());
        let before = before.unwrap_or_default();
        let mut new = refused;
        new.retain(|model, reason| before.get(model) != Some(reason));
        new
    }

    /// Remembers why the worker is not ready.
    pub fn set_reason(&self, reason: &str) {
        self.past.lock().reason = reason.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_cannot_be_served_is_new_once_for_each_reason() {
        let slot = WorkerSlot::new("server:1");
        let refused = |reason: &str| BTreeMap::from([("m".to_owned(), reason.to_owned())]);
        for (reason, is_new) in [
            ("no output", true),
            ("no output", false),
            ("no input", true),
        ] {
            let new = slot.set_refused(refused(reason));
            assert_eq!(new.contains_key("m"), is_new, "{reason}");
        }
        assert!(slot.set_refused(BTreeMap::new()).is_empty());
        assert!(slot.set_refused(refused("no input")).contains_key("m"));
    }
}
