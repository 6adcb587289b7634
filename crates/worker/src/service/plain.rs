//! Rows that become Triton responses: of a stream, and of one request whose one response is waited for. Knows nothing
//! of where a request came from.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use inflight_kserve::inference::ModelInferResponse;
use tonic::Status;

use super::Shared;
use super::refusal::shortened;
use crate::executor::{ClientId, ResponseBatch};
use crate::outbox::{Outbox, Taken};
use crate::request::Plain;
use crate::response::FailedRow;

type PlainResult = Result<ModelInferResponse, Box<FailedRow>>;

/// The responses of plain rows, in order.
pub(super) fn each_response(
    stop: impl Fn(&[ClientId]),
    outbox: &Outbox,
    batch: &ResponseBatch,
    mut then: impl FnMut(PlainResult),
) {
    let mut tensors = batch.tensors.as_slice();
    let mut own = Vec::new();
    for row in batch.rows.rows() {
        own.clear();
        while let Some(((place, tensor), rest)) = tensors.split_first() {
            if *place as usize > row.index {
                break;
            }
            own.push(tensor.clone());
            tensors = rest;
        }
        let answer = outbox.respond(&row, |responder| {
            let answer = responder.respond(&row, &own);
            (answer, responder.take_stopped())
        });
        let Some((answer, stopped)) = answer else {
            continue;
        };
        if let Some(client_ids) = stopped {
            stop(&client_ids);
        }
        if let Some(answer) = answer.transpose() {
            then(answer);
        }
    }
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
