//! Batches on their way to who subscribes to them, and to who asks for those of the past. Owns their numbers, how many are
//! kept, and what a listener may do; what batches say, and who listens for connections, is the publisher's owner's.
//!
//! Nobody is waited for. Batches are kept once for all, and each subscriber reads on where it is: one that is so slow that
//! a batch is no longer kept misses it and sees the gap in the numbers. Who asks for batches that are no longer kept
//! gets everything anew.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::zmtp::{Connection, Kind, Received, ZmtpError};
use crate::{Batch, Form, write};

/// Batches that are kept, as vLLM does by default.
const MOST_BATCHES: usize = 10_000;
/// And their bytes: the tokens of some ten million blocks' worth would not fit a worker's memory.
const MOST_KEPT_BYTES: usize = 64 << 20;
/// For a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For one batch: a listener that reads nothing for longer is sent away.
const SLOW: Duration = Duration::from_secs(30);
/// How often a listener that says nothing is asked for a sign of life, and after how long without one it is gone.
const PING_EVERY: Duration = Duration::from_secs(10);
const GONE: Duration = Duration::from_secs(30);
/// Topics that one listener subscribes to.
const MOST_TOPICS: usize = 64;
/// The number behind the last batch of the past, with nothing.
const END: [u8; 8] = [0xff; 8];

/// Publishes one server's batches.
pub struct Publisher {
    topic: Bytes,
    form: Form,
    everything: Box<dyn Fn() -> Vec<Batch> + Send + Sync>,
    /// Held while everything is sent: it may be large, so once at a time.
    sending: tokio::sync::Mutex<()>,
    kept: Mutex<Kept>,
    /// The number of the next batch.
    next: watch::Sender<u64>,
}

/// The last batches, whose numbers follow one another.
#[derive(Debug, Default)]
struct Kept {
    batches: VecDeque<Bytes>,
    /// The number of the first of them.
    first: u64,
    bytes: usize,
}

impl Kept {
    fn push(&mut self, batch: Bytes) -> u64 {
        self.bytes += batch.len();
        self.batches.push_back(batch);
        while self.batches.len() > MOST_BATCHES || self.bytes > MOST_KEPT_BYTES {
            let Some(oldest) = self.batches.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            self.first += 1;
        }
        self.first + self.batches.len() as u64
    }

    /// The batch of this number, or the first that is kept behind it.
    fn from(&self, number: u64) -> Option<(u64, Bytes)> {
        let number = number.max(self.first);
        let place = usize::try_from(number - self.first).ok()?;
        Some((number, self.batches.get(place)?.clone()))
    }
}

impl Publisher {
    /// Batches are published under `topic`, their events in this form. `everything`: batches that, taken one after another, come to what all batches
    /// so far, and perhaps the next ones, have come to; the first of them forgets what was before. They are for who asks
    /// for batches that are no longer kept.
    pub fn new(
        topic: &str,
        form: Form,
        everything: impl Fn() -> Vec<Batch> + Send + Sync + 'static,
    ) -> Self {
        Self {
            topic: Bytes::copy_from_slice(topic.as_bytes()),
            form,
            everything: Box::new(everything),
            sending: tokio::sync::Mutex::default(),
            kept: Mutex::default(),
            next: watch::Sender::new(0),
        }
    }

    /// Publishes the next batch. Waits for nobody.
    pub fn publish(&self, batch: &Batch) {
        let bytes = Bytes::from(write(batch, self.form));
        let next = self.kept.lock().push(bytes);
        self.next.send_replace(next);
    }

