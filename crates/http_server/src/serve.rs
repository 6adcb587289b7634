//! The accept loop and the end of a port. Owns how many connections there are and how they are asked to end; knows
//! nothing of what one of them does.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use inflight_base::net::{Connection as _, Listener};
use inflight_clients::client::{Addresses, ClientConnection};
use tokio::sync::watch;

use crate::connection::{Accepted, Builders, Drain};
use crate::connections::Connections;
use crate::port::{ConnectionLimits, Port};

/// Connections beyond the limit, so that health checks are answered when clients hold all others.
const SURPLUS: usize = 32;
/// While no connection can be accepted, this often one is looked for that can be closed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Accepts until `handed_over` or `shutdown` resolves. After the first, open requests take as long as they
/// do, unless `shutdown` resolves; after that, `grace` at most.
///
/// `interrupt` is called when the grace is over and requests remain: it ends them with an error, and
/// they get a moment to say so before their connections are cut.
pub async fn serve<L: Listener>(
    port: Port<L>,
    router: Router,
    limits: ConnectionLimits,
    handed_over: impl Future<Output = ()>,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
    interrupt: impl FnOnce(),
) {
    let builders = Arc::new(Builders::new(limits));
    let open = Connections::new(limits.max_connections);
    let addresses = Arc::new(Addresses::default());
    let (drain, draining) = watch::channel(Drain::No);
    let last_answers = Arc::new(AtomicBool::new(false));
    let mut connections = tokio::task::JoinSet::new();
    let service = TowerToHyperService::new(router);
    let Port { listener, tls } = port;
    tokio::pin!(handed_over, shutdown);

    let is_handed_over = loop {
        let is_full = open.is_full();
        let may_accept = open.len() < limits.max_connections.saturating_add(SURPLUS);
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break false,
            () = &mut handed_over => break true,
            accepted = accept(&listener), if may_accept => match accepted {
                Some(accepted) => accepted,
                None => {
                    // Out of descriptors, perhaps.
                    open.shed();
                    continue;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = tokio::time::sleep(LOOK_AGAIN), if !may_accept => {
                open.shed();
                continue;
            }
        };
        let client = Arc::new(ClientConnection::new(peer, &addresses));
        if is_full && !open.shed() {
            open.mark_surplus(&client);
        }
        let listed = open.add(Arc::clone(&client));
        let (stream, hang_up) = stream.watch();
        let mut accepted = Accepted {
            hang_up,
            client,
            limits,
            last_answers: Arc::clone(&last_answers),
            draining: draining.clone(),
        };
        let (builders, service) = (Arc::clone(&builders), service.clone());
        match &tls {
            None => connections.spawn(async move {
                accepted.serve(stream, &builders, service).await;
                drop(listed);
            }),
            Some(tls) => {
                let tls = tls.clone();
                connections.spawn(async move {
                    if let Some(stream) = accepted.shake_hands(stream, &tls).await {
                        accepted.serve(stream, &builders, service).await;
                    }
                    drop(listed);
                })
            }
        };
    };
    drop(listener);

    if is_handed_over {
        last_answers.store(true, Ordering::Relaxed);
        drain.send_replace(Drain::Leisurely);
        tokio::select! {
            () = async { while connections.join_next().await.is_some() {} } => return,
            () = &mut shutdown => {}
        }
    }
    drain.send_replace(Drain::Now);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, drained).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "grace period over; ending open requests"
        );
        interrupt();
        let goodbye = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
    }
    connections.shutdown().await;
}

/// Runs a port for calls of gRPC to its end, or until the grace period after `shutdown` is over.
pub async fn within_grace(
    port: &'static str,
    serving: impl Future<Output = Result<(), impl Display>>,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) {
    let over = async {
        shutdown.await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!("the {port} port ended: {error}");
        },
        () = over => {}
    }
}

async fn accept<L: Listener>(listener: &L) -> Option<(L::Connection, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            // Out of descriptors, or the peer is already gone: accepting continues.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}
