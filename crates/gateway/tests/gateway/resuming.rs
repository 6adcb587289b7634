//! Answers that have begun and continue at another worker, from the token where they were.

use std::time::Duration;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker, failed_row, join, row};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use crate::support::{Client, Gateway, PATIENCE, Stream, behind_proxies, byte_model, chat};

const PATH: &str = "/v1/chat/completions";

pub(crate) fn resuming_model() -> ScriptedModel {
    let mut model = byte_model();
    model.description.capabilities.push("resume".to_owned());
    model
}

async fn workers<const N: usize>(extra: &[&str]) -> ([ScriptedWorker; N], Gateway) {
    let mut workers = Vec::new();
    for _ in 0..N {
        workers.push(ScriptedWorker::start(resuming_model()).await);
    }
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
    let gateway = Gateway::start(&addresses, extra).await.all_ready().await;
    (workers.try_into().expect("as many as asked"), gateway)
}

async fn either(workers: &mut [ScriptedWorker; 2]) -> (usize, Received) {
    let [one, two] = workers;
    tokio::select! {
        request = one.next_request() => (0, request),
        request = two.next_request() => (1, request),
    }
}

/// What a request says that its sequences have generated.
fn generated(message: &ModelInferRequest) -> (Vec<i32>, Vec<i32>) {
    let inputs = Tensors::inputs(message).unwrap();
    let values = |name| match inputs.get(name) {
        Some(tensor) => tensor.values::<i32>().unwrap(),
        None => Vec::new(),
    };
    (
        values(names::GENERATED_IDS),
        values(names::GENERATED_LENGTHS),
    )
}

/// A request as it was sent first: without its handle, and without what was generated.
fn as_first(mut message: ModelInferRequest) -> ModelInferRequest {
    for name in [
        names::HANDLE,
        names::GENERATED_IDS,
        names::GENERATED_LENGTHS,
    ] {
        let place = message.inputs.iter().position(|input| input.name == name);
        if let Some(place) = place {
            message.inputs.remove(place);
            message.raw_input_contents.remove(place);
        }
    }
    message
}

/// The text of one choice of a stream that ended well.
fn text(events: &[String], choice: usize) -> String {
    assert_eq!(events.last().unwrap(), "[DONE]", "{events:?}");
    let mut text = String::new();
    for event in &events[..events.len() - 1] {
        let event: Value = serde_json::from_str(event).unwrap();
        for part in event["choices"].as_array().unwrap() {
            if part["index"] == choice {
                text += part["delta"]["content"].as_str().unwrap_or_default();
            }
        }
    }
    text
}

/// The events up to the first with this mark.
async fn until(stream: &mut Stream, mark: &str) -> Vec<String> {
    let mut events = Vec::new();
    while !events
        .last()
        .is_some_and(|event: &String| event.contains(mark))
    {
        events.push(stream.next().await.unwrap());
    }
    events
}

async fn counts(gateway: &Gateway, line: &str) -> bool {
    let page = gateway.get("/metrics").await.body;
    String::from_utf8(page.to_vec())
        .unwrap()
        .contains(&format!("inflight_gateway_{line}\n"))
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_at_another_worker_from_the_token_where_it_was() {
    let (mut workers, gateway) = workers(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({
        "stream": true, "stream_options": {"include_usage": true}, "stop": ["xyz"], "seed": 7,
    }));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        // What may become a stop string waits in the gateway, and continues there.
        first.tokens(&tokens("Hello x")).await;
        (place, first)
    };
    let (mut stream, (place, first)) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = until(&mut stream, "\"content\":\"o\"").await;
    workers[place].kill();
    let serve = async {
        let second = workers[1 - place].next_request().await;
        assert_eq!(generated(&second.message), (tokens("Hello x"), vec![7]));
        assert_eq!(as_first(second.message.clone()), as_first(first.message));
        second.finish(&tokens("ylo"), FinishReason::EndId).await;
    };
    let (rest, ()) = tokio::join!(stream.rest(), serve);
    events.extend(rest);
    let usage = events.iter().find_map(|event| {
        let event: Value = serde_json::from_str(event).ok()?;
        event["usage"]["completion_tokens"].as_u64()
    });
    assert_eq!(usage, Some(11), "the end token counts, and none twice");
    let chunks: Vec<String> = events
        .into_iter()
        .filter(|event| !event.contains("\"choices\":[]"))
        .collect();
    assert_eq!(text(&chunks, 0), "Hello xylo");
    assert!(counts(&gateway, "resumes_total{reason=\"unavailable\"} 1").await);
    assert!(counts(&gateway, "resumes_failed_total 0").await);
}

