//! When a request must have been answered: what its client allows in a header, and what the operator allows
//! for every request. The earlier one counts. Pure.
//!
//! The header is in milliseconds and says so, like Envoy's `x-envoy-upstream-rq-timeout-ms`. What OpenAI's
//! clients send by themselves (`x-stainless-timeout`) limits the time between two reads and is not
//! a limit on the whole request.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use inflight_openai::ApiError;
use tokio::time::Instant;

pub(super) const HEADER: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// When the request that arrived at `arrived` must have been answered; `None`: whenever it is.
///
/// # Errors
/// 400: the header is not a whole number of milliseconds above 0.
pub(super) fn deadline(
    headers: &HeaderMap,
    operator: Option<Duration>,
    arrived: Instant,
) -> Result<Option<Instant>, ApiError> {
    let client = headers.get(HEADER).map(|value| {
        let text = value.to_str().ok();
        let milliseconds = text.and_then(|text| text.trim().parse::<u64>().ok());
        milliseconds.filter(|value| *value > 0).ok_or_else(|| {
            ApiError::invalid_request(
                HEADER.as_str(),
                format!("The header `{HEADER}` must be a whole number of milliseconds above 0."),
            )
        })
    });
    let client = client.transpose()?.map(Duration::from_millis);
    let shortest = match (client, operator) {
        (Some(client), Some(operator)) => Some(client.min(operator)),
        (one, other) => one.or(other),
    };
    Ok(shortest.and_then(|time| arrived.checked_add(time)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_earlier_limit_counts() {
        let arrived = Instant::now();
        let second = Duration::from_secs(1);
        for (header, operator, expected) in [
            (None, None, Some(None)),
            (None, Some(second), Some(Some(1000))),
            (Some("250"), None, Some(Some(250))),
            (Some("250"), Some(second), Some(Some(250))),
            (Some("5000"), Some(second), Some(Some(1000))),
            // So far away that no clock reaches it.
            (Some("18446744073709551615"), None, Some(None)),
            (Some("0"), None, None),
            (Some("-1"), None, None),
            (Some("1.5"), None, None),
            (Some("soon"), None, None),
            (Some(""), None, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(text) = header {
                headers.insert(HEADER, HeaderValue::from_static(text));
            }
            let found = deadline(&headers, operator, arrived).ok();
            let expected = expected
                .map(|time: Option<u64>| time.map(|time| arrived + Duration::from_millis(time)));
            // A clock may reach further than this one's `u64::MAX` milliseconds.
            if header != Some("18446744073709551615") {
                assert_eq!(found, expected, "{header:?}, {operator:?}");
            }
        }
    }
}
