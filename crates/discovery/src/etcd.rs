//! Workers that are registered in etcd: all keys below a prefix, and a watch from there on. Owns when the keys are read
//! again, and what is believed of a watch.
//!
//! The `etcd-client` crate would do it as well; of etcd's API this needs few calls, over the channel to workers that is
//! here already.

mod calls;
mod connecting;
mod entry;
mod error;
mod place;
mod registration;

use std::collections::BTreeMap;
use std::time::Duration;

use inflight_base::error_chain;
use inflight_kserve::client::TransportOptions;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use self::calls::{EventKind, KeyValue, RangeRequest, WatchResponse};
use self::connecting::connect;
use self::entry::Entry;
use self::error::EtcdError;
pub use self::place::EtcdPlace;
pub use self::registration::Registration;
use crate::listing::{Listing, Missing};
use crate::reports::Reporter;
use crate::retry::Backoff;
use crate::roster::MAX_ADDRESSES;

/// How long a call may take, connecting included.
const CALL: Duration = Duration::from_secs(10);
/// A watch that lasted that long has worked.
const LASTING: Duration = Duration::from_secs(5);
/// How often the keys are read again though the watch works: whatever it may have missed is known then.
const LIST_EVERY: Duration = Duration::from_secs(600);

/// The keys below a prefix, whose values are addresses of workers.
#[derive(Clone, Debug)]
pub struct Etcd {
    place: EtcdPlace,
    transport: TransportOptions,
}

/// What is known, and the revision that it is of.
struct Known {
    entries: BTreeMap<Vec<u8>, Entry>,
    revision: i64,
}

impl Etcd {
    /// The keys of this place, reached in this way.
    pub fn new(place: EtcdPlace, transport: TransportOptions) -> Self {
        Self { place, transport }
    }

    /// As the log names it.
    pub(crate) fn described(&self) -> String {
        format!("etcd {}", self.place.prefix)
    }

    /// Reports what is registered. Never returns.
    pub(crate) async fn follow(self, reporter: &Reporter) {
        let mut backoff = Backoff::default();
        let mut said = None;
        for server in self.place.servers.iter().cycle() {
            let begun = Instant::now();
            let report = |known: &Known| {
                let listing = known.listing();
                if said.as_ref() != Some(&listing) {
                    reporter.say(listing.clone());
                    said = Some(listing);
                }
            };
            if let Err(error) = self.list_and_watch(server, reporter, report).await {
                reporter.fails(error_chain(&error));
            }
            if begun.elapsed() >= LASTING {
                backoff = Backoff::default();
            }
            sleep(backoff.next()).await;
        }
    }

    /// Reads all keys of one server, and follows them until it is time to read them again.
    async fn list_and_watch(
        &self,
        server: &str,
        reporter: &Reporter,
        mut report: impl FnMut(&Known),
    ) -> Result<(), EtcdError> {
        let prefix = self.place.prefix.as_bytes();
        let listing = async {
            let channel = connect(server, &self.transport).await?;
            let known = list(channel.clone(), prefix).await?;
            Ok::<_, EtcdError>((channel, known))
        };
        let listed = timeout(CALL, listing).await;
        let (channel, mut known) = listed.map_err(|_| EtcdError::Late)??;
        report(&known);
        reporter.works();
        let watching = async {
            let opening = calls::watch(channel, prefix, known.revision + 1);
            let opened = timeout(CALL, opening).await;
            let mut changes = opened
                .map_err(|_| EtcdError::Late)?
                .map_err(EtcdError::Refused)?;
            loop {
                match changes.message().await.map_err(EtcdError::Refused)? {
                    None => return Err(EtcdError::Ended("without a reason".to_owned())),
                    Some(response) => known.take(response)?,
                }
                report(&known);
            }
        };
        match timeout(LIST_EVERY, watching).await {
            Ok(ended) => ended,
            Err(_) => Ok(()),
        }
    }
}

async fn list(channel: Channel, prefix: &[u8]) -> Result<Known, EtcdError> {
    let request = RangeRequest {
        key: prefix.to_vec(),
        range_end: calls::end_of(prefix),
        limit: MAX_ADDRESSES as i64 + 1,
        // What this server has, though the others are away.
        serializable: true,
    };
    let answer = calls::range(channel, request).await;
    let answer = answer.map_err(EtcdError::Refused)?;
    if answer.kvs.len() > MAX_ADDRESSES {
        return Err(EtcdError::TooMany);
    }
    let mut known = Known {
        entries: BTreeMap::new(),
        revision: answer.header.ok_or(EtcdError::NoRevision)?.revision,
    };
    for one in answer.kvs {
        known.put(one);
    }
    Ok(known)
}

impl Known {
    fn take(&mut self, response: WatchResponse) -> Result<(), EtcdError> {
        if response.canceled {
            // A revision that is too old is such an end: the next step reads everything.
            let reason = response.cancel_reason;
            return Err(EtcdError::Ended(entry::shown(reason.as_bytes())));
        }
        for event in response.events {
            let is_deleted = event.kind() == EventKind::Delete;
            let Some(one) = event.kv else { continue };
            match is_deleted {
                true => drop(self.entries.remove(&one.key)),
                false => self.put(one),
            }
        }
        if self.entries.len() > MAX_ADDRESSES {
            return Err(EtcdError::TooMany);
        }
        Ok(())
    }

    /// A value that makes no sense is one writer's mistake, and not the others'.
    fn put(&mut self, one: KeyValue) {
        match Entry::read(&one.value) {
            Ok(entry) => drop(self.entries.insert(one.key, entry)),
            Err(reason) => {
                let key = entry::shown(&one.key);
                tracing::warn!(%key, %reason, "a value in etcd is not used");
            }
        }
    }

    fn listing(&self) -> Listing {
        let mut listed: Vec<String> = self.entries.values().map(|one| one.0.clone()).collect();
        listed.sort();
        listed.dedup();
        Listing::new(listed, Missing::Doubtful)
    }
}
