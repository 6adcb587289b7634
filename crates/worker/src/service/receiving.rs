//! What a request becomes once it has come: work for the engine, a stop, or a refusal. Knows its outbox; nothing of how
//! that is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::step::Handle;
use inflight_kserve::stop::asks_to_stop;
use inflight_traces::TraceContext;
use tonic::Code;

use super::Shared;
use super::refusal::Refusal;
use crate::engine::{Destination, Named};
use crate::executor::{ClientId, Request};
use crate::outbox::{Known, Outbox};
use crate::request::{self, Incoming, Plain, RequestError};
use crate::respond::{Asked, Responder};
use crate::response;
use crate::shared_memory;
use crate::trace::RequestTrace;

/// Characters of a request id that an error repeats.
const MAX_SHOWN_ID: usize = 64;
/// KServe's call, as spans name it.
const STREAM: &str = "ModelStreamInfer";

/// What happened to an earlier request with the same handle.
enum Earlier {
    /// There was none.
    None,
    /// Its rows are dropped from now on; the handle still needs a final row.
    Silenced,
    /// Its final row has come and is the handle's.
    Final,
}

impl Shared {
    /// Handles one request of a stream. An error is the answer to that request and does not end the
    /// stream.
    fn receive(
        &self,
        message: &ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        call: Option<&TraceContext>,
    ) {
        let trace = || self.begin_trace(message, STREAM, call);
        let incoming = match self.parse(message) {
            Ok(incoming) => incoming,
            Err(refusal) => {
                self.engine.metrics.refused();
                if let Some(trace) = trace() {
                    trace.failed(refusal.code);
                }
                let handle = request::handle_of_malformed(message);
                return self.refuse(outbox, handle, &message.id, refusal);
            }
        };
        match incoming {
            Incoming::StopHandle(handle) => {
                // A request that has finished needs no cancel: its final row is on the way.
                if let Known::Live(client_id) = outbox.find(handle) {
                    self.engine.stop_requests(&[client_id]);
                }
            }
            Incoming::StopId(id) => self.answer_stop(&id, &self.limits.core_model, outbox, peer),
            Incoming::Step {
                handle,
                request,
                timeout,
                wants_cached_tokens,
                may_wait,
                context_only,
            } => {
                // A worker that leaves says so on the streams that carry handles.
                outbox.bind_steps(self.engine.place());
                let destination = Destination::Step {
                    handle,
                    wants_cached_tokens,
                    may_wait,
                    context_only,
                };
                self.start_step(outbox, handle, *request, timeout, &destination, trace());
            }
            Incoming::Plain(mut plain) => {
                plain.trace = trace();
                let id = plain.answer.id.clone();
                if let Err(refusal) = self.start_plain(outbox, peer, *plain) {
                    self.refuse(outbox, None, &id, refusal);
                }
            }
        }
    }

    /// Answers a request that no model takes.
    pub(super) fn turn_away(
        &self,
        message: &ModelInferRequest,
        outbox: &Arc<Outbox>,
        call: Option<&TraceContext>,
        refusal: Refusal,
    ) {
        self.engine.metrics.refused();
        if let Some(trace) = self.begin_trace(message, STREAM, call) {
            trace.failed(refusal.code);
        }
        match request::handle_of_malformed(message) {
            None => self.fail(outbox, &message.model_name, &message.id, refusal),
            handle => self.refuse(outbox, handle, &message.id, refusal),
        }
    }

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
    fn answer_stop(&self, id: &str, model: &str, outbox: &Outbox, peer: Option<SocketAddr>) {
        match self.stop_id(id, model, peer) {
            Ok(answer) => outbox.reply(response::message(answer)),
            Err(refusal) => self.fail(outbox, model, id, refusal),
        }
    }

    /// Reads a request of the core model.
    pub(super) fn parse(&self, message: &ModelInferRequest) -> Result<Incoming, Refusal> {
        let refused = |error: RequestError| {
            let known = self
                .catalog
                .find(&message.model_name, &message.model_version);
            Refusal {
                code: error.code(),
                // An unknown model needs no further error.
                text: known.err().unwrap_or_else(|| error.to_string()),
                retry_after_ms: 0,
            }
        };
        match request::parse(message, &self.limits) {
            // Looked for only here, so that the requests of others pay nothing.
            Err(_) if shared_memory::is_used(message) => {
                let (message, placements) = self.common.regions.resolve(message)?;
                let mut incoming = request::parse(&message, &self.limits).map_err(refused)?;
                if let Incoming::Plain(plain) = &mut incoming {
                    plain.answer.placements = Some(placements);
                }
                Ok(incoming)
            }
            parsed => parsed.map_err(refused),
        }
    }

