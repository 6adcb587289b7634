//! Connections to a server of etcd.

use inflight_kserve::client::{Target, TransportOptions};
use tonic::transport::Channel;

use super::error::EtcdError;

/// Connects now. The caller bounds its time.
pub(super) async fn connect(
    server: &str,
    options: &TransportOptions,
) -> Result<Channel, EtcdError> {
    let connected = Target::new(server, options)?.connect().await;
    connected.map_err(|source| EtcdError::Unreachable {
        server: server.to_owned(),
        source,
    })
}
