//! What is let in: keys, hosts, origins, types of bodies, and heads that everybody reads alike.

use std::net::SocketAddr;
use std::path::PathBuf;

use inflight_kserve::step::FinishReason;
use inflight_testkit::memory::connect;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Gateway, PATIENCE, byte_model, chat, pair};

const PATH: &str = "/v1/chat/completions";

/// Sends these bytes and returns all that comes until the other side has closed.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut socket = connect(address).unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = socket.read_to_string(&mut answer);
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("closed in time")
        .expect("not reset");
    answer
}

/// The status and the rest of an answer to a request with these lines of its head.
async fn ask(address: SocketAddr, line: &str, headers: &[&str], body: &str) -> (u16, String) {
    let mut request = format!("{line} HTTP/1.1\r\nconnection: close\r\n");
    for header in headers {
        request.push_str(&format!("{header}\r\n"));
    }
    if !body.is_empty() {
        request.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    request.push_str(&format!("\r\n{body}"));
    let answer = exchange(address, &request).await;
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.to_ascii_lowercase())
}

#[tokio::test(start_paused = true)]
async fn pages_of_other_origins_cannot_use_a_gateway_on_loopback() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let body = chat(json!({})).to_string();
    let post = format!("POST {PATH}");
    let json = "content-type: application/json";
    let localhost = format!("host: localhost:{}", gateway.address.port());
    let own = format!("origin: http://localhost:{}", gateway.address.port());
    for (headers, status, code) in [
        (&[&localhost, json][..], 200, ""),
        (&[&localhost, json, &own], 200, ""),
        (&["host: evil.example", json], 403, "host_not_allowed"),
        (
            &[&localhost, json, "origin: https://evil.example"],
            403,
            "origin_not_allowed",
        ),
        (&[&localhost], 415, "unsupported_media_type"),
        (
            &[&localhost, "content-type: text/plain"],
            415,
            "unsupported_media_type",
        ),
        (
            &[&localhost, json, "content-encoding: gzip"],
            415,
            "unsupported_media_type",
        ),
    ] {
        let (found, answer) = ask(gateway.address, &post, headers, &body).await;
        assert_eq!(found, status, "{headers:?}: {answer}");
        assert!(answer.contains(code), "{answer}");
        assert!(!answer.contains("access-control-"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_allowed_origins_can_send_what_they_announced_and_read_the_answer() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let options = [
        "--allowed-origin",
        "https://app.example",
        "--api-key",
        "right",
    ];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let origin = "origin: https://app.example";
    let preflight = [
        "host: localhost",
        origin,
        "access-control-request-method: POST",
        "access-control-request-headers: authorization,content-type",
    ];
    let line = format!("OPTIONS {PATH}");
    let (status, answer) = ask(gateway.address, &line, &preflight, "").await;
    assert_eq!(status, 200, "{answer}");
    for header in [
        "access-control-allow-origin: https://app.example",
        "access-control-allow-headers: authorization,content-type",
        "access-control-max-age: 600",
    ] {
        assert!(answer.contains(header), "{header} in {answer}");
    }
    assert!(answer.contains("post"), "{answer}");
    let body = chat(json!({})).to_string();
    let json = "content-type: application/json";
    for (key, expected) in [("right", 200), ("wrong", 401)] {
        let key = format!("authorization: Bearer {key}");
        let headers = ["host: localhost", origin, json, &key];
        let (status, answer) = ask(gateway.address, &format!("POST {PATH}"), &headers, &body).await;
        assert_eq!(status, expected, "{answer}");
        assert!(answer.contains("access-control-allow-origin: https://app.example"));
        assert!(
            answer.contains("access-control-expose-headers") && answer.contains("x-request-id")
        );
    }
    let other = ["host: localhost", "origin: https://evil.example", json];
    let (status, answer) = ask(gateway.address, &format!("POST {PATH}"), &other, &body).await;
    assert_eq!(status, 403);
    assert!(!answer.contains("access-control-allow-origin"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn heads_that_can_be_read_in_two_ways_are_refused_and_their_connection_ends() {
    let (_worker, gateway) = pair().await;
    let json = "content-type: application/json\r\n";
    let chunked = "2\r\n{}\r\n0\r\n\r\n";
    for (head, body) in [
        (String::new(), ""),
        ("host: a\r\nhost: a\r\n".to_owned(), ""),
        ("host: a\r\nhost: b\r\n".to_owned(), ""),
        ("host: a, b\r\n".to_owned(), ""),
        (
            format!("host: a\r\n{json}transfer-encoding: gzip, chunked\r\n"),
            chunked,
        ),
        (
            format!(
                "host: a\r\n{json}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"
            ),
            chunked,
        ),
    ] {
        let method = if body.is_empty() {
            "GET /v1/models"
        } else {
            "POST /v1/completions"
        };
        // What follows must not be answered: it may be a part of what came before.
        let request = format!(
            "{method} HTTP/1.1\r\n{head}\r\n{body}GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"
        );
        let answer = exchange(gateway.address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
        assert!(answer.contains("invalid_request_error"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
    // Both: the coding counts, and nothing after it is read.
    for lengths in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    ] {
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\n{json}{lengths}\r\n{chunked}\
             GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"
        );
        let answer = exchange(gateway.address, &request).await;
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_body_without_a_key_gets_an_answer_that_can_be_read() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let body = " ".repeat(30 << 20);
    let headers = ["host: localhost", "content-type: application/json"];
    let (status, answer) = ask(gateway.address, &format!("POST {PATH}"), &headers, &body).await;
    assert_eq!(status, 401);
    assert!(answer.contains("invalid_api_key"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn workers_are_named_to_holders_of_a_key_only() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let address = worker.address.to_string();
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let gateway = gateway.ready().await;
    let key = "authorization: Bearer right";
    for path in ["/metrics", "/health/ready"] {
        for (headers, shows) in [(&["host: a"][..], false), (&["host: a", key], true)] {
            let (status, answer) = ask(gateway.address, &format!("GET {path}"), headers, "").await;
            assert_eq!(status, 200, "{answer}");
            assert_eq!(answer.contains(&address), shows, "{path}: {answer}");
        }
        let wrong = ["host: a", "authorization: Bearer wrong"];
        let (status, _) = ask(gateway.address, &format!("GET {path}"), &wrong, "").await;
        assert_eq!(status, 401, "{path} does not help to guess");
    }
}

#[tokio::test(start_paused = true)]
async fn every_path_that_works_for_clients_needs_a_key() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let gateway = gateway.ready().await;
    let key = "authorization: Bearer right";
    let json = "content-type: application/json";
    for (line, body) in [
        ("POST /tokenize", r#"{"prompt": "Hi"}"#),
        ("POST /detokenize", r#"{"tokens": [72]}"#),
        ("GET /tokenizer_info", ""),
    ] {
        let (status, _) = ask(gateway.address, line, &["host: a", json], body).await;
        assert_eq!(status, 401, "{line}");
        let (status, answer) = ask(gateway.address, line, &["host: a", json, key], body).await;
        assert_eq!(status, 200, "{line}: {answer}");
    }
    for line in ["POST /rerank", "POST /v2/rerank", "POST /v2/models/m/infer"] {
        let (status, _) = ask(gateway.address, line, &["host: a", json], "{}").await;
        assert_eq!(status, 401, "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_keys_are_throttled_and_right_ones_are_not() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let gateway = gateway.ready().await;
    let mut throttled = 0;
    for _ in 0..60 {
        let wrong = ["host: a", "authorization: Bearer wrong"];
        match ask(gateway.address, "GET /v1/models", &wrong, "").await {
            (401, _) => {}
            (429, answer) => {
                assert!(answer.contains("retry-after: 1"), "{answer}");
                throttled += 1;
            }
            (other, answer) => panic!("{other}: {answer}"),
        }
    }
    assert!(throttled > 0);
    let right = ["host: a", "authorization: Bearer right"];
    let (status, _) = ask(gateway.address, "GET /v1/models", &right, "").await;
    assert_eq!(status, 200);
}

/// A file that is gone at the end of its test.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("inflight-keys-{}-{name}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_file_are_those_that_it_holds_now() {
    let file = KeyFile::new("reloaded", "# team a\none\n");
    let worker = ScriptedWorker::start(byte_model()).await;
    let options = ["--api-key-file", file.0.to_str().unwrap()];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    let status = async |key: &str| {
        let key = format!("authorization: Bearer {key}");
        let headers = ["host: a", &key];
        ask(gateway.address, "GET /v1/models", &headers, "").await.0
    };
    assert_eq!(status("one").await, 200);
    // A file that cannot be used leaves the keys as they are.
    file.write("not a key\n");
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    assert_eq!(status("one").await, 200);
    file.write("two\nthree\n");
    let changed = async {
        while status("three").await != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, changed)
        .await
        .expect("read again in time");
    assert_eq!(status("two").await, 200);
    assert_ne!(status("one").await, 200);
}
