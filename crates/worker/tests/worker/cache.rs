//! Who watches a worker's cache and load, over gRPC.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use inflight_kserve::assets::{DescribeRequest, ModelDescription};
use inflight_kserve::cache_state::{CacheUpdate, WatchCacheRequest, WorkerLoad};
use inflight_kserve::client::{TransportOptions, assets_client, cache_state_client, connect};
use inflight_worker::{FurtherModel, SimulatedExecutor, SimulatedOptions, WorkerExit};
use tonic::{Code, Status, Streaming};

use crate::harness::{
    LONG, PATIENCE, Worker, instant, options, request, slow, step_request, streaming, until,
};

/// Blocks of four tokens, which are found again.
pub(crate) fn reusing() -> SimulatedOptions {
    SimulatedOptions {
        enable_kv_cache_reuse: true,
        tokens_per_block: 4,
        prefill_us_per_token: 100.0,
        step_us: 1000.0,
        ..instant()
    }
}

/// The keys of 1 to 12 in blocks of four, as Dynamo's tests have them.
pub(crate) const KEYS: [u64; 3] = [
    14_643_705_804_678_351_452,
    4_945_711_292_740_353_085,
    12_583_592_247_330_656_132,
];

struct Watcher {
    updates: Streaming<CacheUpdate>,
    held: BTreeSet<u64>,
    waiting: BTreeMap<u64, Vec<u64>>,
    sequence: u64,
    snapshots: u32,
    load: WorkerLoad,
}

impl Watcher {
    async fn open(worker: &Worker, model: &str) -> Result<Self, Status> {
        Self::open_with(worker, model, &TransportOptions::default()).await
    }

    async fn open_with(
        worker: &Worker,
        model: &str,
        transport: &TransportOptions,
    ) -> Result<Self, Status> {
        let channel = connect(&worker.grpc.to_string(), transport).await.unwrap();
        let asked = WatchCacheRequest {
            model: model.to_owned(),
        };
        let updates = cache_state_client(channel).watch(asked).await?.into_inner();
        Ok(Self {
            updates,
            held: BTreeSet::new(),
            waiting: BTreeMap::new(),
            sequence: 0,
            snapshots: 0,
            load: WorkerLoad::default(),
        })
    }

    /// `None`: the stream has ended.
    async fn next(&mut self) -> Option<CacheUpdate> {
        let update = tokio::time::timeout(PATIENCE, self.updates.message());
        let update = update.await.unwrap().unwrap()?;
        assert_eq!(update.sequence, self.sequence + 1);
        self.sequence = update.sequence;
        self.load = update.load.unwrap();
        if update.snapshot_begin {
            self.held.clear();
            self.waiting.clear();
            self.snapshots += 1;
        }
        for number in &update.no_longer_waiting {
            self.waiting.remove(number).unwrap();
        }
        let came = update.waiting.iter();
        self.waiting
            .extend(came.map(|prompt| (prompt.number, prompt.keys.clone())));
        if let Some(changes) = &update.device {
            for key in &changes.stored {
                assert!(self.held.insert(*key));
            }
            for key in &changes.removed {
                assert!(self.held.remove(key));
            }
        }
        Some(update)
    }

    /// Reads until it knows these blocks.
    /// The number of the last prompt that waits.
    fn last_number(&self) -> u64 {
        *self.waiting.keys().last().unwrap()
    }

    async fn until_held(&mut self, keys: &[u64]) {
        while self.held != keys.iter().copied().collect() {
            self.next().await.unwrap();
        }
    }
}

async fn describe(worker: &Worker) -> ModelDescription {
    let transport = TransportOptions::default();
    let channel = connect(&worker.grpc.to_string(), &transport).await.unwrap();
    let described = assets_client(channel).describe(DescribeRequest {}).await;
    described.unwrap().into_inner()
}

