//! ModelInfer: one request, one response.

use std::net::SocketAddr;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::stop::asks_to_stop;
use inflight_traces::TraceContext;
use tonic::Status;

use super::plain::infer_plain;
use super::{Models, text};
use crate::request::Incoming;

/// KServe's call, as spans name it.
const ONE: &str = "ModelInfer";

/// Answers a request of any model.
pub(super) async fn infer(
    models: &Models,
    message: ModelInferRequest,
    peer: Option<SocketAddr>,
    call: Option<TraceContext>,
) -> Result<ModelInferResponse, Status> {
    let shared = models.route(&message.model_name).map_err(|text| {
        models.refused();
        Status::not_found(text)
    })?;
    let trace = || shared.begin_trace(&message, ONE, call.as_ref());
    if let Some(kind) = shared.catalog.text_model(&message) {
        if asks_to_stop(&message) {
            return Ok(shared.stop_id(&message.id, &message.model_name, peer)?);
        }
        let trace = trace();
        return text::infer(shared, kind, message, peer, trace).await;
    }
    let incoming = shared.parse(&message).map_err(|refusal| {
        shared.engine.metrics.refused();
        if let Some(trace) = trace() {
            trace.failed(refusal.code);
        }
        Status::from(refusal)
    })?;
    let plain = match incoming {
        Incoming::StopId(id) => {
            return Ok(shared.stop_id(&id, &shared.limits.core_model, peer)?);
        }
        Incoming::StopHandle(_) | Incoming::Step { .. } => {
            return Err(Status::unimplemented(
                "ModelInfer does not support `inflight_handle`; use ModelStreamInfer",
            ));
        }
        Incoming::Plain(mut plain) => {
            plain.trace = trace();
            *plain
        }
    };
    infer_plain(shared, plain, peer).await
}
