//! Fetches image files over HTTP/1.1 and HTTPS. Owns the connections, their time and their number; which are allowed is
//! `rules`'.
//!
//! A name is looked up once for each connection, every address that it has must be allowed, and the connection goes to one
//! of these addresses: no later answer of a name server can lead elsewhere. Redirects are followed here, each like a
//! client's own URL. Nothing of the client's request is sent on.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use inflight_openai::ApiError;
use inflight_tls::{HandshakeError, WebTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Stop;
use super::rules::{Refusal, Rules, Target, check_kind, quoted};

/// Redirects that are followed; a shop's or a cloud's take one or two.
const MAX_REDIRECTS: usize = 3;
/// Images that are fetched at once, for all requests: each holds a socket, and a file's memory.
const PLACES: usize = 64;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// The head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Fetcher {
    places: Semaphore,
    timeout: Duration,
    tls: WebTls,
}

/// An answer that is no failure.
enum Answer {
    File(Bytes),
    /// To this URL, as the header has it.
    Redirect(String),
}

impl Fetcher {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            places: Semaphore::new(PLACES),
            timeout,
            tls: WebTls::default(),
        }
    }

    /// Fetches a file. `hold` is told how many bytes come, before they are kept.
    ///
    /// # Errors
    /// See [`Refusal`]; whatever `hold` returns.
    pub(super) async fn fetch(
        &self,
        rules: &Rules,
        target: Target,
        hold: impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Bytes, Stop> {
        // Others' hosts may be slow; that is no fault of this one.
        let place = tokio::time::timeout(self.timeout, self.places.acquire()).await;
        let _place = place.map_err(|_| {
            let text = "The server is fetching too many images. Retry later.";
            Stop::Busy(ApiError::unavailable(text))
        })?;
        let followed = self.follow(rules, target, &hold);
        let late = |_| {
            Stop::Refused(Refusal::Late {
                seconds: self.timeout.as_secs(),
            })
        };
        tokio::time::timeout(self.timeout, followed)
            .await
            .map_err(late)?
    }

    async fn follow(
        &self,
        rules: &Rules,
        mut target: Target,
        hold: &impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Bytes, Stop> {
        for _ in 0..=MAX_REDIRECTS {
            match self.get(rules, &target, hold).await? {
                Answer::File(file) => {
                    check_kind(&file).map_err(Stop::Refused)?;
                    return Ok(file);
                }
                Answer::Redirect(location) => {
                    target = target.redirected(&location, rules).map_err(Stop::Refused)?;
                }
            }
        }
        let limit = MAX_REDIRECTS;
        Err(Stop::Refused(Refusal::Redirects { limit }))
    }

    async fn get(
        &self,
        rules: &Rules,
        target: &Target,
        hold: &impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Answer, Stop> {
        let failed = |reason| unreachable(target, reason);
        let addresses = look_up(target)
            .await
            .ok_or_else(|| failed("its name is not known"))?;
        // A name that also leads inside is not to be trusted with the others.
        if !addresses
            .iter()
            .all(|address| rules.allow_address(address.ip()))
        {
            return Err(Stop::Refused(Refusal::Address(quoted(&target.host))));
        }
        let stream = connect(&addresses)
            .await
            .ok_or_else(|| failed("it takes no connection"))?;
        if target.is_tls {
            let stream = self.tls.connect(&target.host, stream).await;
            let stream = stream.map_err(|error| {
                let reason = match error {
                    HandshakeError::Failed { reason, .. } => reason.to_string(),
                    other => other.to_string(),
                };
                tracing::info!(host = %quoted(&target.host), reason, "no TLS with an image's host");
                failed("the TLS handshake failed")
            })?;
            exchange(rules, target, stream, hold).await
        } else {
            exchange(rules, target, stream, hold).await
        }
    }
}

fn unreachable(target: &Target, reason: &'static str) -> Stop {
    let host = quoted(&target.host);
    Stop::Refused(Refusal::Unreachable { host, reason })
}

/// The addresses of a target's host; `None` where it has none.
async fn look_up(target: &Target) -> Option<Vec<SocketAddr>> {
    if let Ok(address) = target.host.parse::<IpAddr>() {
        return Some(vec![SocketAddr::new(address, target.port)]);
    }
    let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
    let found: Vec<SocketAddr> = found.ok()?.collect();
    (!found.is_empty()).then_some(found)
}

async fn connect(addresses: &[SocketAddr]) -> Option<TcpStream> {
    for address in addresses.iter().take(MAX_ADDRESSES) {
        if let Ok(stream) = TcpStream::connect(address).await {
            return Some(stream);
        }
    }
    None
}

/// Asks over a connection that nobody else uses.
async fn exchange<S>(
    rules: &Rules,
    target: &Target,
    stream: S,
    hold: &impl Fn(usize) -> Result<(), Stop>,
) -> Result<Answer, Stop>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |_| {
        unreachable(
            target,
            "it does not speak HTTP/1.1, or ended the connection",
        )
    };
    let handshake = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(failed)?;
    // Ends with this call, whichever way that ends.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = request(target).ok_or(Stop::Refused(Refusal::Malformed))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let (head, mut body) = response.into_parts();
    match head.status {
        StatusCode::OK => {}
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            let location = head.headers.get(header::LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let location = location.ok_or(Stop::Refused(Refusal::Malformed))?;
            return Ok(Answer::Redirect(location.to_owned()));
        }
        status => {
            let (host, status) = (quoted(&target.host), status.as_u16());
            return Err(Stop::Refused(Refusal::Status { host, status }));
        }
    }
    let limit = rules.max_bytes;
    let too_large = || Stop::Refused(Refusal::TooLarge { limit });
    if declared_length(&head.headers).is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut file = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(failed)?.into_data() else {
            continue;
        };
        if file.len() + data.len() > limit {
            return Err(too_large());
        }
        hold(data.len())?;
        file.extend_from_slice(&data);
    }
    Ok(Answer::File(file.freeze()))
}

fn request(target: &Target) -> Option<Request<Empty<Bytes>>> {
    const AGENT: &str = concat!("inflight/", env!("CARGO_PKG_VERSION"));
    Request::get(target.path())
        .header(header::HOST, target.authority())
        .header(header::USER_AGENT, AGENT)
        .header(header::ACCEPT, "image/png,image/jpeg,image/webp,image/gif")
        .header(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        )
        .body(Empty::new())
        .ok()
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(header::CONTENT_LENGTH)?;
    value.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