#[tokio::test]
async fn watchers_learn_blocks_and_load() {
    let mut worker = Worker::simulated(reusing()).await;
    let capabilities = describe(&worker).await.capabilities;
    assert!(
        ["cache_state", "cache_events"]
            .iter()
            .all(|own| capabilities.contains(&(*own).to_owned()))
    );
    let mut early = Watcher::open(&worker, "tensorrt_llm").await.unwrap();
    let first = early.next().await.unwrap();
    assert!(first.snapshot_begin && first.snapshot_end);
    let shape = first.shape.unwrap();
    assert_eq!((shape.tokens_per_block, shape.reports_blocks), (4, true));
    assert_eq!((shape.device_blocks, shape.host_blocks), (16_384, 0));

    let prompt: Vec<i32> = (1..=12).collect();
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &prompt, 1).build()).await;
    stream.rows().await;
    early.until_held(&KEYS).await;
    // One who comes later gets the same, at once.
    let mut late = Watcher::open(&worker, "").await.unwrap();
    late.next().await.unwrap();
    assert_eq!(late.held, early.held);

    // The same beginning costs what it lacks, and an end of another kind is another block.
    let mut longer = prompt.clone();
    longer.extend([7; 4]);
    let mut again = step_request(2, &longer, 1);
    again.output(inflight_kserve::names::CACHED_TOKENS);
    stream.send(again.build()).await;
    assert_eq!(stream.rows().await.cached_tokens, [(0, 12)]);
    for watcher in [&mut early, &mut late] {
        while watcher.held.len() < 4 {
            watcher.next().await.unwrap();
        }
        // Two requests and the canary, by what was computed of their prompts.
        while watcher.load.prefill_tokens_total < 12 + 4 + 1 {
            watcher.next().await.unwrap();
        }
        let load = &watcher.load;
        assert_eq!(load.prefill_tokens_total, 17);
        assert_eq!(load.generated_tokens_total, 3);
        assert_eq!(load.iterations_total, 3);
        // A millisecond an iteration and 100 µs a token.
        assert!((load.prefill_seconds_total - 0.0047).abs() < 1e-9);
        assert!((load.iteration_seconds_total - 0.0047).abs() < 1e-9);
        assert_eq!((load.free_blocks, load.total_blocks), (16_384, 16_384));
        assert_eq!((load.queued_requests, load.running_requests), (0, 0));
        assert_eq!(load.queued_prompt_tokens, 0);
    }
    assert_eq!(early.snapshots, 1);
    let stopped = tokio::spawn(worker.stop());
    while early.next().await.is_some() {}
    assert_eq!(stopped.await.unwrap(), WorkerExit::Shutdown);
}

#[tokio::test]
async fn prompts_wait_until_their_first_token_or_until_their_client_leaves() {
    let mut worker = Worker::simulated(SimulatedOptions {
        max_batch_size: 1,
        enable_kv_cache_reuse: true,
        tokens_per_block: 4,
        ..slow()
    })
    .await;
    let mut watcher = Watcher::open(&worker, "").await.unwrap();
    watcher.next().await.unwrap();
    let short: Vec<i32> = (1..=12).collect();
    let mut answered = worker.stream().await;
    answered.send(step_request(1, &short, 1).build()).await;
    while watcher.waiting.is_empty() {
        watcher.next().await.unwrap();
    }
    assert_eq!(
        watcher.waiting,
        [(watcher.last_number(), KEYS.to_vec())].into()
    );
    answered.rows().await;
    while !watcher.waiting.is_empty() {
        watcher.next().await.unwrap();
    }
    watcher.until_held(&KEYS).await;
    // One whose blocks are held does not wait for any.
    let leaves = worker.stream().await;
    leaves.send(step_request(1, LONG, 1).build()).await;
    leaves.send(step_request(2, &short, 1).build()).await;
    while watcher.load.queued_requests < 1 || watcher.waiting.is_empty() {
        watcher.next().await.unwrap();
    }
    assert_eq!(watcher.waiting.len(), 1);
    assert_eq!(
        watcher.waiting[&watcher.last_number()].len(),
        LONG.len() / 4
    );
    drop(leaves);
    while !watcher.waiting.is_empty() {
        watcher.next().await.unwrap();
    }
    assert!(watcher.held.len() < LONG.len() / 4);
}

