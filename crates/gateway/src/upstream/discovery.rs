//! Which servers there are: addresses that were given, files that list them, DNS names. Owns when these are
//! read again, and that a failure to read one changes nothing; what becomes of a server is the table's and
//! the connect loop's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinSet;

use super::connect::{Connector, keep_connected};
use super::table::{Table, WorkerSlot};
use crate::options::{GatewayOptions, worker_address};

/// How often files are looked at. A look is one `stat`.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often names are looked up: Kubernetes' DNS server holds answers for as long.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);
/// A DNS server that does not answer must not delay the files.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Larger files are a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A file of addresses, one on each line.
#[derive(Clone, Debug)]
pub struct AddressFile {
    path: PathBuf,
    addresses: Vec<String>,
    seen: Option<Stamp>,
}

/// What changes with a file's content.
type Stamp = (SystemTime, u64, u64);

impl AddressFile {
    /// Reads the file at `path`; it may be empty.
    ///
    /// # Errors
    /// A sentence for the user: it cannot be read, or a line is no address.
    pub(crate) fn read(path: &str) -> Result<Self, String> {
        let mut file = Self {
            path: path.into(),
            addresses: Vec::new(),
            seen: None,
        };
        file.seen = file.stamp();
        file.addresses = file.read_addresses()?;
        Ok(file)
    }

    /// Reads it again if it is another than before. Returns whether the addresses may have changed.
    fn refresh(&mut self) -> bool {
        let stamp = self.stamp();
        if stamp == self.seen {
            return false;
        }
        self.seen = stamp;
        match self.read_addresses() {
            Ok(addresses) => {
                self.addresses = addresses;
                true
            }
            Err(reason) => {
                let file = self.path.display();
                tracing::error!(%file, %reason, "worker file not usable; the workers stay as they were");
                false
            }
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let data = std::fs::metadata(&self.path).ok()?;
        Some((data.modified().ok()?, data.len(), data.ino()))
    }

    fn read_addresses(&self) -> Result<Vec<String>, String> {
        use std::io::Read;
        let unreadable = |error: std::io::Error| format!("cannot read the file: {error}");
        let file = std::fs::File::open(&self.path).map_err(unreadable)?;
        let mut text = String::new();
        let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
        read.map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("the file has more than {MAX_FILE_BYTES} bytes"));
        }
        parse(&text)
    }
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| {
            worker_address(line).map_err(|error| format!("line {number}, `{line}`, {error}"))
        })
        .collect()
}

/// Everything that says where servers are.
#[derive(Debug)]
pub(crate) struct Discovery {
    given: Vec<String>,
    files: Vec<AddressFile>,
    /// Each name with the addresses that it had when it was last known.
    names: BTreeMap<String, Vec<String>>,
    looked_up: Option<Instant>,
}

impl Discovery {
    /// As the options say.
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let names = options.worker_names.iter().cloned();
        Self {
            given: options.workers.clone(),
            files: options.worker_files.clone(),
            names: names.map(|name| (name, Vec::new())).collect(),
            looked_up: None,
        }
    }

    /// Keeps `table` as the sources have it, and every server in it connected, for as long as it runs.
    pub(crate) async fn follow(mut self, table: Arc<Table>, connector: Arc<Connector>) {
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
        let of_files = self.files.iter().flat_map(|file| &file.addresses);
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
            let task = tokio::task::spawn_blocking(move || (read.refresh(), read));
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
    match tokio::time::timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host(name)).await {
        Ok(Ok(found)) => {
            let mut found: Vec<String> = found.map(|address| address.to_string()).collect();
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
    use std::fs;

    use super::*;

    #[test]
    fn addresses_are_one_a_line_with_comments() {
        let text = "# two\na:1\r\n\n  http://[::1]:8001  \n";
        assert_eq!(parse(text).unwrap(), ["a:1", "[::1]:8001"]);
        assert_eq!(parse("").unwrap(), Vec::<String>::new());
        let error = parse("a:1\nb\n").unwrap_err();
        assert_eq!(error, "line 2, `b`, must be HOST:PORT, e.g. 127.0.0.1:8001");
    }

    #[test]
    fn a_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing() {
        let path = std::env::temp_dir().join(format!("workers-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).unwrap();
        write("a:1\n");
        let mut file = AddressFile::read(path.to_str().unwrap()).unwrap();
        assert!(!file.refresh());
        write("a:1\nb:1\n");
        assert!(file.refresh());
        assert_eq!(file.addresses, ["a:1", "b:1"]);
        write("a:1\nnot an address\n");
        assert!(!file.refresh());
        fs::remove_file(&path).unwrap();
        assert!(!file.refresh());
        assert_eq!(file.addresses, ["a:1", "b:1"]);
        write("");
        assert!(file.refresh());
        assert!(file.addresses.is_empty());
        fs::remove_file(&path).unwrap();
        assert!(AddressFile::read("/no/such/file").is_err());
    }

    #[tokio::test]
    async fn a_name_has_all_its_addresses_and_an_unknown_one_keeps_what_it_had() {
        let found = look_up("localhost:8001").await.unwrap();
        assert!(found.contains(&"127.0.0.1:8001".to_owned()), "{found:?}");
        assert_eq!(look_up("no-such-name.invalid:1").await, None);
    }
}