    /// Sends a subscriber what is published from now on, for as long as it is there.
    ///
    /// # Errors
    /// It is not a subscriber, broke the protocol, or reads nothing.
    pub async fn serve_subscriber<S>(&self, stream: S) -> Result<(), ZmtpError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut connection = open(stream, Kind::Publisher).await?;
        let mut subscriber = Subscriber::default();
        let mut published = self.next.subscribe();
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            let end = *published.borrow_and_update();
            let ready = subscriber.next.and_then(|next| self.kept.lock().from(next));
            let has_ready = ready.is_some();
            let received = tokio::select! {
                biased;
                received = connection.receive() => received?,
                _ = pings.tick(), if connection.answers_pings() => {
                    if heard.elapsed() > GONE {
                        return Err(ZmtpError::Silent(GONE));
                    }
                    timeout(SLOW, connection.ping()).await.map_err(|_| ZmtpError::Silent(SLOW))??;
                    continue;
                }
                () = std::future::ready(()), if has_ready => {
                    if let Some((number, payload)) = ready {
                        subscriber.next = Some(number + 1);
                        let frames = [&self.topic[..], &number.to_be_bytes(), &payload];
                        send(&mut connection, &frames).await?;
                    }
                    continue;
                }
                changed = published.changed(), if !has_ready => {
                    // Its sender is this publisher's.
                    let _ = changed;
                    continue;
                }
            };
            heard = Instant::now();
            subscriber.take(received, &self.topic, end)?;
        }
    }

    /// Answers one who asks for batches of the past, for as long as it is there.
    ///
    /// # Errors
    /// It asks for something else, broke the protocol, or reads nothing.
    pub async fn serve_past<S>(&self, stream: S) -> Result<(), ZmtpError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut connection = open(stream, Kind::Router).await?;
        loop {
            let Received::Message(frames) = connection.receive().await? else {
                continue;
            };
            // An answer has an empty frame in front where the question has one.
            let (envelope, start) = match frames.as_slice() {
                [empty, start] if empty.is_empty() => (&frames[..1], start),
                [start] => (&frames[..0], start),
                _ => return Err(ZmtpError::Broken("it asked for something else")),
            };
            let Ok(start) = start.as_ref().try_into() else {
                return Err(ZmtpError::Broken("it asked without a number of 8 bytes"));
            };
            let mut next = u64::from_be_bytes(start);
            let is_lost = next < self.kept.lock().first;
            if is_lost
                && self
                    .send_everything(&mut connection, envelope, next)
                    .await?
            {
                answer(&mut connection, envelope, &END, b"").await?;
                continue;
            }
            // What is published meanwhile is not the past.
            let end = *self.next.borrow();
            while next < end {
                let Some((number, payload)) = self.kept.lock().from(next) else {
                    break;
                };
                if number >= end {
                    break;
                }
                answer(&mut connection, envelope, &number.to_be_bytes(), &payload).await?;
                next = number + 1;
            }
            answer(&mut connection, envelope, &END, b"").await?;
        }
    }

    /// Sends everything under the last numbers before the next batch. False where there are too few of them from `start`
    /// on.
    async fn send_everything<S>(
        &self,
        connection: &mut Connection<S>,
        envelope: &[Bytes],
        start: u64,
    ) -> Result<bool, ZmtpError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let sending = async {
            let _one = self.sending.lock().await;
            // Before everything is looked at: a batch that is taken twice changes nothing.
            let end = *self.next.borrow();
            let batches = (self.everything)();
            let first = end.checked_sub(batches.len() as u64);
            let Some(first) = first.filter(|first| *first >= start && *first < end) else {
                return Ok(false);
            };
            for (number, batch) in (first..).zip(&batches) {
                let payload = write(batch, self.form);
                answer(connection, envelope, &number.to_be_bytes(), &payload).await?;
            }
            Ok(true)
        };
        timeout(SLOW, sending)
            .await
            .unwrap_or(Err(ZmtpError::Silent(SLOW)))
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}

/// What a subscriber wants.
#[derive(Debug, Default)]
struct Subscriber {
    topics: Vec<Bytes>,
    /// The number of the next batch for it; `None`: it has not subscribed to them.
    next: Option<u64>,
}

impl Subscriber {
    fn take(&mut self, received: Received, topic: &[u8], end: u64) -> Result<(), ZmtpError> {
        let (wanted, is_wanted) = match received {
            Received::Command => return Ok(()),
            Received::Subscribed(topic) => (topic, true),
            Received::Cancelled(topic) => (topic, false),
            // As 3.0 has it.
            Received::Message(frames) => match frames.as_slice() {
                [one] if one.first() == Some(&1) => (one.slice(1..), true),
                [one] if one.first() == Some(&0) => (one.slice(1..), false),
                _ => return Err(ZmtpError::Broken("a subscriber sent a message")),
            },
        };
        if is_wanted {
            if self.topics.len() == MOST_TOPICS {
                return Err(ZmtpError::Broken("it subscribes to too many topics"));
            }
            self.topics.push(wanted);
        } else if let Some(place) = self.topics.iter().position(|one| *one == wanted) {
            self.topics.swap_remove(place);
        }
        let is_wanted = self.topics.iter().any(|wanted| topic.starts_with(wanted));
        self.next = is_wanted.then(|| self.next.unwrap_or(end));
        Ok(())
    }
}

async fn open<S>(stream: S, kind: Kind) -> Result<Connection<S>, ZmtpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // 3.1: it is asked for signs of life, and answers.
    let opening = Connection::open_as(stream, kind, 1);
    let opened = timeout(HANDSHAKE, opening).await;
    opened.unwrap_or(Err(ZmtpError::Silent(HANDSHAKE)))
}

async fn answer<S>(
    connection: &mut Connection<S>,
    envelope: &[Bytes],
    number: &[u8],
    payload: &[u8],
) -> Result<(), ZmtpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match envelope {
        [] => send(connection, &[number, payload]).await,
        _ => send(connection, &[b"", number, payload]).await,
    }
}

async fn send<S>(connection: &mut Connection<S>, frames: &[&[u8]]) -> Result<(), ZmtpError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let sent = timeout(SLOW, connection.send(frames)).await;
    sent.unwrap_or(Err(ZmtpError::Silent(SLOW)))
}

#[cfg(test)]
mod tests;
