//! Fetches image files over HTTP/1.1 and HTTPS. Owns the connections, their time and their number; which are allowed
//! is `rules`'.
//!
//! One client has some of the places, and hosts whose names are slow to look up have some of the threads.
//!
//! A name is looked up once for each connection, every address that it has must be allowed, and the connection goes
//! to one of these addresses: no later answer of a name server can lead elsewhere. Redirects are followed here, each
//! like a client's own URL. Nothing of the client's request is sent on.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use inflight_clients::client::Client;
use inflight_openai::ApiError;
use inflight_tls::{HandshakeError, WebTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Stop;
use super::rules::{Refusal, Rules, Target, check_kind, quoted};

/// Redirects that are followed; a shop's or a cloud's take one or two.
const MAX_REDIRECTS: usize = 3;
/// Images that are fetched at once, for all requests: each holds a socket, and a file's memory.
const PLACES: usize = 64;
/// Names that are looked up at once. Each has a thread, which nothing but the answer of a name server ends.
const LOOKUPS: usize = 16;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// The head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The addresses of a name on a port, as the system knows them. It may take any time.
type LookUp = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

pub(super) struct Fetcher {
    places: Semaphore,
    lookups: Arc<Semaphore>,
    look_up: Arc<LookUp>,
    timeout: Duration,
    tls: WebTls,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// An answer that is not a failure.
enum Fetched {
    File(Bytes),
    /// To this URL, as the header has it.
    Redirect(String),
}

impl Fetcher {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            places: Semaphore::new(PLACES),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            look_up: Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect())),
            timeout,
            tls: WebTls::default(),
        }
    }

    /// Fetches a file. `hold` receives how many bytes come, before they are kept.
    ///
    /// # Errors
    /// See [`Refusal`]; whatever `hold` returns.
    pub(super) async fn fetch(
        &self,
        rules: &Rules,
        client: Option<&Client>,
        target: Target,
        hold: impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Bytes, Stop> {
        let until = Instant::now() + self.timeout;
        // First its own, so that who waits for these holds none of the others.
        let _own = match client {
            None => Vec::new(),
            Some(client) => {
                let own = timeout_at(until, client.fetch_place()).await;
                own.map_err(|_| {
                    let text =
                        "The server is fetching too many images for this client. Retry later.";
                    Stop::Busy(ApiError::rate_limited(text))
                })?
            }
        };
        // Others' hosts may be slow; that is not this one's fault.
        let place = timeout_at(until, self.places.acquire()).await;
        let _place = place.map_err(|_| busy("The server is fetching too many images."))?;
        let until = Instant::now() + self.timeout;
        let followed = self.follow(rules, target, until, &hold);
        let late = |_| {
            Stop::Refused(Refusal::Late {
                seconds: self.timeout.as_secs(),
            })
        };
        timeout_at(until, followed).await.map_err(late)?
    }

    async fn follow(
        &self,
        rules: &Rules,
        mut target: Target,
        until: Instant,
        hold: &impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Bytes, Stop> {
        for _ in 0..=MAX_REDIRECTS {
            match self.get(rules, &target, until, hold).await? {
                Fetched::File(file) => {
                    check_kind(&file).map_err(Stop::Refused)?;
                    return Ok(file);
                }
                Fetched::Redirect(location) => {
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
        until: Instant,
        hold: &impl Fn(usize) -> Result<(), Stop>,
    ) -> Result<Fetched, Stop> {
        let failed = |reason| unreachable(target, reason);
        let addresses = self
            .addresses(target, until)
            .await?
            .ok_or_else(|| failed("no address was found for its name"))?;
        // A name that also leads inside is not to be trusted with the others.
        if !addresses
            .iter()
            .all(|address| rules.allow_address(address.ip()))
        {
            return Err(Stop::Refused(Refusal::Address(quoted(&target.host))));
        }
        let stream = connect(&addresses)
            .await
            .ok_or_else(|| failed("it does not accept connections"))?;
        if target.is_tls {
            let stream = self.tls.connect(&target.host, stream).await;
            let stream = stream.map_err(|error| {
                let reason = match error {
                    HandshakeError::Failed { reason, .. } => reason.to_string(),
                    other => other.to_string(),
                };
                tracing::info!(host = %quoted(&target.host), reason, "TLS handshake with an image's host failed");
                failed("the TLS handshake failed")
            })?;
            exchange(rules, target, stream, hold).await
        } else {
            exchange(rules, target, stream, hold).await
        }
    }

    /// The addresses of a target's host; `None` where none is known.
    ///
    /// # Errors
    /// 503: too many names are being looked up for as long as the target has.
    async fn addresses(
        &self,
        target: &Target,
        until: Instant,
    ) -> Result<Option<Vec<SocketAddr>>, Stop> {
        if let Ok(address) = target.host.parse::<IpAddr>() {
            return Ok(Some(vec![SocketAddr::new(address, target.port)]));
        }
        let place = timeout_at(until, Arc::clone(&self.lookups).acquire_owned()).await;
        let place =
            place.map_err(|_| busy("The server is looking up too many hosts of images."))?;
        let (look_up, host, port) = (Arc::clone(&self.look_up), target.host.clone(), target.port);
        let looked_up = inflight_base::blocking::run(move || {
            // Until the name server has answered, whether or not the request still waits.
            let _place = place;
            look_up(&host, port)
        });
        let found = looked_up.await.ok().and_then(Result::ok);
        Ok(found.filter(|found| !found.is_empty()))
    }
}

/// 503: what the server itself has too much of.
fn busy(what: &str) -> Stop {
    Stop::Busy(ApiError::unavailable(format!("{what} Retry later.")))
}

fn unreachable(target: &Target, reason: &'static str) -> Stop {
    let host = quoted(&target.host);
    Stop::Refused(Refusal::Unreachable { host, reason })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the place where sockets are opened"
)]
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
) -> Result<Fetched, Stop>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |error: hyper::Error| unreachable(target, no_answer(&error));
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
            let location = location.ok_or_else(|| misled(target, "nowhere"))?;
            let location = location.to_str();
            let location = location.map_err(|_| misled(target, "a URL that is not valid"))?;
            return Ok(Fetched::Redirect(location.to_owned()));
        }
        status => {
            let (host, status) = (quoted(&target.host), status.as_u16());
            return Err(Stop::Refused(Refusal::Status { host, status }));
        }
    }
    let coding = head.headers.get(header::CONTENT_ENCODING);
    if coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(unreachable(target, "it sent the file compressed"));
    }
    let limit = rules.max_bytes;
    let too_large = || Stop::Refused(Refusal::TooLarge { limit });
    if declared_length(&head.headers).is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut file = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(target, cut(&error)))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if file.len() + data.len() > limit {
            return Err(too_large());
        }
        hold(data.len())?;
        file.extend_from_slice(&data);
    }
    Ok(Fetched::File(file.freeze()))
}

/// Why there is no head of an answer.
fn no_answer(error: &hyper::Error) -> &'static str {
    if error.is_parse_too_large() {
        "the headers of its answer are too large"
    } else if error.is_parse() {
        "it does not speak HTTP/1.1"
    } else {
        "it ended the connection without an answer"
    }
}

/// Why there is no whole file.
fn cut(error: &hyper::Error) -> &'static str {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    let kind = source.map(io::Error::kind);
    // How hyper reports chunks that it cannot read.
    if kind.is_some_and(|kind| {
        matches!(
            kind,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData
        )
    }) {
        "its answer is malformed"
    } else {
        "it ended the connection before the file was whole"
    }
}

fn misled(target: &Target, to: &str) -> Stop {
    Stop::Refused(Refusal::Misled {
        host: quoted(&target.host),
        to: to.to_owned(),
    })
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
