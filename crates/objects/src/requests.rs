//! Requests to the server: signed, sent, and sent again a few times where another attempt may succeed.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::Full;
use jiff::Timestamp;
use rusty_s3::Method;
use rusty_s3::signing::sign;
use tokio::time::{Instant, sleep};

use crate::answer::Answer;
use crate::connections::{Connections, Limits};
use crate::error::ObjectError;
use crate::url::Place;

/// How long a signature counts, which is also how far ahead the server's clock may be.
const SIGNED_S: u64 = 900;
/// Attempts in all, and the time after which no other one begins.
const ATTEMPTS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(15);
/// Before the second attempt; it doubles.
const WAIT: Duration = Duration::from_millis(200);
/// How long a request and its answer may take: a megabyte at 50 kB/s, or a part of eight at 140 kB/s.
const TIME: Duration = Duration::from_secs(20);
const LONG_TIME: Duration = Duration::from_secs(60);
/// Bodies from here on have the long time.
const LARGE: usize = 1 << 20;
/// Of an answer that is not an object: a list of a thousand names.
pub(crate) const MAX_ANSWER: usize = 2 << 20;

/// What is asked.
#[derive(Debug, Default)]
pub(crate) struct Ask<'a> {
    /// The object's name below the prefix; `None`: the bucket.
    pub(crate) object: Option<&'a str>,
    /// Sorted by name.
    pub(crate) query: &'a [(&'a str, &'a str)],
    /// The first byte and the one after the last.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) body: Bytes,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) place: Place,
    connections: Connections,
}

impl Requests {
    pub(crate) fn new(place: Place) -> Self {
        Self {
            place,
            connections: Connections::new(),
        }
    }

    /// Asks until there is an answer that is a success, or one that will not change.
    pub(crate) async fn send(&self, method: Method, ask: Ask<'_>) -> Result<Answer, ObjectError> {
        let begun = Instant::now();
        let mut attempt = 1;
        loop {
            let error = match self.once(method, &ask).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !error.is_passing() || attempt == ATTEMPTS || begun.elapsed() > PATIENCE {
                return Err(error);
            }
            let wait = WAIT.saturating_mul(1 << (attempt - 1));
            // Others that failed at the same moment come at another one.
            sleep(wait.mul_f64(rand::random_range(0.5..1.5))).await;
            attempt += 1;
        }
    }

    async fn once(&self, method: Method, ask: &Ask<'_>) -> Result<Answer, ObjectError> {
        let object = ask.object.unwrap_or_default();
        let now = Timestamp::now();
        let request = self.request(method, ask, &now)?;
        let length = ask
            .range
            .map_or(0, |(from, until)| until.saturating_sub(from));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // A server may take long to put parts together.
        let is_long = method == Method::Post || ask.body.len().max(length) > LARGE;
        let limits = Limits {
            bytes: length.max(MAX_ANSWER),
            time: if is_long { LONG_TIME } else { TIME },
        };
        let sent = self
            .connections
            .send(&self.place.endpoint, &request, limits);
        let answer = sent.await?;
        match answer.failure(&self.place, object, now, ask.range.is_some()) {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    fn request(
        &self,
        method: Method,
        ask: &Ask<'_>,
        now: &Timestamp,
    ) -> Result<Request<Full<Bytes>>, ObjectError> {
        const AGENT: &str = concat!("inflight/", env!("CARGO_PKG_VERSION"));
        let Place {
            bucket,
            credentials,
            prefix,
            endpoint,
        } = &self.place;
        let form = || ObjectError::Form(endpoint.authority.clone());
        let url = match ask.object {
            None => bucket.base_url().clone(),
            Some(name) => {
                let url = bucket.object_url(&format!("{prefix}{name}"));
                url.map_err(|_| form())?
            }
        };
        let signed = sign(
            now,
            method,
            url,
            credentials.key(),
            credentials.secret(),
            credentials.token(),
            bucket.region(),
            SIGNED_S,
            ask.query.iter().copied(),
            std::iter::empty(),
        );
        let path = format!("{}?{}", signed.path(), signed.query().unwrap_or_default());
        let mut request = Request::builder()
            .method(method.to_str())
            .uri(path)
            .header(header::HOST, endpoint.authority.as_str())
            .header(header::USER_AGENT, AGENT)
            .header(
                header::ACCEPT_ENCODING,
                HeaderValue::from_static("identity"),
            );
        if let Some((from, until)) = ask.range {
            let range = format!("bytes={from}-{}", until.saturating_sub(1));
            request = request.header(header::RANGE, range);
        }
        let built = request.body(Full::new(ask.body.clone()));
        built.map_err(|_| form())
    }
}
