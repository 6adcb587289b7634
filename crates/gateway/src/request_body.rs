//! Reads request bodies. Owns their limits in size, time and memory; knows nothing of their content.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use inflight_openai::ApiError;
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::Admission;

/// A body must be complete within this.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a refused body is read on, so that the client gets to read the refusal instead of a reset.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// A complete body and its share of the memory for bodies.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pub bytes: Bytes,
    pub held: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// 413 over the limit, 400 when it does not arrive whole and in time, 503 when too much is held.
pub(crate) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    admission: &Admission,
) -> Result<RequestBody, ApiError> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    let too_large = declared.is_some_and(|length| length > limit as u64);
    // Who waits to be asked for the body has sent none of it, and reading on would ask.
    let unsent = too_large && headers.contains_key(header::EXPECT);
    let result = if too_large {
        Err(ApiError::payload_too_large(limit as u64))
    } else {
        let late = || {
            let seconds = BODY_TIMEOUT.as_secs();
            Err(ApiError::invalid_body(format!(
                "The body did not arrive within {seconds} s."
            )))
        };
        tokio::time::timeout(BODY_TIMEOUT, gather(&mut body, limit, admission))
            .await
            .unwrap_or_else(|_| late())
    };
    if result.is_err() && !unsent {
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard(&mut body, limit)).await;
    }
    result
}

async fn gather(
    body: &mut Body,
    limit: usize,
    admission: &Admission,
) -> Result<RequestBody, ApiError> {
    let mut held = None;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|_| ApiError::invalid_body("The body ended early or is not valid HTTP."))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let total = first.len() + rest.len() + data.len();
        if total > limit {
            return Err(ApiError::payload_too_large(limit as u64));
        }
        // What is whole in its first frame, as most bodies are, holds none of the memory that slow bodies
        // may have taken: a frame is small, and the limit on requests comes next.
        if total > data.len() || !body.is_end_stream() {
            admission.hold(&mut held, total)?;
        }
        // Most bodies are one frame and are never copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(total);
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() {
        first
    } else {
        rest.freeze()
    };
    Ok(RequestBody { bytes, held })
}

/// Reads on without keeping anything, at most as much again as was allowed.
async fn discard(body: &mut Body, limit: usize) {
    let mut left = limit.saturating_mul(2);
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn chunks(chunks: &[&'static str]) -> Body {
        let items: Vec<Result<Bytes, std::io::Error>> = chunks
            .iter()
            .map(|chunk| Ok(Bytes::from_static(chunk.as_bytes())))
            .collect();
        Body::from_stream(stream::iter(items))
    }

    #[tokio::test]
    async fn bodies_up_to_the_limit_arrive_whole_however_they_are_cut() {
        let admission = Admission::new(1, 1, 1 << 20);
        for parts in [
            &["abcdef"][..],
            &["abc", "def"],
            &["a", "", "bcdef"],
            &["", "abcdef"],
        ] {
            let read = read(&HeaderMap::new(), chunks(parts), 6, &admission)
                .await
                .unwrap();
            assert_eq!(read.bytes, "abcdef");
        }
    }

    #[tokio::test]
    async fn slow_bodies_that_hold_all_memory_keep_no_small_one_out() {
        let admission = Admission::new(1, 1, 1);
        let mut slow = None;
        admission.hold(&mut slow, 1).unwrap();
        let read_all = async |body| read(&HeaderMap::new(), body, 6, &admission).await;
        assert_eq!(read_all(Body::from("abc")).await.unwrap().bytes, "abc");
        for parts in [&["abc"][..], &["", "abc"], &["a", "bc"]] {
            let refused = read_all(chunks(parts)).await.unwrap_err();
            assert_eq!(refused.status(), 503, "{parts:?}: more may come");
        }
    }

    #[tokio::test]
    async fn a_body_that_waits_to_be_asked_for_is_refused_unasked() {
        let admission = Admission::new(1, 1, 1 << 20);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, "7".parse().unwrap());
        headers.insert(header::EXPECT, "100-continue".parse().unwrap());
        let body = Body::from_stream(stream::poll_fn(
            |_| -> std::task::Poll<Option<Result<Bytes, std::io::Error>>> {
                panic!("the body was asked for")
            },
        ));
        let error = read(&headers, body, 6, &admission).await.unwrap_err();
        assert_eq!(error.status(), 413);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_413_declared_or_not() {
        let admission = Admission::new(1, 1, 1 << 20);
        let mut declared = HeaderMap::new();
        declared.insert(header::CONTENT_LENGTH, "7".parse().unwrap());
        for headers in [HeaderMap::new(), declared] {
            let error = read(&headers, chunks(&["abc", "defg"]), 6, &admission)
                .await
                .unwrap_err();
            assert_eq!(error.status(), 413);
        }
    }
}
