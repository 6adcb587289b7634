//! The part of ZMTP 3 that publishing, subscribing, asking and answering need, over any stream of bytes: the greeting,
//! the handshake of the mechanism NULL, messages in frames, subscriptions, and pings. Owns the bounds of what a peer may
//! send; knows nothing of events.
//!
//! <https://rfc.zeromq.org/spec/23/>; pings are of 3.1 (<https://rfc.zeromq.org/spec/37/>).

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::MOST_BYTES;

/// Frames of a message.
const MOST_FRAMES: usize = 8;
/// Bytes of a command: a handshake's properties, or a ping's context. And of a message to who publishes or answers: a
/// topic, or a number.
const MOST_COMMAND_BYTES: usize = 4096;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why a connection cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum ZmtpError {
    #[error("the connection was lost")]
    Lost(#[from] io::Error),
    #[error("the peer does not speak ZMTP 3, or only with encryption")]
    Greeting,
    #[error("the peer broke the protocol: {0}")]
    Broken(&'static str),
    #[error("the peer refused the connection")]
    Refused,
    #[error("the peer sent a frame of `{length}` bytes; at most {most} are read")]
    TooLarge { length: u64, most: usize },
    #[error("the peer neither read nor said anything for {0:?}")]
    Silent(Duration),
}

/// What a socket is to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gets what is published.
    Subscriber,
    /// Asks, and gets any number of answers.
    Dealer,
    /// Sends what its peers subscribe to.
    Publisher,
    /// Answers, any number of times.
    Router,
}

impl Kind {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Subscriber => b"SUB",
            Self::Dealer => b"DEALER",
            Self::Publisher => b"PUB",
            Self::Router => b"ROUTER",
        }
    }

    fn takes(self, peer: &[u8]) -> bool {
        match self {
            Self::Subscriber => matches!(peer, b"PUB" | b"XPUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"REP" | b"DEALER"),
            Self::Publisher => matches!(peer, b"SUB" | b"XSUB"),
            Self::Router => matches!(peer, b"REQ" | b"DEALER" | b"ROUTER"),
        }
    }

    /// Bytes of a frame that is read.
    fn most_bytes(self) -> usize {
        match self {
            Self::Subscriber | Self::Dealer => MOST_BYTES,
            Self::Publisher | Self::Router => MOST_COMMAND_BYTES,
        }
    }
}

