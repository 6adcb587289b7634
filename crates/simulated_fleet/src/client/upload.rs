//! A request's body that is sent in pieces, one some time after another. Knows nothing of what it says.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// Longer than messages take, so that pieces arrive alone.
const BETWEEN: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Upload {
    pieces: VecDeque<Bytes>,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Upload {
    pub(crate) fn new(body: String, pieces: u32) -> Self {
        let size = body.len().div_ceil(pieces.max(1) as usize).max(1);
        let body = Bytes::from(body);
        let starts = (0..body.len()).step_by(size);
        Self {
            pieces: starts
                .map(|start| body.slice(start..body.len().min(start + size)))
                .collect(),
            waits: None,
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(waits) = &mut self.waits {
            if waits.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.waits = None;
        }
        let piece = self.pieces.pop_front();
        if piece.is_some() && !self.pieces.is_empty() {
            self.waits = Some(Box::pin(sleep(BETWEEN)));
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.iter().map(|piece| piece.len() as u64).sum())
    }
}
