//! Where an answer's time went, in the header `Server-Timing` (W3C), which browsers show with each request. Owns the
//! names of its parts; a header is written before the body, so a stream reports the time to its first output.

use std::fmt::Write;
use std::time::Duration;

use axum::response::Response;
use http::{HeaderName, HeaderValue};
use inflight_base::milliseconds;
use inflight_streams::requests::Failure;

pub(super) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// In a response's extensions: what a handler knows of its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// From when a worker was first sent the request to the output that the answer begins with, or to the last of an
    /// answer in one piece: the worker's queue, its work, and the way there and back.
    pub(crate) upstream: Duration,
    /// From the request's arrival to its first output; of streams alone.
    pub(crate) first_token: Option<Duration>,
}

/// Reports where the time went between the arrival of a request and now, which is `elapsed` later.
pub(super) fn add_headers(response: &mut Response, elapsed: Duration) {
    let timing = response.extensions_mut().remove::<Timing>();
    let mut text = String::with_capacity(96);
    let mut part = |name: &str, time: Duration| {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{name};dur={}", milliseconds(time));
    };
    match timing {
        Some(timing) => {
            part("gateway", elapsed.saturating_sub(timing.upstream));
            part("upstream", timing.upstream);
            match timing.first_token {
                Some(time) => part("first_token", time),
                None => part("total", elapsed),
            }
        }
        // How long each part took until it failed is not known.
        None if response.extensions().get::<Failure>().is_some() => part("total", elapsed),
        None => {
            part("gateway", elapsed);
            part("total", elapsed);
        }
    }
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_tells_what_is_known_when_it_begins() {
        let millis = Duration::from_millis;
        let stream = Timing {
            upstream: millis(30),
            first_token: Some(millis(39)),
        };
        let whole = Timing {
            first_token: None,
            ..stream
        };
        let failure = Failure {
            code: None,
            param: None,
        };
        for (timing, failure, expected) in [
            (
                Some(stream),
                None,
                "gateway;dur=10, upstream;dur=30, first_token;dur=39",
            ),
            (
                Some(whole),
                None,
                "gateway;dur=10, upstream;dur=30, total;dur=40",
            ),
            (None, None, "gateway;dur=40, total;dur=40"),
            (None, Some(failure), "total;dur=40"),
        ] {
            let mut response = Response::default();
            if let Some(timing) = timing {
                response.extensions_mut().insert(timing);
            }
            if let Some(failure) = failure {
                response.extensions_mut().insert(failure);
            }
            add_headers(&mut response, millis(40));
            assert_eq!(response.headers()[SERVER_TIMING], expected);
        }
    }
}
