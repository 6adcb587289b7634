//! Followed over streams in memory, on a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::{Event, Form, write};

const SOURCE: u16 = 1;
const PAST: u16 = 2;

/// What a publisher does next on a connection.
enum Do {
    /// Publishes the batch of this number, whose time it is as well.
    Publish(u64),
    Garbage,
    Malformed,
    /// Reads nothing more, and keeps the connection.
    Hang,
    /// Answers so many pings. As the first thing, it says that it does.
    Answer(usize),
    Close,
}

/// A server whose connections do one thing after another, and whose past is these numbers.
struct Server {
    connections: Arc<AtomicUsize>,
    heard: Receiver<Heard>,
    task: JoinHandle<()>,
}

fn batch(number: u64) -> Vec<u8> {
    let batch = Batch {
        timestamp: number as f64,
        events: vec![Event::Cleared],
        rank: None,
    };
    write(&batch, Form::Maps)
}

async fn publish(stream: DuplexStream, script: Vec<Do>) {
    let minor = u8::from(matches!(script.first(), Some(Do::Answer(_))));
    let mut connection = Connection::open_as(stream, Kind::Publisher, minor)
        .await
        .unwrap();
    assert!(
        matches!(connection.receive().await.unwrap(), Received::Message(frames) if *frames == [Bytes::from_static(b"\x01kv")])
    );
    for one in script {
        match one {
            Do::Publish(number) => {
                let number_bytes = number.to_be_bytes();
                connection
                    .send(&[b"kv", &number_bytes, &batch(number)])
                    .await
                    .unwrap();
            }
            Do::Garbage => connection.send(&[b"kv", &[0; 8], b"\xc1"]).await.unwrap(),
            Do::Malformed => connection.send(&[b"kv"]).await.unwrap(),
            Do::Hang => std::future::pending().await,
            Do::Answer(pings) => {
                for _ in 0..pings {
                    assert_eq!(connection.receive().await.unwrap(), Received::Command);
                }
            }
            Do::Close => return,
        }
    }
    while connection.receive().await.is_ok() {}
}

/// Repeats the past, with topics if the first of it is an even number: servers do either.
async fn replay(stream: DuplexStream, past: Vec<u64>) {
    let has_topics = past.first().is_some_and(|number| number % 2 == 0);
    let mut connection = Connection::open(stream, Kind::Router).await.unwrap();
    let Ok(Received::Message(frames)) = connection.receive().await else {
        panic!("nothing was asked");
    };
    let start = u64::from_be_bytes(frames[1].as_ref().try_into().unwrap());
    let asked = past.into_iter().filter(|number| *number >= start);
    let mut answers: Vec<_> = asked
        .map(|number| (number.to_be_bytes(), batch(number)))
        .collect();
    answers.push(([0xff; 8], Vec::new()));
    for (number, payload) in &answers {
        let frames: &[&[u8]] = match has_topics {
            true => &[b"", b"kv", number, payload],
            false => &[b"", number, payload],
        };
        connection.send(frames).await.unwrap();
    }
    let _ = connection.receive().await;
}

fn start(scripts: Vec<Vec<Do>>, past: Option<Vec<u64>>) -> Server {
    let connections = Arc::new(AtomicUsize::new(0));
    let (sender, heard) = mpsc::channel(64);
    let source = Source {
        port: SOURCE,
        replay_port: past.is_some().then_some(PAST),
        topic: "kv".to_owned(),
    };
    let counted = Arc::clone(&connections);
    let scripts = std::sync::Mutex::new(scripts.into_iter());
    let dial = move |port| -> Dialing<DuplexStream> {
        let (ours, theirs) = duplex(1 << 20);
        if port == PAST {
            tokio::spawn(replay(theirs, past.clone().unwrap_or_default()));
            return Box::pin(async { Ok(ours) });
        }
        counted.fetch_add(1, Ordering::Relaxed);
        match scripts.lock().unwrap().next() {
            Some(script) => {
                tokio::spawn(publish(theirs, script));
                Box::pin(async { Ok(ours) })
            }
            None => Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }),
        }
    };
    let task = tokio::spawn(async move { follow(&source, dial, sender).await });
    Server {
        connections,
        heard,
        task,
    }
}