/// What a peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The frames of a message.
    Message(Vec<Bytes>),
    /// It wants what is published under topics that begin so. In 3.0 that is a message.
    Subscribed(Bytes),
    /// It no longer does.
    Cancelled(Bytes),
    /// A sign of life.
    Command,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    unread: BytesMut,
    unsent: BytesMut,
    /// Those of a message that has more.
    frames: Vec<Bytes>,
    most_bytes: usize,
    answers_pings: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Greets the peer.
    ///
    /// # Errors
    /// [`ZmtpError`]: it is a peer of another kind.
    pub async fn open(stream: S, kind: Kind) -> Result<Self, ZmtpError> {
        Self::open_as(stream, kind, 0).await
    }

    /// Of version 3 with this minor number.
    pub(crate) async fn open_as(mut stream: S, kind: Kind, minor: u8) -> Result<Self, ZmtpError> {
        stream.write_all(&greeting(minor)).await?;
        let mut greeted = [0; GREETING_BYTES];
        stream.read_exact(&mut greeted).await?;
        let minor = peer_version(&greeted).ok_or(ZmtpError::Greeting)?;
        let mut connection = Self {
            stream,
            unread: BytesMut::new(),
            unsent: BytesMut::new(),
            frames: Vec::new(),
            most_bytes: kind.most_bytes(),
            answers_pings: minor >= 1,
        };
        connection.write(&frame(COMMAND, &ready(kind))).await?;
        let (flags, body) = connection.frame().await?;
        match body.strip_prefix(b"\x05READY") {
            Some(properties) if flags & COMMAND != 0 => {
                let peer = property(properties, b"socket-type");
                if !peer.is_some_and(|peer| kind.takes(peer)) {
                    return Err(ZmtpError::Broken("it is a socket of another type"));
                }
            }
            _ if flags & COMMAND != 0 && body.starts_with(b"\x05ERROR") => {
                return Err(ZmtpError::Refused);
            }
            _ => return Err(ZmtpError::Broken("it did not say that it is ready")),
        }
        Ok(connection)
    }

    /// Whether the peer answers pings. All of libzmq's since 4.2 do.
    pub fn answers_pings(&self) -> bool {
        self.answers_pings
    }

    /// Sends a message. If it is dropped before its end, the next call of any kind sends the rest first.
    ///
    /// # Errors
    /// [`ZmtpError::Lost`].
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), ZmtpError> {
        for (place, body) in frames.iter().enumerate() {
            let more = if place + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut self.unsent, more, body);
        }
        self.flush().await
    }

    /// Wants what is published under topics that begin so.
    ///
    /// # Errors
    /// [`ZmtpError::Lost`].
    pub async fn subscribe(&mut self, topic: &[u8]) -> Result<(), ZmtpError> {
        self.send(&[&[&[1], topic].concat()]).await
    }

    /// Wants topics, or no longer, as 3.1 says it.
    #[cfg(test)]
    pub(crate) async fn command_of(&mut self, wants: bool, topic: &[u8]) -> Result<(), ZmtpError> {
        let name = match wants {
            true => &b"\x09SUBSCRIBE"[..],
            false => b"\x06CANCEL",
        };
        self.write(&frame(COMMAND, &[name, topic].concat())).await
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// [`ZmtpError::Lost`].
    pub async fn ping(&mut self) -> Result<(), ZmtpError> {
        // Without a time to live: whether this side lives is not the peer's to judge.
        self.write(&frame(COMMAND, b"\x04PING\x00\x00")).await
    }

    /// Waits for what the peer sends next. Loses nothing if it is dropped before.
    ///
    /// # Errors
    /// [`ZmtpError`]: the connection is of no use any longer.
    pub async fn receive(&mut self) -> Result<Received, ZmtpError> {
        self.flush().await?;
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                let topic = |name: &[u8]| body.starts_with(name).then(|| body.slice(name.len()..));
                if let Some(topic) = topic(b"\x09SUBSCRIBE") {
                    return Ok(Received::Subscribed(topic));
                }
                if let Some(topic) = topic(b"\x06CANCEL") {
                    return Ok(Received::Cancelled(topic));
                }
                if let Some(context) = body.strip_prefix(b"\x04PING") {
                    let context = context.get(2..).unwrap_or_default();
                    let pong = [&b"\x04PONG"[..], context].concat();
                    put_frame(&mut self.unsent, COMMAND, &pong);
                    self.flush().await?;
                }
                return Ok(Received::Command);
            }
            if self.frames.len() >= MOST_FRAMES {
                return Err(ZmtpError::Broken("a message has too many frames"));
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                return Ok(Received::Message(std::mem::take(&mut self.frames)));
            }
        }
    }

    /// The next frame: its flags, its body.
    async fn frame(&mut self) -> Result<(u8, Bytes), ZmtpError> {
        loop {
            if let Some((flags, start, length)) = head(&self.unread, self.most_bytes)?
                && self.unread.len() >= start + length
            {
                self.unread.advance(start);
                return Ok((flags, self.unread.split_to(length).freeze()));
            }
            self.unread.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        self.unsent.extend_from_slice(bytes);
        self.flush().await
    }

    /// Sends what is not sent yet. What is written leaves the buffer at once, so that nothing is written twice.
    async fn flush(&mut self) -> Result<(), ZmtpError> {
        while !self.unsent.is_empty() {
            if self.stream.write_buf(&mut self.unsent).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        Ok(self.stream.flush().await?)
    }
}

/// Flags, where the body starts, and its length; `None`: that is not there yet.
fn head(bytes: &[u8], most_bytes: usize) -> Result<Option<(u8, usize, usize)>, ZmtpError> {
    let Some((flags, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
        return Err(ZmtpError::Broken("a frame has unknown flags"));
    }
    let (start, length) = match (flags & LONG != 0, rest) {
        (false, [length, ..]) => (2, u64::from(*length)),
        (true, rest) => match rest.first_chunk() {
            Some(length) => (9, u64::from_be_bytes(*length)),
            None => return Ok(None),
        },
        (false, []) => return Ok(None),
    };
    let most = match flags & COMMAND {
        0 => most_bytes,
        _ => MOST_COMMAND_BYTES,
    };
    match usize::try_from(length)
        .ok()
        .filter(|length| *length <= most)
    {
        Some(fits) => Ok(Some((*flags, start, fits))),
        None => Err(ZmtpError::TooLarge { length, most }),
    }
}

fn frame(flags: u8, body: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    put_frame(&mut bytes, flags, body);
    bytes
}

fn put_frame(bytes: &mut BytesMut, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend_from_slice(&[flags, length]),
        Err(_) => {
            bytes.extend_from_slice(&[flags | LONG]);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

fn greeting(minor: u8) -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    // The signature, the version, and the mechanism.
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = minor;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// The minor number of a peer's version 3; `None`: it has another version or mechanism.
fn peer_version(greeted: &[u8; GREETING_BYTES]) -> Option<u8> {
    let is_signed = greeted[0] == 0xff && greeted[9] & 1 == 1;
    let is_plain = greeted[12..32] == greeting(0)[12..32];
    (is_signed && greeted[10] >= 3 && is_plain).then_some(greeted[11])
}

fn ready(kind: Kind) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    let name = b"Socket-Type";
    body.push(name.len() as u8);
    body.extend_from_slice(name);
    body.extend_from_slice(&(kind.name().len() as u32).to_be_bytes());
    body.extend_from_slice(kind.name());
    body
}

/// The value of a property, whose name is in small letters.
fn property<'a>(mut rest: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (length, behind) = rest.split_first()?;
        let (name, behind) = behind.split_at_checked(usize::from(*length))?;
        let (length, behind) = behind.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, behind) = behind.split_at_checked(length)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// The other side of a handshake, with these bytes as its greeting and its first command.
    async fn meet(greeted: [u8; GREETING_BYTES], first: &[u8]) -> Result<(), ZmtpError> {
        let (ours, theirs) = duplex(1 << 20);
        let first = first.to_vec();
        let (opened, _open) = tokio::join!(Connection::open(ours, Kind::Subscriber), async move {
            let mut theirs = theirs;
            theirs.write_all(&greeted).await.unwrap();
            theirs.write_all(&first).await.unwrap();
            theirs.shutdown().await.unwrap();
            theirs
        });
        opened.map(|_| ())
    }

    fn ready_of(kind: &[u8]) -> BytesMut {
        let mut body = b"\x05READY\x08Identity\x00\x00\x00\x00\x0bSocket-TYPE".to_vec();
        body.extend_from_slice(&(kind.len() as u32).to_be_bytes());
        body.extend_from_slice(kind);
        frame(COMMAND, &body)
    }

    #[tokio::test]
    async fn only_a_publisher_without_encryption_is_met() {
        let changed = |place: usize, byte| {
            let mut greeting = super::greeting(0);
            greeting[place] = byte;
            greeting
        };
        for kind in [&b"PUB"[..], b"XPUB"] {
            assert!(meet(greeting(0), &ready_of(kind)).await.is_ok());
            assert!(meet(changed(11, 1), &ready_of(kind)).await.is_ok());
        }
        for place in [(0, 0), (9, 0), (10, 1), (12, b'C')] {
            let met = meet(changed(place.0, place.1), &ready_of(b"PUB")).await;
            assert!(matches!(met, Err(ZmtpError::Greeting)), "{place:?}");
        }
        let refused = frame(COMMAND, b"\x05ERROR\x02no");
        assert!(matches!(
            meet(greeting(0), &refused).await,
            Err(ZmtpError::Refused)
        ));
        for broken in [
            ready_of(b"REP"),
            frame(0, b"\x05READY"),
            frame(COMMAND, b"\x05READY"),
            frame(COMMAND, b"\x05READY\xff"),
            BytesMut::from(&[0xf0, 0][..]),
            BytesMut::from(&[MORE | COMMAND, 0][..]),
        ] {
            let met = meet(greeting(0), &broken).await;
            assert!(matches!(met, Err(ZmtpError::Broken(_))), "{broken:?}");
        }
        let huge = [&[COMMAND | LONG][..], &[0xff; 8]].concat();
        let met = meet(greeting(0), &huge).await;
        assert!(matches!(met, Err(ZmtpError::TooLarge { .. })));
        assert!(matches!(
            meet(greeting(0), &[]).await,
            Err(ZmtpError::Lost(_))
        ));
    }

    async fn connected() -> (Connection<DuplexStream>, DuplexStream) {
        let (ours, mut theirs) = duplex(1 << 20);
        theirs.write_all(&greeting(0)).await.unwrap();
        theirs.write_all(&ready_of(b"PUB")).await.unwrap();
        let connection = Connection::open(ours, Kind::Subscriber).await.unwrap();
        let mut met = vec![0; GREETING_BYTES + frame(COMMAND, &ready(Kind::Subscriber)).len()];
        theirs.read_exact(&mut met).await.unwrap();
        (connection, theirs)
    }

    #[tokio::test]
    async fn messages_come_whole_however_they_are_cut() {
        let (mut connection, mut theirs) = connected().await;
        let long = vec![7; 1000];
        let mut bytes = frame(MORE, b"topic");
        bytes.extend_from_slice(&frame(MORE, b""));
        bytes.extend_from_slice(&frame(0, &long));
        bytes.extend_from_slice(&frame(COMMAND, b"\x04PING\x00\x00context"));
        let writing = async {
            for byte in &bytes {
                theirs.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut pong = vec![0; 14];
            theirs.read_exact(&mut pong).await.unwrap();
            pong
        };
        let reading = async {
            let message = connection.receive().await.unwrap();
            (message, connection.receive().await.unwrap())
        };
        let (pong, (message, command)) = tokio::join!(writing, reading);
        let frames = [&b"topic"[..], b"", &long].map(Bytes::copy_from_slice);
        assert_eq!(message, Received::Message(frames.to_vec()));
        assert_eq!(command, Received::Command);
        assert_eq!(pong, frame(COMMAND, b"\x04PONGcontext"));
    }

    #[tokio::test]
    async fn a_message_is_bounded() {
        let (mut connection, mut theirs) = connected().await;
        theirs
            .write_all(&frame(MORE, b"").to_vec().repeat(MOST_FRAMES + 1))
            .await
            .unwrap();
        let error = connection.receive().await.unwrap_err();
        assert!(matches!(error, ZmtpError::Broken(_)), "{error}");
        let (mut connection, mut theirs) = connected().await;
        let length = MOST_BYTES as u64 + 1;
        theirs.write_all(&[LONG]).await.unwrap();
        theirs.write_all(&length.to_be_bytes()).await.unwrap();
        let error = connection.receive().await.unwrap_err();
        assert!(
            matches!(error, ZmtpError::TooLarge { length: found, .. } if found == length),
            "{error}"
        );
    }
}
