//! A client: asks over HTTP/1.1, HTTP/2 or gRPC, reads the answer, and says what it read and how that ended. What
//! answers look like is `read`'s, and what they should be the oracle's.

mod grpc;
mod read;
mod upload;

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

use self::read::Read;
pub(crate) use self::upload::Upload;
use crate::determinism::elapsed;
use crate::history::note;
use crate::oracle::{Answer, End, PATIENCE};
use crate::plan::Ask;
use crate::question::Surface;

/// A gateway's port for HTTP.
pub(crate) const HTTP_PORT: u16 = 8000;
/// Its port for gRPC.
pub(crate) const GRPC_PORT: u16 = 8002;
/// The key of all clients, where the gateway needs one.
pub(crate) const KEY: &str = "key";
/// Time for a client's small questions at the end.
pub(crate) const MOMENT: Duration = Duration::from_secs(20);

/// The host of a gateway.
pub(crate) fn gateway_host(gateway: usize) -> String {
    match gateway {
        0 => "gateway".to_owned(),
        more => format!("gateway-{more}"),
    }
}

/// The host of all clients, where they have one.
pub(crate) const CLIENTS: &str = "clients";

/// The host of a client that has one for itself, and its name in any case.
pub(crate) fn client_host(client: usize) -> String {
    format!("client-{client}")
}

/// How a client asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) gateway: usize,
    /// Where it asks over gRPC.
    pub(crate) grpc: String,
    pub(crate) host: String,
    pub(crate) speaks_http2: bool,
    pub(crate) has_key: bool,
}

/// Asks on a new connection, and reads what comes until it ends or the client leaves.
pub(crate) async fn ask(caller: &Caller, ask: &Ask) -> Answer {
    let mut read = Read::new(&ask.question, elapsed());
    let mut body = ask.question.body();
    if ask.question.surface == Surface::Generate
        && let Some(limit) = ask.deadline.filter(|_| ask.has_timeout)
    {
        body["timeout"] = limit.as_micros().to_string().parse().unwrap_or_default();
    }
    let body = body.to_string();
    note(&caller.host, "ask", body.as_bytes());
    let leaves = ask.leaves_after;
    let asking = async {
        match ask.question.surface {
            Surface::Grpc => grpc::exchange(caller, ask, &mut read).await,
            _ => exchange(caller, ask, body, &mut read).await,
        }
    };
    let end = match timeout(leaves.unwrap_or(PATIENCE), asking).await {
        Ok(Ok(end)) => end,
        Ok(Err(failed)) => End::Cut(failed),
        Err(_) if leaves.is_some() => End::Left,
        Err(_) => End::TooLate,
    };
    note(&caller.host, "end", format!("{end:?}").as_bytes());
    read.answer(end, elapsed())
}

/// A connection to the gateway.
pub(crate) enum Connected {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

/// Connects to a gateway.
pub(crate) async fn connect(
    gateway: usize,
    speaks_http2: bool,
    window: Option<u32>,
) -> Result<Connected, String> {
    let stream = TcpStream::connect((gateway_host(gateway), HTTP_PORT)).await;
    let io = TokioIo::new(stream.map_err(|error| format!("cannot connect: {error}"))?);
    if speaks_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let shaken = builder.initial_stream_window_size(window).handshake(io);
        let shaken = shaken.await;
        let (sender, connection) = shaken.map_err(|error| format!("{error:?}"))?;
        tokio::spawn(connection);
        return Ok(Connected::Http2(sender));
    }
    let shaken = http1::handshake(io).await;
    let (sender, connection) = shaken.map_err(|error| format!("{error:?}"))?;
    tokio::spawn(connection);
    Ok(Connected::Http1(sender))
}

impl Connected {
    /// Sends the connection's one request.
    pub(crate) async fn send(self, request: Request<Upload>) -> Result<Response<Incoming>, String> {
        let response = match self {
            Self::Http1(mut sender) => sender.send_request(request).await,
            Self::Http2(mut sender) => sender.send_request(request).await,
        };
        response.map_err(|error| format!("{error:?}"))
    }
}

async fn exchange(
    caller: &Caller,
    ask: &Ask,
    body: String,
    read: &mut Read,
) -> Result<End, String> {
    let path = ask.question.path();
    let uri = match caller.speaks_http2 {
        true => format!("http://gateway:8000{path}"),
        false => path,
    };
    let mut request = Request::post(uri)
        .header("host", "gateway:8000")
        .header("content-type", "application/json");
    if caller.has_key {
        request = request.header("authorization", format!("Bearer {KEY}"));
    }
    if let Some(deadline) = ask.deadline.filter(|_| !ask.has_timeout) {
        request = request.header("x-request-timeout-ms", deadline.as_millis().to_string());
    }
    let request = request.body(Upload::new(body, ask.pieces));
    let request = request.map_err(|error| error.to_string())?;
    let connected = connect(caller.gateway, caller.speaks_http2, ask.window).await?;
    let response = connected.send(request).await?;
    let status = response.status();
    let head = format!("{status} {:?}", response.headers());
    note(&caller.host, "head", head.as_bytes());
    let mut body = response.into_body();
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("{error:?}"))?;
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                note(&caller.host, "trailers", format!("{trailers:?}").as_bytes());
                read.was_resumed = trailers.contains_key("x-inflight-resumed");
                continue;
            }
        };
        note(&caller.host, "read", &data);
        read.note_time(elapsed());
        if status.is_success() && ask.question.is_streamed {
            read.take_stream(&data);
        } else {
            whole.extend_from_slice(&data);
        }
        if let Some(pause) = ask.reads_every {
            sleep(pause).await;
        }
    }
    if !status.is_success() {
        let error: Value = serde_json::from_slice(&whole).unwrap_or_default();
        return Ok(End::Error {
            status: Some(status.as_u16()),
            text: read::message(&error),
        });
    }
    Ok(match ask.question.is_streamed {
        true => read.end_of_stream(),
        false => read.take_whole(&whole),
    })
}
