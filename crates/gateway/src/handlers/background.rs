//! Responses in the background: a task of this process brings their end, and clients come back for it or follow their
//! events. Owns when such a task begins and what stops it; what is kept for how long is `response_store`'s.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::BodyExt;
use inflight_openai::ApiError;
use inflight_openai::responses::{AnswerWriter, Head, ResponseId, Unanswered, in_own_words};
use inflight_response_store::{Events, Keeping, Next, ResponseStore, Running};
use inflight_streams::body::EventBody;
use inflight_streams::responses::{ResponseWriter, whole};

use super::answering;
use super::arrival::Arrival;
use super::prepared::Prepared;
use crate::state::AppState;

/// The event with which a stream ends that does not end as its answer.
fn error_event(number: usize, code: &str, message: &str) -> Bytes {
    let data = serde_json::json!({
        "type": "error", "sequence_number": number, "code": code, "message": message, "param": null,
    });
    format!("event: error\ndata: {data}\n\n").into()
}

/// A request that is prepared, and where its response will be kept.
pub(super) struct Start {
    pub(super) prepared: Arc<Prepared>,
    pub(super) arrival: Arrival,
    pub(super) head: Head,
    pub(super) keeping: Keeping,
}

/// Begins a response in the background.
pub(super) fn start(state: &Arc<AppState>, start: Start) -> Arc<Running> {
    let Start {
        prepared,
        arrival,
        head,
        keeping,
    } = start;
    let streams = prepared.generation.stream;
    let running = state.responses.begin(keeping, head.clone(), streams);
    let ended = Unended {
        running: Arc::clone(&running),
        store: Arc::clone(&state.responses),
        id: head.id,
    };
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let running = &ended.running;
        tokio::select! {
            biased;
            () = running.stopped() => {
                ended.keep(Unanswered::Cancelled, "cancelled", "The response was cancelled.");
            }
            done = run(&state, &prepared, arrival, head, running) => if let Err(error) = done {
                let error = in_own_words(error);
                running.keeper.keep_unanswered(Unanswered::Failed(&error));
            }
        }
    });
    running
}

/// A response whose task is there. However the task ends, the response does: after the last of its events.
struct Unended {
    running: Arc<Running>,
    store: Arc<ResponseStore>,
    id: ResponseId,
}

impl Unended {
    /// Keeps why there is no answer, which its followers read as well.
    fn keep(&self, why: Unanswered<'_>, code: &str, message: &str) {
        let is_end = self.running.keeper.keep_unanswered(why);
        if let Some(events) = self.running.events.as_ref().filter(|_| is_end) {
            events.append(&error_event(events.count(), code, message));
        }
    }
}

impl Drop for Unended {
    fn drop(&mut self) {
        let error = ApiError::internal();
        self.keep(Unanswered::Failed(&error), "server_error", &error.message);
        self.store.end(self.id);
    }
}

async fn run(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    arrival: Arrival,
    head: Head,
    running: &Running,
) -> Result<(), ApiError> {
    let in_progress = head.unanswered(Unanswered::InProgress);
    let Some(events) = &running.events else {
        running.set_object(in_progress);
        let mut active = answering::begin(state, prepared, arrival).await?;
        whole(
            &mut active,
            AnswerWriter::whole(head),
            Some(&running.keeper),
        );
        return Ok(());
    };
    let mut writer = AnswerWriter::streamed(head);
    let mut out = BytesMut::new();
    // At once: a client that leaves early knows what to come back for.
    writer.begin(&mut out);
    events.append(&out);
    running.set_object(in_progress);
    let active = match answering::begin(state, prepared, arrival).await {
        Ok(active) => active,
        Err(error) => {
            out.clear();
            let error = in_own_words(error);
            writer.fail(&mut out, &error);
            events.append(&out);
            return Err(error);
        }
    };
    let keeper = running.keeper.clone();
    let mut body = EventBody::new(active, |_, _| ResponseWriter::begun(writer, keeper));
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            events.append(&data);
        }
    }
    Ok(())
}

/// The events of a response from number `from` on, and those to come.
pub(super) fn follow(events: Arc<Events>, from: usize) -> Response {
    let body = stream::unfold(Some((events, from)), |place| async move {
        let (events, from) = place?;
        let (bytes, next) = match events.next(from).await {
            Next::Events(bytes, next) => (bytes, Some((events, next))),
            Next::Cut => {
                let message = "The response has more events than are kept. Retrieve it without `stream` once it has \
                               ended.";
                (error_event(from, "events_not_kept", message), None)
            }
            Next::End => return None,
        };
        Some((Ok::<_, Infallible>(bytes), next))
    });
    answering::event_stream(Body::from_stream(body))
}
