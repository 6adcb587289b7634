//! ModelInfer: one request, one response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::stop::asks_to_stop;
use inflight_traces::TraceContext;
use tonic::Status;

use super::refusal::shortened;
use super::stream::each_response;
use super::{Models, Shared, text};
use crate::executor::ClientId;
use crate::outbox::{Outbox, Taken};
use crate::request::{Incoming, Plain};

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

/// The outbox of one request. Dropping it cancels the request.
struct Own<'a> {
    shared: &'a Shared,
    outbox: Arc<Outbox>,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.shared.engine.abandon(&self.outbox.close());
    }
}

/// One request whose one response is waited for.
pub(super) async fn infer_plain(
    shared: &Arc<Shared>,
    plain: Plain,
    peer: Option<SocketAddr>,
) -> Result<ModelInferResponse, Status> {
    let answer = &plain.answer;
    if answer.streaming {
        return Err(Status::unimplemented(
            "ModelInfer has one response and `streaming` asks for several (a decoupled transaction); \
             use ModelStreamInfer, or set `streaming` to false",
        ));
    }
    if answer.batch > 1 || answer.sequences > 1 && answer.beam_width == 1 {
        return Err(Status::unimplemented(
            "ModelInfer has one response; use ModelStreamInfer for a batch or for \
             `num_return_sequences` above 1",
        ));
    }
    let own = Own {
        shared,
        outbox: shared.common.open(),
    };
    let outbox = &own.outbox;
    shared
        .start_plain(outbox, peer, plain)
        .map_err(Status::from)?;
    outbox.finish();
    let stop = |client_ids: &[ClientId]| shared.engine.stop_requests(client_ids);
    let mut result = None;
    std::future::poll_fn(|context| {
        loop {
            outbox.register(context.waker());
            match outbox.take() {
                Taken::Plain(batch) => each_response(stop, outbox, &batch, |answer| {
                    result = Some(answer.map_err(|failed| {
                        Status::new(failed.error.code, shortened(failed.error.text))
                    }));
                }),
                Taken::Failed(status) => result = Some(Err(status)),
                Taken::End => return Poll::Ready(()),
                Taken::Nothing => return Poll::Pending,
                Taken::Reply(_) | Taken::Step(_) => {}
            }
        }
    })
    .await;
    result.unwrap_or_else(|| Err(Status::internal("the request ended without a response")))
}
