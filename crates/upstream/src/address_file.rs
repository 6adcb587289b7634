//! Addresses of servers as options and files give them. Owns their form and the file's; when a file is looked
//! at again, and what then becomes of its servers, is `upstream`'s.

use std::path::PathBuf;

use inflight_base::text_file::{Stamp, read_text, stamp};

/// Larger files are a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How a line is read.
type ReadLine = fn(&str) -> Result<String, String>;

/// A file of addresses, one on each line.
#[derive(Clone, Debug)]
pub struct AddressFile {
    path: PathBuf,
    read_line: ReadLine,
    addresses: Vec<String>,
    seen: Option<Stamp>,
}

impl AddressFile {
    /// Reads the file at `path`; it may be empty.
    ///
    /// # Errors
    /// A sentence for the user: it cannot be read, or a line is not an address.
    pub fn read(path: &str) -> Result<Self, String> {
        Self::read_lines(path, worker_address)
    }

    /// As [`AddressFile::read`], a file of servers that are only watched.
    ///
    /// # Errors
    /// As there.
    pub fn read_endpoints(path: &str) -> Result<Self, String> {
        Self::read_lines(path, endpoint_address)
    }

    fn read_lines(path: &str, read_line: ReadLine) -> Result<Self, String> {
        let mut file = Self {
            path: path.into(),
            read_line,
            addresses: Vec::new(),
            seen: None,
        };
        file.seen = stamp(&file.path);
        file.addresses = file.read_addresses()?;
        Ok(file)
    }

    /// As they were when it could last be read.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Reads it again if it is another than before. Returns whether the addresses may have changed.
    pub fn refresh(&mut self) -> bool {
        let seen = stamp(&self.path);
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        match self.read_addresses() {
            Ok(addresses) => {
                self.addresses = addresses;
                true
            }
            Err(reason) => {
                let file = self.path.display();
                tracing::error!(%file, %reason, "cannot use the worker file; the workers stay as they were");
                false
            }
        }
    }

    fn read_addresses(&self) -> Result<Vec<String>, String> {
        parse(&read_text(&self.path, MAX_FILE_BYTES)?, self.read_line)
    }
}

fn parse(text: &str, read_line: ReadLine) -> Result<Vec<String>, String> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(line, number)| {
            read_line(line).map_err(|error| format!("line {number}, `{line}`, {error}"))
        })
        .collect()
}

/// Before the address of a server that is only watched.
pub const WATCHED: &str = "http://";

/// Whether a server with this address is only watched: requests reach it another way than through this gateway.
pub fn is_watched(address: &str) -> bool {
    address.starts_with(WATCHED)
}

/// Reads `http://HOST:PORT`, the address of a server that is only watched.
///
/// # Errors
/// What it must be.
pub fn endpoint_address(text: &str) -> Result<String, String> {
    let bare = text.trim_end_matches('/');
    let bare = bare
        .strip_prefix(WATCHED)
        .filter(|bare| !bare.contains('/'));
    match bare.map(worker_address) {
        Some(Ok(bare)) => Ok(format!("{WATCHED}{bare}")),
        _ => Err("must be http://HOST:PORT, e.g. http://127.0.0.1:8000".to_owned()),
    }
}

/// Reads `HOST:PORT`, also as a URL; `https://` says that the server speaks TLS, and stays.
///
/// # Errors
/// What it must be.
pub fn worker_address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let server = bare.strip_prefix("https://").unwrap_or(bare);
    let port = server.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok()?;
        (!host.is_empty() && port > 0).then_some(port)
    });
    match port {
        Some(_) => Ok(bare.to_owned()),
        None => Err("must be HOST:PORT, e.g. 127.0.0.1:8001".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn worker_addresses_have_a_host_and_a_port() {
        assert_eq!(worker_address("http://a:1").unwrap(), "a:1");
        assert_eq!(worker_address("https://a:1").unwrap(), "https://a:1");
        assert_eq!(worker_address("[::1]:8001").unwrap(), "[::1]:8001");
        let no_port = ["a", "a:", ":1", "a:b", "a:0", "a:99999", ""];
        for bad in no_port
            .into_iter()
            .chain(["https://a", "https://:1", "http://https://a"])
        {
            assert!(worker_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints_are_urls_without_a_path() {
        for good in ["http://a:1", "http://a:1/"] {
            let read = endpoint_address(good).unwrap();
            assert!(read == "http://a:1" && is_watched(&read), "{good}");
        }
        for bad in [
            "a:1",
            "https://a:1",
            "http://a",
            "http://a:1/v1",
            "http://https://a:1",
            "",
        ] {
            assert!(endpoint_address(bad).is_err(), "{bad}");
        }
        assert!(!is_watched(&worker_address("http://a:1").unwrap()));
    }

    #[test]
    fn addresses_are_one_a_line_with_comments() {
        let text = "# two\na:1\r\n\n  http://[::1]:8001  \n";
        assert_eq!(parse(text, worker_address).unwrap(), ["a:1", "[::1]:8001"]);
        assert_eq!(parse("", worker_address).unwrap(), Vec::<String>::new());
        let error = parse("a:1\nb\n", worker_address).unwrap_err();
        assert_eq!(error, "line 2, `b`, must be HOST:PORT, e.g. 127.0.0.1:8001");
        let endpoints = parse("http://a:1\n#\n", endpoint_address).unwrap();
        assert_eq!(endpoints, ["http://a:1"]);
        let error = parse("a:1", endpoint_address).unwrap_err();
        assert_eq!(
            error,
            "line 1, `a:1`, must be http://HOST:PORT, e.g. http://127.0.0.1:8000"
        );
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
}
