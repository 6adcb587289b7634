//! A stream's request until its first response. Owns what is sent to each server; when it goes to another one is
//! `delivery`'s, and what follows the first response [`ForwardStream`]'s.

use std::sync::Arc;

use futures_util::FutureExt;
use inflight_kserve::inference::ModelInferRequest;
use tokio::time::Instant;
use tonic::Status;

use super::answer::ForwardStream;
use super::begun::{AtServer, Begun};
use super::call::{Asked, shorten_timeout};
use super::streams::Responses;
use super::{Forward, Target, given_up};
use crate::delivery::{CallContext, Deliverable, GivenUp, Sent, Tried, ended, retry_reason};
use crate::metrics::RetryReason;

/// See the module.
pub(super) struct Beginning<'a> {
    pub(super) forward: &'a Arc<Forward>,
    pub(super) context: &'a Arc<CallContext>,
    /// As its client sent it.
    pub(super) message: &'a ModelInferRequest,
    /// When it came.
    pub(super) since: Instant,
    pub(super) asked: Asked<'a>,
    pub(super) target: Target,
    /// At the server that has it.
    pub(super) stream: Option<ForwardStream>,
    /// Whether its `Survival` moves it already.
    pub(super) survives: bool,
}

impl Deliverable for Beginning<'_> {
    type Error = Status;

    fn send(&mut self, tried: &mut Tried, _: Option<RetryReason>) -> Result<Sent, Status> {
        let Self {
            forward,
            context,
            message,
            asked,
            target,
            since,
            ..
        } = self;
        let is_again = !tried.is_empty();
        let open = forward.open(*asked, target, tried)?;
        let sent = open.sent();
        let about = target.id();
        let mut own = (*message).clone();
        if is_again {
            shorten_timeout(&mut own, *since);
        }
        let started = forward.start(own, &open, *asked, about);
        let rest = match started {
            Ok(sent) => sent.into_responses(),
            Err(status) => Responses::failed(status),
        };
        let begun = match about {
            None => Begun::new(forward, context, (*message, *since), &open, asked.shares),
            Some(_) => None,
        };
        let end = ended(forward.interrupted.subscribe(), context.deadline).map(given_up);
        let at = AtServer::new(Some(rest), open);
        let stream = ForwardStream::new(&message.id, at, begun, end, Arc::clone(context));
        self.stream = Some(stream);
        Ok(sent)
    }

    async fn begin(&mut self) -> Result<(), Status> {
        match &mut self.stream {
            Some(stream) if self.survives => stream.begin_elsewhere().await,
            Some(stream) => stream.begin().await,
            None => Err(Status::internal("the request was not sent")),
        }
    }

    fn survives(&self) -> bool {
        self.survives
    }

    fn outlive(&mut self, status: Status, sent: usize) -> Result<(), Status> {
        let Some(stream) = &mut self.stream else {
            return Err(status);
        };
        stream.outlive(status, sent)?;
        self.survives = true;
        Ok(())
    }

    fn retry_reason(&self, status: &Status) -> Option<RetryReason> {
        retry_reason(status.code()).filter(|_| !self.survives)
    }

    fn give_up(&mut self, why: GivenUp) -> Status {
        given_up(why)
    }
}
