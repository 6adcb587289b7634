//! The body of `generate_stream`: one server-sent event for each response, as Triton frames them. Owns that a stream
//! which was cut never looks complete: without its last response, it ends with an event that says so.
//!
//! Everything ready at a poll becomes one HTTP frame. Dropping the body drops the stream, which stops the work.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::StatusCode;
use http_body::{Body, Frame};
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{ModelInferResponse, ModelStreamInferResponse};
use inflight_kserve::names;
use tonic::{Code, Status};

use crate::error::RestError;
use crate::generate;

/// Bytes of events that are put into one frame; what is beyond waits for the client.
const FRAME_BYTES: usize = 64 << 10;

/// The responses to one request.
pub(crate) type Item = Result<ModelStreamInferResponse, Status>;

/// What the next message of a stream is.
pub(crate) enum Next {
    Response(ModelInferResponse),
    /// The stream has ended, with its last response.
    End,
}

/// The responses to one request, checked for their end.
pub(crate) struct Responses<S> {
    stream: Pin<Box<S>>,
    /// Whether the last response has come.
    is_final: bool,
}

impl<S: Stream<Item = Item>> Responses<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream: Box::pin(stream),
            is_final: false,
        }
    }

    /// The next response that has outputs.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Next, RestError>> {
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
            let response = message.infer_response.unwrap_or_default();
            if !message.error_message.is_empty() {
                return Poll::Ready(Err(failure(message.error_message, &response)));
            }
            self.is_final = is_final(&response);
            if !response.outputs.is_empty() {
                return Poll::Ready(Ok(Next::Response(response)));
            }
        }
    }
}

fn is_final(response: &ModelInferResponse) -> bool {
    let flag = response.parameters.get(names::FINAL_RESPONSE);
    let choice = flag.and_then(|flag| flag.parameter_choice.as_ref());
    matches!(choice, Some(ParameterChoice::BoolParam(true)))
}

/// The error of a request in a stream. A plain Triton tells no code, and its own errors are mostly of the request's
/// making or INTERNAL.
fn failure(message: String, response: &ModelInferResponse) -> RestError {
    let code = response.parameters.get(names::ERROR_CODE);
    let code = code.and_then(|code| code.parameter_choice.as_ref());
    let code = match code {
        Some(ParameterChoice::Int64Param(code)) => i32::try_from(*code).map(Code::from).ok(),
        _ => None,
    };
    Status::new(code.unwrap_or(Code::Internal), message).into()
}

/// See the module.
pub(crate) struct EventBody<S> {
    responses: Responses<S>,
    buffer: Vec<u8>,
    /// The size of the last frame: the next one will be like it.
    usual: usize,
    is_over: bool,
}

impl<S: Stream<Item = Item>> EventBody<S> {
    /// A body whose first event is ready: the status of the response depends on it. `None`: the stream has ended
    /// without any.
    pub(crate) fn new(
        first: Option<ModelInferResponse>,
        responses: Responses<S>,
    ) -> Result<Self, RestError> {
        let mut body = Self {
            responses,
            buffer: Vec::new(),
            usual: 256,
            is_over: first.is_none(),
        };
        if let Some(first) = first {
            body.write(&first)?;
        }
        Ok(body)
    }

    fn write(&mut self, response: &ModelInferResponse) -> Result<(), RestError> {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve(self.usual);
        }
        let start = self.buffer.len();
        self.buffer.extend_from_slice(b"data: ");
        match generate::write(response, &mut self.buffer) {
            Ok(true) => self.buffer.extend_from_slice(b"\n\n"),
            other => {
                self.buffer.truncate(start);
                other?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: &RestError) {
        self.buffer.extend_from_slice(b"data: ");
        self.buffer.extend_from_slice(error.json().as_bytes());
        self.buffer.extend_from_slice(b"\n\n");
        self.is_over = true;
    }
}

impl<S: Stream<Item = Item>> Body for EventBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while !self.is_over && self.buffer.len() < FRAME_BYTES {
            let written = match self.responses.poll_next(context) {
                Poll::Pending if self.buffer.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Ok(Next::End)) => {
                    self.is_over = true;
                    break;
                }
                Poll::Ready(Ok(Next::Response(response))) => self.write(&response),
                Poll::Ready(Err(error)) => Err(error),
            };
            if let Err(error) = written {
                self.fail(&error);
            }
        }
        if self.buffer.is_empty() {
            return Poll::Ready(None);
        }
        self.usual = self.buffer.len();
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over && self.buffer.is_empty()
    }
}
