//! A transcript as events: one for each window, since a window is one answer of a worker, and one for the whole. Owns
//! their order; an error ends them as its own event.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use inflight_openai::ApiError;
use inflight_openai::transcription::{TranscriptDelta, TranscriptDone};
use serde::Serialize;

use super::super::answering::event_stream;
use super::hearing::Hearing;

/// What comes next.
enum Next {
    /// Of a window that was heard.
    Delta(Box<Hearing>, String),
    Window(Box<Hearing>),
}

/// The events of a request whose `first` window was heard.
pub(super) fn response(hearing: Hearing, first: Option<String>) -> Response {
    let hearing = Box::new(hearing);
    let first = first.map(|text| text.trim_start().to_owned());
    let next = match first {
        Some(text) => Next::Delta(hearing, text),
        None => Next::Window(hearing),
    };
    let events = stream::unfold(Some(next), |next| async {
        let (event, next) = step(next?).await;
        Some((Ok::<_, std::convert::Infallible>(event), next))
    });
    event_stream(Body::from_stream(events))
}

async fn step(next: Next) -> (Bytes, Option<Next>) {
    let mut hearing = match next {
        Next::Delta(hearing, text) => {
            return (
                event(&TranscriptDelta::of(text)),
                Some(Next::Window(hearing)),
            );
        }
        Next::Window(hearing) => hearing,
    };
    match hearing.next_window().await {
        Ok(Some(text)) => (
            event(&TranscriptDelta::of(text)),
            Some(Next::Window(hearing)),
        ),
        Ok(None) => (event(&TranscriptDone::of(hearing.transcript())), None),
        Err(error) => (data(&error.to_json()), None),
    }
}

fn event(value: &impl Serialize) -> Bytes {
    match serde_json::to_vec(value) {
        Ok(json) => data(&json),
        Err(error) => {
            tracing::error!(%error, "cannot write an event");
            data(&ApiError::internal().to_json())
        }
    }
}

fn data(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}
