//! Open requests that clients may stop by their ids, as Triton's do. Owns whose request an id names, and where that
//! request is: what stops it must go there. Knows nothing of what a stop is.

use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

use crate::pool::Link;
use crate::table::Picked;

/// How long a stop waits for its request to be sent to a server.
const SENT_WITHIN: Duration = Duration::from_secs(10);
/// Characters of a request id that an error repeats.
const MAX_SHOWN_ID: usize = 64;

/// Where a request is: its server, the connection, and its id there.
#[derive(Clone, Debug)]
pub struct Source {
    pub picked: Picked,
    pub link: Arc<Link>,
    pub id: String,
}

/// Who may stop a request: clients with the same key; without keys, clients on the same machine as this process, and
/// others on the request's own connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Caller {
    Key(Key),
    ThisMachine,
    Connection(SocketAddr),
}

/// An API key: the same one is the same value in memory.
#[derive(Clone, Debug)]
pub struct Key(pub Arc<dyn Any + Send + Sync>);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

/// The requests that have an id, while they are open. Each is an admitted one, which bounds them.
#[derive(Debug, Default)]
pub struct Stops(Arc<Mutex<HashMap<String, Vec<Arc<Entry>>>>>);

#[derive(Debug)]
struct Entry {
    caller: Caller,
    /// `None`: it is not sent yet.
    source: watch::Sender<Option<Source>>,
    /// Whether its client has asked for its end.
    is_stopped: AtomicBool,
}

/// A request that can be stopped for as long as this lives.
#[derive(Debug)]
pub struct Stoppable {
    stops: Stops,
    id: String,
    entry: Arc<Entry>,
}

impl Stops {
    pub fn name(&self, id: &str, caller: &Caller) -> Stoppable {
        let entry = Arc::new(Entry {
            caller: caller.clone(),
            source: watch::Sender::new(None),
            is_stopped: AtomicBool::new(false),
        });
        let mut open = self.0.lock();
        let same = open.entry(id.to_owned()).or_default();
        same.push(Arc::clone(&entry));
        Stoppable {
            stops: Self(Arc::clone(&self.0)),
            id: id.to_owned(),
            entry,
        }
    }

    /// Where the newest request is that this caller gave the id, to be stopped. `None`: it has none, or it has finished.
    ///
    /// # Errors
    /// PERMISSION_DENIED: the id is that of another connection's request. UNAVAILABLE: the request has not been sent.
    pub async fn find(&self, id: &str, caller: &Caller) -> Result<Option<Source>, Status> {
        let mut source = {
            let open = self.0.lock();
            let Some(same) = open.get(id) else {
                return Ok(None);
            };
            let own = same.iter().rev().find(|entry| entry.caller == *caller);
            match own {
                Some(entry) => {
                    entry.is_stopped.store(true, Ordering::Relaxed);
                    entry.source.subscribe()
                }
                // Ids of other keys' requests are their names.
                None if matches!(caller, Caller::Key(_)) => return Ok(None),
                None => return Err(of_others(id)),
            }
        };
        let sent = source.wait_for(Option::is_some);
        match tokio::time::timeout(SENT_WITHIN, sent).await {
            Ok(Ok(source)) => Ok(source.clone()),
            // It ended meanwhile.
            Ok(Err(_)) => Ok(None),
            Err(_) => Err(Status::unavailable(format!(
                "request `{}` was not stopped: no worker has it yet; retry later",
                shown(id)
            ))),
        }
    }
}

fn of_others(id: &str) -> Status {
    Status::permission_denied(format!(
        "request `{}` was not stopped: it came on another connection; without API keys, only clients on the \
         gateway's machine may stop requests of other connections",
        shown(id)
    ))
}

fn shown(id: &str) -> String {
    id.escape_debug().take(MAX_SHOWN_ID).collect()
}

impl Stoppable {
    /// Notes where the request was sent; again where it moves.
    pub fn is_at(&self, source: Source) {
        self.entry.source.send_replace(Some(source));
    }

    /// Whether its client has asked for its end.
    pub fn is_stopped(&self) -> bool {
        self.entry.is_stopped.load(Ordering::Relaxed)
    }

