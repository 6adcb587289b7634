//! The value of a key: one worker. Pure.

use serde::Deserialize;

use crate::address::worker_address;

/// The address of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) String);

/// The form of etcd's own package for gRPC's clients (`client/v3/naming/endpoints`).
#[derive(Deserialize)]
struct Endpoint {
    #[serde(rename = "Addr")]
    address: String,
}

impl Entry {
    /// Reads `HOST:PORT`, or that in JSON as etcd's package for gRPC writes it: `{"Addr": "HOST:PORT"}`.
    ///
    /// # Errors
    /// What it must be.
    pub(super) fn read(value: &[u8]) -> Result<Self, String> {
        let wrong = || {
            let value = shown(value);
            format!("`{value}` must be HOST:PORT or JSON with it as `Addr`")
        };
        let text = std::str::from_utf8(value).map_err(|_| wrong())?.trim();
        let address = match text.starts_with('{') {
            true => serde_json::from_str::<Endpoint>(text).map(|one| one.address),
            false => Ok(text.to_owned()),
        };
        let address = address.map_err(|_| wrong())?;
        worker_address(&address).map(Self).map_err(|_| wrong())
    }
}

/// As much of a peer's bytes as a line of the log shows.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().take(200).flat_map(char::escape_debug);
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_addresses_in_text_or_as_etcds_own_package_writes_them() {
        for (value, address) in [
            ("10.0.0.1:8001", "10.0.0.1:8001"),
            (" https://worker:8001\n", "https://worker:8001"),
            (
                r#"{"Op":0,"Addr":"10.0.0.1:8001","Metadata":null}"#,
                "10.0.0.1:8001",
            ),
        ] {
            assert_eq!(Entry::read(value.as_bytes()), Ok(Entry(address.to_owned())));
        }
        for bad in [
            &b""[..],
            b"worker",
            b"{}",
            b"{\"Addr\":5}",
            b"{\"Addr\":\"a\"}",
            b"\xff:1",
        ] {
            let error = Entry::read(bad).unwrap_err();
            assert!(error.ends_with("`Addr`"), "{error}");
        }
    }
}
