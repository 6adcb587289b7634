//! What web pages may do with the gateway. Owns the names that it is reached by and the origins that it
//! answers.
//!
//! A gateway on the loopback interface is for the people on its machine, and their browsers are on it, too. A
//! page from anywhere may send requests to `localhost`, and a page whose own name is made to resolve to
//! 127.0.0.1 (DNS rebinding) may read the answers as well: to the browser it is one site. The browser still
//! says whose page it is, in `Origin`, and which name it asked for, in `Host`.

use std::net::IpAddr;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use inflight_openai::ApiError;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::RETRY_AFTER_MS;

/// Allows every host or origin.
const ANY: &str = "*";
/// How long a browser may remember a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);
/// Headers of the gateway that scripts may read.
const EXPOSED: [HeaderName; 14] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("openai-version"),
    HeaderName::from_static("x-inflight-ignored-fields"),
    header::RETRY_AFTER,
    RETRY_AFTER_MS,
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// The rules for this gateway.
#[derive(Debug)]
pub(super) struct Browsers {
    is_local: bool,
    /// What this machine calls itself.
    machine: Option<String>,
    hosts: Vec<String>,
    origins: Vec<HeaderValue>,
}

impl Browsers {
    /// The rules for a gateway that listens on `host`, with more names and origins that are allowed.
    pub(super) fn new(host: &str, hosts: &[String], origins: &[HeaderValue]) -> Self {
        let is_local = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => is_localhost(host),
        };
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Self {
            is_local,
            machine: machine.map(|name| name.trim().to_owned()),
            hosts: hosts.to_vec(),
            origins: origins.to_vec(),
        }
    }

    /// Checks who asks and for whom.
    ///
    /// # Errors
    /// 403 when a page asks that may not, or asks by a name that is not this gateway's.
    pub(super) fn check(
        &self,
        host: &Option<Authority>,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let name = host.as_ref().map(Authority::host);
        if (self.is_local || !self.hosts.is_empty())
            && let Some(name) = name
            && !self.is_own(name)
        {
            return Err(ApiError::forbidden(
                "host_not_allowed",
                "This server is not known by the name in the `Host` header. Use `localhost`, or start it \
                 with `--allowed-host`.",
            ));
        }
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        // Elsewhere a proxy may have changed the host, and a page that is not allowed can read nothing.
        if !self.is_local || self.is_allowed(origin) || is_same(origin, host.as_ref()) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "origin_not_allowed",
            "Pages of this origin may not use the server. Start it with `--allowed-origin ORIGIN`.",
        ))
    }

    fn is_own(&self, name: &str) -> bool {
        let is = |own: &str| own.eq_ignore_ascii_case(name);
        // Nobody on the Internet owns an address or a name without a dot, so none can be rebound; proxies
        // and containers use both.
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        is_address
            || is_localhost(name)
            || !name.trim_end_matches('.').contains('.')
            || self.machine.as_deref().is_some_and(is)
            || self.hosts.iter().any(|host| host == ANY || is(host))
    }

    fn is_allowed(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|own| own == ANY || own == origin)
    }

    /// See [`super::Access::cors`].
    pub(super) fn cors(&self) -> Option<CorsLayer> {
        let origins = match self.origins.iter().any(|origin| origin == ANY) {
            _ if self.origins.is_empty() => return None,
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.origins.iter().cloned()),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // A wildcard would not include `Authorization`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(PREFLIGHT_AGE);
        Some(layer)
    }
}

/// `localhost` and the names below it, which browsers resolve by themselves.
fn is_localhost(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether a page of `origin` was loaded from the gateway itself.
fn is_same(origin: &HeaderValue, host: Option<&Authority>) -> bool {
    let origin = origin.to_str().ok();
    let origin = origin.and_then(|origin| origin.parse::<Uri>().ok());
    let origin = origin.as_ref().and_then(Uri::authority);
    origin.is_some() && origin == host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(browsers: &Browsers, host: &str, origin: Option<&str>) -> u16 {
        let mut headers = HeaderMap::new();
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        let checked = browsers.check(&Some(host.parse().unwrap()), &headers);
        checked.map_or_else(|error| error.status(), |()| 200)
    }

    #[test]
    fn a_gateway_for_this_machine_knows_its_names_and_its_pages() {
        let mut browsers = Browsers::new("127.0.0.1", &[], &[]);
        browsers.machine = Some("desk.example.org".to_owned());
        for (host, origin, expected) in [
            ("localhost:8000", None, 200),
            ("127.0.0.1:8000", None, 200),
            ("[::1]:8000", None, 200),
            ("app.localhost", None, 200),
            ("Desk.example.org", None, 200),
            ("gateway:8000", None, 200),
            ("evil.example", None, 403),
            ("evil.example:8000", None, 403),
            ("evil.example.", None, 403),
            ("localhost.evil.example", None, 403),
            ("127.0.0.1.evil.example", None, 403),
            ("localhost:8000", Some("http://localhost:8000"), 200),
            ("localhost:8000", Some("http://localhost:3000"), 403),
            ("localhost:8000", Some("https://evil.example"), 403),
            ("localhost:8000", Some("null"), 403),
        ] {
            assert_eq!(
                status(&browsers, host, origin),
                expected,
                "{host} {origin:?}"
            );
        }
    }

    #[test]
    fn options_allow_more_and_other_interfaces_are_open() {
        let page = HeaderValue::from_static("https://app.example");
        let listed = Browsers::new("localhost", &["llm.example".to_owned()], &[page]);
        assert_eq!(
            status(&listed, "llm.example", Some("https://app.example")),
            200
        );
        assert_eq!(
            status(&listed, "llm.example", Some("https://app.example:1")),
            403
        );
        assert_eq!(status(&listed, "evil.example", None), 403);
        let any = HeaderValue::from_static(ANY);
        let any = Browsers::new("::1", &[ANY.to_owned()], &[any]);
        assert_eq!(status(&any, "evil.example", Some("null")), 200);
        let open = Browsers::new("0.0.0.0", &[], &[]);
        assert_eq!(
            status(&open, "llm.example", Some("https://app.example")),
            200
        );
        let named = Browsers::new("0.0.0.0", &["llm.example".to_owned()], &[]);
        assert_eq!(status(&named, "evil.example", None), 403);
    }
}
