//! The EndpointSlices of a Service, as the addresses of its workers. Pure: objects of `discovery.k8s.io/v1` in, a
//! [`Listing`] out. Knows nothing of how they arrive.
//!
//! A worker is a Pod, whatever number of slices has it: a Service of both families lists each Pod twice, and an endpoint
//! that moves between slices is in both for a moment. IPv4 comes first.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

use super::service::PortChoice;
use crate::listing::{Listing, Missing};

/// The port that is taken where none was chosen and there are several.
const USUAL_PORT: &str = "grpc";

/// An EndpointSlice, as far as it matters here.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    pub(super) metadata: Metadata,
    address_type: Family,
    /// Go writes an empty list as `null`; so also below.
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) resource_version: String,
}

/// In the order in which they are preferred.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    IPv4,
    IPv6,
    #[serde(rename = "FQDN")]
    Name,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Option<Conditions>,
    #[serde(default)]
    target_ref: Option<Target>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
struct Target {
    #[serde(default)]
    uid: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

/// What an endpoint is for new requests; the better of two slices counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Unready,
    Leaving,
    Ready,
}

/// Why slices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SliceError {
    #[error("an EndpointSlice has no name or no version")]
    Unnamed,
    #[error("`{0}` is not an address of its family")]
    Address(String),
    #[error(
        "the Service has several ports or none, and none of them is called `{USUAL_PORT}`; name one, as in NAMESPACE/NAME:PORT"
    )]
    Ports,
    #[error("the Service has no port called `{0}`")]
    NoPort(String),
}

/// All slices of one Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices(BTreeMap<String, Slice>);

impl Slices {
    /// Takes a slice, or what has become of it.
    ///
    /// # Errors
    /// It has no name, or an invalid address.
    pub(super) fn put(&mut self, slice: Slice) -> Result<(), SliceError> {
        let Metadata {
            name,
            resource_version,
        } = &slice.metadata;
        if name.is_empty() || resource_version.is_empty() {
            return Err(SliceError::Unnamed);
        }
        for endpoint in slice.endpoints.iter().flatten() {
            slice.address_type.host(endpoint)?;
        }
        self.0.insert(name.clone(), slice);
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The workers, each at its chosen port; `scheme` comes before each address.
    ///
    /// # Errors
    /// It is not clear which port that is.
    pub(super) fn listing(&self, scheme: &str, choice: &PortChoice) -> Result<Listing, SliceError> {
        let mut slices: Vec<&Slice> = self.0.values().collect();
        slices.sort_by_key(|slice| slice.address_type);
        let mut workers: BTreeMap<String, (String, State)> = BTreeMap::new();
        let mut order = Vec::new();
        for slice in slices {
            let endpoints = slice.endpoints.as_deref().unwrap_or_default();
            if endpoints.is_empty() {
                continue;
            }
            let port = slice.port(choice)?;
            for endpoint in endpoints {
                let Some(host) = slice.address_type.host(endpoint)? else {
                    continue;
                };
                let address = format!("{scheme}{host}:{port}");
                let uid = endpoint.target_ref.as_ref().map(|target| &target.uid);
                let key = uid.filter(|uid| !uid.is_empty()).unwrap_or(&address);
                let state = State::of(endpoint.conditions.unwrap_or_default());
                match workers.get_mut(key) {
                    Some((known, before)) if *known == address => *before = state.max(*before),
                    // The same Pod by its other family.
                    Some(_) => {}
                    None => {
                        order.push(key.clone());
                        workers.insert(key.clone(), (address, state));
                    }
                }
            }
        }
        let mut listing = Listing::new(Vec::new(), Missing::Doubtful);
        for key in order {
            match workers.remove(&key) {
                Some((address, State::Ready)) => listing.listed.push(address),
                Some((address, State::Leaving)) => listing.leaving.push(address),
                Some((_, State::Unready)) | None => {}
            }
        }
        Ok(listing)
    }
}

impl Slice {
    fn port(&self, choice: &PortChoice) -> Result<u16, SliceError> {
        let ports = self.ports.as_deref().unwrap_or_default();
        let called = |name: &str| {
            let named = |port: &&Port| port.name.as_deref() == Some(name);
            ports.iter().find(named).and_then(|port| port.port)
        };
        match choice {
            PortChoice::Number(number) => Ok(*number),
            PortChoice::Name(name) => called(name).ok_or_else(|| SliceError::NoPort(name.clone())),
            PortChoice::Usual => {
                let only = match ports {
                    [only] => only.port,
                    _ => None,
                };
                only.or_else(|| called(USUAL_PORT)).ok_or(SliceError::Ports)
            }
        }
    }
}

impl Family {
    /// The host of an endpoint, as an address has it; `None`: it has none yet. All its addresses are the same worker's.
    fn host(self, endpoint: &Endpoint) -> Result<Option<String>, SliceError> {
        let Some(address) = endpoint.addresses.first() else {
            return Ok(None);
        };
        let is_name = |text: &str| {
            let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
            !text.is_empty() && text.len() <= 253 && text.bytes().all(valid)
        };
        let host = match self {
            Self::IPv4 => address.parse::<Ipv4Addr>().ok().map(|ip| ip.to_string()),
            Self::IPv6 => address.parse::<Ipv6Addr>().ok().map(|ip| format!("[{ip}]")),
            Self::Name => is_name(address).then(|| address.clone()),
        };
        let shown = || address.chars().take(64).flat_map(char::escape_debug);
        host.map(Some)
            .ok_or_else(|| SliceError::Address(shown().collect()))
    }
}

impl State {
    /// By Kubernetes' rules: unknown readiness counts as ready, and what terminates does so whatever else is said.
    fn of(conditions: Conditions) -> Self {
        match conditions {
            Conditions {
                terminating: Some(true),
                ..
            } => Self::Leaving,
            Conditions {
                ready: Some(false), ..
            } => Self::Unready,
            _ => Self::Ready,
        }
    }
}

#[cfg(test)]
mod tests;
