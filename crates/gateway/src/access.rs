//! Which requests are let in, by their head alone. Owns the order of the checks; each has its file. Reads no
//! body and knows nothing of handlers.

mod browser;
mod message;
mod throttle;

use std::sync::Arc;

use axum::extract::Request;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body::Body as _;
use inflight_clients::api_key::{ApiKeys, Key};
use inflight_clients::client::Client;
use inflight_openai::ApiError;
use tokio::task::JoinSet;
use tower_http::cors::CorsLayer;

use self::browser::Browsers;
use self::throttle::Throttle;
use crate::error;
use crate::options::GatewayOptions;

/// What is answered even when there are too many connections.
const PROBES: [&str; 3] = ["/health", "/ping", "/v2/health"];

/// Where bodies are forms with files.
const UPLOADS: [&str; 3] = [
    "/v1/files",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// In a request's extensions: its client may see what only holders of a key may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trusted;

/// The checks, as the options have them.
#[derive(Debug)]
pub(crate) struct Access {
    /// `None`: no key is required.
    keys: Option<Arc<ApiKeys>>,
    wrong_keys: Throttle,
    browsers: Browsers,
}

impl Access {
    /// The checks for these options.
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let keys = ApiKeys::new(
            options.api_key.as_ref(),
            options.api_key_file.as_ref(),
            options.key_limits,
            options.share_prompt_cache,
        );
        Self {
            keys: keys.map(Arc::new),
            wrong_keys: Throttle::default(),
            browsers: Browsers::new(
                &options.host,
                &options.allowed_hosts,
                &options.allowed_origins,
            ),
        }
    }

    /// Keeps the keys as their file has them for as long as the set lives.
    pub(crate) fn watch_keys(&self) -> JoinSet<()> {
        let mut watch = JoinSet::new();
        if let Some(keys) = &self.keys {
            watch.spawn(Arc::clone(keys).follow_file());
        }
        watch
    }

    /// What answers preflights and lets pages of the allowed origins read answers; `None` without any.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        self.browsers.cors()
    }

    /// Lets `request` in, or says why not. `is_api`: nothing there is for clients without a key.
    ///
    /// # Errors
    /// 400, 401, 403, 415, 429 or 503, before anything of the body is read.
    pub(crate) fn check(&self, request: &mut Request, is_api: bool) -> Result<(), ApiError> {
        let client = Client::of(request.extensions()).cloned();
        let is_surplus = client
            .as_ref()
            .is_some_and(|it| it.connection().is_surplus());
        let path = request.uri().path();
        if is_surplus && !PROBES.iter().any(|probe| path.starts_with(probe)) {
            return Err(ApiError::unavailable(
                "The server has too many open connections. Retry later.",
            ));
        }
        let host = message::host(request.version(), request.uri(), request.headers())?;
        message::framing(request.headers())?;
        self.browsers.check(&host, request.headers())?;
        if self.authorize(client.as_deref(), request.headers(), is_api)? {
            request.extensions_mut().insert(Trusted);
        }
        if request.method() == Method::POST {
            // KServe's clients name other types, or none, and may compress. A page always says whose it is.
            let path = request.uri().path();
            let is_kserve = error::is_kserve(path);
            if UPLOADS.contains(&path) {
                message::plain_body(request.headers())?;
            } else if !is_kserve || request.headers().contains_key(header::ORIGIN) {
                message::json_body(request.headers(), request.body().is_end_stream())?;
            }
        }
        Ok(())
    }

    /// The key whose files are those of `owner`: `Some(None)` where nobody needs one and they are everybody's, and `None`
    /// where they are nobody's now.
    pub(crate) fn of_files(&self, owner: inflight_batches::Owner) -> Option<Option<Key>> {
        match &self.keys {
            Some(keys) => keys.of_files(owner).map(Some),
            None => (owner == inflight_batches::Owner::default()).then_some(None),
        }
    }

    /// Lets a call of another port in, whose head is `headers`.
    ///
    /// # Errors
    /// 401, or 429 after many wrong keys.
    pub(crate) fn allows(
        &self,
        client: Option<&Client>,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        self.authorize(client, headers, true).map(|_| ())
    }

    /// What divides the cached prompts of the key in `headers` from those of others; `None`: nothing does.
    pub(crate) fn cache_salt(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let keys = self.keys.as_ref()?;
        let key = given(headers).find_map(|key| keys.find(key))?;
        key.held.cache_salt()
    }

    /// Whether the client is trusted; one without a key may ask for what is not part of the API.
    fn authorize(
        &self,
        client: Option<&Client>,
        headers: &HeaderMap,
        is_api: bool,
    ) -> Result<bool, ApiError> {
        let Some(keys) = &self.keys else {
            return Ok(true);
        };
        let mut given = given(headers);
        if given.clone().next().is_none() {
            let given = headers.contains_key(header::AUTHORIZATION);
            return match is_api {
                true => Err(ApiError::invalid_api_key(given)),
                false => Ok(false),
            };
        }
        if let Some(Key { held, quota, .. }) = given.find_map(|key| keys.find(key)) {
            if let Some(client) = client {
                client.has_key(&held, quota);
            }
            return Ok(true);
        }
        // The right key is never refused, so that nobody can lock out others who share an address with them.
        let peer = client.map(|client| client.connection().peer);
        Err(match peer.map(|peer| self.wrong_keys.allows(peer)) {
            Some(false) => ApiError::rate_limited(
                "Too many requests with an incorrect API key. Send the server's key, or retry later.",
            ),
            _ => ApiError::invalid_api_key(true),
        })
    }
}

/// What may be a key: clients send both in either place.
fn given(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> + Clone {
    [bearer(headers), api_key(headers)].into_iter().flatten()
}

/// The token of the `Authorization` header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = given.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// The key as Anthropic's clients send it, with or instead of a token.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(API_KEY).map(HeaderValue::as_bytes)
}