    fn start_step(
        &self,
        outbox: &Arc<Outbox>,
        handle: Handle,
        request: Request,
        timeout: Option<Duration>,
        destination: &Destination,
        trace: Option<Arc<RequestTrace>>,
    ) {
        match self.end_earlier(outbox, handle) {
            Earlier::None => {}
            Earlier::Silenced => {
                let text = format!(
                    "handle `{handle}` is in use on this stream; both requests were cancelled, use a new handle"
                );
                return outbox.refuse_handle(handle, Code::AlreadyExists, text, 0);
            }
            Earlier::Final => return,
        }
        let submitted = self.engine.submit(
            vec![request],
            outbox,
            destination,
            timeout,
            trace.as_ref(),
            |_| (),
        );
        if let Err(refused) = submitted {
            let Refusal {
                code,
                text,
                retry_after_ms,
            } = refused.into();
            if let Some(trace) = trace {
                trace.failed(code);
            }
            outbox.refuse_handle(handle, code, text, retry_after_ms);
        }
    }

    pub(super) fn start_plain(
        &self,
        outbox: &Arc<Outbox>,
        connection: Option<SocketAddr>,
        plain: Plain,
    ) -> Result<(), Refusal> {
        let Plain {
            requests,
            prompts,
            answer,
            timeout,
            trace,
        } = plain;
        let id = Some(answer.id.clone()).filter(|id| !id.is_empty());
        let answer = Arc::new(answer);
        let asked: Vec<Asked> = requests.iter().map(Asked::of).collect();
        let prepare = |client_ids: &[ClientId]| {
            if let Some(text) = &answer.text {
                text.set_client_ids(client_ids);
            }
            let rows = client_ids.iter().zip(prompts).zip(asked).enumerate();
            for (row, ((client_id, prompt), asked)) in rows {
                let responder = Responder::new(Arc::clone(&answer), row, asked, prompt);
                outbox.add_responder(*client_id, responder);
            }
        };
        let destination = Destination::Plain { id, connection };
        self.engine
            .submit(
                requests,
                outbox,
                &destination,
                timeout,
                trace.as_ref(),
                prepare,
            )
            .map_err(|refused| {
                if let Some(trace) = &trace {
                    trace.failed(refused.code());
                }
                Refusal::from(refused)
            })
    }

    fn refuse(&self, outbox: &Outbox, handle: Option<Handle>, id: &str, refusal: Refusal) {
        match handle {
            // A malformed second request with a handle ends the first as well.
            Some(handle) => match self.end_earlier(outbox, handle) {
                Earlier::None | Earlier::Silenced => {
                    let Refusal {
                        code,
                        text,
                        retry_after_ms,
                    } = refusal;
                    outbox.refuse_handle(handle, code, text, retry_after_ms);
                }
                Earlier::Final => {}
            },
            None => self.fail(outbox, &self.limits.core_model, id, refusal),
        }
    }

    /// Answers a request that names `model` with an error.
    pub(super) fn fail(&self, outbox: &Outbox, model: &str, id: &str, refusal: Refusal) {
        outbox.reply(response::failed(
            refusal.code,
            refusal.text,
            response::empty(model, id, true),
        ));
    }

    /// Ends the live request of a handle that is used again. The client could not distinguish the two
    /// requests, so both end, with one final row.
    fn end_earlier(&self, outbox: &Outbox, handle: Handle) -> Earlier {
        match outbox.find(handle) {
            Known::No => Earlier::None,
            Known::Ending => Earlier::Final,
            Known::Live(client_id) => {
                // In this order, so that a final row that still gets through is the handle's only one.
                self.engine.abandon(&[client_id]);
                if outbox.forget_handle(handle) {
                    Earlier::Silenced
                } else {
                    Earlier::Final
                }
            }
        }
    }

    /// Handles one request, of the core model or a text model.
    pub(super) async fn receive_any(
        self: &Arc<Self>,
        message: ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        call: Option<&TraceContext>,
    ) {
        match self.catalog.text_model(&message) {
            None => self.receive(&message, outbox, peer, call),
            // Triton's text models have no `stop`; here a request can be stopped by the model that it went to.
            Some(_) if asks_to_stop(&message) => {
                self.answer_stop(&message.id, &message.model_name, outbox, peer);
            }
            Some(kind) => {
                let trace = self.begin_trace(&message, STREAM, call);
                self.receive_text(kind, message, outbox, peer, trace).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
