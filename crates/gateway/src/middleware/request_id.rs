//! What handlers know of a request beyond itself: its id, its arrival and its trace context. Owns which
//! of the client's own headers are safe to take over.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderName};

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
    /// W3C trace context, passed to the worker unchanged.
    pub trace_parent: Option<Box<str>>,
    /// When it must have been answered; the handler sets it.
    pub deadline: Option<Instant>,
}

impl RequestContext {
    /// The context of a request that arrives now.
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        Self {
            started: Instant::now(),
            id: request_id(headers),
            trace_parent: trace_parent(headers),
            deadline: None,
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

/// `traceparent` if it has the form of version 00: four fields in lower-case hex.
fn trace_parent(headers: &HeaderMap) -> Option<Box<str>> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let lengths = value.split('-').map(str::len);
    let valid = lengths.eq([2, 32, 16, 2]) && value.bytes().all(|byte| byte == b'-' || hex(byte));
    valid.then(|| value.into())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_trace_context_is_handed_on_only_when_well_formed() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", value.parse().unwrap());
            trace_parent(&headers)
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(with(good).as_deref(), Some(good));
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &format!("{good}-x"),
            &good.replace('-', "_"),
        ] {
            assert_eq!(with(bad), None, "{bad}");
        }
    }

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
