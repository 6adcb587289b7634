//! A stream's request until its first response. Owns what is sent to each server; when it goes to another one is
//! `delivery`'s, and what follows the first response [`ForwardStream`]'s.

use std::sync::Arc;

use inflight_kserve::inference::ModelInferRequest;
use tonic::Status;

use super::call::CallSpec;
use super::failures::given_up;
use super::forward_stream::ForwardStream;
use super::responses::Responses;
use super::stream_mover::{AtServer, StreamMover};
use super::timeout::shorten_timeout;
use super::{Forward, PreparedCall};
use crate::delivery::{CallContext, Deliverable, Sent, Tried, reason_of_code};
use crate::expiry::GivenUp;
use crate::metrics::RetryReason;

/// See the module.
pub(super) struct StreamStart<'a> {
    pub(super) forward: &'a Arc<Forward>,
    pub(super) context: &'a Arc<CallContext>,
    /// As its client sent it.
    pub(super) message: &'a Arc<ModelInferRequest>,
    pub(super) asked: CallSpec<'a>,
    pub(super) prepared: &'a PreparedCall,
    /// At the server that has it.
    pub(super) stream: Option<ForwardStream>,
}

impl Deliverable for StreamStart<'_> {
    type Error = Status;

    fn send(&mut self, tried: &mut Tried, because: Option<RetryReason>) -> Result<Sent, Status> {
        let PreparedCall { target, since, .. } = self.prepared;
        let is_again = !tried.is_empty();
        let open = self.forward.open(self.asked, target, tried, because)?;
        let sent = open.sent();
        let mut own = ModelInferRequest::clone(self.message);
        if is_again {
            shorten_timeout(&mut own, *since);
        }
        let mover = match target.id() {
            None => {
                let request = (self.message, *since);
                let may_share = self.asked.shares;
                StreamMover::new(self.forward, self.context, request, &open, may_share)
            }
            Some(_) => None,
        };
        let responses = self
            .forward
            .send_stream(own, &open, self.asked, target.id());
        let at = AtServer::new(Some(responses.unwrap_or_else(Responses::failed)), open);
        let context = Arc::clone(self.context);
        self.stream = Some(ForwardStream::new(&self.message.id, at, mover, context));
        Ok(sent)
    }

    async fn begin(&mut self) -> Result<(), Status> {
        match &mut self.stream {
            Some(stream) => stream.begin().await,
            None => Err(Status::internal("the request was not sent")),
        }
    }

    fn survives(&self) -> bool {
        self.stream.as_ref().is_some_and(ForwardStream::survives)
    }

    fn outlive(&mut self, status: Status, sent: usize) -> Result<(), Status> {
        match &mut self.stream {
            Some(stream) => stream.outlive(status, sent),
            None => Err(status),
        }
    }

    fn retry_reason(&self, status: &Status) -> Option<RetryReason> {
        reason_of_code(status.code()).filter(|_| !self.survives())
    }

    fn give_up(&mut self, why: GivenUp) -> Status {
        if let Some(stream) = &mut self.stream {
            stream.given_up();
        }
        given_up(why)
    }
}
