//! The form of a worker's address, wherever it is written.

pub use inflight_kserve::client::HTTPS;

/// Reads `HOST:PORT`, also as a URL; `https://` says that the server speaks TLS, and stays.
///
/// # Errors
/// What it must be.
pub fn worker_address(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let server = bare.strip_prefix(HTTPS).unwrap_or(bare);
    let port = server.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok()?;
        (!host.is_empty() && port > 0).then_some(port)
    });
    match port {
        Some(_) => Ok(bare.to_owned()),
        None => Err("must be HOST:PORT, e.g. 127.0.0.1:8001".to_owned()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
