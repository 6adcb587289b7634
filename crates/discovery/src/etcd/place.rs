//! How a user names keys of etcd.

use std::fmt;
use std::str::FromStr;

use crate::address::{HTTPS, worker_address};

/// `http[s]://HOST:PORT[,HOST:PORT…]/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPlace {
    /// Each as the address of a server of gRPC; they are one cluster.
    pub(super) servers: Vec<String>,
    pub(super) prefix: String,
}

impl fmt::Display for EtcdPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_tls = self.servers.iter().any(|one| one.starts_with(HTTPS));
        let bare = self.servers.iter().map(|one| one.trim_start_matches(HTTPS));
        let servers = bare.collect::<Vec<_>>().join(",");
        let scheme = if is_tls { HTTPS } else { "http://" };
        write!(formatter, "{scheme}{servers}/{}", self.prefix)
    }
}

impl FromStr for EtcdPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "must be http://HOST:PORT/PREFIX, with commas between several HOST:PORT of a cluster"
                .to_owned()
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = match scheme {
            "http" => "",
            "https" => HTTPS,
            _ => return Err(wrong()),
        };
        let (servers, prefix) = rest.split_once('/').ok_or_else(wrong)?;
        if prefix.is_empty() {
            return Err(wrong());
        }
        let servers = servers.split(',').map(|server| {
            let is_bare = !server.contains("://");
            is_bare
                .then(|| worker_address(&format!("{scheme}{server}")).ok())
                .flatten()
        });
        let servers: Option<Vec<String>> = servers.collect();
        Ok(Self {
            servers: servers.ok_or_else(wrong)?,
            prefix: prefix.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_servers_and_a_prefix() {
        let place = |servers: &[&str], prefix: &str| EtcdPlace {
            servers: servers.iter().map(|one| (*one).to_owned()).collect(),
            prefix: prefix.to_owned(),
        };
        for (text, expected) in [
            (
                "http://etcd:2379/inflight/llama/",
                place(&["etcd:2379"], "inflight/llama/"),
            ),
            ("http://a:1,b:2//llama", place(&["a:1", "b:2"], "/llama")),
            ("https://[::1]:2379/w", place(&["https://[::1]:2379"], "w")),
        ] {
            assert_eq!(expected.to_string(), text);
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "etcd:2379/p",
            "http://etcd:2379",
            "http://etcd:2379/",
            "http://etcd/p",
            "http://a:1,,b:1/p",
            "ftp://a:1/p",
            "http://http://a:1/p",
        ] {
            assert!(bad.parse::<EtcdPlace>().is_err(), "{bad}");
        }
    }
}
