//! What peers of other makers send over ZeroMQ: those that listen to a worker's events, and those that publish to a
//! gateway.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use inflight_kv_events::{Batch, Dialing, Event, Form, Heard, Publisher, Source, follow};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

const LIVE: u16 = 1;
const PAST: u16 = 2;
/// Batches that are published.
const BATCHES: u64 = 3;
/// Bytes that a listener may cause for each that it sends, and without sending any.
const MOST_PER_BYTE: usize = 64;
const MOST_UNASKED: usize = 4096;

/// A peer that has said all of this, and hangs up. What it is sent is counted.
struct Peer {
    says: Bytes,
    heard: Arc<AtomicUsize>,
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = self.says.len().min(buffer.remaining());
        buffer.put_slice(&self.says.split_to(most));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.heard.fetch_add(bytes.len(), Ordering::Relaxed);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What a listener sends a worker: behind a first byte that says to which port, a handshake, subscriptions or questions.
pub fn kv_event_listener(data: &[u8]) {
    let Some((port, says)) = data.split_first() else {
        return;
    };
    let publisher = Publisher::new("kv@pod", Form::Maps, Vec::new);
    for number in 0..BATCHES {
        publisher.publish(&batch(number));
    }
    let heard = Arc::default();
    let peer = Peer {
        says: Bytes::copy_from_slice(says),
        heard: Arc::clone(&heard),
    };
    let served = run(async {
        match u16::from(*port) {
            PAST => publisher.serve_past(peer).await,
            _ => publisher.serve_subscriber(peer).await,
        }
    });
    assert!(served.is_err(), "it has hung up");
    let most = MOST_UNASKED + MOST_PER_BYTE * data.len();
    assert!(heard.load(Ordering::Relaxed) <= most);
}

/// What a publisher sends a gateway: as many bytes as the first one says, times 16, at its port of the past; the rest
/// where it publishes.
pub fn kv_event_publisher(data: &[u8]) {
    let Some((length, says)) = data.split_first() else {
        return;
    };
    let (past, live) = says.split_at(says.len().min(usize::from(*length) * 16));
    let (past, live) = (Bytes::copy_from_slice(past), Bytes::copy_from_slice(live));
    let source = Source {
        port: LIVE,
        replay_port: Some(PAST),
        topic: String::new(),
    };
    let dial = move |port| -> Dialing<Peer> {
        let says = if port == PAST { &past } else { &live };
        let peer = Peer {
            says: says.clone(),
            heard: Arc::default(),
        };
        Box::pin(async { Ok(peer) })
    };
    let said = run(async {
        let (sender, mut heard) = mpsc::channel(1);
        let listening = async {
            let mut said = 0;
            while let Some(one) = heard.recv().await {
                said += 1;
                if matches!(one, Heard::Lost { .. }) {
                    break;
                }
            }
            // Nobody listens any more.
            drop(heard);
            said
        };
        tokio::join!(follow(&source, dial, sender), listening).1
    });
    assert!(said > 0, "it has hung up");
    // A message is asked for once, and its answer has as many as the past.
    assert!(said <= 3 + data.len() * (1 + data.len()));
}

fn batch(number: u64) -> Batch {
    Batch {
        timestamp: number as f64,
        events: vec![Event::Cleared],
        rank: None,
    }
}

fn run<F: Future>(work: F) -> F::Output {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime of one thread").block_on(work)
}
