//! The ports of the KV cache's events: who listens there, and the tasks behind them. What events say is
//! [`publish`]'s, and what a listener may do is [`Publisher`]'s.

use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt;
use inflight_base::accept::{Connection, accept};
use inflight_kv_events::zmtp::ZmtpError;
use inflight_kv_events::{Form, Publisher};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::adapters::Adapters;
use crate::cache::{MAX_WATCHERS, everything, publish};
use crate::hosted::Hosted;
use crate::options::{WorkerError, WorkerOptions};

/// Checks that there are events to publish, where they are asked for.
///
/// # Errors
/// There are none, or those of several models.
pub(super) fn check(models: &[Hosted], options: &WorkerOptions) -> Result<(), WorkerError> {
    if options.kv_events_port.is_none() {
        return Ok(());
    }
    match models {
        [model] if model.reports_blocks() => Ok(()),
        [model] => Err(WorkerError::NoCacheEvents(model.info.executor.clone())),
        _ => Err(WorkerError::EventsOfSeveral(models.len())),
    }
}

/// Publishes the model's events at `live`, and answers at `past`, until the tasks are aborted.
pub(super) fn start(
    live: TcpListener,
    past: Option<TcpListener>,
    model: &Hosted,
    adapters: Arc<Adapters>,
    (topic, form): (&str, Form),
) -> JoinSet<()> {
    let (board, of_board) = (Arc::clone(&model.cache), Arc::clone(&adapters));
    let all = move || everything(&board, |id| of_board.name_of(id));
    let publisher = Arc::new(Publisher::new(topic, form, all));
    let mut tasks = JoinSet::new();
    let name_of = move |id| adapters.name_of(id);
    tasks.spawn(publish(
        Arc::clone(&model.cache),
        Arc::clone(&publisher),
        name_of,
    ));
    let own = Arc::clone(&publisher);
    tasks.spawn(answer(live, move |connection| {
        let own = Arc::clone(&own);
        async move { own.serve_subscriber(connection).await }
    }));
    if let Some(past) = past {
        tasks.spawn(answer(past, move |connection| {
            let own = Arc::clone(&publisher);
            async move { own.serve_past(connection).await }
        }));
    }
    tasks
}

/// Serves each connection, a bounded number at once.
async fn answer<F>(listener: TcpListener, serve: impl Fn(Connection) -> F)
where
    F: Future<Output = Result<(), ZmtpError>> + Send + 'static,
{
    let mut connections = std::pin::pin!(accept(listener, MAX_WATCHERS, None));
    let mut served = JoinSet::new();
    while let Some(Ok(connection)) = connections.next().await {
        while served.try_join_next().is_some() {}
        let serving = serve(connection);
        served.spawn(async move {
            if let Err(reason) = serving.await {
                tracing::debug!(%reason, "a listener of KV cache events is gone");
            }
        });
    }
}
