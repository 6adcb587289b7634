//! A server's events, followed for as long as somebody listens. Owns connecting again, and asking for what was missed;
//! what batches mean is the listener's.
//!
//! A publisher drops what a subscriber does not read in time, and numbers its batches, so that a gap shows with the next
//! one. Where the server has a second port for it, what was missed is asked for there. An idle publisher says nothing:
//! pings find out whether it still answers.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use crate::order::{Order, Turn};
use crate::zmtp::{Connection, Kind, Received, ZmtpError};
use crate::{Batch, ReadError, read};

/// How often a publisher is asked for a sign of life, and how long it may be without one.
const PING_EVERY: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_millis(1500);
/// First wait before another connection; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// For the past as a whole, and batches of it: servers keep 10,000 by default.
const REPLAY: Duration = Duration::from_secs(10);
const MOST_REPLAYED: usize = 1 << 17;

/// Where events are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where they are published.
    pub port: u16,
    /// Where those of the past can be asked for.
    pub replay_port: Option<u16>,
    /// What their topics begin with.
    pub topic: String,
}

/// What is heard of a server.
#[derive(Debug)]
pub enum Heard {
    /// It is connected, and what of the past it still has was said.
    Connected,
    /// The next batch.
    Batch(Batch),
    /// Batches are missing here, for good.
    Missed,
    /// The server has started again: what it said before no longer holds.
    Restarted,
    /// A batch that cannot be read: what it says is missing.
    Unreadable(ReadError),
    /// The connection was lost; another one follows.
    Lost { is_late: bool, reason: String },
}

/// A connection that is being made.
pub type Dialing<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;

/// Why a connection ended.
enum End {
    /// Nobody listens any more.
    Closed,
    Late,
    Broken(ZmtpError),
}

impl From<ZmtpError> for End {
    fn from(error: ZmtpError) -> Self {
        Self::Broken(error)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.into())
    }
}

