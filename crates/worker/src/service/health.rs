//! `grpc.health.v1.Health`, for probes: serving when every model can be asked. The services `""` and that of KServe
//! are known.

use std::sync::Arc;

use inflight_kserve::inference::grpc_inference_service_server::SERVICE_NAME;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::Shared;

/// Keeps the reported status true; never ends.
pub(crate) async fn report(shared: Arc<Shared>, reporter: HealthReporter) {
    let mut health = shared.engine.health();
    loop {
        let status = if shared.is_ready() {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for service in ["", SERVICE_NAME] {
            reporter.set_service_status(service, status).await;
        }
        tokio::select! {
            changed = health.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = shared.catalog.settled(), if !shared.catalog.is_settled() => {}
        }
    }
}
