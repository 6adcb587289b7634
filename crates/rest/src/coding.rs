//! Compressed bodies: gzip and deflate, as Triton's clients send and take them. Owns how large a body may become.

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::error::RestError;

/// Answers below this are not worth it.
const LEAST_BYTES: usize = 256;
/// How much a body grows by at once.
const STEP: usize = 64 << 10;

/// A form of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    /// As HTTP means it: zlib's format.
    Deflate,
}

impl Coding {
    fn named(name: &str) -> Option<Self> {
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") => Some(Self::Gzip),
            name if name.eq_ignore_ascii_case("deflate") => Some(Self::Deflate),
            _ => None,
        }
    }

    /// The one that a request's body is in.
    ///
    /// # Errors
    /// 415: one that is not known, or several.
    pub fn of_body(headers: &HeaderMap) -> Result<Option<Self>, RestError> {
        let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
        let coding = match (codings.next(), codings.next()) {
            (None, _) => return Ok(None),
            (Some(one), None) if one.as_bytes().eq_ignore_ascii_case(b"identity") => {
                return Ok(None);
            }
            (Some(one), None) => one.to_str().ok().and_then(Self::named),
            _ => None,
        };
        coding.map(Some).ok_or_else(|| {
            let text = "the body's `Content-Encoding` must be gzip or deflate, or none";
            RestError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
        })
    }

    /// The one that a client takes and that is named first; what it rules out with `q=0` does not count.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::ACCEPT_ENCODING).iter();
        let mut named = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        named.find_map(|one| {
            let (name, weight) = one.split_once(';').unwrap_or((one, ""));
            let weight = weight.trim().strip_prefix("q=").map(str::trim);
            let is_out = weight.and_then(|weight| weight.parse::<f32>().ok()) == Some(0.0);
            Self::named(name).filter(|_| !is_out)
        })
    }

    /// For `Content-Encoding`.
    pub(crate) fn name(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        })
    }

    /// A body as it was before it was compressed. Before it grows, `reserve` receives how many bytes it may have
    /// then.
    ///
    /// # Errors
    /// 413: it has more than `limit` bytes; 400: it is damaged; what `reserve` returns.
    pub fn expand<E: From<RestError>>(
        self,
        body: &[u8],
        limit: usize,
        reserve: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Bytes, E> {
        match self {
            Self::Gzip => expand(MultiGzDecoder::new(body), limit, reserve),
            Self::Deflate => expand(ZlibDecoder::new(body), limit, reserve),
        }
    }

    /// A body, compressed; `None` where it is small.
    pub(crate) fn shrink(self, body: &[u8]) -> Option<Vec<u8>> {
        if body.len() < LEAST_BYTES {
            return None;
        }
        // The fastest level: what is sent is mostly on a network that is faster than the others.
        let (level, room) = (Compression::fast(), Vec::with_capacity(body.len() / 2));
        let shrunk: io::Result<Vec<u8>> = match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(room, level);
                encoder.write_all(body).and_then(|()| encoder.finish())
            }
            Self::Deflate => {
                let mut encoder = ZlibEncoder::new(room, level);
                encoder.write_all(body).and_then(|()| encoder.finish())
            }
        };
        // Writing to memory cannot fail.
        shrunk.ok()
    }
}

fn expand<E: From<RestError>>(
    mut decoder: impl Read,
    limit: usize,
    mut reserve: impl FnMut(usize) -> Result<(), E>,
) -> Result<Bytes, E> {
    let mut expanded = Vec::new();
    loop {
        reserve(expanded.len() + STEP)?;
        let more = decoder
            .by_ref()
            .take(STEP as u64)
            .read_to_end(&mut expanded);
        let more = more.map_err(|_| RestError::invalid("the compressed body is damaged"))?;
        if expanded.len() > limit {
            let text = format!("the body is larger than the limit of `{limit}` bytes");
            return Err(RestError::new(StatusCode::PAYLOAD_TOO_LARGE, text).into());
        }
        if more == 0 {
            return Ok(expanded.into());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn whole(coding: Coding, body: &[u8], limit: usize) -> Result<Bytes, RestError> {
        coding.expand(body, limit, |_| Ok(()))
    }

    fn headers(name: header::HeaderName, values: &[&str]) -> HeaderMap {
        let values = values
            .iter()
            .map(|value| (name.clone(), value.parse().unwrap()));
        values.collect()
    }

    #[test]
    fn what_is_compressed_is_expanded_within_its_limit() {
        let body = vec![b'a'; 10_000];
        for coding in [Coding::Gzip, Coding::Deflate] {
            let shrunk = coding.shrink(&body).unwrap();
            assert!(shrunk.len() < 200);
            assert_eq!(whole(coding, &shrunk, body.len()).unwrap(), body);
            let error = whole(coding, &shrunk, body.len() - 1).unwrap_err();
            assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
            for damaged in [&b""[..], b"x", &shrunk[..shrunk.len() - 5]] {
                let error = whole(coding, damaged, body.len()).unwrap_err();
                assert_eq!(error.status, StatusCode::BAD_REQUEST);
            }
            assert_eq!(coding.shrink(&body[..LEAST_BYTES - 1]), None);
            let full = || RestError::new(StatusCode::SERVICE_UNAVAILABLE, "full");
            let refused = coding.expand(&shrunk, body.len(), |_| Err(full()));
            assert_eq!(refused.unwrap_err(), full());
        }
    }

    #[test]
    fn codings_are_those_that_are_named() {
        let of = |values: &[&str]| Coding::of_body(&headers(header::CONTENT_ENCODING, values));
        assert_eq!((of(&[]), of(&["identity"])), (Ok(None), Ok(None)));
        assert_eq!(of(&["GZip"]), Ok(Some(Coding::Gzip)));
        assert_eq!(of(&["deflate"]), Ok(Some(Coding::Deflate)));
        for bad in [&["br"][..], &["gzip, gzip"], &["gzip", "gzip"], &[""]] {
            assert_eq!(
                of(bad).unwrap_err().status,
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            );
        }
        let accepted = |value: &str| Coding::accepted(&headers(header::ACCEPT_ENCODING, &[value]));
        for (value, coding) in [
            ("gzip", Some(Coding::Gzip)),
            ("br, deflate;q=0.5, gzip", Some(Coding::Deflate)),
            ("gzip;q=0, deflate", Some(Coding::Deflate)),
            ("gzip; q=0.0", None),
            ("identity", None),
            ("", None),
        ] {
            assert_eq!(accepted(value), coding, "{value}");
        }
    }
}
