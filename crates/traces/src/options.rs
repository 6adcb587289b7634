//! Where traces go and which: the one place where the values of these options are checked.

/// All requests: what OpenTelemetry's own samplers do where nobody says.
pub const DEFAULT_RATIO: f64 = 1.0;

/// OpenTelemetry's variable for the endpoint.
pub const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// OpenTelemetry's variable for the ratio.
pub const RATIO_VARIABLE: &str = "OTEL_TRACES_SAMPLER_ARG";

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

/// The endpoint is not a URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the address of an OTLP collector; use http://HOST:4317, or https://HOST:PORT"
)]
pub struct InvalidEndpoint(pub String);

/// The URL of a collector that speaks OTLP over gRPC; `http://` may be left out.
///
/// # Errors
/// It is not an address.
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

/// What takes the place of a variable's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// As [`endpoint`] or [`ratio`] takes it.
    pub value: String,
    /// A sentence for the user.
    pub warning: String,
}

/// What takes the place of a value that cannot be used, of [`ENDPOINT_VARIABLE`] or [`RATIO_VARIABLE`]; `None`: it
/// can.
///
/// OpenTelemetry's specification: a value that cannot be read is a warning and as good as none. The variables are set
/// for whole machines and clusters, also for what exports over HTTP or samples in other ways.
pub fn replaced(variable: &str, text: &str) -> Option<Replaced> {
    let (value, reason) = match variable {
        RATIO_VARIABLE => match ratio(text) {
            Ok(_) => return None,
            Err(_) => (
                DEFAULT_RATIO.to_string(),
                format!("expected a share from 0 to 1; the default `{DEFAULT_RATIO}` is used"),
            ),
        },
        ENDPOINT_VARIABLE if text.is_empty() || endpoint(text).is_ok() => return None,
        ENDPOINT_VARIABLE => match without_path(text) {
            Some(url) => {
                let reason = format!("which has a path, and gRPC has none; traces go to `{url}`");
                (url, reason)
            }
            None => {
                let reason =
                    "which is not the address of an OTLP collector; no traces are exported";
                (String::new(), reason.to_owned())
            }
        },
        _ => return None,
    };
    let warning = format!("`{variable}` is `{text}`, {reason}");
    Some(Replaced { value, warning })
}

/// The URL of a collector's host; `None` where it is not valid.
fn without_path(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let host = rest.split(['/', '?', '#']).next()?;
    endpoint(&format!("{scheme}://{host}")).ok()
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
    fn variables_that_cannot_be_used_are_replaced_and_named() {
        let jaeger = "endpoint=http://localhost:14250,pollingIntervalMs=5000";
        for (variable, text, value, words) in [
            (RATIO_VARIABLE, "2", "1", "expected a share from 0 to 1"),
            (RATIO_VARIABLE, jaeger, "1", "the default `1` is used"),
            (
                ENDPOINT_VARIABLE,
                "http://tempo:4317/v1/traces",
                "http://tempo:4317",
                "traces go to `http://tempo:4317`",
            ),
            (
                ENDPOINT_VARIABLE,
                "https://otel.example/a?b#c",
                "https://otel.example",
                "has a path",
            ),
            (
                ENDPOINT_VARIABLE,
                "tempo:4317/otlp",
                "http://tempo:4317",
                "has a path",
            ),
            (
                ENDPOINT_VARIABLE,
                "unix:///run/otel.sock",
                "",
                "no traces are exported",
            ),
            (ENDPOINT_VARIABLE, "http://", "", "no traces are exported"),
            (
                ENDPOINT_VARIABLE,
                "http:///v1",
                "",
                "no traces are exported",
            ),
        ] {
            let found = replaced(variable, text).unwrap();
            assert_eq!(found.value, value, "{text}");
            let begin = format!("`{variable}` is `{text}`, ");
            assert!(found.warning.starts_with(&begin), "{}", found.warning);
            assert!(found.warning.contains(words), "{}", found.warning);
            // What is put there can be used.
            assert_eq!(replaced(variable, value), None);
        }
        for (variable, text) in [
            (RATIO_VARIABLE, "0.5"),
            (RATIO_VARIABLE, ""),
            (ENDPOINT_VARIABLE, "http://tempo:4317"),
            (ENDPOINT_VARIABLE, ""),
            ("OTEL_SERVICE_NAME", "x"),
        ] {
            assert_eq!(replaced(variable, text), None, "{text}");
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
