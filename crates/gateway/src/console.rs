//! The console: a page for people at `/`, and its files under `/console/`. Owns which files there are, who gets the
//! page and what a browser may do with it. What the page asks is `handlers`'; the page itself is in `console/`.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::handlers::fallback;

/// Scripts and styles come from here alone, and nothing parses HTML: Trusted Types refuse it, so that no text of a
/// model becomes an element. Pictures may also be those of the conversation.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
     trusted-types 'none'",
);
/// Asked for again each time, and sent only when it has changed: another version of the gateway may answer next.
const CACHING: HeaderValue = HeaderValue::from_static("no-cache");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_REFERRER: HeaderValue = HeaderValue::from_static("no-referrer");

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the console, as it is served.
#[derive(Debug)]
struct File {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
    etag: HeaderValue,
}

macro_rules! files {
    ($($name:literal: $media_type:expr,)*) => {
        vec![$(File::new($name, $media_type, include_str!(concat!("../console/", $name))),)*]
    };
}

static PAGE: LazyLock<File> =
    LazyLock::new(|| File::new("index.html", HTML, include_str!("../console/index.html")));

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    files! {
        "answer.js": JS,
        "chat.css": CSS,
        "chat.js": JS,
        "conversation.js": JS,
        "dom.js": JS,
        "format.js": JS,
        "icon.svg": SVG,
        "live.css": CSS,
        "live.js": JS,
        "main.js": JS,
        "message.js": JS,
        "metrics.js": JS,
        "plot.js": JS,
        "request.js": JS,
        "requests.js": JS,
        "server.js": JS,
        "settings.js": JS,
        "style.css": CSS,
        "table.js": JS,
        "text.js": JS,
        "tokens.js": JS,
    }
});

impl File {
    fn new(name: &'static str, media_type: &'static str, text: &'static str) -> Self {
        let mut etag = String::from("\"");
        for byte in Sha256::digest(text).iter().take(16) {
            // Writing to a string cannot fail.
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
        Self {
            name,
            media_type,
            text,
            etag,
        }
    }

    /// The file, or 304 where the client has it.
    fn answer(&self, headers: &HeaderMap) -> Response {
        let mut known = headers.get_all(header::IF_NONE_MATCH).iter();
        let is_known = known.any(|value| names(value.as_bytes(), self.etag.as_bytes()));
        let mut response = Response::new(match is_known {
            true => Body::empty(),
            false => Body::from(Bytes::from_static(self.text.as_bytes())),
        });
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.media_type),
        );
        headers.insert(header::ETAG, self.etag.clone());
        headers.insert(header::CACHE_CONTROL, CACHING);
        headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        headers.insert(header::REFERRER_POLICY, NO_REFERRER);
        response
    }
}

/// Whether a value of `If-None-Match` names the tag. Proxies that compress make weak tags of strong ones.
fn names(value: &[u8], etag: &[u8]) -> bool {
    let mut tags = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
}

/// Whether a route is the console's.
pub(crate) fn owns(path: &str) -> bool {
    path == "/" || path.starts_with("/console/")
}

/// `GET /`: the page for clients that name HTML in `Accept`, as browsers do; others get the 404 of any path that
/// is not part of the API.
pub(crate) async fn get_page(request: Request) -> Response {
    let accepts_html = accepts_html(request.headers());
    let mut response = match accepts_html {
        true => PAGE.answer(request.headers()),
        false => fallback::unknown_route(request).await,
    };
    let accept = HeaderValue::from_static("accept");
    response.headers_mut().append(header::VARY, accept);
    response
}

/// `GET /console/{file}`.
pub(crate) async fn get_file(Path(name): Path<String>, request: Request) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => file.answer(request.headers()),
        None => fallback::unknown_route(request).await,
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let mut ranges = values.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let media_type = range.split(';').next().unwrap_or_default();
        media_type.trim().eq_ignore_ascii_case("text/html")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a browser loads when it opens the page for the first time, in bytes.
    const BUDGET: usize = 300_000;

    #[test]
    fn the_console_is_small_and_complete() {
        let total = FILES.iter().map(|file| file.text.len()).sum::<usize>() + PAGE.text.len();
        assert!(total < BUDGET, "{total} bytes");
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("console");
        let mut there: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["index.html", "README.md", "reference.css"].contains(&&**name))
            .collect();
        there.sort();
        let served: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        assert_eq!(there, served);
    }

    #[test]
    fn nothing_in_it_is_inline_or_from_elsewhere() {
        for foreign in ["<style", "style=", "onclick=", "http:", "https:"] {
            assert!(!PAGE.text.contains(foreign), "{foreign}");
        }
        let scripts = FILES.iter().filter(|file| file.media_type == JS);
        for File { name, text, .. } in scripts {
            for danger in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "document.write",
            ] {
                assert!(!text.contains(danger), "{danger} in {name}");
            }
            let imports = text.lines().filter_map(|line| line.strip_prefix("import "));
            for import in imports {
                let from = import.split('"').nth(1).unwrap();
                let file = from.strip_prefix("./").unwrap();
                assert!(
                    FILES.iter().any(|other| other.name == file),
                    "{from} in {name}"
                );
            }
        }
    }

    #[test]
    fn browsers_get_the_page_and_programs_what_they_got_before() {
        for (accept, expected) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                true,
            ),
            ("Text/HTML", true),
            ("*/*", false),
            ("application/json", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(accepts_html(&headers), expected, "{accept}");
        }
        assert!(!accepts_html(&HeaderMap::new()));
    }

    #[test]
    fn tags_are_compared_weakly() {
        let tag = &b"\"a\""[..];
        for (value, expected) in [
            (&b"\"a\""[..], true),
            (b"\"b\", W/\"a\"", true),
            (b"*", true),
            (b"\"b\"", false),
            (b"a", false),
        ] {
            assert_eq!(names(value, tag), expected);
        }
    }
}
