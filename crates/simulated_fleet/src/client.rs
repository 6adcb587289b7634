//! A client: asks over HTTP/1.1 or HTTP/2, reads the answer, and says what it read and how that ended. Knows
//! OpenAI's answers; what they should be is the oracle's.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inflight_testkit::sse::SseReader;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use turmoil::net::TcpStream;

use crate::determinism::elapsed;
use crate::history::note;
use crate::oracle::{Answer, End, PATIENCE};
use crate::plan::Ask;

/// The gateway's host and port.
pub(crate) const GATEWAY: (&str, u16) = ("gateway", 8000);

/// Asks on a new connection, and reads what comes until it ends or the client leaves.
pub(crate) async fn ask(host: &str, speaks_http2: bool, ask: &Ask) -> Answer {
    let mut read = Read::new(ask);
    note(host, "ask", ask.question.body().to_string().as_bytes());
    let leaves = ask.leaves_after;
    let asking = timeout(
        leaves.unwrap_or(PATIENCE),
        exchange(host, speaks_http2, ask, &mut read),
    );
    let asked = elapsed();
    let end = match asking.await {
        Ok(Ok(end)) => end,
        Ok(Err(failed)) => End::Cut(failed),
        Err(_) if leaves.is_some() => End::Left,
        Err(_) => End::TooLate,
    };
    note(host, "end", format!("{end:?}").as_bytes());
    Answer {
        texts: read.texts,
        end,
        usage: read.usage,
        pause: read.pause.max(elapsed() - read.read_at.unwrap_or(asked)),
    }
}

/// A connection to the gateway.
pub(crate) enum Connected {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Connects to the gateway.
pub(crate) async fn connect(speaks_http2: bool) -> Result<Connected, String> {
    let stream = TcpStream::connect(GATEWAY).await;
    let io = TokioIo::new(stream.map_err(|error| format!("cannot connect: {error}"))?);
    if speaks_http2 {
        let shaken = http2::handshake(TokioExecutor::new(), io).await;
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
    pub(crate) async fn send(
        self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        let response = match self {
            Self::Http1(mut sender) => sender.send_request(request).await,
            Self::Http2(mut sender) => sender.send_request(request).await,
        };
        response.map_err(|error| format!("{error:?}"))
    }
}

async fn exchange(
    host: &str,
    speaks_http2: bool,
    ask: &Ask,
    read: &mut Read,
) -> Result<End, String> {
    let uri = match speaks_http2 {
        true => format!("http://gateway:8000{}", ask.question.path()),
        false => ask.question.path().to_owned(),
    };
    let request = Request::post(uri)
        .header("host", "gateway:8000")
        .header("content-type", "application/json")
        .body(Full::from(ask.question.body().to_string()))
        .map_err(|error| error.to_string())?;
    let response = connect(speaks_http2).await?.send(request).await?;
    let status = response.status();
    note(
        host,
        "head",
        format!("{status} {:?}", response.headers()).as_bytes(),
    );
    let mut body = response.into_body();
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("{error:?}"))?;
        let data = frame.into_data().unwrap_or_default();
        note(host, "read", &data);
        read.note_time();
        if status.is_success() && ask.question.is_streamed {
            read.events.push(&data);
            read.take_events();
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
            text: error["error"]["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        });
    }
    Ok(match ask.question.is_streamed {
        true => read.end_of_stream(),
        false => read.take_whole(&whole),
    })
}

/// What of an answer has been read.
struct Read {
    is_chat: bool,
    texts: Vec<String>,
    finished: Vec<bool>,
    usage: Option<(u64, u64)>,
    events: SseReader,
    taken: usize,
    is_done: bool,
    error: Option<String>,
    /// When something was read last, and the longest time between two reads of a stream.
    read_at: Option<Duration>,
    pause: Duration,
}

impl Read {
    fn new(ask: &Ask) -> Self {
        let choices = ask.question.choices as usize;
        Self {
            is_chat: ask.question.is_chat,
            texts: vec![String::new(); choices],
            finished: vec![false; choices],
            usage: None,
            events: SseReader::default(),
            taken: 0,
            is_done: false,
            error: None,
            read_at: None,
            pause: Duration::ZERO,
        }
    }

    fn note_time(&mut self) {
        let now = elapsed();
        if let Some(before) = self.read_at.replace(now) {
            self.pause = self.pause.max(now - before);
        }
    }

    fn take_events(&mut self) {
        let events = self.events.events()[self.taken..].to_vec();
        self.taken += events.len();
        for event in events {
            if event == "[DONE]" {
                self.is_done = true;
                continue;
            }
            let event: Value = serde_json::from_str(&event).unwrap_or_default();
            if let Some(error) = event.get("error") {
                self.error = Some(error["message"].as_str().unwrap_or_default().to_owned());
            }
            self.take_choices(&event, "delta");
        }
    }

    fn take_choices(&mut self, value: &Value, part: &str) {
        for choice in value["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or_default() as usize;
            if self.texts.len() <= index {
                self.texts.resize(index + 1, String::new());
                self.finished.resize(index + 1, false);
            }
            let text = match self.is_chat {
                true => choice[part]["content"].as_str(),
                false => choice["text"].as_str(),
            };
            self.texts[index].push_str(text.unwrap_or_default());
            self.finished[index] |= choice["finish_reason"] == "length";
        }
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            let tokens = |name| usage[name].as_u64().unwrap_or(u64::MAX);
            self.usage = Some((tokens("prompt_tokens"), tokens("completion_tokens")));
        }
    }

    fn end_of_stream(&self) -> End {
        if let Some(text) = &self.error {
            return match self.is_done {
                true => End::Error {
                    status: None,
                    text: text.clone(),
                },
                false => End::Unfinished("an error without `[DONE]`".to_owned()),
            };
        }
        match self.is_done && self.finished.iter().all(|finished| *finished) {
            true => End::Whole,
            false => End::Unfinished(format!(
                "`[DONE]`: {}, finished: {:?}",
                self.is_done, self.finished
            )),
        }
    }

    fn take_whole(&mut self, whole: &[u8]) -> End {
        let value: Value = serde_json::from_slice(whole).unwrap_or_default();
        self.take_choices(&value, "message");
        match self.finished.iter().all(|finished| *finished) {
            true => End::Whole,
            false => End::Unfinished(String::from_utf8_lossy(whole).into_owned()),
        }
    }
}

/// Time for a client's small questions at the end.
pub(crate) const MOMENT: Duration = Duration::from_secs(20);