    /// Where the request is; `None`: it is not sent yet.
    pub fn source(&self) -> Option<Source> {
        self.entry.source.borrow().clone()
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        let mut open = self.stops.0.lock();
        if let Some(same) = open.get_mut(&self.id) {
            same.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
            if same.is_empty() {
                open.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::pool::Pool;
    use crate::table::Table;

    fn at(address: &str) -> Caller {
        Caller::Connection(address.parse::<SocketAddr>().unwrap())
    }

    fn key() -> Caller {
        Caller::Key(Key(Arc::new(0)))
    }

    #[tokio::test]
    async fn an_id_is_its_caller_s_as_long_as_the_request_is_open() {
        let stops = Stops::default();
        for (own, other, refused) in [
            (
                at("10.0.0.5:1"),
                at("10.0.0.5:2"),
                Some(Code::PermissionDenied),
            ),
            (
                Caller::ThisMachine,
                at("10.0.0.5:1"),
                Some(Code::PermissionDenied),
            ),
            // Another key's id is another name.
            (key(), key(), None),
        ] {
            let stoppable = stops.name("a", &own);
            let found = stops.find("a", &other).await;
            assert_eq!(found.err().map(|status| status.code()), refused);
            let waits = tokio::time::timeout(Duration::from_millis(1), stops.find("a", &own));
            assert!(!stoppable.is_stopped());
            assert!(waits.await.is_err(), "it is not sent yet");
            assert!(stoppable.is_stopped());
            assert!(stops.find("b", &own).await.unwrap().is_none());
            drop(stoppable);
            assert!(stops.find("a", &own).await.unwrap().is_none());
            assert!(stops.0.lock().is_empty());
        }
    }

    #[tokio::test]
    async fn a_stop_waits_no_longer_than_its_request_is_open() {
        let stops = Stops::default();
        let stoppable = stops.name("a", &Caller::ThisMachine);
        let stop = stops.find("a", &Caller::ThisMachine);
        let end = async {
            tokio::task::yield_now().await;
            drop(stoppable);
        };
        let (stopped, ()) = tokio::join!(stop, end);
        assert!(stopped.unwrap().is_none());
    }

    /// Where a request is that a server has under this id.
    fn sent_as(id: &str) -> Source {
        let options = inflight_kserve::client::TransportOptions::default();
        let pool = Pool::new("localhost:1", &Arc::default(), &options, None).unwrap();
        let table = Table::new(&["localhost:1".to_owned()]);
        Source {
            link: pool.link(),
            picked: Picked {
                slot: Arc::clone(&table.workers()[0]),
                pool: Arc::new(pool),
                model: "m".to_owned(),
            },
            id: id.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_stop_goes_where_its_request_is() {
        let stops = Stops::default();
        let stoppable = stops.name("a", &Caller::ThisMachine);
        assert!(stoppable.source().is_none());
        for id in ["a.1", "a.2"] {
            stoppable.is_at(sent_as(id));
            assert_eq!(stoppable.source().unwrap().id, id);
            let found = stops.find("a", &Caller::ThisMachine).await.unwrap();
            assert_eq!(found.unwrap().id, id);
        }
        // The newest of those with one name.
        let newer = stops.name("a", &Caller::ThisMachine);
        newer.is_at(sent_as("a.3"));
        let found = stops.find("a", &Caller::ThisMachine).await.unwrap();
        assert_eq!(found.unwrap().id, "a.3");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_stopped_is_named() {
        let stops = Stops::default();
        let long = format!("a\n{}", "b".repeat(200));
        let _stoppable = stops.name(&long, &Caller::ThisMachine);
        for (caller, code) in [
            (Caller::ThisMachine, Code::Unavailable),
            (at("10.0.0.5:1"), Code::PermissionDenied),
        ] {
            let refused = stops.find(&long, &caller).await.unwrap_err();
            assert_eq!(refused.code(), code);
            let shown = format!("`a\\n{}`", "b".repeat(61));
            assert!(refused.message().contains(&shown), "{refused}");
        }
    }
}
