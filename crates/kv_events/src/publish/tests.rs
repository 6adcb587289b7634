//! Published over streams in memory, on a paused clock, mostly to this crate's own follower.

use std::sync::Arc;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{advance, sleep};

use super::*;
use crate::{Dialing, Event, Heard, Source, follow};

const LIVE: u16 = 1;
const PAST: u16 = 2;

fn batch(number: u64) -> Batch {
    Batch {
        timestamp: number as f64,
        events: vec![Event::Cleared],
        rank: None,
    }
}

/// One that has published so many.
fn published(count: u64) -> Arc<Publisher> {
    published_with(count, Vec::new)
}

/// The same, with what is sent where batches are no longer kept.
fn published_with(
    count: u64,
    everything: impl Fn() -> Vec<Batch> + Send + Sync + 'static,
) -> Arc<Publisher> {
    let publisher = Arc::new(Publisher::new("kv@pod", Form::Maps, everything));
    for number in 0..count {
        publisher.publish(&batch(number));
    }
    publisher
}

fn followed(publisher: &Arc<Publisher>, topic: &str, asks: bool) -> Receiver<Heard> {
    let (sender, heard) = mpsc::channel(64);
    let source = Source {
        port: LIVE,
        replay_port: asks.then_some(PAST),
        topic: topic.to_owned(),
    };
    let publisher = Arc::clone(publisher);
    let dial = move |port| -> Dialing<DuplexStream> {
        let (ours, theirs) = duplex(1 << 10);
        let publisher = Arc::clone(&publisher);
        tokio::spawn(async move {
            match port {
                PAST => publisher.serve_past(theirs).await,
                _ => publisher.serve_subscriber(theirs).await,
            }
        });
        Box::pin(async { Ok(ours) })
    };
    tokio::spawn(async move { follow(&source, dial, sender).await });
    heard
}

/// What is heard next, in a few letters.
async fn hear(heard: &mut Receiver<Heard>, count: usize) -> String {
    let mut all = String::new();
    for _ in 0..count {
        match heard.recv().await.unwrap() {
            Heard::Connected => all.push_str(" connected"),
            Heard::Batch(batch) => all.push_str(&format!(" {}", batch.timestamp)),
            Heard::Missed => all.push_str(" missed"),
            other => panic!("{other:?}"),
        }
    }
    all
}

/// The other side of a connection, once it is known what it is.
async fn raw(publisher: &Arc<Publisher>, kind: Kind, minor: u8) -> Connection<DuplexStream> {
    let (ours, theirs) = duplex(1 << 10);
    let publisher = Arc::clone(publisher);
    tokio::spawn(async move {
        match kind {
            Kind::Subscriber => publisher.serve_subscriber(theirs).await,
            _ => publisher.serve_past(theirs).await,
        }
    });
    Connection::open_as(ours, kind, minor).await.unwrap()
}

async fn next(connection: &mut Connection<DuplexStream>) -> Vec<Bytes> {
    loop {
        if let Received::Message(frames) = connection.receive().await.unwrap() {
            return frames;
        }
    }
}

