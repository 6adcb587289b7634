//! Where traces go and which: the one place where the values of these options are checked.

/// All requests: what OpenTelemetry's own samplers do where nobody says.
pub const DEFAULT_RATIO: f64 = 1.0;

/// What is traced, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The collector's URL, as [`endpoint`] returns it.
    pub endpoint: String,
    /// The share of requests that are traced, of those whose client does not say. Default: [`DEFAULT_RATIO`].
    pub ratio: f64,
    /// `service.name`, where `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` do not say.
    pub service: &'static str,
}

/// The endpoint is no URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the address of an OTLP collector; use http://HOST:4317, or https://HOST:PORT"
)]
pub struct InvalidEndpoint(pub String);

/// The URL of a collector that speaks OTLP over gRPC; `http://` may be left out.
///
/// # Errors
/// It is none.
pub fn endpoint(text: &str) -> Result<String, InvalidEndpoint> {
    let invalid = || InvalidEndpoint(text.to_owned());
    let url = match text.split_once("://") {
        None => format!("http://{text}"),
        Some(("http" | "https", _)) => text.to_owned(),
        Some(_) => return Err(invalid()),
    };
    let parsed: http::Uri = url.parse().map_err(|_| invalid())?;
    let has_host = parsed.host().is_some_and(|host| !host.is_empty());
    let is_bare = matches!(parsed.path(), "" | "/") && parsed.query().is_none();
    match has_host && is_bare {
        true => Ok(url),
        false => Err(invalid()),
    }
}

/// A share of all requests; [`DEFAULT_RATIO`] for an empty text, as a variable may be set.
///
/// # Errors
/// What it must be.
pub fn ratio(text: &str) -> Result<f64, String> {
    if text.is_empty() {
        return Ok(DEFAULT_RATIO);
    }
    let value = text.parse::<f64>().ok();
    let value = value.filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "must be from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_of_hosts() {
        for (text, url) in [
            ("http://tempo:4317", "http://tempo:4317"),
            ("https://otel.example/", "https://otel.example/"),
            ("localhost:4317", "http://localhost:4317"),
            ("[::1]:4317", "http://[::1]:4317"),
        ] {
            assert_eq!(endpoint(text).as_deref(), Ok(url));
        }
        for bad in [
            "",
            "http://",
            "grpc://a:1",
            "http://a:1/v1/traces",
            "http://a b",
            "http://a?x",
        ] {
            assert_eq!(endpoint(bad), Err(InvalidEndpoint(bad.to_owned())));
        }
    }

    #[test]
    fn ratios_are_shares() {
        assert_eq!(
            (ratio("0"), ratio("0.25"), ratio("")),
            (Ok(0.0), Ok(0.25), Ok(1.0))
        );
        for bad in ["-0.1", "1.1", "nan", "x"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}
