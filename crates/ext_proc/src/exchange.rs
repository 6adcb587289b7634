//! The course of one HTTP request through a proxy that asks where it goes. Owns which message is answered with which, in
//! each way of sending bodies, and that no more of a body is held than is allowed; who chooses the endpoint is the
//! caller's.
//!
//! Where the proxy sends a body as it comes (`FULL_DUPLEX_STREAMED`), everything waits until the endpoint is known: the
//! body is read, and given back after the head. Where the proxy keeps the body (`BUFFERED`), the endpoint is named with
//! it. Otherwise the endpoint has to be chosen without having seen it, and so it is for a form with files: nothing in there
//! says where it goes, and it may be large.

use bytes::{Bytes, BytesMut};

use crate::heard::Heard;
use crate::messages::processing_request::Request;
use crate::messages::{
    BodySendMode, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration,
};
use crate::replies::{self, Way};
use crate::request::{self, HttpRequest, first_message};

/// What is to be done next.
#[derive(Debug)]
pub enum Step {
    /// Send these, which may be none, and read on.
    Reply(Vec<ProcessingResponse>),
    /// Choose an endpoint for this request, and say so with [`Exchange::chosen`]; or answer it.
    Choose(Box<HttpRequest>),
}

/// Why nothing more of a stream can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// More of a body came than is held.
    #[error("the request's body is larger than {limit} bytes")]
    TooLarge {
        /// What is held at most.
        limit: usize,
    },
    /// A message of a kind that comes later.
    #[error("the first message has no headers of a request")]
    NoHeaders,
}

/// Where the request is.
#[derive(Debug)]
enum Phase {
    /// Nothing of it has come.
    Expected,
    /// Its endpoint is not known.
    Arriving {
        request: Box<HttpRequest>,
        body: BytesMut,
    },
    /// Its endpoint is being chosen.
    Choosing { held: Held },
    /// It is on its way.
    Sent,
}

/// What goes to the endpoint once it is known.
#[derive(Debug, Default)]
struct Held {
    /// The proxy waits for an answer to the body, and has passed the head.
    at_body: bool,
    /// `None`: the proxy has it, or there is none.
    body: Option<Bytes>,
    is_last: bool,
    has_trailers: bool,
}

/// The course of one HTTP request.
#[derive(Debug)]
pub struct Exchange {
    limit: usize,
    phase: Phase,
    request_mode: BodySendMode,
    response_mode: BodySendMode,
    heard: Heard,
    /// A header for the answer.
    added: Option<(String, String)>,
}

