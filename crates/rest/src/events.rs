//! The body of `generate_stream`: one server-sent event for each response, as Triton frames them. Owns that a stream
//! which was cut never looks complete: without its last response, it ends with an event that says so.
//!
//! Everything ready at a poll becomes one HTTP frame. Dropping the body drops the stream, which stops the work.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame};
use inflight_kserve::streamed::{ResponseView, StreamedResponse};
use tonic::{Code, Status};

use crate::error::RestError;
use crate::generate;

/// Bytes of events that are put into one frame; what is beyond waits for the client.
const FRAME_BYTES: usize = 64 << 10;

/// How a response is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As one object.
    Object,
    /// As a server-sent event.
    Event,
}

/// What became of a call for the next response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Written,
    /// The stream has ended, with its last response.
    End,
}

/// The responses to one request, checked for their end.
pub(crate) struct CheckedResponses<S> {
    stream: Pin<Box<S>>,
    /// Whether a response without outputs is written as well: that to a request which stops another one.
    shows_empty: bool,
    /// Whether the last response has come.
    is_final: bool,
    /// What is said of the answer besides, once it has ended.
    notes: fn(&S) -> HeaderMap,
}

impl<R: StreamedResponse, S: Stream<Item = Result<R, Status>>> CheckedResponses<S> {
    pub(crate) fn new(stream: S, shows_empty: bool, notes: fn(&S) -> HeaderMap) -> Self {
        Self {
            stream: Box::pin(stream),
            shows_empty,
            is_final: false,
            notes,
        }
    }

    /// What is said of the answer besides, once it has ended.
    pub(crate) fn notes(&self) -> HeaderMap {
        (self.notes)(&self.stream)
    }

    /// Appends the next response that has something to show. Nothing is appended with an error.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        form: Form,
        out: &mut Vec<u8>,
    ) -> Poll<Result<Next, RestError>> {
        loop {
            if self.is_final {
                return Poll::Ready(Ok(Next::End));
            }
            let message = match self.stream.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(message))) => message,
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status.into())),
                Poll::Ready(None) => {
                    let text = "the stream ended before its last response";
                    let error = RestError::new(StatusCode::SERVICE_UNAVAILABLE, text);
                    return Poll::Ready(Err(error));
                }
            };
            let response = match message.view() {
                Ok(response) => response,
                Err(status) => return Poll::Ready(Err(status.into())),
            };
            if !response.error_message.is_empty() {
                return Poll::Ready(Err(failure(&response)));
            }
            self.is_final = response.is_final();
            if response.has_outputs() || self.shows_empty {
                return Poll::Ready(write(&response, form, out).map(|()| Next::Written));
            }
        }
    }
}

fn write(response: &ResponseView<'_>, form: Form, out: &mut Vec<u8>) -> Result<(), RestError> {
    let start = out.len();
    if form == Form::Event {
        out.extend_from_slice(b"data: ");
    }
    if let Err(error) = generate::write(response, out) {
        out.truncate(start);
        return Err(error);
    }
    if form == Form::Event {
        out.extend_from_slice(b"\n\n");
    }
    Ok(())
}

/// The error of a request in a stream. A plain Triton sends no code, and its own errors are mostly of the request's
/// making or INTERNAL.
fn failure(response: &ResponseView<'_>) -> RestError {
    let code = response.error_code().unwrap_or(Code::Internal);
    Status::new(code, response.error_message).into()
}

/// See the module.
pub(crate) struct GenerateBody<S> {
    responses: CheckedResponses<S>,
    buffer: Vec<u8>,
    /// The size of the last frame: the next one will be like it.
    usual: usize,
    is_over: bool,
    trailers: HeaderMap,
}

impl<S> GenerateBody<S> {
    /// A body that begins with these events: the status of the response depends on the first. With none, the stream
    /// has ended.
    pub(crate) fn new(first: Vec<u8>, responses: CheckedResponses<S>) -> Self {
        Self {
            responses,
            is_over: first.is_empty(),
            buffer: first,
            usual: 256,
            trailers: HeaderMap::new(),
        }
    }

    fn fail(&mut self, error: &RestError) {
        self.buffer.extend_from_slice(b"data: ");
        self.buffer.extend_from_slice(error.json().as_bytes());
        self.buffer.extend_from_slice(b"\n\n");
        self.is_over = true;
    }
}

impl<R: StreamedResponse, S: Stream<Item = Result<R, Status>>> Body for GenerateBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.buffer.capacity() == 0 {
            let usual = self.usual;
            self.buffer.reserve(usual);
        }
        while !self.is_over && self.buffer.len() < FRAME_BYTES {
            let Self {
                responses, buffer, ..
            } = &mut *self;
            match responses.poll_write(context, Form::Event, buffer) {
                Poll::Pending if buffer.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Ok(Next::Written)) => {}
                Poll::Ready(Ok(Next::End)) => {
                    self.trailers = responses.notes();
                    self.is_over = true;
                }
                Poll::Ready(Err(error)) => self.fail(&error),
            }
        }
        if self.buffer.is_empty() {
            let trailers = std::mem::take(&mut self.trailers);
            let frame = (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)));
            return Poll::Ready(frame);
        }
        self.usual = self.buffer.len();
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over && self.buffer.is_empty() && self.trailers.is_empty()
    }
}
