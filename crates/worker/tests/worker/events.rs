//! Who listens to a worker's cache as to vLLM's, over ZeroMQ.

use std::collections::BTreeMap;
use std::sync::Arc;

use inflight_kv_events::{BlockHash, Dialing, Event, Heard, Medium, Source, Stored, follow};
use inflight_worker::{
    FurtherModel, SimulatedExecutor, SimulatedOptions, WorkerError, WorkerOptions,
};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, Receiver};

use crate::cache::{KEYS, reusing};
use crate::harness::{PATIENCE, Worker, instant, options, request};

const TOPIC: &str = "kv@worker-0@demo";

fn publishing() -> WorkerOptions {
    WorkerOptions {
        kv_events_port: Some(0),
        kv_events_replay_port: Some(0),
        kv_events_topic: Some(TOPIC.to_owned()),
        ..options()
    }
}

/// Follows the worker's events, with those of the past if it `asks`.
fn listen(worker: &Worker, asks: bool) -> Receiver<Heard> {
    let (sender, heard) = mpsc::channel(64);
    let [live, past] = worker.kv_events.map(Option::unwrap);
    let source = Source {
        port: live.port(),
        replay_port: asks.then_some(past.port()),
        topic: "kv@".to_owned(),
    };
    let dial = |port| -> Dialing<TcpStream> { Box::pin(TcpStream::connect(("127.0.0.1", port))) };
    tokio::spawn(async move { follow(&source, dial, sender).await });
    heard
}

async fn next(heard: &mut Receiver<Heard>) -> Heard {
    let heard = tokio::time::timeout(PATIENCE, heard.recv()).await;
    heard.unwrap().unwrap()
}

async fn events(heard: &mut Receiver<Heard>) -> Vec<Event> {
    match next(heard).await {
        Heard::Batch(batch) => {
            assert!(batch.timestamp > 1.7e9, "{}", batch.timestamp);
            batch.events
        }
        other => panic!("{other:?}"),
    }
}

fn hashes(keys: &[u64]) -> Vec<BlockHash> {
    keys.iter().map(|key| BlockHash::Number(*key)).collect()
}

#[tokio::test]
async fn a_listener_hears_tokens_and_who_comes_later_asks_for_them() {
    let executor = Arc::new(SimulatedExecutor::new(SimulatedOptions {
        num_blocks: 4,
        ..reusing()
    }));
    let mut worker = Worker::start(executor, publishing()).await;
    let mut early = listen(&worker, true);
    assert!(matches!(next(&mut early).await, Heard::Connected));
    let prompt: Vec<i32> = (1..=12).collect();
    let ask = |name: &str, prompt: &[i32]| request(name, prompt, 1);
    worker
        .client
        .model_infer(ask("a", &prompt).build())
        .await
        .unwrap();
    let stored = events(&mut early).await;
    let expected = Event::Stored(Stored {
        hashes: hashes(&KEYS),
        tokens: Some(prompt.clone()),
        block_tokens: 4,
        ..Stored::default()
    });
    assert_eq!(stored, std::slice::from_ref(&expected));
    // Another prompt takes its room, from its end on.
    let other = [20; 8];
    worker
        .client
        .model_infer(ask("b", &other).build())
        .await
        .unwrap();
    let mut changes = events(&mut early).await;
    while !changes
        .iter()
        .any(|event| matches!(event, Event::Removed(_)))
    {
        changes.extend(events(&mut early).await);
    }
    let removed: Vec<_> = changes
        .iter()
        .filter_map(|event| match event {
            Event::Removed(removed) => Some((removed.hashes.clone(), removed.medium)),
            _ => None,
        })
        .collect();
    assert_eq!(removed[0].0[0], BlockHash::Number(KEYS[2]), "{changes:?}");
    assert_eq!(removed[0].1, Medium::Device);

    let mut late = listen(&worker, true);
    assert_eq!(events(&mut late).await, [expected]);
    let mut live = listen(&worker, false);
    assert!(matches!(next(&mut live).await, Heard::Connected));
    worker.stop().await;
    while !matches!(next(&mut live).await, Heard::Lost { .. }) {}
}

#[tokio::test]
async fn what_cannot_be_published_is_refused_at_the_start() {
    let executor = |options| Arc::new(SimulatedExecutor::new(options));
    let further = || FurtherModel {
        name: "other".to_owned(),
        executor: executor(reusing()),
        assets: BTreeMap::new(),
    };
    let only_past = WorkerOptions {
        kv_events_port: None,
        ..publishing()
    };
    for (simulated, further, options, expected) in [
        (
            instant(),
            Vec::new(),
            publishing(),
            "`simulated` does not report",
        ),
        (
            reusing(),
            vec![further()],
            publishing(),
            "this worker has `2`",
        ),
        (
            reusing(),
            Vec::new(),
            only_past,
            "needs a port for the events",
        ),
    ] {
        let started = inflight_worker::serve_models(
            executor(simulated),
            further,
            options,
            None,
            |_| (),
            std::future::pending(),
        );
        let refused: WorkerError = tokio::time::timeout(PATIENCE, started)
            .await
            .unwrap()
            .unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}
