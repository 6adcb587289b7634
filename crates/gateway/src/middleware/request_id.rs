//! What handlers know of a request beyond itself: its id, its arrival and its trace. Owns which
//! of the client's own headers are safe to take over.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use inflight_upstream::trace::Trace;
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
