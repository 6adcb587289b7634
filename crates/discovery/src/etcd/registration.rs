//! A worker's own key in etcd, which etcd deletes when the worker is gone. Owns when it is written again; knows nothing of the
//! worker.

use std::time::Duration;

use inflight_base::error_chain;
use inflight_kserve::client::TransportOptions;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use super::CALL;
use super::calls::{self, PutRequest};
use super::connecting::connect;
use super::error::EtcdError;
use super::place::EtcdPlace;
use crate::reports::Trouble;
use crate::retry::Backoff;

/// After that time without a sign of life, etcd deletes the key. Gateways believe a worker that answers longer than that.
const LEASE: Duration = Duration::from_secs(15);
/// How often there is one.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How long a worker that ends waits until etcd knows it.
const REVOKE: Duration = Duration::from_secs(1);

/// The key of one worker.
#[derive(Clone, Debug)]
pub struct Registration {
    place: EtcdPlace,
    transport: TransportOptions,
    address: String,
}

impl Registration {
    /// Of the worker at this address, in this place, which is reached in this way.
    pub fn new(place: EtcdPlace, transport: TransportOptions, address: String) -> Self {
        Self {
            place,
            transport,
            address,
        }
    }

    /// What gateways will find.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Keeps the key there until `ended`, and then takes it out.
    pub async fn keep(self, ended: impl Future<Output = ()>) {
        tokio::pin!(ended);
        let mut lease = None;
        tokio::select! {
            () = &mut ended => {}
            () = self.keep_on(&mut lease) => {}
        }
        if let Some((channel, id)) = lease {
            // Otherwise it runs out.
            let _ = timeout(REVOKE, calls::revoke(channel, id)).await;
        }
    }

    /// Never returns. `lease` is the one that holds the key.
    async fn keep_on(&self, lease: &mut Option<(Channel, i64)>) {
        let mut backoff = Backoff::default();
        let mut trouble = Trouble::default();
        for server in self.place.servers.iter().cycle() {
            let begun = Instant::now();
            let error = self.hold(server, lease, &mut trouble).await;
            let reason = error_chain(&error);
            if trouble.begin(&reason, Instant::now()) {
                tracing::warn!(%reason, "this worker is not registered in etcd; it serves as before");
            }
            if begun.elapsed() >= LEASE {
                backoff = Backoff::default();
            }
            sleep(backoff.next()).await;
        }
    }

    /// Writes the key and renews its lease until that fails.
    async fn hold(
        &self,
        server: &str,
        lease: &mut Option<(Channel, i64)>,
        trouble: &mut Trouble,
    ) -> EtcdError {
        let writing = async {
            let channel = connect(server, &self.transport).await?;
            let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
            let id = calls::grant(channel.clone(), seconds).await;
            let id = id.map_err(EtcdError::Refused)?;
            let key = format!("{}{}", self.place.prefix, self.address);
            let put = PutRequest {
                key: key.into_bytes(),
                value: self.address.clone().into_bytes(),
                lease: id,
            };
            let written = calls::put(channel.clone(), put).await;
            written.map_err(EtcdError::Refused)?;
            Ok((channel, id))
        };
        let (channel, id) = match timeout(CALL, writing).await {
            Err(_) => return EtcdError::Late,
            Ok(Err(error)) => return error,
            Ok(Ok(written)) => written,
        };
        *lease = Some((channel.clone(), id));
        if trouble.end() {
            tracing::info!("this worker is registered in etcd again");
        }
        loop {
            sleep(RENEW_EVERY).await;
            match timeout(CALL, calls::renew(channel.clone(), id)).await {
                Err(_) => return EtcdError::Late,
                Ok(Err(status)) => return EtcdError::Refused(status),
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return EtcdError::Ended("the lease has run out".to_owned()),
            }
        }
    }
}