/// Waits until what was sent has been taken.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_follower_hears_the_past_and_what_comes() {
    let publisher = published(3);
    let mut with_past = followed(&publisher, "kv@", true);
    let mut without = followed(&publisher, "", false);
    assert_eq!(hear(&mut with_past, 4).await, " 0 1 2 connected");
    assert_eq!(hear(&mut without, 1).await, " connected");
    settle().await;
    publisher.publish(&batch(3));
    publisher.publish(&batch(4));
    assert_eq!(hear(&mut with_past, 2).await, " 3 4");
    assert_eq!(hear(&mut without, 2).await, " 3 4");
    let mut other = followed(&publisher, "kv@other", false);
    assert_eq!(hear(&mut other, 1).await, " connected");
    settle().await;
    publisher.publish(&batch(5));
    assert_eq!(hear(&mut without, 1).await, " 5");
    assert_eq!(hear(&mut with_past, 1).await, " 5");
    // Pings are answered for as long as nothing is published.
    sleep(Duration::from_secs(600)).await;
    for listener in [&mut with_past, &mut without, &mut other] {
        assert!(matches!(listener.try_recv(), Err(TryRecvError::Empty)));
    }
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_messages_or_commands() {
    let publisher = published(1);
    for minor in [0, 1] {
        let mut subscriber = raw(&publisher, Kind::Subscriber, minor).await;
        let steps = [
            (true, &["other", "kv@", "kv@pod"][..], true),
            (false, &["kv@"], true),
            (false, &["kv@pod"], false),
            (true, &[""], true),
        ];
        let first = *publisher.next.borrow();
        for (number, (wants, topics, is_sent)) in (first..).zip(steps) {
            for topic in topics {
                match (minor, wants) {
                    (0, true) => subscriber.subscribe(topic.as_bytes()).await,
                    (0, false) => {
                        let message = [&[0], topic.as_bytes()].concat();
                        subscriber.send(&[&message]).await
                    }
                    (_, wants) => subscriber.command_of(wants, topic.as_bytes()).await,
                }
                .unwrap();
            }
            settle().await;
            publisher.publish(&batch(number));
            if is_sent {
                let frames = next(&mut subscriber).await;
                assert_eq!(frames[..2], [&b"kv@pod"[..], &number.to_be_bytes()]);
                assert_eq!(crate::read(&frames[2]), Ok(batch(number)));
            } else {
                let waiting = timeout(Duration::from_secs(1), next(&mut subscriber));
                assert!(waiting.await.is_err());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_gets_what_is_kept_and_an_end() {
    let publisher = published(MOST_BATCHES as u64 + 5);
    for (envelope, start, first) in [
        (&[&b""[..]][..], 0, 5),
        (&[], 0, 5),
        (&[], 10_003, 10_003),
        (&[&b""[..]], 10_005, u64::MAX),
        (&[], u64::MAX, u64::MAX),
    ] {
        let start: u64 = start;
        let mut asker = raw(&publisher, Kind::Dealer, 0).await;
        let start = start.to_be_bytes();
        let question = [envelope, &[&start]].concat();
        asker.send(&question).await.unwrap();
        let mut expected: u64 = first;
        loop {
            let frames = next(&mut asker).await;
            assert_eq!(frames.len(), envelope.len() + 2);
            let [.., number, payload] = frames.as_slice() else {
                panic!("{frames:?}");
            };
            if payload.is_empty() {
                assert_eq!(number[..], END);
                break;
            }
            assert_eq!(number[..], expected.to_be_bytes());
            assert_eq!(crate::read(payload), Ok(batch(expected)));
            expected += 1;
        }
        assert!(first == u64::MAX || expected == MOST_BATCHES as u64 + 5);
    }
    for question in [&[&b"x"[..]][..], &[b"x", &[0; 8]], &[b"", b"", &[0; 8]]] {
        let (ours, theirs) = duplex(1 << 10);
        let asking = async {
            let mut asker = Connection::open(ours, Kind::Dealer).await.unwrap();
            asker.send(question).await.unwrap();
            asker
        };
        let (answered, _asker) = tokio::join!(publisher.serve_past(theirs), asking);
        assert!(
            matches!(answered, Err(ZmtpError::Broken(_))),
            "{question:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_asks_for_what_is_no_longer_kept_gets_everything() {
    let count = MOST_BATCHES as u64 + 5;
    let everything = || {
        [1.5, 2.5]
            .map(|timestamp| Batch {
                timestamp,
                ..batch(0)
            })
            .to_vec()
    };
    let publisher = published_with(count, everything);
    let mut late = followed(&publisher, "", true);
    assert_eq!(hear(&mut late, 3).await, " 1.5 2.5 connected");
    settle().await;
    publisher.publish(&batch(count));
    assert_eq!(hear(&mut late, 1).await, format!(" {count}"));
    // What is kept is repeated, and nothing has numbers before those that were asked for.
    let too_many = move || vec![batch(1); MOST_BATCHES + 2];
    for (publisher, start, first) in [
        (&publisher, count - 3, count - 3),
        (&published_with(count, too_many), 4, 5),
        (&published_with(count, Vec::new), 4, 5),
    ] {
        let mut asker = raw(publisher, Kind::Dealer, 0).await;
        asker.send(&[&start.to_be_bytes()]).await.unwrap();
        assert_eq!(next(&mut asker).await[0][..], first.to_be_bytes());
    }
}

#[test]
fn what_is_kept_is_bounded_by_its_bytes_too() {
    let mut kept = Kept::default();
    let large = Bytes::from(vec![0; MOST_KEPT_BYTES / 4]);
    for number in 0..10 {
        assert_eq!(kept.push(large.clone()), number + 1);
        assert!(kept.bytes <= MOST_KEPT_BYTES);
    }
    assert_eq!((kept.batches.len(), kept.first), (4, 6));
    assert_eq!(kept.from(0).map(|(number, _)| number), Some(6));
    assert_eq!(kept.from(10), None);
}

#[tokio::test(start_paused = true)]
async fn one_who_does_not_read_is_not_waited_for() {
    let publisher = published(0);
    let (ours, theirs) = duplex(1 << 10);
    let serving = Arc::clone(&publisher);
    let serving = tokio::spawn(async move { serving.serve_subscriber(theirs).await });
    let mut slow = Connection::open(ours, Kind::Subscriber).await.unwrap();
    slow.subscribe(b"").await.unwrap();
    let mut quick = followed(&publisher, "", false);
    assert_eq!(hear(&mut quick, 1).await, " connected");
    settle().await;
    let count = MOST_BATCHES as u64 + 100;
    for number in 0..count {
        publisher.publish(&batch(number));
        assert_eq!(hear(&mut quick, 1).await, format!(" {number}"));
    }
    // It reads again in time: what is no longer kept is missing, and shows.
    let mut numbers = Vec::new();
    while numbers.last() != Some(&(count - 1)) {
        let frames = next(&mut slow).await;
        numbers.push(u64::from_be_bytes(frames[1].as_ref().try_into().unwrap()));
    }
    assert!(numbers.len() < count as usize);
    let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gaps.count(), 1, "{numbers:?}");
    // And then no more, until it is sent away.
    for number in count..count + 100 {
        publisher.publish(&batch(number));
    }
    settle().await;
    assert!(!serving.is_finished());
    advance(SLOW + Duration::from_secs(1)).await;
    assert!(matches!(
        serving.await.unwrap(),
        Err(ZmtpError::Silent(SLOW))
    ));
}

#[tokio::test(start_paused = true)]
async fn one_who_says_nothing_is_sent_away() {
    let publisher = published(0);
    // Before the handshake, and after it.
    let (_ours, theirs) = duplex(1 << 10);
    let ended = publisher.serve_subscriber(theirs).await;
    assert!(matches!(ended, Err(ZmtpError::Silent(HANDSHAKE))));
    let (ours, theirs) = duplex(1 << 10);
    let (ended, _ours) = tokio::join!(
        publisher.serve_subscriber(theirs),
        Connection::open_as(ours, Kind::Subscriber, 1)
    );
    assert!(matches!(ended, Err(ZmtpError::Silent(GONE))));
}

#[tokio::test(start_paused = true)]
async fn what_a_listener_says_is_bounded() {
    let publisher = published(0);
    let long = [1; 5000];
    let frames: [&[&[u8]]; 3] = [&[b"\x02what"], &[b"\x01a", b"b"], &[&long]];
    for message in frames {
        let (ours, theirs) = duplex(1 << 14);
        let sending = async {
            let mut connection = Connection::open(ours, Kind::Subscriber).await.unwrap();
            connection.send(message).await.unwrap();
            connection
        };
        let (ended, _open) = tokio::join!(publisher.serve_subscriber(theirs), sending);
        assert!(
            matches!(
                ended,
                Err(ZmtpError::Broken(_) | ZmtpError::TooLarge { .. })
            ),
            "{ended:?}"
        );
    }
    let mut subscriber = raw(&publisher, Kind::Subscriber, 0).await;
    for _ in 0..MOST_TOPICS + 1 {
        // It may be gone already.
        let _ = subscriber.subscribe(b"topic").await;
    }
    while subscriber.receive().await.is_ok() {}
}
