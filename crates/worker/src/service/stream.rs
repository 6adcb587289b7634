//! One gRPC stream: requests in, responses out, and what happens when either side ends.
//!
//! A separate task reads the requests, so that `stop` works while the client is behind with reading.
//! Dropping the response stream, as a client's cancel or a lost connection does, cancels every request on
//! it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use inflight_kserve::step::{Handle, StepBatch};
use inflight_kserve::stop::asks_to_stop;
use inflight_traces::TraceContext;
use tokio::task::AbortHandle;
use tonic::{Code, Status, Streaming};

use super::{Models, Shared, text};
use crate::batch;
use crate::engine::{Destination, Named, NotAdmitted};
use crate::executor::{ClientId, Request, ResponseBatch};
use crate::outbox::{Known, Outbox, Taken};
use crate::request::{self, Incoming, Plain, RequestError};
use crate::respond::{self, Asked, FailedRow, Responder};
use crate::shared_memory;
use crate::trace::RequestTrace;

/// The requests of one stream and the outbox for their rows. Dropping it cancels them.
pub(super) struct Connection {
    models: Arc<Models>,
    outbox: Arc<Outbox>,
    /// The client's address, which distinguishes its connection from others.
    peer: Option<SocketAddr>,
    /// What the call said of its trace.
    trace: Option<TraceContext>,
}

impl Connection {
    pub(super) fn open(
        models: Arc<Models>,
        peer: Option<SocketAddr>,
        trace: Option<TraceContext>,
    ) -> Self {
        Self {
            outbox: models.common().open(),
            models,
            peer,
            trace,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.models.abandon(&self.outbox.close());
    }
}

/// Why a request was refused.
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) text: String,
    /// 0: not known.
    pub(super) retry_after_ms: u32,
}

