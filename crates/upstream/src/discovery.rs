//! Keeps the table as the sources of addresses have it, and every server in it connected. Owns no rule: which addresses
//! count is `inflight_discovery`'s, and what becomes of a server is the table's and the connect loop's.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use inflight_discovery::{Listing, Missing, Reports, Roster, Source};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connect::{Connector, keep_connected};
use super::slot::WorkerSlot;
use super::table::Table;
use crate::metrics;

/// How often workers that no source lists any more are asked whether they answer.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Addresses that one line of the log names.
const LOGGED: usize = 8;

/// Everything that says where servers are.
#[derive(Debug)]
pub struct Discovery {
    given: Vec<String>,
    sources: Vec<Source>,
    grace: Duration,
}

impl Discovery {
    /// Servers at the `given` addresses, and at those of the `sources`; a server that a source no longer lists and that
    /// still answers stays for at most the `grace`.
    pub fn new(given: &[String], sources: Vec<Source>, grace: Duration) -> Self {
        Self {
            given: given.to_vec(),
            sources,
            grace,
        }
    }

    /// Keeps `table` as the sources have it, and every server in it connected, for as long as it runs.
    pub async fn follow(
        self,
        table: Arc<Table>,
        connector: Arc<Connector>,
        metrics: metrics::Discovery,
    ) {
        let mut loops = JoinSet::new();
        let mut connect = |slots: Vec<Arc<WorkerSlot>>| {
            for slot in slots {
                tracing::debug!(worker = %slot.address, "worker added");
                let (table, connector) = (Arc::clone(&table), Arc::clone(&connector));
                loops.spawn(async move {
                    tokio::select! {
                        () = keep_connected(Arc::clone(&slot), connector) => {}
                        () = slot.released() => {
                            table.remove(&slot);
                            tracing::info!(worker = %slot.address, "worker taken out");
                        }
                    }
                });
            }
            while loops.try_join_next().is_some() {}
        };
        let names: Vec<String> = self.sources.iter().map(Source::described).collect();
        // The given ones are the first source, which never says anything else.
        let mut roster = Roster::new(1 + self.sources.len(), self.grace);
        let given = Listing::new(self.given, Missing::TakenOut);
        hear(&mut roster, 0, "options", given, &HashSet::new());
        for (number, source) in self.sources.iter().enumerate() {
            if let Some(known) = source.known() {
                hear(
                    &mut roster,
                    1 + number,
                    &names[number],
                    known,
                    &HashSet::new(),
                );
            }
        }
        let mut addresses = roster.settle(Instant::now(), |_| false);
        connect(table.configure(&addresses));
        if self.sources.is_empty() {
            return std::future::pending().await;
        }
        let troubled = metrics.troubled_sources.clone();
        let reports = Reports::new(move |count| {
            troubled.set(i64::try_from(count).unwrap_or(i64::MAX));
        });
        let mut following = JoinSet::new();
        for (number, source) in self.sources.into_iter().enumerate() {
            let reporter = reports.reporter(1 + number, names[number].clone());
            following.spawn(source.follow(reporter));
        }
        loop {
            let said = tokio::select! {
                said = reports.next() => said,
                () = tokio::time::sleep(ASK_EVERY), if roster.is_waiting() => Default::default(),
            };
            let answering = answering(&table);
            for (source, listing) in said {
                hear(&mut roster, source, &names[source - 1], listing, &answering);
            }
            let now = roster.settle(Instant::now(), |one| answering.contains(one));
            let unlisted = roster.unlisted();
            metrics
                .unlisted_workers
                .set(i64::try_from(unlisted).unwrap_or(i64::MAX));
            if now != addresses {
                connect(table.configure(&now));
                addresses = now;
            }
        }
    }
}

/// The servers that can be used now, by either kind of client.
fn answering(table: &Table) -> HashSet<Arc<str>> {
    let workers = table.workers();
    let workers = workers
        .iter()
        .filter(|slot| slot.is_ready() || slot.takes_calls());
    workers.map(|slot| Arc::clone(&slot.address)).collect()
}

fn hear(
    roster: &mut Roster,
    source: usize,
    name: &str,
    listing: Listing,
    answering: &HashSet<Arc<str>>,
) {
    let answers = |one: &str| answering.contains(one);
    match roster.hear(source, listing, Instant::now(), answers) {
        Ok(heard) if heard.doubted.is_empty() => {}
        Ok(heard) => {
            let count = heard.doubted.len();
            let workers = &heard.doubted[..count.min(LOGGED)];
            tracing::warn!(
                source = name,
                count,
                ?workers,
                "workers are not listed any more; they stay for a time, as long as they answer"
            );
        }
        Err(too_many) => {
            let count = too_many.0;
            tracing::error!(
                source = name,
                count,
                "too many addresses of one source; the workers stay as they were"
            );
        }
    }
}
