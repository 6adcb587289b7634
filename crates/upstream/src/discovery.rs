//! Which servers there are: addresses that were given, files that list them, DNS names. Owns when these are
//! read again, and that a failure to read one changes nothing; what becomes of a server is the table's and
//! the connect loop's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_base::blocking;
use inflight_kserve::client::HTTPS;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connect::{Connector, keep_connected};
use super::slot::WorkerSlot;
use super::table::Table;
use crate::address_file::{AddressFile, WATCHED};

/// How often files are looked at. A look is one `stat`.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often names are looked up: Kubernetes' DNS server holds answers for as long.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);
/// A DNS server that does not answer must not delay the files.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Everything that says where servers are.
#[derive(Debug)]
pub struct Discovery {
    given: Vec<String>,
    files: Vec<AddressFile>,
    /// Each name with the addresses that it had when it was last known.
    names: BTreeMap<String, Vec<String>>,
    looked_up: Option<Instant>,
}

impl Discovery {
    /// Servers at the `given` addresses, at those in `files`, and at all that `names` resolve to.
    pub fn new(given: &[String], files: &[AddressFile], names: &[String]) -> Self {
        let names = names.iter().cloned();
        Self {
            given: given.to_vec(),
            files: files.to_vec(),
            names: names.map(|name| (name, Vec::new())).collect(),
            looked_up: None,
        }
    }

    /// Keeps `table` as the sources have it, and every server in it connected, for as long as it runs.
    pub async fn follow(mut self, table: Arc<Table>, connector: Arc<Connector>) {
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
        connect(table.configure(&self.addresses()));
        if self.files.is_empty() && self.names.is_empty() {
            return std::future::pending().await;
        }
        loop {
            if self.refresh().await {
                connect(table.configure(&self.addresses()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn addresses(&self) -> Vec<String> {
        let of_files = self.files.iter().flat_map(AddressFile::addresses);
        let of_names = self.names.values().flatten();
        let all = self.given.iter().chain(of_files).chain(of_names);
        all.cloned().collect()
    }

    /// Reads again what is due. Returns whether the addresses may have changed.
    async fn refresh(&mut self) -> bool {
        let mut changed = false;
        for file in &mut self.files {
            // A `stat` every now and then; a network's file system may block, so not on this thread.
            let mut read = file.clone();
            let task = blocking::run(move || (read.refresh(), read));
            if let Ok((has_changed, read)) = task.await {
                *file = read;
                changed |= has_changed;
            }
        }
        let is_due = |at: Instant| at.elapsed() >= LOOK_UP_EVERY;
        if !self.names.is_empty() && self.looked_up.is_none_or(is_due) {
            for (name, addresses) in &mut self.names {
                if let Some(found) = look_up(name).await.filter(|found| found != addresses) {
                    (*addresses, changed) = (found, true);
                }
            }
            self.looked_up = Some(Instant::now());
        }
        changed
    }
}

/// The addresses of `name` in order, or `None` where nobody knows: what is connected then stays so.
async fn look_up(name: &str) -> Option<Vec<String>> {
    let mut schemes = [HTTPS, WATCHED].into_iter();
    let found = schemes.find_map(|scheme| Some((scheme, name.strip_prefix(scheme)?)));
    let (scheme, bare) = found.unwrap_or(("", name));
    match tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host(bare)).await {
        Ok(Ok(found)) => {
            let found = found.map(|address| format!("{scheme}{address}"));
            let mut found: Vec<String> = found.collect();
            found.sort();
            found.dedup();
            Some(found)
        }
        Ok(Err(reason)) => {
            tracing::debug!(name, %reason, "DNS name not found; its workers stay as they were");
            None
        }
        Err(_) => {
            tracing::debug!(
                name,
                "DNS name not answered in time; its workers stay as they were"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_has_all_its_addresses_and_an_unknown_one_keeps_what_it_had() {
        let found = look_up("localhost:8001").await.unwrap();
        assert!(found.contains(&"127.0.0.1:8001".to_owned()), "{found:?}");
        let found = look_up("https://localhost:8001").await.unwrap();
        assert!(
            found.contains(&"https://127.0.0.1:8001".to_owned()),
            "{found:?}"
        );
        let found = look_up("http://localhost:8001").await.unwrap();
        assert!(
            found.contains(&"http://127.0.0.1:8001".to_owned()),
            "{found:?}"
        );
        assert_eq!(look_up("no-such-name.invalid:1").await, None);
    }
}
