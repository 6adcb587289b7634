//! What a key may use, and what answers tell of that and of their time.

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Answer, Client, Gateway, byte_model, chat, pair};

const CHAT: &str = "/v1/chat/completions";

/// A gateway before `worker` whose key `k` has these limits.
async fn limited(worker: &ScriptedWorker, limits: &str) -> Gateway {
    let options = ["--api-key", "k", "--key-limits", limits];
    Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await
}

fn request(path: &str, body: &Value) -> Request<Full<bytes::Bytes>> {
    Request::post(path)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .header("x-api-key", "k")
        .body(Full::from(body.to_string()))
        .unwrap()
}

async fn post(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    let mut client = Client::connect(gateway.address).await;
    client.whole(request(path, body)).await
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.headers.get(header);
    let value = value.unwrap_or_else(|| panic!("no `{header}` in {:?}", answer.headers));
    value.to_str().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_and_the_next_one_told_when_to_come_back() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = limited(&worker, "requests=2").await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    for left in [1, 0] {
        let answer = post(&gateway, CHAT, &chat(json!({}))).await;
        assert_eq!(answer.status, 200);
        assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 2);
        assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
        assert!(!answer.headers.contains_key("x-ratelimit-limit-tokens"));
    }
    let answer = post(&gateway, CHAT, &chat(json!({}))).await;
    assert_eq!(answer.status, 429);
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("requests"), &json!("rate_limit_exceeded"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("requests per min (RPM): Limit 2."),
        "{message}"
    );
    let millis = number(&answer, "retry-after-ms");
    assert!((29_000..=30_000).contains(&millis), "{millis}");
    assert_eq!(number(&answer, "retry-after"), millis.div_ceil(1000));
    let reset = answer.headers["x-ratelimit-reset-requests"]
        .to_str()
        .unwrap();
    assert!(reset == "1m0s" || reset.starts_with("59."), "{reset}");
    // Anthropic's clients read theirs; nothing that no worker does is counted.
    let answer = post(&gateway, "/v1/messages/count_tokens", &json!({})).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["type"]),
        (429, &json!("rate_limit_error"))
    );
    assert_eq!(number(&answer, "anthropic-ratelimit-requests-remaining"), 0);
    assert_eq!(gateway.get("/health/ready").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_prompts_and_answers_are_counted() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = limited(&worker, "tokens=1000,concurrent=9").await;
    let _worker = worker.answer_all(tokens("an answer of many tokens"), FinishReason::EndId);
    let started = Instant::now();
    // What has been used, and at most what has come back of it since.
    let left = |used: u64| {
        let back = 1 + started.elapsed().as_millis() as u64 * 1000 / 60_000;
        1000 - used..=1000 - used + back
    };
    let whole = post(&gateway, CHAT, &chat(json!({}))).await;
    let usage = whole.json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(usage > 2);
    let found = number(&whole, "x-ratelimit-remaining-tokens");
    assert!(left(usage).contains(&found), "{found}");
    let stream = post(&gateway, CHAT, &chat(json!({"stream": true}))).await;
    assert_eq!(stream.status, 200);
    let prompt = whole.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    let found = number(&stream, "x-ratelimit-remaining-tokens");
    assert!(
        left(usage + prompt).start() <= &found,
        "its answer does not count yet"
    );
    // A stream is counted once its last byte is gone, which its client may know first.
    let counted = async {
        loop {
            let next = post(&gateway, "/tokenize", &json!({"model": "m", "prompt": ""})).await;
            if left(2 * usage).contains(&number(&next, "x-ratelimit-remaining-tokens")) {
                break;
            }
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, counted)
        .await
        .expect("the stream's tokens are counted");
}

#[tokio::test(start_paused = true)]
async fn a_key_has_so_many_requests_open_at_once() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = limited(&worker, "concurrent=1").await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let opening = client.send(request(CHAT, &body));
    let answering = async {
        let received = worker.next_request().await;
        received.tokens(&tokens("o")).await;
        received
    };
    let (response, received) = tokio::join!(opening, answering);
    assert_eq!(response.status(), 200);
    let refused = post(&gateway, CHAT, &body).await;
    assert_eq!(refused.status, 429);
    let message = refused.json()["error"]["message"].to_string();
    assert!(
        message.contains("concurrent requests: Limit 1."),
        "{message}"
    );
    received.finish(&tokens("k"), FinishReason::EndId).await;
    drop(response);
    drop(client);
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let again = async {
        while post(&gateway, CHAT, &body).await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, again)
        .await
        .expect("its place is free");
}

