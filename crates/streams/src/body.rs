//! The event stream of a response, polled by the connection's own task, over HTTP/2 by the stream's. Owns when
//! what is ready is written; which events there are is each API's own ([`EventWriter`]).
//!
//! Everything ready at a poll becomes one HTTP frame, with one event for each token and choice: clients count on
//! it. Only a client that is hundreds of tokens behind gets the rest of them in one event. Nothing ever waits for
//! more. Dropping the body stops the request at its worker.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use inflight_openai::ApiError;

use super::active_request::ActiveRequest;
use super::prompts_mover::noted;

/// Writes one API's events.
pub trait EventWriter {
    /// Writes all that may be shown, and the end behind the last of it. Returns whether that was the end.
    fn write_ready(&mut self, request: &mut ActiveRequest, out: &mut BytesMut) -> bool;

    /// Writes why the request failed, which ends the stream.
    fn write_failure(&mut self, request: &ActiveRequest, error: &ApiError, out: &mut BytesMut);
}

/// A response body of server-sent events.
#[derive(Debug)]
pub struct EventBody<W> {
    request: ActiveRequest,
    writer: W,
    buffer: BytesMut,
    over: bool,
    trailers: HeaderMap,
}

impl<W: EventWriter> EventBody<W> {
    /// A body for a request that has started: what `begin` writes and its first output make the first frame.
    pub fn new(
        request: ActiveRequest,
        begin: impl FnOnce(&ActiveRequest, &mut BytesMut) -> W,
    ) -> Self {
        let mut buffer = BytesMut::with_capacity(1024);
        let writer = begin(&request, &mut buffer);
        let mut body = Self {
            request,
            writer,
            buffer,
            over: false,
            trailers: HeaderMap::new(),
        };
        body.write_ready();
        body
    }

    fn write_ready(&mut self) {
        self.over = self.writer.write_ready(&mut self.request, &mut self.buffer);
        if self.over {
            self.trailers = self.request.resumed().map(noted).unwrap_or_default();
        }
    }
}

impl<W: EventWriter + Unpin> Body for EventBody<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Output may bring nothing to show: half a character, or what may become a stop string.
        while self.buffer.is_empty() && !self.over {
            match self.request.poll_output(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => self.write_ready(),
                Poll::Ready(Err(error)) => {
                    let this = &mut *self;
                    this.writer
                        .write_failure(&this.request, &error, &mut this.buffer);
                    this.over = true;
                }
            }
        }
        if self.buffer.is_empty() {
            let trailers = std::mem::take(&mut self.trailers);
            let frame = (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)));
            return Poll::Ready(frame);
        }
        let bytes = self.buffer.split().freeze();
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.buffer.is_empty() && self.trailers.is_empty()
    }
}
