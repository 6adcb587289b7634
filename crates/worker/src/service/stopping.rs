//! Stopping a request by its id, which a client asks for in place of a request. Owns what the client hears of it; whose
//! requests it may stop is the engine's.

use std::net::SocketAddr;

use inflight_kserve::inference::ModelInferResponse;
use tonic::Code;

use super::Shared;
use super::refusal::Refusal;
use crate::engine::Named;
use crate::outbox::Outbox;
use crate::request::RequestError;
use crate::response;

/// Characters of a request id that an error repeats.
const MAX_SHOWN_ID: usize = 64;

impl Shared {
    /// Stops the request with this id, whichever model it went to, and answers in the name of `model`. An unknown id
    /// is a success too, as in Triton: its request may have finished.
    pub(super) fn stop_id(
        &self,
        id: &str,
        model: &str,
        peer: Option<SocketAddr>,
    ) -> Result<ModelInferResponse, Refusal> {
        let refused = |code, text| {
            Err(Refusal {
                code,
                text,
                retry_after_ms: 0,
            })
        };
        if id.is_empty() {
            let error = RequestError::StopWithoutId;
            return refused(error.code(), error.to_string());
        }
        match self.engine.stop_named(peer, id) {
            Named::Found(_) | Named::Unknown => Ok(response::empty(model, id, true)),
            Named::Others => refused(
                Code::PermissionDenied,
                format!(
                    "request `{}` was not stopped: it came on another connection, and only clients on the worker's \
                     machine may stop requests of other connections",
                    id.escape_debug().take(MAX_SHOWN_ID).collect::<String>()
                ),
            ),
        }
    }

    /// The same on a stream.
    pub(super) fn answer_stop(
        &self,
        id: &str,
        model: &str,
        outbox: &Outbox,
        peer: Option<SocketAddr>,
    ) {
        match self.stop_id(id, model, peer) {
            Ok(answer) => outbox.reply(response::message(answer)),
            Err(refusal) => self.fail(outbox, model, id, refusal),
        }
    }
}
