//! Requests that take long to prepare: the gateway's other streams go on meanwhile.

use std::time::{Duration, Instant};

use inflight_testkit::model::{byte_model_files, tokens};
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Client, Gateway, Stream, byte_model, chat};

const PATH: &str = "/v1/chat/completions";
/// Renders until it has taken all the steps that it may.
const SLOW_TEMPLATE: &str =
    "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}";

/// A model so long that a prompt's size alone does not tell that it is too long.
fn long_model() -> ScriptedModel {
    let mut model = byte_model();
    model.description.max_seq_len = 1_500_000;
    model.description.max_input_len = 1_500_000;
    model
}

#[tokio::test]
async fn a_prompt_of_three_megabytes_delays_no_stream() {
    let mut worker = ScriptedWorker::start(long_model()).await;
    // The test's runtime has one thread: whatever blocks it blocks the stream.
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 1_000_000}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(stream.text().await, "");
    assert_eq!(stream.text().await, "a");
    let address = gateway.address;
    let huge = chat(json!({"messages": [{"role": "user", "content": "word ".repeat(600_000)}]}));
    let huge = tokio::spawn(async move { Client::connect(address).await.post(PATH, &huge).await });
    let beside = tokens_beside(&huge, &request, &mut stream).await;
    let answer = huge.await.unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    beside.check();
}

#[tokio::test]
async fn a_slow_template_delays_no_stream() {
    let mut files = byte_model_files();
    files.retain(|(name, _)| name != "chat_template.jinja");
    files.push(("chat_template.jinja".to_owned(), SLOW_TEMPLATE.into()));
    let slow = ScriptedModel::new("slow", files);
    let mut worker = ScriptedWorker::start(long_model()).await;
    let slow = ScriptedWorker::start(slow).await;
    let gateway = Gateway::start(&[worker.address, slow.address], &[]).await;
    let gateway = gateway.all_ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 1_000_000}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(stream.text().await, "");
    assert_eq!(stream.text().await, "a");
    let address = gateway.address;
    let small = chat(json!({"model": "slow"}));
    let rendered =
        tokio::spawn(async move { Client::connect(address).await.post(PATH, &small).await });
    let beside = tokens_beside(&rendered, &request, &mut stream).await;
    let answer = rendered.await.unwrap();
    assert_eq!(answer.status, 400, "it takes more steps than it may");
    beside.check();
}

/// What a stream's tokens took while another request was prepared.
struct Beside {
    tokens: u32,
    whole: Duration,
    /// CPU time of the only thread of this test's runtime during the worst token.
    worst: Duration,
}

impl Beside {
    /// If the request was prepared on that thread, all of the CPU time was spent during one token. Its time
    /// on the clock would also hold what other processes of a busy machine took.
    fn check(&self) {
        let Self {
            tokens,
            whole,
            worst,
        } = *self;
        assert!(tokens > 1, "the request took long enough to notice");
        assert!(worst < whole / 2, "{worst:?} of {whole:?}, {tokens} tokens");
    }
}

/// Sends tokens on a stream until `other` is answered.
async fn tokens_beside<T>(
    other: &JoinHandle<T>,
    request: &Received,
    stream: &mut Stream,
) -> Beside {
    let begun = Instant::now();
    let mut beside = Beside {
        tokens: 0,
        whole: Duration::ZERO,
        worst: Duration::ZERO,
    };
    while !other.is_finished() {
        let started = thread_time();
        request.tokens(&tokens("b")).await;
        assert_eq!(stream.text().await, "b");
        tokio::time::sleep(Duration::from_millis(5)).await;
        beside.worst = beside.worst.max(thread_time() - started);
        beside.tokens += 1;
    }
    beside.whole = begun.elapsed();
    beside
}

/// CPU time of this thread so far.
fn thread_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let on_cpu = times.split_whitespace().next().unwrap();
    Duration::from_nanos(on_cpu.parse().unwrap())
}
