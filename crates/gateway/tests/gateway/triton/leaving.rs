//! Clients that leave, and servers that do.

use std::time::Duration;

use inflight_testkit::model::{END, tokens};
use inflight_testkit::proxy::HoldingProxy;
use inflight_testkit::triton::{Asked, ScriptedTriton};
use inflight_testkit::triton_models::{text_model, token_model, tokens_response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    CHAT, COMPLETIONS, Directory, completion, exchange, front, front_with_tokenizer, open, shown,
};
use crate::support::{Client, Gateway, PATIENCE, chat};
use crate::unread::{send_limited, windowed};

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_its_stream_at_the_server() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m"), text_model("t")]).await;
    for model in ["m", "t"] {
        for (stream, tokens_first) in [(false, false), (false, true), (true, false)] {
            let address = gateway.address;
            let body = completion(json!({"model": model, "stream": stream}));
            let waiting = tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                client.post(COMPLETIONS, &body).await
            });
            let asked = triton.next_request().await;
            if tokens_first && model == "m" {
                asked.respond(tokens_response(&tokens("a"))).await;
            }
            assert!(!asked.is_cancelled());
            waiting.abort();
            asked.cancelled().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_is_cancelled_at_its_deadline() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let mut sender = windowed(&gateway, 10).await;
    let body = chat(json!({"stream": true}));
    let serve = async {
        let asked = triton.next_request().await;
        let begun = Instant::now();
        asked.respond(tokens_response(&tokens("a"))).await;
        asked.cancelled().await;
        begun.elapsed()
    };
    let (response, took) = tokio::join!(send_limited(&mut sender, &body, 300), serve);
    assert_eq!(response.status(), 200);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_only_server_is_restarted_waits_for_it() {
    // Before its first response, and after it.
    for begins in [false, true] {
        let directory = Directory::new();
        let options = ["--tokenizer", directory.path()];
        let (mut triton, gateway) = front([token_model("m")], &options).await;
        let mut client = Client::connect(gateway.address).await;
        let body = completion(json!({"stream": true, "temperature": 0}));
        let serve = async {
            let asked = triton.next_request().await;
            if begins {
                asked.respond(tokens_response(&tokens("He"))).await;
            }
            triton.kill();
            gateway.wait_for("/health/ready", 503).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            triton.restart().await;
            let again = triton.next_request().await;
            again.respond(tokens_response(&tokens("Hello"))).await;
            again.finish(tokens_response(&[END])).await;
        };
        let (mut stream, ()) = tokio::join!(client.open(COMPLETIONS, &body), serve);
        let mut text = String::new();
        while text.len() < 5 {
            text.push_str(&shown(&mut stream).await);
        }
        assert_eq!(text, "Hello", "{begins}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_mid_stream_cancels_all_its_choices_and_nothing_else() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let mut other = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let begin = async |asked: &Asked| asked.respond(tokens_response(&tokens("o"))).await;
    let (mut others, under_way) = open(&mut triton, &mut other, (CHAT, &body), begin).await;
    let mut client = Client::connect(gateway.address).await;
    let body = completion(json!({"prompt": ["a", "b"], "n": 4, "stream": true}));
    let serve = async {
        let mut asked = Vec::new();
        for _ in 0..8 {
            let one = triton.next_request().await;
            one.respond(tokens_response(&tokens("a"))).await;
            asked.push(one);
        }
        asked
    };
    let (stream, asked) = tokio::join!(client.open(COMPLETIONS, &body), serve);
    client.leave();
    drop(stream);
    for asked in &asked {
        asked.cancelled().await;
    }
    assert!(!under_way.is_cancelled());
    under_way.finish(tokens_response(&[END])).await;
    assert_eq!(others.rest().await.last().unwrap(), "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_server_that_stays_silent_ends_with_an_error_in_time() {
    let directory = Directory::new();
    let mut triton = ScriptedTriton::start([token_model("m")]).await;
    let proxy = HoldingProxy::start(triton.address);
    let options = [
        ["--tokenizer", directory.path()],
        ["--worker-silence-s", "0.2"],
        ["--resume-wait-s", "0"],
    ];
    let gateway = Gateway::start(&[proxy.address], options.as_flattened()).await;
    let gateway = gateway.ready().await;
    let mut client = Client::connect(gateway.address).await;
    let body = completion(json!({"stream": true, "max_tokens": 50}));
    let begin = async |asked: &Asked| asked.respond(tokens_response(&tokens("a"))).await;
    let (mut stream, asked) = open(&mut triton, &mut client, (COMPLETIONS, &body), begin).await;
    assert_eq!(shown(&mut stream).await, "a");
    proxy.hold();
    let begun = Instant::now();
    // Tokens are a sign of life, although nothing that the server is asked reaches it.
    while begun.elapsed() < Duration::from_secs(2) {
        asked.respond(tokens_response(&tokens("b"))).await;
        assert_eq!(shown(&mut stream).await, "b");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let begun = Instant::now();
    let rest = stream.rest().await;
    assert!(
        rest[rest.len() - 2].contains("service_unavailable"),
        "{rest:?}"
    );
    assert_eq!(rest.last().unwrap(), "[DONE]");
    // 1.2 s by the option; HTTP/2's own pings would take 20 s.
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
}

/// Bytes of an HTTP/2 frame that resets a stream.
const RESET_FRAME: usize = 13;
/// Bytes that come for each stream after its end: four frames.
const LATE_BYTES: usize = 64 << 10;

/// Polls until there are so many bytes.
async fn reach(count: impl Fn() -> usize, bytes: usize) {
    let poll = async {
        while count() < bytes {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, poll).await;
    assert!(reached.is_ok(), "{} of {bytes}", count());
}

#[tokio::test(start_paused = true)]
async fn thousands_of_cancelled_streams_leave_those_on_their_connections_alone() {
    const ROUNDS: usize = 5;
    const CLIENTS: usize = 6;
    const PROMPTS: usize = 100;
    let mut triton = ScriptedTriton::start([token_model("m")]).await;
    let proxy = HoldingProxy::start(triton.address);
    let directory = Directory::new();
    let options = [
        ["--tokenizer", directory.path()],
        // The proxy holds probes up, too, for as long as this machine takes: the server is not to count as lost.
        ["--worker-silence-s", "60"],
    ];
    let gateway = Gateway::start(&[proxy.address], options.as_flattened()).await;
    let gateway = gateway.ready().await;
    // More requests than connections, so that each connection has some.
    let mut survivor = Client::connect(gateway.address).await;
    let body = completion(json!({"prompt": vec!["s"; 16], "stream": true}));
    let begin = async {
        let mut asked = Vec::new();
        for _ in 0..16 {
            asked.push(triton.next_request().await);
        }
        asked[0].respond(tokens_response(&tokens("s"))).await;
        asked
    };
    let (mut survivor, under_way) = tokio::join!(survivor.open(COMPLETIONS, &body), begin);
    let body = completion(json!({"prompt": vec!["x"; PROMPTS]}));
    for round in 0..ROUNDS {
        let mut clients = Vec::new();
        let mut asked = Vec::new();
        for _ in 0..CLIENTS {
            let (address, body) = (gateway.address, body.clone());
            clients.push(tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                client.post(COMPLETIONS, &body).await
            }));
            for _ in 0..PROMPTS {
                asked.push(triton.next_request().await);
            }
        }
        // What the server says before it has heard of the end crosses it on the wire.
        proxy.hold();
        for client in &clients {
            client.abort();
        }
        reach(|| proxy.held(), CLIENTS * PROMPTS * RESET_FRAME).await;
        for one in &asked {
            one.respond(tokens_response(&[97; LATE_BYTES / 4])).await;
        }
        reach(|| proxy.delivered(), CLIENTS * PROMPTS * LATE_BYTES).await;
        proxy.release();
        for one in &asked {
            one.cancelled().await;
        }
        let lost = under_way.iter().filter(|one| one.is_cancelled()).count();
        assert_eq!(lost, 0, "round {round}");
    }
    for one in under_way {
        one.finish(tokens_response(&[END])).await;
    }
    let rest = survivor.rest().await;
    assert_eq!(rest.last().unwrap(), "[DONE]");
    let ended = rest
        .iter()
        .filter(|event| event.contains("\"stop\""))
        .count();
    assert_eq!(ended, 16, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_ends_its_requests_keeps_its_models_and_may_come_back() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    for _ in 0..2 {
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stream": true}));
        let begin = async |asked: &Asked| asked.respond(tokens_response(&tokens("a"))).await;
        let (mut stream, _asked) = open(&mut triton, &mut client, (CHAT, &body), begin).await;
        assert_eq!(shown(&mut stream).await, "");
        assert_eq!(shown(&mut stream).await, "a");
        let address = gateway.address;
        let body = chat(json!({}));
        let waiting =
            tokio::spawn(async move { Client::connect(address).await.post(CHAT, &body).await });
        let _waiting = triton.next_request().await;
        triton.kill();
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 2, "{rest:?}");
        let error: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!(error["error"]["code"], "service_unavailable");
        assert_eq!(rest[1], "[DONE]");
        let answer = waiting.await.unwrap();
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key("retry-after"));

        gateway.wait_for_readiness(503).await;
        let health = gateway.get("/health/ready").await.json();
        let reason = health["workers"][0]["reason"].as_str().unwrap();
        assert!(!reason.is_empty());
        let answer = gateway.post(CHAT, &chat(json!({}))).await;
        assert_eq!(answer.status, 503, "its name is known");
        assert_eq!(gateway.get("/v1/models/m").await.status, 200);
        let answer = gateway.post(CHAT, &chat(json!({"model": "other"}))).await;
        assert_eq!(answer.status, 404);

        triton.restart().await;
        gateway.wait_for_readiness(200).await;
        let serve = async |asked: Asked| asked.finish(tokens_response(&tokens("b"))).await;
        let body = chat(json!({}));
        let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "b");
    }
}
