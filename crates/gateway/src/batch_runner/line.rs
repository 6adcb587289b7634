//! One line of a batch: the request of its client, answered as one that came by HTTP. Owns how it is asked and when it is
//! asked again; answers are the handlers'.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use inflight_anthropic::batches as anthropic;
use inflight_batches::Dialect;
use inflight_clients::api_key::Key;
use inflight_clients::client::{Client, ClientConnection};
use inflight_openai::{ApiError, batches as openai};
use inflight_upstream::table::NoModel;
use serde_json::value::RawValue;

use crate::error;
use crate::handlers::locate::named_model;
use crate::handlers::{chat, completions, embeddings, messages, responses};
use crate::middleware::RequestContext;
use crate::state::AppState;

/// How often a line is tried that fails on the server's side.
const MOST_TRIES: u32 = 5;
/// The least that a line waits before it is tried again, and the most.
const LEAST_WAIT: Duration = Duration::from_secs(1);
const MOST_WAIT: Duration = Duration::from_secs(30);

/// What a line is sent with.
pub(super) struct Request {
    pub(super) client: Arc<Client>,
    pub(super) dialect: Dialect,
    pub(super) endpoint: String,
}

/// What was answered.
#[derive(Debug)]
pub(super) struct LineResponse {
    pub(super) status: u16,
    pub(super) request_id: Arc<str>,
    pub(super) body: Box<RawValue>,
    /// When the server says that another attempt makes sense.
    retry_after: Option<Duration>,
    /// Whether all workers are there: what is not found is nobody's then.
    is_settled: bool,
}

/// What is done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is the line's result.
    Keep,
    /// The line is sent again; one that `counts` may not be for ever.
    Again { after: Duration, counts: bool },
}

/// The client of a line: the holder of the batch's key, whose limits count.
pub(super) fn client(connection: &Arc<ClientConnection>, key: Option<Key>) -> Arc<Client> {
    let client = Client::new(Arc::clone(connection));
    if let Some(Key { held, quota, .. }) = key {
        client.has_key(&held, quota);
    }
    client
}

/// Whether a line with this body may be sent: not while its model has no worker, or may yet get one.
pub(super) fn may_begin(state: &AppState, body: &[u8]) -> bool {
    let Some(model) = named_model(body) else {
        return true;
    };
    match state.table.find(&model) {
        Ok(entry) => entry.next_served().is_some() || entry.is_only_watched(),
        Err(NoModel::NotYet) => false,
        // An adapter's name, or nobody's: its handler knows.
        Err(NoModel::Unknown | NoModel::Refused(_)) => true,
    }
}

/// Sends a line to its handler.
pub(super) async fn run(state: &Arc<AppState>, request: Request, body: &[u8]) -> LineResponse {
    let mut all = openai::ENDPOINTS.into_iter().chain([anthropic::ENDPOINT]);
    let known = all.find(|known| *known == request.endpoint);
    let context = RequestContext::idle(known.unwrap_or("other"));
    let request_id = Arc::clone(&context.id);
    let mut http = http::Request::new(Body::from(body.to_vec()));
    *http.method_mut() = http::Method::POST;
    http.extensions_mut().insert(request.client);
    http.extensions_mut().insert(context);
    let answered = AssertUnwindSafe(handle(state, &request.endpoint, http)).catch_unwind();
    let mut response = match answered.await {
        Ok(response) => response,
        // The panic is in the log already.
        Err(_) => error::response(&ApiError::internal()),
    };
    if request.dialect == Dialect::Anthropic {
        error::in_anthropics_form(&mut response, &request_id);
    }
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let is_settled = state.table.workers().iter().all(|slot| slot.is_ready());
    let body = response.into_body().collect().await;
    let body = body.ok().map(|body| body.to_bytes());
    let read = body.and_then(|body| json(&body));
    match read {
        Some(body) => LineResponse {
            status,
            request_id,
            body,
            retry_after,
            is_settled,
        },
        None => LineResponse {
            status: 500,
            request_id,
            body: json(&ApiError::internal().to_json()).unwrap_or_default(),
            retry_after: None,
            is_settled,
        },
    }
}

async fn handle(
    state: &Arc<AppState>,
    endpoint: &str,
    request: axum::extract::Request,
) -> Response {
    let state = State(Arc::clone(state));
    let answered = match endpoint {
        "/v1/chat/completions" => chat::create_chat_completion(state, request).await,
        "/v1/completions" => completions::create_completion(state, request).await,
        "/v1/embeddings" => embeddings::create_embedding(state, request).await,
        "/v1/responses" => responses::create_response(state, request).await,
        "/v1/messages" => messages::create_message(state, request).await,
        // Another version's.
        path => Err(ApiError::not_found("POST", path).into()),
    };
    answered.into_response()
}

/// An answer as a part of a result, which is one line.
fn json(body: &[u8]) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(body).ok()?;
    // Newlines are between values alone.
    let text = match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], " "),
        false => text.to_owned(),
    };
    RawValue::from_string(text).ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// What is done with the answer to a line that was tried `tries` times before.
pub(super) fn next(answer: &LineResponse, tries: u32) -> Next {
    let LineResponse {
        status,
        retry_after,
        is_settled,
        ..
    } = *answer;
    verdict(status, is_settled, retry_after, tries)
}

fn verdict(status: u16, is_settled: bool, retry_after: Option<Duration>, tries: u32) -> Next {
    let growing = LEAST_WAIT.saturating_mul(1 << tries.min(10));
    let after = growing.max(retry_after.unwrap_or_default()).min(MOST_WAIT);
    match status {
        // The key has used what it may for now. It waits, and so does the line.
        429 => Next::Again {
            after,
            counts: false,
        },
        404 if is_settled => Next::Keep,
        // An adapter may be a worker's that is not back yet.
        404 | 500.. if tries + 1 < MOST_TRIES => Next::Again {
            after,
            counts: true,
        },
        _ => Next::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_server_are_tried_again_and_not_for_ever() {
        let seconds = Duration::from_secs;
        let again = |after, counts| Next::Again { after, counts };
        assert_eq!(verdict(404, true, None, 0), Next::Keep, "it is nobody's");
        for (status, retry_after, tries, expected) in [
            (200, None, 0, Next::Keep),
            (400, None, 0, Next::Keep),
            (413, None, 0, Next::Keep),
            (404, None, 0, again(seconds(1), true)),
            (503, Some(seconds(7)), 0, again(seconds(7), true)),
            (529, None, 3, again(seconds(8), true)),
            (503, None, 4, Next::Keep),
            (500, None, 4, Next::Keep),
            (404, None, 4, Next::Keep),
            (429, None, 4, again(seconds(16), false)),
            (429, Some(seconds(3600)), 900, again(seconds(30), false)),
        ] {
            assert_eq!(
                verdict(status, false, retry_after, tries),
                expected,
                "{status} {tries}"
            );
        }
    }

    #[test]
    fn an_answer_is_one_line_whatever_is_between_its_values() {
        assert_eq!(
            json(b"{\"a\":\n\"\\n\"\r\n}").unwrap().get(),
            "{\"a\": \"\\n\"  }"
        );
        assert!(json(b"no json").is_none() && json(b"\xff").is_none());
    }
}
