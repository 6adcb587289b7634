//! What a request's head must say for all to read it alike: a proxy that reads it differently would pass a
//! part of one request on as another. Owns that, and which bodies are read at all.

use http::uri::Authority;
use http::{HeaderMap, Uri, Version, header};
use inflight_openai::ApiError;

/// The one host that the request is for.
///
/// # Errors
/// 400 when it names none, several, or something that is not a host.
pub(super) fn host(
    version: Version,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Authority>, ApiError> {
    let mut given = headers.get_all(header::HOST).iter();
    let (first, second) = (given.next(), given.next());
    if second.is_some() {
        return Err(ApiError::invalid_body(
            "The request has several `Host` headers. Send one.",
        ));
    }
    let header = first.map(|value| {
        let text = value.to_str().ok().filter(|text| !text.contains('@'));
        text.and_then(|text| text.parse::<Authority>().ok())
            .ok_or_else(|| {
                ApiError::invalid_body("The `Host` header is not a host. Send HOST:PORT.")
            })
    });
    let header = header.transpose()?;
    match (header, uri.authority()) {
        (Some(header), Some(target)) if header != *target => Err(ApiError::invalid_body(
            "The `Host` header and the request's target name different hosts. Send one.",
        )),
        (Some(header), _) => Ok(Some(header)),
        (None, Some(target)) if version >= Version::HTTP_2 => Ok(Some(target.clone())),
        (None, _) if version < Version::HTTP_11 => Ok(uri.authority().cloned()),
        (None, _) => Err(ApiError::invalid_body(
            "The request has no `Host` header. Send one.",
        )),
    }
}

/// Checks that there is one way to read where the body ends. Of `Content-Length` with `Transfer-Encoding`
/// hyper itself takes the latter, as RFC 9112 has it, and closes the connection after the answer.
///
/// # Errors
/// 400 for any transfer coding besides `chunked`, and for several lengths.
pub(super) fn framing(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = codings.next();
    let is_chunked = first.is_none_or(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if !is_chunked || codings.next().is_some() {
        return Err(ApiError::invalid_body(
            "The request's `Transfer-Encoding` is not supported. Send `chunked` or a `Content-Length`.",
        ));
    }
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter().count();
    if lengths > 1 || (lengths == 1 && first.is_some()) {
        return Err(ApiError::invalid_body(
            "The request says in several ways how long its body is. Send one `Content-Length`.",
        ));
    }
    Ok(())
}

/// Checks that the body is not compressed.
///
/// # Errors
/// 415 otherwise.
pub(super) fn plain_body(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    if codings.any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::unsupported_media_type(
            "A compressed request body is not supported. Send it without `Content-Encoding`.",
        ));
    }
    Ok(())
}

/// Checks that the body is JSON and not compressed, or that there `is_empty` one. A web page may send any other type to any server without
/// asking it first.
///
/// # Errors
/// 415 otherwise.
pub(super) fn json_body(headers: &HeaderMap, is_empty: bool) -> Result<(), ApiError> {
    plain_body(headers)?;
    let content_type = headers.get(header::CONTENT_TYPE);
    // Clients that send no body name no type.
    if content_type.is_none() && is_empty {
        return Ok(());
    }
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next());
    match media_type {
        Some(media_type) if media_type.trim().eq_ignore_ascii_case("application/json") => Ok(()),
        _ => Err(ApiError::unsupported_media_type(
            "The request body must be JSON. Send it with the header `Content-Type: application/json`.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(given: &[(&str, &str)]) -> HeaderMap {
        let pairs = given.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn a_request_is_for_exactly_one_host() {
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (version, uri, hosts, expected) in [
            (one, "/", &["a:1"][..], Some("a:1")),
            (one, "http://a:1/", &["a:1"], Some("a:1")),
            (one, "http://b/", &["a"], None),
            (one, "/", &[], None),
            (one, "http://a/", &[], None),
            (one, "/", &["a", "a"], None),
            (one, "/", &["a, b"], None),
            (one, "/", &["user@a"], None),
            (one, "/", &[""], None),
            (two, "http://a/", &[], Some("a")),
            (two, "http://a/", &["a"], Some("a")),
            (two, "http://a/", &["b"], None),
            (two, "/", &[], None),
        ] {
            let given: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            let found = host(version, &uri.parse().unwrap(), &headers(&given));
            let found = found.map(|host| host.unwrap().to_string());
            assert_eq!(
                found.ok().as_deref(),
                expected,
                "{version:?} {uri} {hosts:?}"
            );
        }
        let old = host(Version::HTTP_10, &"/".parse().unwrap(), &headers(&[]));
        assert_eq!(old.unwrap(), None);
    }

    #[test]
    fn there_is_one_way_to_read_where_a_body_ends() {
        let (coding, length) = ("transfer-encoding", "content-length");
        for (given, is_fine) in [
            (&[][..], true),
            (&[(length, "1")], true),
            (&[(coding, "Chunked")], true),
            (&[(coding, "gzip, chunked")], false),
            (&[(coding, "identity")], false),
            (&[(coding, "chunked"), (coding, "chunked")], false),
            (&[(coding, "chunked"), (length, "1")], false),
            (&[(length, "1"), (length, "1")], false),
        ] {
            assert_eq!(framing(&headers(given)).is_ok(), is_fine, "{given:?}");
        }
    }

    #[test]
    fn bodies_are_plain_json() {
        let json = ("content-type", "application/json");
        for (given, is_fine) in [
            (&[json][..], true),
            (&[("content-type", "Application/JSON; charset=utf-8")], true),
            (&[json, ("content-encoding", "identity")], true),
            (&[json, ("content-encoding", "gzip")], false),
            (&[], false),
            (&[("content-type", "text/plain")], false),
            (
                &[("content-type", "application/x-www-form-urlencoded")],
                false,
            ),
        ] {
            let result = json_body(&headers(given), false).map_err(|error| error.status());
            assert_eq!(result, if is_fine { Ok(()) } else { Err(415) }, "{given:?}");
        }
    }
}
