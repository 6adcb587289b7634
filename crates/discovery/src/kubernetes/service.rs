//! How a user names the Service whose Pods are workers.

use std::str::FromStr;

use crate::address::HTTPS;

/// `[https://][NAMESPACE/]NAME[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// What comes before each address: nothing, or `https://`.
    pub(super) scheme: &'static str,
    /// `None`: the gateway's own.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) port: PortChoice,
}

/// Which port of a Pod is the worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortChoice {
    /// The only one, or the one called `grpc`.
    Usual,
    Name(String),
    Number(u16),
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be [NAMESPACE/]NAME[:PORT], e.g. models/llama:8001".to_owned();
        let (scheme, bare) = match text.strip_prefix(HTTPS) {
            Some(bare) => (HTTPS, bare),
            None => ("", text),
        };
        let (service, port) = match bare.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (bare, None),
        };
        let (namespace, name) = match service.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, service),
        };
        let port = match port {
            None => PortChoice::Usual,
            Some(port) => match port.parse() {
                Ok(0) => return Err(wrong()),
                Ok(number) => PortChoice::Number(number),
                Err(_) if is_label(port) => PortChoice::Name(port.to_owned()),
                Err(_) => return Err(wrong()),
            },
        };
        if !is_label(name) || !namespace.is_none_or(is_label) {
            return Err(wrong());
        }
        Ok(Self {
            scheme,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            port,
        })
    }
}

/// Whether this can be a name of Kubernetes (a label of DNS): then it also needs no escaping in a URL.
pub(super) fn is_label(text: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(valid) && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_a_name_and_may_have_a_namespace_a_port_and_tls() {
        let service = |scheme, namespace: Option<&str>, port| ServiceName {
            scheme,
            namespace: namespace.map(str::to_owned),
            name: "llama-8b".to_owned(),
            port,
        };
        let named = PortChoice::Name("grpc".to_owned());
        for (text, expected) in [
            ("llama-8b", service("", None, PortChoice::Usual)),
            ("llama-8b:8001", service("", None, PortChoice::Number(8001))),
            ("ml/llama-8b:grpc", service("", Some("ml"), named.clone())),
            (
                "https://ml/llama-8b:grpc",
                service(HTTPS, Some("ml"), named),
            ),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "a:",
            "a:0",
            "a:b:c",
            "A",
            "a b",
            "a?x",
            "-a",
            "http://a",
            "a:99999x!",
        ] {
            let error = bad.parse::<ServiceName>().unwrap_err();
            assert!(error.contains("NAMESPACE"), "{bad}: {error}");
        }
    }
}
