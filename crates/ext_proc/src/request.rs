//! The HTTP request that a proxy asks about. Owns how its parts are read; knows nothing of when they come.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use prost_types::value::Kind;

use crate::messages::{self, Metadata};
use crate::names::{SERVED, SUBSET, SUBSET_NAMESPACE};

/// The HTTP request that a proxy asks about.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    /// Empty: the proxy did not say.
    pub method: String,
    /// With its query.
    pub path: String,
    /// Without those that begin with a colon, and without what HTTP allows in no header: nothing depends on it.
    pub headers: HeaderMap,
    /// Empty where the proxy sends none. Of a gRPC call, what has come, which is at least its first message.
    pub body: Bytes,
    /// The endpoints that may be picked, as `ip:port` or `ip`; `None`: all.
    pub subset: Option<Vec<String>>,
}

impl HttpRequest {
    pub(crate) fn new(headers: messages::HttpHeaders, metadata: Option<&Metadata>) -> Self {
        let mut request = Self {
            subset: metadata.and_then(subset),
            ..Self::default()
        };
        let headers = headers.headers.unwrap_or_default().headers;
        for messages::HeaderValue {
            key,
            value,
            raw_value,
        } in headers
        {
            let value = match raw_value.is_empty() {
                true => Bytes::from(value),
                false => raw_value,
            };
            match &*key {
                ":path" => request.path = text(&value),
                ":method" => request.method = text(&value),
                _ => {
                    let name = HeaderName::try_from(key);
                    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
                        request.headers.append(name, value);
                    }
                }
            }
        }
        request
    }

    /// Whether it is a call of gRPC, whose body may come for as long as it is answered.
    pub fn is_grpc(&self) -> bool {
        self.has_content(b"application/grpc")
    }

    /// Whether its body is a form with files.
    pub(crate) fn is_form(&self) -> bool {
        self.has_content(b"multipart/")
    }

    fn has_content(&self, kind: &[u8]) -> bool {
        let content = self.headers.get(CONTENT_TYPE);
        content.is_some_and(|content| content.as_bytes().starts_with(kind))
    }

    /// The first message of a call of gRPC; `None`: it is compressed, or not a call of gRPC.
    pub fn first_message(&self) -> Option<&[u8]> {
        let Message {
            is_compressed,
            content,
        } = first_message(&self.body)?;
        (!is_compressed && self.is_grpc()).then_some(content)
    }

    /// Whether it may go to this `ip:port`.
    pub fn may_go_to(&self, endpoint: &str) -> bool {
        let Some(subset) = &self.subset else {
            return true;
        };
        let ip = endpoint.rsplit_once(':').map_or(endpoint, |(ip, _)| ip);
        subset.iter().any(|one| *one == endpoint || *one == ip)
    }
}

/// A message of a call of gRPC.
pub(crate) struct Message<'a> {
    is_compressed: bool,
    content: &'a [u8],
}

/// The first message of a call's body, once it is whole.
pub(crate) fn first_message(body: &[u8]) -> Option<Message<'_>> {
    let (&is_compressed, rest) = body.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    Some(Message {
        is_compressed: is_compressed != 0,
        content: rest.get(..length)?,
    })
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// A list of addresses, or one string with commas between them: proxies send either.
fn subset(metadata: &Metadata) -> Option<Vec<String>> {
    let hint = metadata.filter_metadata.get(SUBSET_NAMESPACE)?;
    let addresses = match hint.fields.get(SUBSET)?.kind.as_ref()? {
        Kind::ListValue(list) => list
            .values
            .iter()
            .filter_map(|value| match &value.kind {
                Some(Kind::StringValue(address)) => Some(address.trim().to_owned()),
                _ => None,
            })
            .collect(),
        Kind::StringValue(text) => {
            let addresses = text.split(',').map(str::trim);
            let addresses = addresses.filter(|address| !address.is_empty());
            addresses.map(str::to_owned).collect()
        }
        _ => return None,
    };
    Some(addresses)
}

/// The endpoint that the proxy says has answered.
pub(crate) fn served(metadata: &Metadata) -> Option<String> {
    let said = metadata
        .filter_metadata
        .get(crate::names::DESTINATION_NAMESPACE)?;
    match said.fields.get(SERVED)?.kind.as_ref()? {
        Kind::StringValue(endpoint) => Some(endpoint.clone()),
        _ => None,
    }
}
