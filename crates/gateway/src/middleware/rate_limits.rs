//! What is left to a client's key, in the headers of OpenAI's API and of Anthropic's. Owns how they are written; what
//! is left, the key's quota knows. Keys without limits have no such headers.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use inflight_clients::quota::{Left, Rate};
use jiff::{Timestamp, Unit};

/// Whose headers an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    Anthropic,
}

/// The headers of one rate.
struct Names {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const OPENAI: [Names; 2] = [
    Names {
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    Names {
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
];
const ANTHROPIC: [Names; 2] = [
    Names {
        limit: HeaderName::from_static("anthropic-ratelimit-requests-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    },
    Names {
        limit: HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
    },
];

/// Adds what is left.
pub(super) fn add_headers(left: &Left, dialect: Dialect, headers: &mut HeaderMap) {
    let names = match dialect {
        Dialect::OpenAi => OPENAI,
        Dialect::Anthropic => ANTHROPIC,
    };
    for (names, rate) in names.into_iter().zip([left.requests, left.tokens]) {
        let Some(rate) = rate else { continue };
        let Rate {
            limit,
            remaining,
            reset,
        } = rate;
        headers.insert(names.limit, HeaderValue::from(limit));
        headers.insert(names.remaining, HeaderValue::from(remaining));
        let reset = match dialect {
            Dialect::OpenAi => duration(reset),
            Dialect::Anthropic => time_in(reset),
        };
        if let Ok(reset) = HeaderValue::from_str(&reset) {
            headers.insert(names.reset, reset);
        }
    }
}

/// A time as OpenAI writes it: `12ms`, `1.5s`, `6m0s`. Rounded up to milliseconds.
fn duration(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, millis) = (millis / 60_000, millis % 60_000);
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let mut text = match minutes {
        0 => format!("{seconds}"),
        _ => format!("{minutes}m{seconds}"),
    };
    if millis > 0 {
        let parts = format!(".{millis:03}");
        text.push_str(parts.trim_end_matches('0'));
    }
    text.push('s');
    text
}

/// The time that it will be after `wait`, as Anthropic writes it (RFC 3339), rounded to seconds.
fn time_in(wait: Duration) -> String {
    let time = Timestamp::now().checked_add(wait);
    let time = time.and_then(|time| time.round(Unit::Second));
    time.unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_writes_them() {
        for (micros, text) in [
            (0, "0ms"),
            (1, "1ms"),
            (12_000, "12ms"),
            (999_001, "1s"),
            (1_500_000, "1.5s"),
            (8_640_000, "8.64s"),
            (59_999_000, "59.999s"),
            (60_000_000, "1m0s"),
            (366_070_000, "6m6.07s"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn only_what_is_limited_is_told() {
        let mut headers = HeaderMap::new();
        add_headers(&Left::default(), Dialect::OpenAi, &mut headers);
        assert!(headers.is_empty());
        let tokens = Some(Rate {
            limit: 600,
            remaining: 7,
            reset: Duration::from_secs(59),
        });
        let requests = None;
        let left = Left { requests, tokens };
        add_headers(&left, Dialect::OpenAi, &mut headers);
        assert_eq!(headers["x-ratelimit-limit-tokens"], "600");
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "7");
        assert_eq!(headers["x-ratelimit-reset-tokens"], "59s");
        assert_eq!(headers.len(), 3);
        headers.clear();
        add_headers(&left, Dialect::Anthropic, &mut headers);
        assert_eq!(headers["anthropic-ratelimit-tokens-remaining"], "7");
        let reset = headers["anthropic-ratelimit-tokens-reset"]
            .to_str()
            .unwrap();
        let reset: Timestamp = reset.parse().unwrap();
        let wait = reset.as_second() - Timestamp::now().as_second();
        assert!((58..=60).contains(&wait), "{wait}");
    }
}