#[tokio::test(start_paused = true)]
async fn answers_tell_where_their_time_went() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    for (path, body, parts) in [
        (CHAT, chat(json!({})), "gateway upstream total"),
        (
            CHAT,
            chat(json!({"stream": true})),
            "gateway upstream first_token",
        ),
        ("/tokenize", json!({"prompt": "Hi"}), "gateway total"),
        (CHAT, json!({}), "total"),
    ] {
        let answer = gateway.post(path, &body).await;
        let header = answer.headers["server-timing"].to_str().unwrap();
        let times = header.split(", ").map(|part| {
            let (name, time) = part.split_once(";dur=").unwrap();
            (name, time.parse::<f64>().unwrap())
        });
        let times: Vec<_> = times.collect();
        let names: Vec<_> = times.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.join(" "), parts);
        let last = times.last().unwrap().1;
        assert!(
            times
                .iter()
                .all(|(_, time)| (0.0..=last + 0.2).contains(time)),
            "{header}"
        );
        assert!(!answer.headers.contains_key("x-ratelimit-limit-requests"));
    }
    assert!(
        !gateway
            .get("/health/live")
            .await
            .headers
            .contains_key("server-timing")
    );
}

#[tokio::test(start_paused = true)]
async fn each_sequence_of_a_request_counts_as_open() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = limited(&worker, "concurrent=3").await;
    let mut worker = worker;
    let many = |prompts: usize, n: usize| json!({"model": "m", "prompt": vec!["Hi"; prompts], "n": n, "max_tokens": 1});
    // Never, whatever ends meanwhile.
    let refused = post(&gateway, "/v1/completions", &many(2, 2)).await;
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["param"], "n");
    assert!(
        error["message"].as_str().unwrap().contains("`4` sequences"),
        "{error}"
    );

    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "n": 2}));
    let opening = client.send(request(CHAT, &body));
    let answering = async {
        let received = worker.next_request().await;
        received.tokens(&tokens("o")).await;
    };
    let (response, ()) = tokio::join!(opening, answering);
    assert_eq!(response.status(), 200);
    let refused = post(&gateway, CHAT, &body).await;
    assert_eq!(refused.status, 429, "two of three are open");
}

#[tokio::test(start_paused = true)]
async fn a_key_s_cached_prompts_are_its_own_unless_they_are_shared() {
    for (options, is_salted) in [
        (vec!["--api-key", "k"], true),
        (vec!["--api-key", "k", "--share-prompt-cache"], false),
        (vec![], false),
    ] {
        let mut model = byte_model();
        model.description.capabilities.push("cache_salt".to_owned());
        let mut worker = ScriptedWorker::start(model).await;
        let gateway = Gateway::start(&[worker.address], &options)
            .await
            .ready()
            .await;
        let mut salts = Vec::new();
        for own in [json!({}), json!({"cache_salt": "mine"})] {
            let body = chat(own);
            let asking = post(&gateway, CHAT, &body);
            let answering = async {
                let received = worker.next_request().await;
                let inputs = Tensors::inputs(&received.message).unwrap();
                let salt = inputs.get("inflight_cache_salt");
                let salt = salt.map(|salt| salt.string().unwrap().to_owned());
                received.finish(&tokens("ok"), FinishReason::EndId).await;
                salt
            };
            let (answer, salt) = tokio::join!(asking, answering);
            assert_eq!(answer.status, 200);
            salts.push(salt);
        }
        let [plain, own] = salts.try_into().unwrap();
        assert_eq!(plain.is_some(), is_salted, "{options:?}");
        let prefix = plain.unwrap_or_default();
        assert_eq!(prefix.len(), if is_salted { 33 } else { 0 });
        assert_eq!(
            own,
            Some(format!("{prefix}mine")),
            "no client reaches another's part"
        );
    }
}
