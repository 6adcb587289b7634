//! `grpc.health.v1.Health`, for probes: serving when every model can be asked. The services `""` and that of KServe
//! are known.

use std::sync::Arc;

use futures_util::future::join_all;
use inflight_kserve::inference::grpc_inference_service_server::SERVICE_NAME;
use tokio::sync::Notify;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::{Models, Shared};

/// Keeps the reported status true until every model is gone.
pub(crate) async fn report(models: Arc<Models>, reporter: HealthReporter) {
    let changed = Notify::new();
    let watching = join_all(models.all().map(|shared| watch(shared, &changed)));
    let reporting = async {
        loop {
            let status = if models.is_ready() {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            for service in ["", SERVICE_NAME] {
                reporter.set_service_status(service, status).await;
            }
            changed.notified().await;
        }
    };
    tokio::select! {
        _ = watching => {}
        () = reporting => {}
    }
}

/// Reports whenever the model may have become ready, or no longer be so.
async fn watch(shared: &Shared, changed: &Notify) {
    let mut health = shared.engine.health();
    loop {
        tokio::select! {
            changed = health.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = shared.catalog.settled(), if !shared.catalog.is_settled() => {}
        }
        changed.notify_one();
    }
}