impl Exchange {
    /// A request of whose body at most `limit` bytes are held.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            phase: Phase::Expected,
            // A proxy that does not say: it is older than this mode, or a test.
            request_mode: BodySendMode::FullDuplexStreamed,
            response_mode: BodySendMode::FullDuplexStreamed,
            heard: Heard::default(),
            added: None,
        }
    }

    /// What the answer has said so far.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// The request, until its endpoint is being chosen.
    pub fn request(&self) -> Option<&HttpRequest> {
        match &self.phase {
            Phase::Arriving { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Bytes of the body that are held.
    pub fn held(&self) -> usize {
        match &self.phase {
            Phase::Arriving { body, .. } => body.len(),
            _ => 0,
        }
    }

    /// Takes the proxy's next message.
    ///
    /// # Errors
    /// [`ExchangeError`]: nothing more can be taken.
    pub fn take(&mut self, message: ProcessingRequest) -> Result<Step, ExchangeError> {
        let ProcessingRequest {
            request,
            metadata_context: metadata,
            observability_mode: is_only_shown,
            protocol_config: modes,
        } = message;
        if is_only_shown {
            return Ok(Step::Reply(Vec::new()));
        }
        if let Some(modes) = modes {
            self.set_modes(&modes);
        }
        let mut replies = Vec::new();
        match request {
            Some(Request::RequestHeaders(headers)) => {
                let ends = headers.end_of_stream;
                let request = HttpRequest::new(headers, metadata.as_ref());
                return Ok(self.begin(request, ends));
            }
            Some(Request::RequestBody(body)) => return self.request_body(body),
            Some(Request::RequestTrailers(_)) => return self.request_trailers(),
            Some(Request::ResponseHeaders(headers)) => {
                self.response_headers(&headers);
                self.heard.served = metadata.as_ref().and_then(request::served);
                replies.push(replies::response_headers(self.added.as_ref()));
            }
            Some(Request::ResponseBody(HttpBody {
                body,
                end_of_stream: is_last,
            })) => {
                self.heard.body(&body, is_last);
                match self.response_mode {
                    BodySendMode::FullDuplexStreamed => {
                        replies::sent_body(Way::Response, &body, is_last, &mut replies);
                    }
                    _ => replies.push(replies::kept_body(Way::Response)),
                }
            }
            Some(Request::ResponseTrailers(_)) => replies.push(replies::trailers(Way::Response)),
            // Newer than this; the proxy decides what it makes of no answer.
            None => {}
        }
        Ok(Step::Reply(replies))
    }

    /// Has the answer carry this header, too: one, and besides what it has by that name.
    pub fn add_to_answer(&mut self, name: &str, value: &str) {
        self.added = Some((name.to_owned(), value.to_owned()));
    }

    /// The request goes to these endpoints, `ip:port` with commas between them: what to send.
    pub fn chosen(&mut self, endpoints: &str) -> Vec<ProcessingResponse> {
        let before = std::mem::replace(&mut self.phase, Phase::Sent);
        let Phase::Choosing { held } = before else {
            return Vec::new();
        };
        let mut replies = vec![replies::chosen(endpoints, held.at_body)];
        if let Some(body) = &held.body {
            let is_last = held.is_last && !held.has_trailers;
            replies::sent_body(Way::Request, body, is_last, &mut replies);
        }
        if held.has_trailers {
            replies.push(replies::trailers(Way::Request));
        }
        replies
    }

    fn set_modes(&mut self, modes: &ProtocolConfiguration) {
        self.request_mode = modes.request_body_mode();
        self.response_mode = modes.response_body_mode();
    }

    fn begin(&mut self, request: HttpRequest, ends: bool) -> Step {
        let request = Box::new(request);
        let sees_body = match self.request_mode {
            BodySendMode::FullDuplexStreamed
            | BodySendMode::Buffered
            | BodySendMode::BufferedPartial => !ends && !request.is_form(),
            // The head is on its way before the body has come.
            BodySendMode::None | BodySendMode::Streamed | BodySendMode::Grpc => false,
        };
        if !sees_body {
            self.phase = Phase::Choosing {
                held: Held::default(),
            };
            return Step::Choose(request);
        }
        let body = BytesMut::new();
        self.phase = Phase::Arriving { request, body };
        Step::Reply(match self.request_mode {
            BodySendMode::FullDuplexStreamed => Vec::new(),
            _ => vec![replies::request_headers()],
        })
    }

    fn request_body(&mut self, message: HttpBody) -> Result<Step, ExchangeError> {
        let HttpBody {
            body: more,
            end_of_stream: is_last,
        } = message;
        let is_streamed = self.request_mode == BodySendMode::FullDuplexStreamed;
        let Phase::Arriving { request, body } = &mut self.phase else {
            if matches!(self.phase, Phase::Expected) {
                return Err(ExchangeError::NoHeaders);
            }
            let mut replies = Vec::new();
            match is_streamed {
                true => replies::sent_body(Way::Request, &more, is_last, &mut replies),
                false => replies.push(replies::kept_body(Way::Request)),
            }
            return Ok(Step::Reply(replies));
        };
        if body.len() + more.len() > self.limit {
            return Err(ExchangeError::TooLarge { limit: self.limit });
        }
        // Most bodies are one message and are never copied.
        let is_whole = !is_streamed || is_last;
        if is_whole && body.is_empty() {
            request.body = more;
        } else {
            body.extend_from_slice(&more);
            let is_enough = is_whole || (request.is_grpc() && first_message(body).is_some());
            if !is_enough {
                return Ok(Step::Reply(Vec::new()));
            }
        }
        Ok(self.choose(is_last, false))
    }

    fn request_trailers(&mut self) -> Result<Step, ExchangeError> {
        match self.phase {
            Phase::Expected => Err(ExchangeError::NoHeaders),
            Phase::Arriving { .. } if self.request_mode == BodySendMode::FullDuplexStreamed => {
                Ok(self.choose(false, true))
            }
            _ => Ok(Step::Reply(vec![replies::trailers(Way::Request)])),
        }
    }

    /// Nothing more is waited for.
    fn choose(&mut self, is_last: bool, has_trailers: bool) -> Step {
        let is_streamed = self.request_mode == BodySendMode::FullDuplexStreamed;
        let before = std::mem::replace(&mut self.phase, Phase::Expected);
        let Phase::Arriving { mut request, body } = before else {
            return Step::Reply(Vec::new());
        };
        if !body.is_empty() {
            request.body = body.freeze();
        }
        let held = Held {
            at_body: !is_streamed,
            body: is_streamed.then(|| request.body.clone()),
            is_last,
            has_trailers,
        };
        self.phase = Phase::Choosing { held };
        Step::Choose(request)
    }

    fn response_headers(&mut self, headers: &HttpHeaders) {
        let sees_body = self.response_mode != BodySendMode::None && !headers.end_of_stream;
        self.heard.has_begun |= !sees_body;
    }
}

#[cfg(test)]
mod tests;
