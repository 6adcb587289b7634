//! The ports of a worker: bound here, or taken over from the worker that was loading.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::loading::{Listeners, Loading};
use crate::options::{WorkerError, WorkerOptions};

/// Where the worker listens. All but gRPC are always on the machine's network.
pub(super) struct Ports<L> {
    pub(super) grpc: (L, SocketAddr),
    pub(super) metrics: Option<(TcpListener, SocketAddr)>,
    pub(super) http: Option<(TcpListener, SocketAddr)>,
    pub(super) kv_events: Option<(TcpListener, SocketAddr)>,
    pub(super) kv_events_replay: Option<(TcpListener, SocketAddr)>,
}

/// Of the ports that there are.
pub(super) struct Addresses {
    pub(super) grpc: SocketAddr,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
    pub(super) kv_events: Option<SocketAddr>,
    pub(super) kv_events_replay: Option<SocketAddr>,
}

impl<L> Ports<L> {
    pub(super) fn addresses(&self) -> Addresses {
        let address = |port: &Option<(TcpListener, SocketAddr)>| port.as_ref().map(|port| port.1);
        Addresses {
            grpc: self.grpc.1,
            metrics: address(&self.metrics),
            http: address(&self.http),
            kv_events: address(&self.kv_events),
            kv_events_replay: address(&self.kv_events_replay),
        }
    }
}

impl Ports<TcpListener> {
    /// Binds them, unless the worker that was `loading` has done so.
    pub(super) async fn of_machine(
        options: &WorkerOptions,
        loading: Option<Loading>,
    ) -> Result<Self, WorkerError> {
        let Listeners {
            grpc,
            metrics,
            http,
            kv_events,
            kv_events_replay,
        } = match loading.and_then(Loading::finish) {
            Some(listeners) => listeners,
            None => Listeners::bind(options).await?,
        };
        let on_runtime = |purpose, (listener, address): (std::net::TcpListener, SocketAddr)| {
            let listener = TcpListener::from_std(listener);
            let listener = listener.map_err(|source| WorkerError::Bind {
                address: address.to_string(),
                purpose,
                source,
            })?;
            Ok((listener, address))
        };
        Ok(Self {
            grpc: on_runtime("gRPC", grpc)?,
            metrics: Some(on_runtime("metrics", metrics)?),
            http: http.map(|http| on_runtime("HTTP", http)).transpose()?,
            kv_events: kv_events
                .map(|port| on_runtime("KV cache events", port))
                .transpose()?,
            kv_events_replay: kv_events_replay
                .map(|port| on_runtime("missed KV cache events", port))
                .transpose()?,
        })
    }
}
