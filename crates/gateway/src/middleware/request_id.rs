//! What handlers know of a request beyond itself: its id, its arrival and its trace. Owns which
//! of the client's own headers are safe to take over.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName};
use inflight_clients::client::Owner;
use inflight_streams::requests::Facts;
use inflight_traces::Tracer;
use inflight_upstream::delivery::CallContext;
use inflight_upstream::trace::{EntryPoint, Trace};
use tokio::time::Instant;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
pub(super) const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// A client's id longer than this is replaced.
const MAX_REQUEST_ID: usize = 128;

/// What handlers know of the request beyond itself.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub id: Arc<str>,
    pub started: Instant,
    /// Where it came in: the template of its path, or a method of gRPC.
    pub route: &'static str,
    pub trace: Trace,
    /// When it must have been answered; the handler sets it.
    pub deadline: Option<Instant>,
    /// Whether nobody waits for the answer: others go first.
    pub is_idle: bool,
}

impl RequestContext {
    /// The context of a request that arrives now.
    pub(crate) fn new(headers: &HeaderMap, route: &'static str) -> Self {
        Self {
            route,
            started: Instant::now(),
            id: request_id(headers),
            trace: Trace::of(headers),
            deadline: None,
            is_idle: false,
        }
    }

    /// Takes what [`around`](super::around) has noted of a request.
    pub(crate) fn of(parts: &mut Parts) -> Self {
        let noted = parts.extensions.remove::<Self>();
        // Every request passes it. One that had not would arrive now.
        noted.unwrap_or_else(|| Self::new(&parts.headers, ""))
    }

    /// The context of one of several requests of a stream, which arrives now.
    pub(crate) fn for_message(&self, route: &'static str) -> Self {
        Self {
            route,
            started: Instant::now(),
            ..self.clone()
        }
    }

    /// Records it, where there is a tracer and its trace is to be recorded.
    pub(crate) fn record(&mut self, tracer: Option<&Tracer>, entry: EntryPoint) {
        if let Some(tracer) = tracer {
            let trace = std::mem::take(&mut self.trace);
            self.trace = trace.record(tracer, entry, &self.id, self.started);
        }
    }

    /// What its delivery has to know.
    pub(crate) fn call(&self) -> CallContext {
        CallContext {
            request_id: Arc::clone(&self.id),
            trace: self.trace.clone(),
            since: Some(self.started),
            deadline: self.deadline,
            ..CallContext::default()
        }
    }

    /// What people who look at requests see of it.
    pub(crate) fn facts(&self, model: Arc<str>, owner: Owner) -> Facts {
        Facts::new(Arc::clone(&self.id), self.route, model, owner, self.started)
    }

    /// The context of a request for which nobody waits.
    pub(crate) fn idle(route: &'static str) -> Self {
        Self {
            is_idle: true,
            ..Self::new(&HeaderMap::new(), route)
        }
    }
}

/// The client's id if it is harmless, else a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let harmless = |id: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(allowed)
    };
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(harmless);
    match given {
        Some(id) => Arc::from(id),
        None => Arc::from(format!("req_{:032x}", rand::random::<u128>())),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_harmless_request_ids_are_taken_over() {
        let with = |id: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            request_id(&headers)
        };
        assert_eq!(&*with(b"my-id.7"), "my-id.7");
        let long = "a".repeat(MAX_REQUEST_ID + 1);
        for bad in [&b""[..], b"a b", b"\xe9", b"a\"b", long.as_bytes()] {
            let id = with(bad);
            assert!(id.starts_with("req_") && id.len() == 36, "{id}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