impl Server {
    /// What is heard next, in a few letters.
    async fn hear(&mut self, count: usize) -> String {
        let mut all = String::new();
        for _ in 0..count {
            match self.heard.recv().await.unwrap() {
                Heard::Connected => all.push_str(" connected"),
                Heard::Batch(batch) => all.push_str(&format!(" {}", batch.timestamp)),
                Heard::Missed => all.push_str(" missed"),
                Heard::Restarted => all.push_str(" restarted"),
                Heard::Unreadable(_) => all.push_str(" unreadable"),
                Heard::Lost { is_late, .. } => {
                    all.push_str(if is_late { " late" } else { " lost" })
                }
            }
        }
        all
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_asked_for_or_named() {
    use Do::{Close, Garbage, Malformed, Publish};
    for (scripts, past, expected) in [
        (vec![vec![Publish(3), Publish(4)]], None, " connected 3 4"),
        (
            vec![vec![Publish(3), Publish(5)]],
            None,
            " connected 3 missed 5",
        ),
        (
            vec![vec![Publish(3), Publish(0)]],
            None,
            " connected 3 restarted 0",
        ),
        (
            vec![vec![Publish(3), Publish(1)]],
            None,
            " connected 3 restarted missed 1",
        ),
        (
            vec![vec![Publish(3), Close], vec![Publish(4)]],
            None,
            " connected 3 lost connected 4",
        ),
        (
            vec![vec![Publish(3), Close], vec![Publish(6)]],
            None,
            " connected 3 lost connected missed 6",
        ),
        (
            vec![vec![Garbage, Publish(1)]],
            None,
            " connected unreadable 1",
        ),
        (
            vec![vec![Malformed], vec![Publish(1)]],
            None,
            " connected lost connected 1",
        ),
        // The past, from its beginning; what was published meanwhile comes once.
        (
            vec![vec![Publish(2), Publish(3)]],
            Some(vec![0, 1, 2]),
            " 0 1 2 connected 3",
        ),
        (
            vec![vec![Publish(2), Publish(6)]],
            Some(vec![2, 4, 5, 6]),
            " 2 missed 4 5 6 connected",
        ),
        (
            vec![vec![Publish(4)]],
            Some(vec![1]),
            " 1 connected missed 4",
        ),
        (vec![vec![Publish(0)]], Some(vec![]), " connected 0"),
    ] {
        let mut server = start(scripts, past);
        let count = expected.split(' ').count() - 1;
        assert_eq!(server.hear(count).await, expected);
        drop(server.heard);
        server.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_hangs_is_late() {
    let mut server = start(vec![vec![Do::Hang]], None);
    assert_eq!(server.hear(1).await, " connected");
    // Its greeting says that it answers no pings: it may be idle for good.
    advance(Duration::from_secs(60)).await;
    assert!(server.heard.try_recv().is_err());
    for pings in [0, 10] {
        let mut server = start(vec![vec![Do::Answer(pings), Do::Hang]], None);
        assert_eq!(server.hear(1).await, " connected");
        let began = Instant::now();
        assert_eq!(server.hear(1).await, " late");
        let answered = PING_EVERY * pings as u32;
        let took = began.elapsed();
        assert!(
            took > answered && took <= answered + Duration::from_secs(2),
            "{took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_asked_again_and_again_but_not_too_often() {
    let mut server = start(vec![], None);
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(server.hear(1).await, " lost");
    }
    assert!(began.elapsed() > 14 * BACKOFF_MAX && began.elapsed() < 20 * BACKOFF_MAX);
    assert_eq!(server.connections.load(Ordering::Relaxed), 20);
    drop(server.heard);
    server.task.await.unwrap();
}