/// Follows `source` until nobody listens. `dial` connects to a port of the server.
pub async fn follow<D, S>(source: &Source, dial: D, listener: Sender<Heard>)
where
    D: Fn(u16) -> Dialing<S>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut follower = Follower {
        source,
        dial,
        listener,
        order: Order::default(),
        is_connected: false,
    };
    let mut backoff = BACKOFF_MIN;
    loop {
        follower.is_connected = false;
        let (is_late, reason) = match follower.connect().await {
            Ok(never) => match never {},
            Err(End::Closed) => return,
            Err(End::Late) => (true, format!("no sign of life for {LATE:?}")),
            Err(End::Broken(ZmtpError::Lost(error))) => (false, error.to_string()),
            Err(End::Broken(error)) => (false, error.to_string()),
        };
        let lost = Heard::Lost { is_late, reason };
        if follower.listener.send(lost).await.is_err() {
            return;
        }
        if follower.is_connected {
            backoff = BACKOFF_MIN;
        }
        tokio::select! {
            () = follower.listener.closed() => return,
            () = sleep(backoff) => {}
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

struct Follower<'a, D> {
    source: &'a Source,
    dial: D,
    listener: Sender<Heard>,
    order: Order,
    /// Whether the last attempt succeeded.
    is_connected: bool,
}

impl<D, S> Follower<'_, D>
where
    D: Fn(u16) -> Dialing<S>,
    S: AsyncRead + AsyncWrite + Unpin,
{
    async fn connect(&mut self) -> Result<std::convert::Infallible, End> {
        let mut connection = self.open(self.source.port, Kind::Subscriber).await?;
        // Before the past is asked for, so that nothing falls between the two.
        connection.subscribe(self.source.topic.as_bytes()).await?;
        self.order.connected();
        self.replay().await?;
        self.is_connected = true;
        self.say(Heard::Connected).await?;
        self.listen(connection).await
    }

    async fn open(&self, port: u16, kind: Kind) -> Result<Connection<S>, End> {
        let opening = async {
            let stream = (self.dial)(port).await?;
            Ok(Connection::open(stream, kind).await?)
        };
        timeout(LATE, opening).await.unwrap_or(Err(End::Late))
    }

    async fn listen(
        &mut self,
        mut connection: Connection<S>,
    ) -> Result<std::convert::Infallible, End> {
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            let received = tokio::select! {
                biased;
                received = connection.receive() => received?,
                _ = pings.tick(), if connection.answers_pings() => {
                    if heard.elapsed() > LATE {
                        return Err(End::Late);
                    }
                    connection.ping().await?;
                    continue;
                }
                () = self.listener.closed() => return Err(End::Closed),
            };
            if let Received::Message(frames) = received {
                self.take(&frames).await?;
            }
            // Also after a long replay.
            heard = Instant::now();
        }
    }

    /// Takes a message: a topic, a number, a batch.
    async fn take(&mut self, frames: &[Bytes]) -> Result<(), End> {
        let Some((number, payload)) = numbered(frames) else {
            return Err(ZmtpError::Broken("a message is not a topic, a number and a batch").into());
        };
        match self.order.published(number) {
            Turn::Take => self.batch(payload).await,
            Turn::Skip => Ok(()),
            Turn::Gap(_) => {
                self.replay().await?;
                self.take_after_gap(number, payload).await
            }
            Turn::Restart => {
                self.say(Heard::Restarted).await?;
                self.replay().await?;
                self.take_after_gap(number, payload).await
            }
        }
    }

    /// Takes a batch after what was missing before it was asked for.
    async fn take_after_gap(&mut self, number: u64, payload: &Bytes) -> Result<(), End> {
        match self.order.start() {
            next if next > number => return Ok(()),
            next if next < number => self.say(Heard::Missed).await?,
            _ => {}
        }
        self.order.take(number);
        self.batch(payload).await
    }

    /// Asks for the past from where it is not known. What the server no longer has stays missing.
    async fn replay(&mut self) -> Result<(), End> {
        let Some(port) = self.source.replay_port else {
            return Ok(());
        };
        let until = Instant::now() + REPLAY;
        // A server that does not answer has lost nothing yet: a gap shows with the next number.
        let Ok(mut connection) = self.open(port, Kind::Dealer).await else {
            return Ok(());
        };
        let start = self.order.start().to_be_bytes();
        if connection.send(&[&[], &start]).await.is_err() {
            return Ok(());
        }
        for _ in 0..MOST_REPLAYED {
            let limit = until.min(Instant::now() + LATE);
            let Ok(Ok(received)) = timeout_at(limit, connection.receive()).await else {
                break;
            };
            let Received::Message(frames) = received else {
                continue;
            };
            match numbered(&frames) {
                Some((number, payload)) if !payload.is_empty() => {
                    match self.order.replayed(number) {
                        Turn::Skip => continue,
                        Turn::Gap(_) => self.say(Heard::Missed).await?,
                        Turn::Take | Turn::Restart => {}
                    }
                    self.batch(payload).await?;
                }
                _ => break,
            }
        }
        Ok(())
    }

    async fn batch(&self, payload: &Bytes) -> Result<(), End> {
        self.say(match read(payload) {
            Ok(batch) => Heard::Batch(batch),
            Err(error) => Heard::Unreadable(error),
        })
        .await
    }

    async fn say(&self, heard: Heard) -> Result<(), End> {
        self.listener.send(heard).await.map_err(|_| End::Closed)
    }
}

/// The number and what follows it. What is published has its topic in front; what is asked for has an empty frame, and
/// behind that the topic as well since vLLM 0.33 or a release before.
fn numbered(frames: &[Bytes]) -> Option<(u64, &Bytes)> {
    let ([_, number, payload] | [_, _, number, payload]) = frames else {
        return None;
    };
    let number = number.as_ref().try_into().ok()?;
    Some((u64::from_be_bytes(number), payload))
}

#[cfg(test)]
mod tests;
