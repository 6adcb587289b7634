//! Reads request bodies. Owns their limits in size, time and memory; knows nothing of their content.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use inflight_clients::admission::{Admission, BodyMemory};
use inflight_clients::client::Client;
use inflight_openai::ApiError;
use tokio::time::Instant;

/// A body must be complete within this.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// After this a body must be on its way to be complete in time.
const PACE_AFTER: Duration = Duration::from_secs(10);
/// The least that must have come by then, each second; a modem is faster.
const MIN_BYTES_PER_S: u64 = 2 * 1024;
/// How long a refused body is read on, so that the client gets to read the refusal instead of a reset.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// A complete body and its share of the memory for bodies.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pub bytes: Bytes,
    pub held: BodyMemory,
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
    client: Option<&Arc<Client>>,
) -> Result<RequestBody, ApiError> {
    let declared = declared_length(headers);
    let too_large = declared.is_some_and(|length| length > limit as u64);
    // A client that waits to be asked for the body has sent none of it, and reading on would ask.
    let unsent = too_large && headers.contains_key(header::EXPECT);
    let result = if too_large {
        Err(ApiError::payload_too_large(limit as u64))
    } else {
        let held = BodyMemory::of(client);
        gather(&mut body, limit, declared, admission, held).await
    };
    if result.is_err() && !unsent {
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard(&mut body, limit)).await;
    }
    result
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.parse().ok()
}

/// When a body of which `received` bytes have come at a steady pace has to have more: the memory that it
/// holds is not for clients that send a byte now and then.
fn deadline(declared: Option<u64>, received: usize) -> Duration {
    // Half the pace at which it would be complete in time: networks are not steady.
    let steady = declared.unwrap_or(0) / (2 * BODY_TIMEOUT.as_secs());
    let pace = steady.max(MIN_BYTES_PER_S);
    let paid = Duration::from_millis((received as u64).saturating_mul(1000) / pace);
    paid.clamp(PACE_AFTER, BODY_TIMEOUT)
}

fn late(after: Duration) -> ApiError {
    let seconds = after.as_secs();
    ApiError::invalid_body(if after < BODY_TIMEOUT {
        format!("The body was not received within {seconds} s.")
    } else {
        format!("The body did not arrive within {seconds} s.")
    })
}

async fn gather(
    body: &mut Body,
    limit: usize,
    declared: Option<u64>,
    admission: &Admission,
    mut held: BodyMemory,
) -> Result<RequestBody, ApiError> {
    let started = Instant::now();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let within = deadline(declared, first.len() + rest.len());
        let frame = tokio::time::timeout_at(started + within, body.frame());
        let Some(frame) = frame.await.map_err(|_| late(within))? else {
            break;
        };
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

/// Reads what a client still sends of a body that nobody wants, so that it gets to read the answer instead
/// of a reset. Bounded in bytes and time.
pub(crate) async fn discard_rest(headers: &HeaderMap, body: Body, limit: usize) {
    let too_large = declared_length(headers).is_some_and(|length| length > 2 * limit as u64);
    // A client that waits to be asked for the body has sent none of it, and reading on would ask.
    if too_large || headers.contains_key(header::EXPECT) {
        return;
    }
    let mut body = body;
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, discard(&mut body, limit)).await;
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
            let read = read(&HeaderMap::new(), chunks(parts), 6, &admission, None)
                .await
                .unwrap();
            assert_eq!(read.bytes, "abcdef");
        }
    }

    #[tokio::test]
    async fn slow_bodies_that_hold_all_memory_keep_no_small_one_out() {
        let admission = Admission::new(1, 1, 1);
        let mut slow = BodyMemory::default();
        admission.hold(&mut slow, 1).unwrap();
        let read_all = async |body| read(&HeaderMap::new(), body, 6, &admission, None).await;
        assert_eq!(read_all(Body::from("abc")).await.unwrap().bytes, "abc");
        for parts in [&["abc"][..], &["", "abc"], &["a", "bc"]] {
            let refused = read_all(chunks(parts)).await.unwrap_err();
            assert_eq!(refused.status(), 503, "{parts:?}: more may come");
        }
    }

    #[test]
    fn a_body_that_trickles_is_given_up_early_and_a_steady_one_is_read() {
        // Bytes that come each second, and the second after which it is given up.
        for (declared, each, end) in [
            (None, 1, 10),
            (Some(1 << 20), 1_000, 10),
            (Some(32 << 20), 100_000, 10),
            // On its way to be half of it in time.
            (Some(32 << 20), 300_000, 60),
            (Some(200_000), 2_100, 60),
            (None, 2_100, 60),
        ] {
            let mut second = 1;
            while deadline(declared, each * second) > Duration::from_secs(second as u64) {
                second += 1;
            }
            assert_eq!(second, end, "{declared:?} {each}");
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
        let error = read(&headers, body, 6, &admission, None).await.unwrap_err();
        assert_eq!(error.status(), 413);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_413_declared_or_not() {
        let admission = Admission::new(1, 1, 1 << 20);
        let mut declared = HeaderMap::new();
        declared.insert(header::CONTENT_LENGTH, "7".parse().unwrap());
        for headers in [HeaderMap::new(), declared] {
            let error = read(&headers, chunks(&["abc", "defg"]), 6, &admission, None)
                .await
                .unwrap_err();
            assert_eq!(error.status(), 413);
        }
    }
}