impl From<NotAdmitted> for Refusal {
    fn from(refused: NotAdmitted) -> Self {
        let retry = refused.retry_after().unwrap_or_default();
        Self {
            code: refused.code(),
            text: refused.to_string(),
            retry_after_ms: u32::try_from(retry.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            text: status.message().to_owned(),
            retry_after_ms: 0,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut status = Self::new(refusal.code, shortened(refusal.text));
        if refusal.retry_after_ms > 0 {
            status
                .metadata_mut()
                .insert(RETRY_PUSHBACK, refusal.retry_after_ms.into());
        }
        status
    }
}

/// Characters of a request id that an error repeats.
const MAX_SHOWN_ID: usize = 64;
/// KServe's calls, as spans name them.
const STREAM: &str = "ModelStreamInfer";
const ONE: &str = "ModelInfer";
/// Bytes of a status' text, which is percent-encoded into a header: HTTP/2 libraries take 16 KiB of headers.
const MAX_STATUS_BYTES: usize = 4096;
/// Trailing metadata of gRPC's retry design (proposal A6): when a client should retry.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The beginning of a text that is too long for a status.
fn shortened(mut text: String) -> String {
    if text.len() > MAX_STATUS_BYTES {
        let end = (0..=MAX_STATUS_BYTES)
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

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
            } => {
                // A worker that leaves says so on the streams that carry handles.
                outbox.bind_steps(self.engine.place());
                let destination = Destination::Step {
                    handle,
                    wants_cached_tokens,
                    may_wait,
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
    fn stop_id(
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
            Named::Found(_) | Named::Unknown => Ok(respond::empty(model, id, true)),
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
            Ok(answer) => outbox.reply(respond::message(answer)),
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
        outbox.reply(respond::failed(
            refusal.code,
            refusal.text,
            respond::empty(model, id, true),
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

impl Shared {
    /// Handles one request, of the core model or a text model.
    pub(super) async fn receive_any(
        self: &Arc<Self>,
        message: ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        call: Option<&TraceContext>,
    ) {
        match self.catalog.text_model(&message.model_name) {
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

/// Reads requests until the client ends its side.
async fn read(
    mut inbound: Streaming<ModelInferRequest>,
    models: Arc<Models>,
    outbox: Arc<Outbox>,
    peer: Option<SocketAddr>,
    call: Option<TraceContext>,
) {
    loop {
        outbox.has_room().await;
        match inbound.message().await {
            Ok(Some(message)) => {
                models.receive(message, &outbox, peer, call.as_ref()).await;
            }
            Ok(None) => return outbox.finish(),
            Err(status) => {
                // Not a request, or too large for one: nothing after it can be read.
                let live = outbox.fail(status);
                return models.abandon(&live);
            }
        }
    }
}

/// The responses of one ModelStreamInfer call.
pub(crate) struct ResponseStream {
    connection: Connection,
    reader: AbortHandle,
    /// Responses of the rows that were taken last.
    ready: VecDeque<ModelStreamInferResponse>,
}

impl ResponseStream {
    pub(super) fn new(connection: Connection, inbound: Streaming<ModelInferRequest>) -> Self {
        let reading = read(
            inbound,
            Arc::clone(&connection.models),
            Arc::clone(&connection.outbox),
            connection.peer,
            connection.trace.clone(),
        );
        let reader = tokio::spawn(reading).abort_handle();
        Self {
            connection,
            reader,
            ready: VecDeque::new(),
        }
    }

    /// The responses to this request alone.
    pub(super) fn of_one(connection: Connection, message: ModelInferRequest) -> Self {
        let (models, outbox) = (
            Arc::clone(&connection.models),
            Arc::clone(&connection.outbox),
        );
        let (peer, call) = (connection.peer, connection.trace.clone());
        let reading = async move {
            models.receive(message, &outbox, peer, call.as_ref()).await;
            outbox.finish();
        };
        let reader = tokio::spawn(reading).abort_handle();
        Self {
            connection,
            reader,
            ready: VecDeque::new(),
        }
    }

    fn take_step(&mut self, rows: StepBatch) {
        let Connection { models, outbox, .. } = &self.connection;
        let limits = &models.of_steps(outbox).limits;
        let (limit, core_model) = (limits.max_message_bytes / 2, &*limits.core_model);
        let parts = batch::split(rows, limit).into_iter();
        self.ready
            .extend(parts.map(|part| respond::message(part.encode(core_model))));
    }

    fn take_plain(&mut self, batch: &ResponseBatch) {
        let Connection { models, outbox, .. } = &self.connection;
        let stop = |client_ids: &[ClientId]| models.stop_requests(client_ids);
        each_response(stop, outbox, batch, |response| {
            self.ready.push_back(match response {
                Ok(response) => respond::message(response),
                Err(failed) => {
                    respond::failed(failed.error.code, failed.error.text, failed.response)
                }
            });
        });
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream for ResponseStream {
    type Item = Result<ModelStreamInferResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(response) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(response)));
            }
            let mut taken = self.connection.outbox.take();
            if matches!(taken, Taken::Nothing) {
                // Again after registering, because rows may have come in between.
                self.connection.outbox.register(context.waker());
                taken = self.connection.outbox.take();
            }
            match taken {
                Taken::Reply(reply) => return Poll::Ready(Some(Ok(*reply))),
                Taken::Step(rows) => self.take_step(rows),
                Taken::Plain(batch) => self.take_plain(&batch),
                Taken::Failed(status) => return Poll::Ready(Some(Err(status))),
                Taken::End => return Poll::Ready(None),
                Taken::Nothing => return Poll::Pending,
            }
        }
    }
}

type Answer = Result<ModelInferResponse, Box<FailedRow>>;

/// The responses of plain rows, in order.
fn each_response(
    stop: impl Fn(&[ClientId]),
    outbox: &Outbox,
    batch: &ResponseBatch,
    mut then: impl FnMut(Answer),
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

/// ModelInfer: one request, one response.
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
    if let Some(kind) = shared.catalog.text_model(&message.model_name) {
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

#[cfg(test)]
mod tests;
