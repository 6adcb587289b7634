//! Health of the picker, as gRPC's health service says it: whether it lives, and whether it has an endpoint to name. Each
//! answer is of the moment that it is given.

use std::sync::Arc;
use std::time::Duration;

use inflight_ext_proc::SERVICE;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::state::AppState;

/// What Kubernetes' probes of a picker ask for, besides [`SERVICE`]; the empty name is the whole server.
const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";
/// How often a watcher's answer is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Clone)]
pub(super) struct PickerHealth {
    /// Whether an endpoint can be named now.
    is_ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl PickerHealth {
    pub(super) fn new(state: &Arc<AppState>) -> Self {
        let state = Arc::clone(state);
        Self {
            is_ready: Arc::new(move || state.table.ready() && !state.is_draining()),
        }
    }

    fn status(&self, service: &str) -> Option<ServingStatus> {
        let is_serving = match service {
            "" | LIVENESS => true,
            READINESS | SERVICE => (self.is_ready)(),
            _ => return None,
        };
        Some(match is_serving {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        })
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for PickerHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        let status = self.status(&service);
        let status = status.ok_or_else(|| {
            Status::not_found(format!(
                "there is no service `{service}`; ask for `{LIVENESS}`, `{READINESS}` or `{SERVICE}`"
            ))
        })?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let (sender, answers) = mpsc::channel(1);
        let health = self.clone();
        tokio::spawn(async move {
            let mut last = None;
            loop {
                // A name that is not known may become so: gRPC's health service says that in the stream.
                let status = health.status(&service);
                let status = status.unwrap_or(ServingStatus::ServiceUnknown);
                if last.replace(status) != Some(status)
                    && sender.send(Ok(answer(status))).await.is_err()
                {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