#[tokio::test(start_paused = true)]
async fn each_choice_goes_on_by_itself_and_one_that_has_ended_does_not() {
    let (mut workers, gateway) = workers(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "n": 3}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        let rows = [
            row(
                first.handle,
                0,
                &tokens("ab"),
                FinishReason::NotFinished,
                false,
            ),
            row(first.handle, 1, &tokens("done"), FinishReason::EndId, false),
        ];
        first.rows(join(&rows)).await;
        place
    };
    let (mut stream, place) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = until(&mut stream, "stop").await;
    workers[place].kill();
    let serve = async {
        let second = workers[1 - place].next_request().await;
        assert_eq!(generated(&second.message), (tokens("ab"), vec![2, -1, 0]));
        let rows = [
            row(second.handle, 2, &tokens("new"), FinishReason::EndId, false),
            row(second.handle, 0, &tokens("c"), FinishReason::EndId, true),
        ];
        second.rows(join(&rows)).await;
    };
    let (rest, ()) = tokio::join!(stream.rest(), serve);
    events.extend(rest);
    for (choice, expected) in ["abc", "done", "new"].into_iter().enumerate() {
        assert_eq!(text(&events, choice), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_stop_string_has_ended_is_whole_though_its_worker_was_lost() {
    for stream in [false, true] {
        let (mut workers, gateway) = workers(&[]).await;
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stop": "op", "stream": stream}));
        let tokens = tokens("hop");
        let serve = async {
            let (_, request) = either(&mut workers).await;
            // The gateway reads both before it has asked the worker to stop.
            let said = row(request.handle, 0, &tokens, FinishReason::NotFinished, false);
            let lost = failed_row(request.handle, Code::Unavailable, "shutting down");
            request.rows(join(&[said, lost])).await;
        };
        let answered = async { tokio::join!(client.post(PATH, &body), serve).0 };
        let answer = tokio::time::timeout(PATIENCE, answered).await;
        let answer = answer.expect("the answer ends");
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(
            text.contains("\"h\"") && text.contains("\"stop\""),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_one_piece_goes_on_from_its_last_token_and_says_so_in_a_header() {
    let (mut workers, gateway) = workers(&[]).await;
    let body = chat(json!({}));
    let serve = async {
        // More losses than may follow each other without a token.
        for said in 0..4 {
            let (_, request) = either(&mut workers).await;
            assert_eq!(generated(&request.message).0, tokens(&"abcd"[..said]));
            request.tokens(&tokens(&"abcd"[said..=said])).await;
            request.fail(Code::Unavailable, "shutting down").await;
        }
        let (_, last) = either(&mut workers).await;
        last.tokens(&tokens("e")).await;
        last.finish(&tokens("f"), FinishReason::EndId).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "abcdef");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 7);
    let header = answer.headers["x-inflight-resumed"].to_str().unwrap();
    assert!(
        header.starts_with("times=4, replayed=0, tokens="),
        "{header}"
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_of_an_answer_in_one_piece_come_early_only_where_that_helps() {
    for (extra, fields, early, may_wait) in [
        (&[][..], json!({}), true, true),
        (&["--max-resumes", "0"], json!({}), false, false),
        // These take memory while they wait, and a stop string ends the answer.
        (&[], json!({"logprobs": true}), true, false),
        (&[], json!({"stop": "x"}), true, false),
    ] {
        let ([mut worker], gateway) = workers(extra).await;
        let serve = async {
            let request = worker.next_request().await;
            let inputs = Tensors::inputs(&request.message).unwrap();
            let streaming = inputs.get("streaming").unwrap().values::<bool>();
            assert_eq!(streaming.unwrap(), [early], "{extra:?} {fields}");
            let asked = request.message.parameters.get(names::MAY_WAIT);
            assert_eq!(asked.is_some(), may_wait, "{extra:?} {fields}");
            request.fail(Code::Internal, "enough").await;
        };
        let body = chat(fields.clone());
        let (_, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_workers_streams_go_on_elsewhere_and_what_it_says_later_changes_nothing() {
    let (mut workers, proxies, gateway) = behind_proxies(resuming_model).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        first.tokens(&tokens("a")).await;
        (place, first)
    };
    let (mut stream, (place, first)) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = until(&mut stream, "\"a\"").await;
    proxies[place].hold();
    let serve = async {
        let second = workers[1 - place].next_request().await;
        assert_eq!(generated(&second.message), (tokens("a"), vec![1]));
        second.tokens(&tokens("b")).await;
        first.tokens(&tokens("too late")).await;
        second
    };
    let (more, second) = tokio::join!(until(&mut stream, "\"b\""), serve);
    events.extend(more);
    proxies[place].release();
    let stop = workers[place].next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, first.handle));
    second.finish(&tokens("c"), FinishReason::EndId).await;
    events.extend(stream.rest().await);
    assert_eq!(text(&events, 0), "abc");
    assert!(counts(&gateway, "resumes_total{reason=\"silent\"} 1").await);
    // Nothing had come for a while when it was noticed.
    assert!(counts(&gateway, "resume_pause_seconds_bucket{le=\"0.256\"} 0").await);
}

#[tokio::test(start_paused = true)]
async fn what_moved_before_an_output_was_shown_leaves_a_silent_worker_as_well() {
    let (mut workers, proxies, gateway) = behind_proxies(resuming_model).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        // The gateway reads both at once.
        let said = row(
            first.handle,
            0,
            &tokens("a"),
            FinishReason::NotFinished,
            false,
        );
        let lost = failed_row(first.handle, Code::Unavailable, "shutting down");
        first.rows(join(&[said, lost])).await;
        let second = workers[1 - place].next_request().await;
        assert_eq!(generated(&second.message), (tokens("a"), vec![1]));
        proxies[1 - place].hold();
        let held = Instant::now();
        let again = workers[place].next_request().await;
        assert!(held.elapsed() < Duration::from_secs(3));
        assert_eq!(generated(&again.message), (tokens("a"), vec![1]));
        again.finish(&tokens("b"), FinishReason::EndId).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(text(&stream.rest().await, 0), "ab");
}

/// A file of workers, as an operator changes it.
pub(crate) struct WorkerFile(std::path::PathBuf);

impl WorkerFile {
    pub(crate) fn new(name: &str) -> Self {
        let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub(crate) fn write<'a>(&self, workers: impl IntoIterator<Item = &'a ScriptedWorker>) {
        let lines = workers.into_iter().map(|one| format!("{}\n", one.address));
        // As a whole, or the gateway may read half of it.
        let new = self.0.join("new");
        std::fs::write(&new, lines.collect::<String>()).unwrap();
        std::fs::rename(&new, self.0.join("workers")).unwrap();
    }

    pub(crate) async fn gateway(&self, extra: &[&str]) -> Gateway {
        let file = self.0.join("workers");
        let options = [&["--worker-file", file.to_str().unwrap()], extra].concat();
        let gateway = Gateway::start(&[], &options).await.ready().await;
        gateway.all_ready().await
    }
}

/// A stream that has said `a`, and whose worker was taken out since.
struct TakenOut {
    file: WorkerFile,
    gateway: Gateway,
    stream: Stream,
    had: ScriptedWorker,
    first: Received,
    other: ScriptedWorker,
    client: Client,
}

impl TakenOut {
    async fn start(name: &str) -> Self {
        let mut workers = [
            ScriptedWorker::start(resuming_model()).await,
            ScriptedWorker::start(resuming_model()).await,
        ];
        let file = WorkerFile::new(name);
        file.write(&workers);
        let gateway = file.gateway(&[]).await;
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stream": true}));
        let serve = async {
            let (place, first) = either(&mut workers).await;
            first.tokens(&tokens("a")).await;
            (place, first)
        };
        let (stream, (place, first)) = tokio::join!(client.open(PATH, &body), serve);
        file.write([&workers[1 - place]]);
        let [one, two] = workers;
        let (had, other) = if place == 0 { (one, two) } else { (two, one) };
        Self {
            file,
            gateway,
            stream,
            had,
            first,
            other,
            client,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_taken_out_hands_its_streams_over_unless_it_is_the_only_one() {
    let TakenOut {
        file,
        gateway,
        mut stream,
        mut had,
        first,
        mut other,
        client: _client,
    } = TakenOut::start("resuming").await;
    let second = other.next_request().await;
    assert_eq!(generated(&second.message), (tokens("a"), vec![1]));
    second.tokens(&tokens("b")).await;
    let stop = had.next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, first.handle));
    // Now it is the only one; its stream stays where it is.
    file.write([]);
    tokio::time::sleep(Duration::from_millis(600)).await;
    second.finish(&tokens("c"), FinishReason::EndId).await;
    let events = stream.rest().await;
    assert_eq!(text(&events, 0), "abc");
    assert!(counts(&gateway, "resumes_total{reason=\"leaving\"} 1").await);
    let ended = gateway.get("/console/requests").await.json();
    assert_eq!(ended["requests"][0]["workers"][1]["because"], "leaving");
}

#[tokio::test(start_paused = true)]
async fn a_request_hands_over_with_its_first_token_where_its_worker_was_taken_out_before() {
    let mut workers = [
        ScriptedWorker::start(resuming_model()).await,
        ScriptedWorker::start(resuming_model()).await,
    ];
    let file = WorkerFile::new("before");
    file.write(&workers);
    let gateway = file.gateway(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        file.write([&workers[1 - place]]);
        // It has heard of that before its prompt is computed.
        tokio::time::sleep(Duration::from_secs(2)).await;
        first.tokens(&tokens("a")).await;
        let second = workers[1 - place].next_request().await;
        assert_eq!(generated(&second.message), (tokens("a"), vec![1]));
        second.finish(&tokens("b"), FinishReason::EndId).await;
        first
    };
    let (mut stream, _first) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(text(&stream.rest().await, 0), "ab");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_leaves_keeps_its_stream_until_another_one_brings_something() {
    for code in [
        Some(Code::Unavailable),
        Some(Code::ResourceExhausted),
        Some(Code::Internal),
        None,
    ] {
        let TakenOut {
            file: _file,
            gateway,
            mut stream,
            had: _had,
            first,
            mut other,
            client: _client,
        } = TakenOut::start("keeping").await;
        let tried = other.next_request().await;
        // It still goes on where it is, and nothing of that is lost or comes twice.
        first.tokens(&tokens("b")).await;
        match code {
            Some(code) => tried.fail(code, "it ends as well").await,
            None => other.kill(),
        }
        let mut events = until(&mut stream, "\"b\"").await;
        first.finish(&tokens("c"), FinishReason::EndId).await;
        events.extend(stream.rest().await);
        assert_eq!(text(&events, 0), "abc", "{code:?}");
        assert!(!counts(&gateway, "resumes_total{reason=\"leaving\"} 1").await);
        assert!(counts(&gateway, "resumes_failed_total 0").await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_leaves_keeps_no_stream_for_longer_than_a_second() {
    let TakenOut {
        file: _file,
        gateway,
        mut stream,
        mut had,
        first,
        mut other,
        client: _client,
    } = TakenOut::start("letting_go").await;
    let second = other.next_request().await;
    // The other one has much to compute before its first token.
    let stop = had.next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, first.handle));
    second.finish(&tokens("b"), FinishReason::EndId).await;
    assert_eq!(text(&stream.rest().await, 0), "ab");
    assert!(counts(&gateway, "resumes_total{reason=\"leaving\"} 1").await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_waits_for_a_worker_and_ends_with_an_error_when_none_comes() {
    for (wait, returns) in [("20", true), ("0", false)] {
        let mut worker = ScriptedWorker::start(resuming_model()).await;
        let address = worker.address;
        let gateway = Gateway::start(&[address], &["--resume-wait-s", wait])
            .await
            .ready()
            .await;
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stream": true}));
        let serve = async {
            worker.next_request().await.tokens(&tokens("a")).await;
        };
        let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
        worker.kill();
        if !returns {
            let rest = stream.rest().await;
            assert!(
                rest[rest.len() - 2].contains("service_unavailable"),
                "{rest:?}"
            );
            assert!(counts(&gateway, "resumes_failed_total 1").await);
            continue;
        }
        let mut worker = ScriptedWorker::start_at(resuming_model(), address).await;
        let serve = async {
            let again = worker.next_request().await;
            assert_eq!(generated(&again.message), (tokens("a"), vec![1]));
            again.finish(&tokens("b"), FinishReason::EndId).await;
        };
        let (events, ()) = tokio::join!(stream.rest(), serve);
        assert_eq!(text(&events, 0), "ab");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_workers_ends_after_three_that_bring_nothing() {
    for (extra, most) in [
        (&[][..], 3),
        (&["--max-resumes", "1"], 2),
        (&["--max-resumes", "0"], 1),
    ] {
        let (all, gateway) = workers::<4>(extra).await;
        let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
        for mut worker in all {
            let sender = sender.clone();
            tokio::spawn(async move {
                loop {
                    let request = worker.next_request().await;
                    let (ids, _) = generated(&request.message);
                    if ids.is_empty() {
                        request.tokens(&tokens("a")).await;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    request.fail(Code::Unavailable, "poisoned").await;
                    let _ = sender.send(ids);
                }
            });
        }
        let mut client = Client::connect(gateway.address).await;
        let mut stream = client.open(PATH, &chat(json!({"stream": true}))).await;
        let rest = tokio::time::timeout(PATIENCE, stream.rest()).await.unwrap();
        assert!(
            rest[rest.len() - 2].contains("service_unavailable"),
            "{rest:?}"
        );
        for place in 0..most {
            let expected = if place == 0 { Vec::new() } else { tokens("a") };
            assert_eq!(asked.recv().await.unwrap(), expected);
        }
        assert!(asked.try_recv().is_err(), "{extra:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn workers_that_only_lost_their_connection_were_not_ended_by_the_request() {
    let (mut workers, gateway) = workers::<2>(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        first.tokens(&tokens("a")).await;
        place
    };
    let (mut stream, mut place) = tokio::join!(client.open(PATH, &body), serve);
    let mut last = None;
    // More than may end in a row.
    for _ in 0..5 {
        let address = workers[place].address;
        workers[place].kill();
        place = 1 - place;
        let again = workers[place].next_request().await;
        assert_eq!(generated(&again.message), (tokens("a"), vec![1]));
        // The same process: it loaded its model when the one before did.
        workers[1 - place] = ScriptedWorker::start_at(resuming_model(), address).await;
        while !counts(&gateway, &format!("worker_up{{worker=\"{address}\"}} 1")).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        last = Some(again);
    }
    let last = last.expect("there were losses");
    last.finish(&tokens("b"), FinishReason::EndId).await;
    assert_eq!(text(&stream.rest().await, 0), "ab");
}

#[tokio::test(start_paused = true)]
async fn a_full_worker_is_asked_again_until_it_has_room() {
    let ([mut first, mut second], gateway) = workers(&[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let request = first.next_request().await;
        request.tokens(&tokens("a")).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    first.kill();
    let serve = async {
        for _ in 0..5 {
            let request = second.next_request().await;
            assert_eq!(generated(&request.message), (tokens("a"), vec![1]));
            request.fail(Code::ResourceExhausted, "full").await;
        }
        let request = second.next_request().await;
        request.finish(&tokens("b"), FinishReason::EndId).await;
    };
    let (events, ()) = tokio::join!(stream.rest(), serve);
    assert_eq!(text(&events, 0), "ab");
    // It took the request once.
    assert!(counts(&gateway, "resumes_total{reason=\"full\"} 1").await);
    assert!(!counts(&gateway, "resumes_total{reason=\"unavailable\"} 1").await);
}

#[tokio::test(start_paused = true)]
async fn when_the_gateway_ends_nothing_goes_on_elsewhere() {
    let (mut workers, mut gateway) = workers(&["--shutdown-grace-s", "0"]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (_, request) = either(&mut workers).await;
        request.tokens(&tokens("a")).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    gateway.begin_shutdown();
    let rest = stream.rest().await;
    assert!(
        rest[rest.len() - 2].contains("service_unavailable"),
        "{rest:?}"
    );
    gateway.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_resume_repeats_what_was_said_and_goes_on() {
    // What the second worker generates, and what the client reads of it.
    for (again, rest) in [
        ("Hello world", Some(" world")),
        ("Help", None),
        ("Hel", None),
    ] {
        let mut workers = [
            ScriptedWorker::start(byte_model()).await,
            ScriptedWorker::start(byte_model()).await,
        ];
        let addresses = workers.each_ref().map(|worker| worker.address);
        let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
        let mut client = Client::connect(gateway.address).await;
        let body =
            chat(json!({"stream": true, "stream_options": {"include_usage": true}, "seed": 7}));
        let serve = async {
            let (place, first) = either(&mut workers).await;
            first.tokens(&tokens("Hello")).await;
            (place, first)
        };
        let (mut stream, (place, first)) = tokio::join!(client.open(PATH, &body), serve);
        let mut events = until(&mut stream, "\"o\"").await;
        workers[place].kill();
        let serve = async {
            let second = workers[1 - place].next_request().await;
            assert_eq!(as_first(second.message.clone()), as_first(first.message));
            for token in tokens(again) {
                second.tokens(&[token]).await;
            }
            second.finish(&[], FinishReason::EndId).await;
        };
        let (more, ()) = tokio::join!(stream.rest(), serve);
        match rest {
            Some(rest) => {
                events.extend(more);
                let usage = events.iter().find_map(|event| {
                    let event: Value = serde_json::from_str(event).ok()?;
                    event["usage"]["completion_tokens"].as_u64()
                });
                assert_eq!(usage, Some(again.len() as u64 + 1));
                events.retain(|event| !event.contains("\"choices\":[]"));
                assert_eq!(text(&events, 0), format!("Hello{rest}"));
            }
            None => {
                assert!(more[more.len() - 2].contains("another answer"), "{more:?}");
                assert!(counts(&gateway, "resumes_failed_total 1").await);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_repeats_all_and_ends_has_continued_the_answer() {
    let mut workers = [
        ScriptedWorker::start(byte_model()).await,
        ScriptedWorker::start(byte_model()).await,
    ];
    let addresses = workers.each_ref().map(|worker| worker.address);
    let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 5}));
    let serve = async {
        let (place, first) = either(&mut workers).await;
        first.tokens(&tokens("Hello")).await;
        place
    };
    let (mut stream, place) = tokio::join!(client.open(PATH, &body), serve);
    workers[place].kill();
    let serve = async {
        let second = workers[1 - place].next_request().await;
        second.finish(&tokens("Hello"), FinishReason::Length).await;
    };
    let (events, ()) = tokio::join!(stream.rest(), serve);
    assert_eq!(text(&events, 0), "Hello");
    assert!(counts(&gateway, "resumes_total{reason=\"unavailable\"} 1").await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_stays_where_it_is_when_other_workers_have_other_weights() {
    let start = async |weights: &str| {
        let mut model = resuming_model();
        model.description.weights = weights.to_owned();
        ScriptedWorker::start(model).await
    };
    let mut workers = [start("old").await, start("new").await];
    let addresses = workers.each_ref().map(|worker| worker.address);
    let gateway = Gateway::start(&addresses, &["--resume-wait-s", "0"]);
    let gateway = gateway.await.all_ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let (place, request) = either(&mut workers).await;
        request.tokens(&tokens("a")).await;
        place
    };
    let (mut stream, place) = tokio::join!(client.open(PATH, &body), serve);
    workers[place].kill();
    let rest = stream.rest().await;
    assert!(
        rest[rest.len() - 2].contains("service_unavailable"),
        "{rest:?}"
    );
}
