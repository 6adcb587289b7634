//! Workers that are lost, full or silent: what goes to another worker, and what never does.

use std::time::Duration;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::proxy::HoldingProxy;
use inflight_testkit::triton::ScriptedTriton;
use inflight_testkit::triton_models::text_model;
use inflight_testkit::worker::{Received, ScriptedWorker};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use crate::support::{Answer, Client, Gateway, behind_proxies, byte_model, chat, pair};

const PATH: &str = "/v1/chat/completions";

async fn workers<const N: usize>(extra: &[&str]) -> ([ScriptedWorker; N], Gateway) {
    let mut workers = Vec::new();
    for _ in 0..N {
        workers.push(ScriptedWorker::start(byte_model()).await);
    }
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
    let gateway = Gateway::start(&addresses, extra).await.all_ready().await;
    (workers.try_into().expect("as many as asked"), gateway)
}

/// The next request, and the worker that has it.
async fn either(workers: &mut [ScriptedWorker; 2]) -> (usize, Received) {
    let [one, two] = workers;
    tokio::select! {
        request = one.next_request() => (0, request),
        request = two.next_request() => (1, request),
    }
}

async fn retries(gateway: &Gateway, reason: &str) -> bool {
    let page = gateway.get("/metrics").await.body;
    let line = format!("inflight_gateway_retries_total{{reason=\"{reason}\"}} 1\n");
    String::from_utf8(page.to_vec()).unwrap().contains(&line)
}

/// A request without its handle, which differs between connections.
fn without_handle(mut message: ModelInferRequest) -> ModelInferRequest {
    let mut inputs = message.inputs.iter();
    let handle = inputs
        .position(|input| input.name == names::HANDLE)
        .unwrap();
    message.inputs.remove(handle);
    message.raw_input_contents.remove(handle);
    message
}

fn content(answer: &Answer, stream: bool) -> String {
    if !stream {
        let answer = answer.json();
        return answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_owned();
    }
    let events = answer.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let texts = events.iter().filter_map(|event| {
        let event: Value = serde_json::from_str(event).ok()?;
        let text = event["choices"][0]["delta"]["content"].as_str()?;
        Some(text.to_owned())
    });
    texts.collect()
}

#[tokio::test(start_paused = true)]
async fn idle_workers_take_turns() {
    let ([one, two], gateway) = workers(&[]).await;
    let _one = one.answer_all(tokens("1"), FinishReason::EndId);
    let _two = two.answer_all(tokens("2"), FinishReason::EndId);
    let mut texts = String::new();
    for _ in 0..20 {
        let answer = gateway.post(PATH, &chat(json!({}))).await;
        texts.push_str(&content(&answer, false));
    }
    assert!(
        ["12".repeat(10), "21".repeat(10)].contains(&texts),
        "{texts}"
    );
}

/// What becomes of the first worker's request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    KilledAfterTokens,
    Full,
    Draining,
    Cancelled,
}

