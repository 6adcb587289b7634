//! The worker's own entry where gateways look for workers. Owns when it is there: from the first proof of readiness until
//! the worker is asked to end.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use inflight_discovery::address::{HTTPS, worker_address};
use inflight_discovery::etcd::Registration;
use inflight_kserve::client::TransportOptions;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::options::{WorkerError, WorkerOptions};

/// What is to be registered; `None`: nothing.
///
/// # Errors
/// It is not known how gateways reach the worker.
pub(crate) fn planned(
    options: &WorkerOptions,
    grpc: SocketAddr,
    is_tls: bool,
) -> Result<Option<Registration>, WorkerError> {
    let Some(place) = &options.register_etcd else {
        return Ok(None);
    };
    let bare = match &options.register_address {
        Some(address) => address.clone(),
        None => grpc.to_string(),
    };
    let is_known = options.register_address.is_some() || !grpc.ip().is_unspecified();
    let scheme = if is_tls && !bare.starts_with(HTTPS) {
        HTTPS
    } else {
        ""
    };
    let address = worker_address(&format!("{scheme}{bare}"));
    let address = address.ok().filter(|_| is_known);
    let address = address.ok_or(WorkerError::RegisterAddress(bare))?;
    let transport = TransportOptions::default();
    Ok(Some(Registration::new(place.clone(), transport, address)))
}

/// Registers the worker once all its models are ready, until `ended`.
pub(crate) fn start(
    registration: Registration,
    engines: &[Arc<Engine>],
    ended: CancellationToken,
) -> JoinHandle<()> {
    let health: Vec<_> = engines.iter().map(|engine| engine.health()).collect();
    tokio::spawn(async move {
        let ready = join_all(health.into_iter().map(|mut health| async move {
            // The sender lives as long as the engine.
            let _ = health.wait_for(|health| health.is_ready()).await;
        }));
        tokio::select! {
            _ = ready => registration.keep(ended.cancelled()).await,
            () = ended.cancelled() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_registered_by_an_address_that_others_can_use() {
        let planned = |host: &str, address: Option<&str>, is_tls| {
            let options = WorkerOptions {
                register_etcd: Some("http://etcd:2379/workers/".parse().unwrap()),
                register_address: address.map(str::to_owned),
                ..WorkerOptions::default()
            };
            let made = planned(&options, host.parse().unwrap(), is_tls);
            made.map(|made| made.unwrap().address().to_owned()).ok()
        };
        let at = |address: &str| Some(address.to_owned());
        assert_eq!(planned("10.0.0.1:8001", None, false), at("10.0.0.1:8001"));
        assert_eq!(planned("[::1]:8001", None, true), at("https://[::1]:8001"));
        assert_eq!(planned("0.0.0.0:8001", Some("w:1"), false), at("w:1"));
        assert_eq!(
            planned("0.0.0.0:8001", Some("https://w:1"), true),
            at("https://w:1")
        );
        assert_eq!(planned("0.0.0.0:8001", None, false), None);
        assert_eq!(planned("10.0.0.1:8001", Some("w"), false), None);
        let none = super::planned(
            &WorkerOptions::default(),
            "0.0.0.0:1".parse().unwrap(),
            false,
        );
        assert!(none.unwrap().is_none());
    }
}