#[tokio::test]
async fn a_worker_without_events_reports_its_load() {
    let mut worker = Worker::simulated(SimulatedOptions {
        max_batch_size: 1,
        ..slow()
    })
    .await;
    let capabilities = describe(&worker).await.capabilities;
    assert!(capabilities.contains(&"cache_state".to_owned()));
    assert!(!capabilities.contains(&"cache_events".to_owned()));
    let mut watcher = Watcher::open(&worker, "tensorrt_llm").await.unwrap();
    let first = watcher.next().await.unwrap();
    assert!(!first.shape.unwrap().reports_blocks);
    let start = Instant::now();
    let stream = worker.stream().await;
    for handle in 0..2 {
        stream.send(step_request(handle, LONG, 1).build()).await;
    }
    while watcher.load.queued_requests < 1 {
        assert_eq!(watcher.next().await.unwrap().device, None);
    }
    assert_eq!(watcher.load.running_requests, 1);
    // What is computed of the first does not count any more.
    let long = LONG.len() as u64;
    while watcher.load.queued_prompt_tokens == 2 * long {
        watcher.next().await.unwrap();
    }
    assert!((long + 1..2 * long).contains(&watcher.load.queued_prompt_tokens));
    drop(stream);
    while watcher.load.running_requests > 0 {
        watcher.next().await.unwrap();
    }
    assert_eq!(watcher.load.queued_prompt_tokens, 0);
    // A message came at least every half second; a busy machine gets some patience.
    let least = start.elapsed().as_millis() / 1000;
    assert!(u128::from(watcher.sequence) > least);
}

#[tokio::test]
async fn each_model_of_a_process_has_its_own_cache() {
    let executor = || Arc::new(SimulatedExecutor::new(reusing()));
    let other = FurtherModel {
        name: "other".to_owned(),
        executor: executor(),
        assets: BTreeMap::new(),
    };
    let mut worker = Worker::start_several(executor(), vec![other], options()).await;
    until(async || worker.is_ready().await).await;
    let mut first = Watcher::open(&worker, "tensorrt_llm").await.unwrap();
    let mut second = Watcher::open(&worker, "other_tensorrt_llm").await.unwrap();
    let mut asked = request("a", &[1, 2, 3, 4, 5], 1).build();
    asked.model_name = "other_tensorrt_llm".to_owned();
    worker.client.model_infer(asked).await.unwrap();
    second.until_held(&KEYS[..1]).await;
    first.next().await.unwrap();
    assert!(first.held.is_empty());
    for name in ["unknown", "other"] {
        let refused = Watcher::open(&worker, name).await.err().unwrap();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert!(refused.message().contains(name), "{refused}");
    }
}

#[tokio::test]
async fn one_who_does_not_read_gets_a_snapshot_later() {
    let mut worker = Worker::simulated(SimulatedOptions {
        enable_kv_cache_reuse: true,
        tokens_per_block: 1,
        num_blocks: 1_000_000,
        ..instant()
    })
    .await;
    let narrow = TransportOptions {
        stream_window_bytes: 65_535,
        connection_window_bytes: 65_535,
        ..TransportOptions::default()
    };
    let mut idle = Watcher::open_with(&worker, "", &narrow).await.unwrap();
    let mut reading = Watcher::open(&worker, "").await.unwrap();
    let mut stream = worker.stream().await;
    // Beyond 31 they would be the first ones again.
    let (count, length) = (30, 8000);
    for number in 0..count {
        let prompt: Vec<i32> = (0..length)
            .map(|place| (place + number * length) % 31_000)
            .collect();
        stream
            .send(streaming(&number.to_string(), &prompt, 1))
            .await;
        stream.response().await;
    }
    let all = (count * length) as usize;
    while reading.held.len() < all {
        reading.next().await.unwrap();
    }
    while idle.held.len() < all {
        idle.next().await.unwrap();
    }
    assert_eq!(idle.held, reading.held);
    assert_eq!(reading.snapshots, 1);
    assert!(idle.snapshots >= 2, "{}", idle.snapshots);
}