#[tokio::test(start_paused = true)]
async fn a_request_of_which_nothing_was_sent_goes_to_another_worker() {
    for (fault, stream, reason) in [
        (Fault::Killed, true, "unavailable"),
        (Fault::Killed, false, "unavailable"),
        // An answer in one piece has not begun for its client.
        (Fault::KilledAfterTokens, false, "unavailable"),
        (Fault::Full, true, "full"),
        (Fault::Draining, true, "unavailable"),
        (Fault::Cancelled, false, "unavailable"),
    ] {
        let (mut workers, gateway) = workers(&[]).await;
        let serve = async {
            let (place, first) = either(&mut workers).await;
            match fault {
                Fault::Killed => workers[place].kill(),
                Fault::KilledAfterTokens => {
                    first.tokens(&tokens("lost")).await;
                    // What was sent before it is read before it.
                    first
                        .fail(Code::Unavailable, "the worker is going down")
                        .await;
                    workers[place].kill();
                }
                Fault::Full => first.fail(Code::ResourceExhausted, "full").await,
                Fault::Draining => first.fail(Code::Unavailable, "draining").await,
                Fault::Cancelled => first.finish(&[], FinishReason::Cancelled).await,
            }
            let second = workers[1 - place].next_request().await;
            second.finish(&tokens("ok"), FinishReason::EndId).await;
            (first.message, second.message)
        };
        let body = chat(json!({"stream": stream, "temperature": 1.5, "logprobs": true}));
        let (answer, (first, second)) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.status, 200, "{fault:?}");
        assert_eq!(content(&answer, stream), "ok", "{fault:?}");
        // The seed too: the same answer, whoever gives it.
        assert_eq!(without_handle(first), without_handle(second));
        assert!(retries(&gateway, reason).await, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_prompts_and_choices_go_together() {
    let (mut workers, gateway) = workers(&[]).await;
    let body = json!({"model": "m", "prompt": ["a", "b"], "n": 2, "max_tokens": 4});
    let serve = async {
        let (place, first) = either(&mut workers).await;
        let second = workers[place].next_request().await;
        // One prompt is done, the other is refused: both begin anew.
        for sequence in [0, 1] {
            let last = sequence == 1;
            let row = inflight_testkit::worker::row;
            let reason = FinishReason::Length;
            let lost = tokens("lost");
            first
                .rows(row(first.handle, sequence, &lost, reason, last))
                .await;
        }
        second.fail(Code::ResourceExhausted, "full").await;
        for _ in 0..2 {
            let again = workers[1 - place].next_request().await;
            for (sequence, text) in [(0, "x"), (1, "y")] {
                let row = inflight_testkit::worker::row;
                let (text, reason) = (tokens(text), FinishReason::EndId);
                again
                    .rows(row(again.handle, sequence, &text, reason, sequence == 1))
                    .await;
            }
        }
    };
    let (answer, ()) = tokio::join!(gateway.post("/v1/completions", &body), serve);
    let answer = answer.json();
    let texts: Vec<_> = (0..4)
        .map(|index| answer["choices"][index]["text"].clone())
        .collect();
    assert_eq!(texts, ["x", "y", "x", "y"]);
    // Each with its end token, and none of the lost ones.
    assert_eq!(answer["usage"]["completion_tokens"], 8);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_begun_goes_nowhere_where_that_is_turned_off() {
    let (mut workers, gateway) = workers(&["--max-resumes", "0"]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, request) = either(&mut workers).await;
        request.tokens(&tokens("a")).await;
        place
    };
    let (mut stream, place) = tokio::join!(client.open(PATH, &body), serve);
    stream.next().await;
    workers[place].kill();
    let rest = stream.rest().await;
    assert!(
        rest[rest.len() - 2].contains("service_unavailable"),
        "{rest:?}"
    );
    // The first that the other worker gets is a request of somebody else.
    let serve = async {
        let request = workers[1 - place].next_request().await;
        request.finish(&tokens("b"), FinishReason::EndId).await;
        request.message.id
    };
    let request = http::Request::post(PATH)
        .header("host", "gateway")
        .header("x-request-id", "another")
        .header("content-type", "application/json")
        .body(chat(json!({})).to_string().into())
        .unwrap();
    let mut client = Client::connect(gateway.address).await;
    let (response, id) = tokio::join!(client.send(request), serve);
    assert_eq!((response.status().as_u16(), id.as_str()), (200, "another"));
}

#[tokio::test(start_paused = true)]
async fn what_would_fail_again_and_what_failed_often_goes_no_further() {
    for (code, most, status) in [
        (Code::ResourceExhausted, 3, 503),
        (Code::Unavailable, 3, 503),
        (Code::InvalidArgument, 1, 400),
        (Code::DeadlineExceeded, 1, 504),
        (Code::Internal, 1, 500),
    ] {
        let (all, gateway) = workers::<4>(&[]).await;
        let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
        for (place, mut worker) in all.into_iter().enumerate() {
            let sender = sender.clone();
            tokio::spawn(async move {
                loop {
                    worker.next_request().await.fail(code, "no").await;
                    sender.send(place).unwrap();
                }
            });
        }
        let answer = gateway.post(PATH, &chat(json!({}))).await;
        assert_eq!(answer.status, status, "{code}");
        assert_eq!(answer.headers.contains_key("retry-after"), status == 503);
        let mut places = Vec::new();
        for _ in 0..most {
            places.push(asked.recv().await.unwrap());
        }
        assert!(asked.try_recv().is_err(), "{code}");
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), most, "{code}: no worker twice");
    }
}

