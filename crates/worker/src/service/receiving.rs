//! What a request becomes once it has come: work for the engine, a stop, or a refusal. Knows its outbox; nothing of how
//! that is sent. Stopping by id is `stopping`'s.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::step::Handle;
use inflight_kserve::stop::asks_to_stop;
use inflight_traces::TraceContext;
use tonic::Code;

use super::Shared;
use super::refusal::Refusal;
use crate::engine::Destination;
use crate::executor::{ClientId, Request};
use crate::outbox::{Known, Outbox};
use crate::request::{self, Incoming, Plain, RequestError};
use crate::respond::{RequestFacts, Responder};
use crate::response;
use crate::shared_memory;
use crate::trace::RequestTrace;

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
    /// Handles one request of a stream, of the core model or a text model. An error is the answer to that request and
    /// does not end the stream.
    pub(super) async fn receive(
        self: &Arc<Self>,
        message: ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        call: Option<&TraceContext>,
    ) {
        match self.catalog.text_model(&message) {
            None => self.receive_core(&message, outbox, peer, call),
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

    /// The same, of the core model.
    fn receive_core(
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
        let asked: Vec<RequestFacts> = requests.iter().map(RequestFacts::of).collect();
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
}

#[cfg(test)]
mod tests;
