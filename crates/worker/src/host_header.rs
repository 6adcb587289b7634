//! Which names an HTTP port on the loopback interface answers to. Owns that rule; knows nothing of what is answered.
//!
//! A web page whose own name is made to resolve to 127.0.0.1 (DNS rebinding) is one site with such a port, and its
//! browser lets it read what a GET returns. The browser still says which name it asked for, in `Host`.

use std::net::{IpAddr, SocketAddr};

use tonic::codegen::http::{HeaderMap, Uri, header};

/// The answer to a request for another name.
pub(crate) const REFUSED: &str =
    "this port is not known by the name in the `Host` header; use `localhost` or an address";

/// The names of one port.
#[derive(Clone, Debug)]
pub(crate) struct HostNames {
    is_local: bool,
    /// What this machine calls itself.
    machine: Option<String>,
}

impl HostNames {
    /// Those of a port that listens on `address`.
    pub(crate) fn new(address: Option<SocketAddr>) -> Self {
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self {
            is_local: address.is_some_and(|address| address.ip().to_canonical().is_loopback()),
            machine: machine.map(|name| name.trim().to_owned()),
        }
    }

    /// Whether a request is for one of them. A client that is not a browser may leave the name out.
    pub(crate) fn allow(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        if !self.is_local {
            return true;
        }
        let host = headers.get(header::HOST).map(|host| host.to_str().ok());
        let host = host.or_else(|| Some(uri.authority().map(|authority| authority.as_str())));
        match host.flatten() {
            Some(host) => self.is_own(host),
            None => !headers.contains_key(header::HOST),
        }
    }

    fn is_own(&self, host: &str) -> bool {
        let without_port = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = without_port.to_ascii_lowercase();
        let is_machine = |machine: &str| machine.eq_ignore_ascii_case(&name);
        // Nobody on the Internet owns an address or a name without a dot, so none can be rebound.
        name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || name.ends_with(".localhost")
            || !name.trim_end_matches('.').contains('.')
            || self.machine.as_deref().is_some_and(is_machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(listens_on: &str, host: Option<&str>) -> bool {
        let names = HostNames {
            machine: Some("box.example".to_owned()),
            ..HostNames::new(listens_on.parse().ok())
        };
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(header::HOST, host.parse().unwrap());
        }
        names.allow(&Uri::from_static("/metrics"), &headers)
    }

    #[test]
    fn a_loopback_port_answers_to_names_that_nobody_else_can_own() {
        for own in [
            "localhost:8002",
            "127.0.0.1:8002",
            "[::1]:8002",
            "::1",
            "app.localhost",
            "prometheus",
            "BOX.example:1",
        ] {
            assert!(allows("127.0.0.1:1", Some(own)), "{own}");
        }
        assert!(allows("[::1]:1", None));
        for other in [
            "evil.example",
            "evil.example:8002",
            "127.0.0.1.evil.example",
            "a.b.",
        ] {
            assert!(!allows("127.0.0.1:1", Some(other)), "{other}");
            assert!(!allows("[::ffff:127.0.0.1]:1", Some(other)), "{other}");
            assert!(allows("10.0.0.5:1", Some(other)), "{other}");
        }
    }
}