/// Waits for this readiness, at most the 2 s in which a silent worker must be noticed.
async fn readiness_within_two_seconds(gateway: &Gateway, status: u16) {
    let begun = Instant::now();
    gateway.wait_for_readiness(status).await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_is_not_ready_and_a_slow_one_loses_nothing() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let proxy = HoldingProxy::start(worker.address);
    let gateway = Gateway::start(&[proxy.address], &[]).await.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    proxy.hold();
    readiness_within_two_seconds(&gateway, 503).await;
    let health = gateway.get("/health/ready").await.json();
    assert_eq!(
        health["workers"][0]["reason"],
        "the server has stopped answering"
    );
    let refused = gateway.post(PATH, &body).await;
    assert_eq!(
        (refused.status, &refused.headers["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    // It was only slow: the stream that had begun goes on.
    proxy.release();
    readiness_within_two_seconds(&gateway, 200).await;
    request.finish(&tokens("b"), FinishReason::EndId).await;
    assert_eq!(stream.rest().await.last().unwrap(), "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn a_silent_workers_requests_go_elsewhere_and_are_stopped_there() {
    let (mut workers, proxies, gateway) = behind_proxies(byte_model).await;
    let serve = async {
        let (place, first) = either(&mut workers).await;
        proxies[place].hold();
        let second = workers[1 - place].next_request().await;
        second.finish(&tokens("ok"), FinishReason::EndId).await;
        proxies[place].release();
        let stop = workers[place].next_request().await;
        assert_eq!((stop.stop, stop.handle), (true, first.handle));
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(content(&answer, false), "ok");
    assert!(retries(&gateway, "silent").await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_worker_that_stays_silent_ends_with_an_error() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let proxy = HoldingProxy::start(worker.address);
    let extra = ["--worker-silence-s", "0.2", "--resume-wait-s", "0"];
    let gateway = Gateway::start(&[proxy.address], &extra).await.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        worker.next_request().await.tokens(&tokens("a")).await;
        proxy.hold();
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    let rest = stream.rest().await;
    assert!(
        rest[rest.len() - 2].contains("service_unavailable"),
        "{rest:?}"
    );
    assert_eq!(rest.last().unwrap(), "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn a_silent_triton_is_not_ready() {
    let triton = ScriptedTriton::start([text_model("t")]).await;
    let proxy = HoldingProxy::start(triton.address);
    let gateway = Gateway::start(&[proxy.address], &[]).await.ready().await;
    proxy.hold();
    readiness_within_two_seconds(&gateway, 503).await;
    proxy.release();
    readiness_within_two_seconds(&gateway, 200).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_token_that_takes_too_long_is_a_timeout_and_stops_the_work() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let extra = ["--first-token-timeout-s", "1"];
    let gateway = Gateway::start(&[worker.address], &extra)
        .await
        .ready()
        .await;
    for stream in [false, true] {
        let serve = async {
            let request = worker.next_request().await;
            let stop = worker.next_request().await;
            assert_eq!((stop.stop, stop.handle), (true, request.handle));
        };
        let body = chat(json!({"stream": stream}));
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.status, 504);
        assert_eq!(answer.json()["error"]["code"], "timeout");
    }
    // An answer in one piece may take longer than its first token.
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        request.finish(&tokens("b"), FinishReason::EndId).await;
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(content(&answer, false), "ab");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_sends_more_than_was_asked_ends_the_request() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 3}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("abc")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    request.tokens(&tokens("d")).await;
    let rest = stream.rest().await;
    assert!(rest[rest.len() - 2].contains("\"error\""), "{rest:?}");
    let stop = worker.next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, request.handle));
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_refused_for_a_false_hash_and_for_absurd_names() {
    let honest = ScriptedWorker::start(byte_model()).await;
    let honest_address = honest.address;
    let _honest = honest.answer_all(tokens("ok"), FinishReason::EndId);
    let mut model = byte_model();
    for (name, data) in &mut model.files {
        if name == "tokenizer.json" {
            // Two letters trade places.
            let text = String::from_utf8(data.to_vec()).unwrap();
            let text = text
                .replace("\"o\":111", "\"o\":0x")
                .replace("\"k\":107", "\"k\":111");
            *data = text.replace("\"o\":0x", "\"o\":107").into();
        }
    }
    let liar = ScriptedWorker::start(model).await;
    let liar_address = liar.address;
    let _liar = liar.answer_all(tokens("ok"), FinishReason::EndId);
    let alone = Gateway::start(&[liar_address], &[]).await;
    let reason = alone.refusal().await;
    assert!(
        reason.contains("do not match their content hash"),
        "{reason}"
    );
    // Beside an honest worker of the same hash its files are not read again: whichever of the two
    // answers, the text is that of the files that match.
    let both = Gateway::start(&[liar_address, honest_address], &[]).await;
    let both = both.ready().await;
    for _ in 0..2 {
        let answer = both.post(PATH, &chat(json!({}))).await;
        assert_eq!(content(&answer, false), "ok");
    }
    for (name, words) in [
        ("x".repeat(3 << 20), "longer than 256 bytes"),
        ("a\nlog line".to_owned(), "control characters"),
    ] {
        let mut model = byte_model();
        model.description.served_model_name = name;
        let worker = ScriptedWorker::start(model).await;
        let gateway = Gateway::start(&[worker.address], &[]).await;
        let reason = gateway.refusal().await;
        assert!(reason.contains(words) && reason.len() < 200, "{reason}");
    }
}
