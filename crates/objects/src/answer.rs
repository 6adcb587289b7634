//! What a server answered, and what it means when it did not do what it was asked for.

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use crate::error::ObjectError;
use crate::url::Place;
use crate::xml::{self, Found};

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Seconds that a clock may be off; S3's servers allow fifteen minutes.
const MOST_SKEW: i64 = 300;
/// Of a server's word for what is wrong.
const MOST_CODE: usize = 64;

impl Answer {
    /// The server's time; ours if it does not say.
    pub(crate) fn now(&self) -> Timestamp {
        self.date().unwrap_or_else(Timestamp::now)
    }

    fn date(&self) -> Option<Timestamp> {
        let date = self.headers.get(header::DATE)?.to_str().ok()?;
        Some(rfc2822::parse(date).ok()?.timestamp())
    }

    /// What went wrong: the answer has another status than a success, or its body has an error, which the body of a
    /// success cannot have where it `is_content`: that may be anything.
    pub(crate) fn failure(
        &self,
        place: &Place,
        object: &str,
        now: Timestamp,
        is_content: bool,
    ) -> Option<ObjectError> {
        if self.status.is_success() && is_content {
            return None;
        }
        let said = Said::read(&self.body);
        if self.status.is_success() && !said.is_error {
            return None;
        }
        let bucket = place.bucket.name().to_owned();
        let endpoint = place.endpoint.authority.clone();
        let header = self.headers.get("x-amz-bucket-region");
        let header = header.and_then(|value| value.to_str().ok()).map(word);
        let region = header
            .or(said.region)
            .filter(|region| region != place.bucket.region());
        let (status, code) = (self.status.as_u16(), said.code);
        let is_elsewhere = status == 301 || status == 307 || code.starts_with("Authorization");
        if let Some(region) = region.filter(|region| is_elsewhere && !region.is_empty()) {
            return Some(ObjectError::Region { bucket, region });
        }
        let off = now.as_second() - self.date().unwrap_or(now).as_second();
        let seconds = off.saturating_abs();
        Some(match (code.as_str(), status) {
            ("NoSuchBucket", _) => ObjectError::NoBucket { bucket, endpoint },
            ("NoSuchUpload", _) => ObjectError::NoUpload(object.to_owned()),
            ("NoSuchKey", _) => ObjectError::Missing(object.to_owned()),
            ("RequestTimeTooSkewed", _) => ObjectError::Clock { endpoint, seconds },
            (_, 401 | 403) if seconds > MOST_SKEW => ObjectError::Clock { endpoint, seconds },
            (
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "AuthorizationQueryParametersError"
                | "AuthorizationHeaderMalformed"
                | "TokenRefreshRequired"
                | "InvalidSecurity",
                _,
            )
            | (_, 401) => ObjectError::Credentials { endpoint, code },
            (_, 403) => ObjectError::Denied {
                bucket,
                endpoint,
                code,
            },
            // An answer to `HEAD` has no body.
            ("", 404) => ObjectError::Missing(object.to_owned()),
            _ => ObjectError::Refused {
                endpoint,
                status,
                code,
            },
        })
    }
}

/// Reads an answer of a server, for fuzzing.
///
/// # Panics
/// Where a path has too many names, or what an error says is more than words.
pub fn check_answer(body: &[u8]) {
    let said = Said::read(body);
    for text in [Some(said.code), said.region].into_iter().flatten() {
        assert!(text.len() <= MOST_CODE && text.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return;
    };
    let most = xml::MOST_DEPTH;
    let is_read = xml::read(text, |found| {
        let (Found::Text(path, _) | Found::End(path)) = found;
        assert!(path.split('/').count() <= most, "{path}");
    });
    assert_eq!(is_read, xml::text(body, "UploadId").map(|(root, _)| root));
}

/// What an error says.
#[derive(Default)]
struct Said {
    is_error: bool,
    code: String,
    region: Option<String>,
}

impl Said {
    fn read(body: &[u8]) -> Self {
        let mut said = Self::default();
        let is_xml = body.trim_ascii_start().starts_with(b"<") && body.len() < 64 * 1024;
        let text = std::str::from_utf8(body).ok().filter(|_| is_xml);
        let root = text.and_then(|text| {
            xml::read(text, |found| match found {
                Found::Text("Code", text) => said.code = word(text),
                Found::Text("Region", text) => said.region = Some(word(text)),
                _ => {}
            })
        });
        said.is_error = root.is_some_and(|root| root == "Error");
        said
    }
}

/// A word of a server, for a message: short, and without what a terminal would act on.
fn word(text: &str) -> String {
    let plain = text
        .chars()
        .filter(|one| one.is_ascii_alphanumeric() || "-_.".contains(*one));
    plain.take(MOST_CODE).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::url::ObjectsUrl;

    fn place() -> Place {
        let url = ObjectsUrl::new("s3://abc/d");
        url.read(|name| match name {
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("hidden".to_owned()),
            "AWS_ENDPOINT_URL" => Some("http://h:1".to_owned()),
            _ => None,
        })
        .unwrap()
    }

    fn failure(status: u16, code: &str, headers: &[(&'static str, &str)]) -> Option<ObjectError> {
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers
                .iter()
                .map(|(name, value)| {
                    let value = HeaderValue::from_str(value).unwrap();
                    (http::HeaderName::from_static(name), value)
                })
                .collect(),
            body: Bytes::from(code.to_owned()),
        };
        let now = "2026-11-26T12:00:00Z".parse().unwrap();
        answer.failure(&place(), "x", now, status == 206)
    }

    fn error(code: &str) -> String {
        format!("<Error xmlns=\"any\"><Code>{code}</Code><Message>m</Message></Error>")
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (status, code, says) in [
            (
                404,
                "NoSuchBucket",
                "the bucket `abc` does not exist at `h:1`",
            ),
            (404, "NoSuchKey", "the object `x` is missing"),
            (404, "NoSuchUpload", "the multipart upload of `x`"),
            (
                403,
                "AccessDenied",
                "does not allow this in the bucket `abc` (`AccessDenied`)",
            ),
            (
                403,
                "SignatureDoesNotMatch",
                "does not accept the credentials",
            ),
            (
                400,
                "ExpiredToken",
                "does not accept the credentials (`ExpiredToken`)",
            ),
            (503, "SlowDown", "the status `503` (`SlowDown`)"),
            (200, "InternalError", "the status `200` (`InternalError`)"),
            (418, "\u{1b}[31m`x", "the status `418` (`31mx`)"),
        ] {
            let found = failure(status, &error(code), &[]).unwrap();
            assert!(found.to_string().contains(says), "{found}");
        }
        assert!(failure(503, &error("SlowDown"), &[]).unwrap().is_passing());
        assert!(
            failure(200, &error("InternalError"), &[])
                .unwrap()
                .is_passing()
        );
        assert!(failure(502, "<html>", &[]).unwrap().is_passing());
        assert!(
            !failure(403, &error("AccessDenied"), &[])
                .unwrap()
                .is_passing()
        );
        assert!(matches!(
            failure(404, "", &[]),
            Some(ObjectError::Missing(_))
        ));
        // What an object contains is not a refusal.
        assert!(failure(206, &error("NoSuchKey"), &[]).is_none());
        assert!(failure(200, "", &[]).is_none());
    }

    #[test]
    fn another_region_is_named() {
        let body =
            "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>";
        let header = [("x-amz-bucket-region", "eu-west-1")];
        for found in [failure(400, body, &[]), failure(301, "", &header)] {
            assert!(
                matches!(&found, Some(ObjectError::Region { region, .. }) if region == "eu-west-1"),
                "{found:?}"
            );
        }
        // A refusal in the right region names it as well.
        let denied = failure(403, &error("AccessDenied"), &header);
        assert!(matches!(denied, Some(ObjectError::Denied { .. })));
    }

    #[test]
    fn a_clock_that_is_off_is_noticed() {
        for (date, is_off) in [
            ("Thu, 26 Nov 2026 12:30:00 GMT", true),
            ("Thu, 26 Nov 2026 12:01:00 GMT", false),
        ] {
            let found = failure(403, &error("AccessDenied"), &[("date", date)]).unwrap();
            assert_eq!(
                matches!(found, ObjectError::Clock { seconds: 1800, .. }),
                is_off
            );
        }
    }
}
