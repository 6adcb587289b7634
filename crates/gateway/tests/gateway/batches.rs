//! `/v1/files`, `/v1/batches` and `/v1/messages/batches`: what clients of both APIs see of a batch's life.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, PATIENCE, byte_model, json_request};

const CHAT: &str = "/v1/chat/completions";

/// A directory for what is kept, which goes with it.
struct Data(PathBuf);

impl Data {
    fn new(name: &str) -> Self {
        let name = format!("inflight-data-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn option(&self) -> String {
        format!("--data-dir={}", self.0.display())
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn start(worker: &ScriptedWorker, data: &Data, extra: &[&str]) -> Gateway {
    let option = data.option();
    let options: Vec<&str> = std::iter::once(&*option)
        .chain(extra.iter().copied())
        .collect();
    Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await
}

/// A form with these fields, the file last.
fn form(fields: &[(&str, &str)], content: &[u8]) -> Request<Full<Bytes>> {
    let mut body = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    body.extend_from_slice(
        b"--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n",
    );
    body.extend_from_slice(content);
    body.extend_from_slice(b"\r\n--b--\r\n");
    Request::post("/v1/files")
        .header("host", "gateway")
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Full::from(body))
        .unwrap()
}

async fn send(gateway: &Gateway, request: Request<Full<Bytes>>) -> Answer {
    Client::connect(gateway.address).await.whole(request).await
}

async fn upload(gateway: &Gateway, content: &str) -> String {
    let answer = send(gateway, form(&[("purpose", "batch")], content.as_bytes())).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn line(custom_id: &str, body: &Value) -> String {
    json!({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}).to_string() + "\n"
}

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]})
}

async fn create(gateway: &Gateway, input: &str) -> Answer {
    let body = json!({"input_file_id": input, "endpoint": CHAT, "completion_window": "24h"});
    gateway.post("/v1/batches", &body).await
}

/// Waits until a batch is as `is` wants it.
async fn until(gateway: &Gateway, path: &str, is: impl Fn(&Value) -> bool) -> Value {
    let poll = async {
        loop {
            let batch = gateway.get(path).await.json();
            if is(&batch) {
                return batch;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, poll)
        .await
        .expect("the batch changes in time")
}

async fn ended(gateway: &Gateway, batch: &Value) -> Value {
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    until(gateway, &path, |batch| {
        ["completed", "failed", "cancelled"]
            .iter()
            .any(|end| batch["status"] == **end)
    })
    .await
}

async fn results(gateway: &Gateway, file: &Value) -> Vec<Value> {
    let content = gateway
        .get(&format!("/v1/files/{}/content", file.as_str().unwrap()))
        .await;
    assert_eq!(content.status, 200);
    let lines = std::str::from_utf8(&content.body).unwrap().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_run_and_each_line_has_its_answer() {
    let (data, worker) = (Data::new("run"), ScriptedWorker::start(byte_model()).await);
    let gateway = start(&worker, &data, &[]).await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let mut bad = chat("m");
    bad["temperature"] = json!("hot");
    let lines = [
        line("a", &chat("m")),
        line("b", &bad),
        line("c", &chat("nobody")),
    ]
    .concat();
    let input = upload(&gateway, &lines).await;
    let created = create(&gateway, &input).await;
    assert_eq!(created.status, 200);
    let batch = ended(&gateway, &created.json()).await;
    assert_eq!(batch["status"], "completed");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 3, "completed": 1, "failed": 2})
    );
    let [answer] = &results(&gateway, &batch["output_file_id"]).await[..] else {
        panic!("one line succeeded")
    };
    assert_eq!(
        (&answer["custom_id"], &answer["error"]),
        (&json!("a"), &Value::Null)
    );
    let response = &answer["response"];
    assert_eq!(
        (&response["status_code"], &response["body"]["object"]),
        (&json!(200), &json!("chat.completion"))
    );
    assert_eq!(response["body"]["choices"][0]["message"]["content"], "ok");
    assert_eq!(
        batch["usage"]["output_tokens"],
        response["body"]["usage"]["completion_tokens"]
    );
    let failures = results(&gateway, &batch["error_file_id"]).await;
    let failures: Vec<_> = failures
        .iter()
        .map(|line| {
            (
                line["custom_id"].as_str().unwrap(),
                line["response"]["body"]["error"]["param"].as_str(),
            )
        })
        .collect();
    assert_eq!(failures, [("b", Some("temperature")), ("c", Some("model"))]);
    let metrics = gateway.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        metrics.contains("inflight_gateway_batch_lines_total{end=\"failed\"} 2"),
        "{metrics}"
    );
}

#[tokio::test(start_paused = true)]
async fn lines_outlive_their_worker_and_their_gateway() {
    let (data, mut worker) = (
        Data::new("outlive"),
        ScriptedWorker::start(byte_model()).await,
    );
    let mut gateway = start(&worker, &data, &["--shutdown-grace-s=0"]).await;
    let input = upload(
        &gateway,
        &[line("a", &chat("m")), line("b", &chat("m"))].concat(),
    )
    .await;
    let batch = create(&gateway, &input).await.json();
    // One is answered; the other runs when the gateway ends.
    let (one, two) = (worker.next_request().await, worker.next_request().await);
    one.tokens(&tokens("ok")).await;
    one.finish(&[], FinishReason::EndId).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    until(&gateway, &path, |batch| {
        batch["request_counts"]["completed"] == 1
    })
    .await;
    gateway.begin_shutdown();
    gateway.ended().await;
    drop(two);
    let gateway = start(&worker, &data, &[]).await;
    let mut again = worker.next_request().await;
    while again.stop {
        again = worker.next_request().await;
    }
    again.tokens(&tokens("ok")).await;
    again.finish(&[], FinishReason::EndId).await;
    let batch = ended(&gateway, &batch).await;
    assert_eq!(
        batch["request_counts"],
        json!({"total": 2, "completed": 2, "failed": 0})
    );
    let answers = results(&gateway, &batch["output_file_id"]).await;
    let ids: Vec<&str> = answers
        .iter()
        .map(|line| line["custom_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b"], "each once");
}

#[tokio::test(start_paused = true)]
async fn a_batch_can_be_cancelled_and_what_runs_is_stopped() {
    let (data, mut worker) = (
        Data::new("cancel"),
        ScriptedWorker::start(byte_model()).await,
    );
    let gateway = start(&worker, &data, &["--batch-lines=1"]).await;
    let input = upload(
        &gateway,
        &[line("a", &chat("m")), line("b", &chat("m"))].concat(),
    )
    .await;
    let batch = create(&gateway, &input).await.json();
    let running = worker.next_request().await;
    let path = format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap());
    // No body and no type, as openai-node sends it.
    let cancel = Request::post(&path)
        .header("host", "gateway")
        .body(Full::default())
        .unwrap();
    let cancelling = send(&gateway, cancel).await;
    assert_eq!(
        (cancelling.status, &cancelling.json()["status"]),
        (200, &json!("cancelling"))
    );
    let batch = ended(&gateway, &batch).await;
    assert_eq!(batch["status"], "cancelled");
    assert_eq!(
        (&batch["output_file_id"], &batch["error_file_id"]),
        (&Value::Null, &Value::Null)
    );
    let stop = worker.next_request().await;
    assert!(stop.stop && stop.handle == running.handle);
    assert_eq!(
        gateway.post(&path, &json!({})).await.status,
        400,
        "it has ended"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_sees_its_own_files_and_batches_alone() {
    let (data, worker) = (Data::new("keys"), ScriptedWorker::start(byte_model()).await);
    let file = std::env::temp_dir().join(format!("inflight-batch-keys-{}", std::process::id()));
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let keys = format!("--api-key-file={}", file.display());
    let gateway = start(&worker, &data, &[&keys]).await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let ask = async |mut request: Request<Full<Bytes>>, key: &str| {
        let value = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        send(&gateway, request).await
    };
    let get = |path: &str| {
        Request::get(path)
            .header("host", "gateway")
            .body(Full::default())
            .unwrap()
    };
    let lines = line("a", &chat("m"));
    let uploaded = ask(form(&[("purpose", "batch")], lines.as_bytes()), "one")
        .await
        .json();
    let id = uploaded["id"].as_str().unwrap();
    let asked = json!({"input_file_id": id, "endpoint": CHAT, "completion_window": "24h"});
    assert_eq!(
        ask(json_request("/v1/batches", &asked), "two").await.status,
        400
    );
    let batch = ask(json_request("/v1/batches", &asked), "one").await.json();
    let paths = [
        format!("/v1/files/{id}"),
        format!("/v1/files/{id}/content"),
        format!("/v1/batches/{}", batch["id"].as_str().unwrap()),
    ];
    for path in &paths {
        for (key, status) in [("one", 200), ("two", 404), ("three", 401)] {
            assert_eq!(ask(get(path), key).await.status, status, "{path} {key}");
        }
    }
    for path in ["/v1/files", "/v1/batches"] {
        for (key, count) in [("one", 1), ("two", 0)] {
            let list = ask(get(path), key).await.json();
            assert!(
                list["data"].as_array().unwrap().len() >= count,
                "{path} {key}"
            );
            assert_eq!(
                list["data"].as_array().unwrap().is_empty(),
                count == 0,
                "{path} {key}"
            );
        }
    }
    let _ = std::fs::remove_file(file);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_file_or_no_batch_says_why() {
    let (data, worker) = (
        Data::new("errors"),
        ScriptedWorker::start(byte_model()).await,
    );
    let gateway = start(&worker, &data, &["--max-file-bytes=1000"]).await;
    for (fields, content, status, param) in [
        (&[("purpose", "x")][..], &b"{}"[..], 400, Some("purpose")),
        (&[("purpose", "batch_output")], b"{}", 400, Some("purpose")),
        (&[], b"{}", 400, Some("purpose")),
        (&[("x", "y")], b"{}", 400, Some("x")),
        (
            &[("purpose", "batch"), ("expires_after[seconds]", "9")],
            b"{}",
            400,
            Some("expires_after[seconds]"),
        ),
        (
            &[("purpose", "batch"), ("expires_after[seconds]", "3600")],
            b"{}",
            400,
            Some("expires_after[anchor]"),
        ),
        (&[("purpose", "batch")], &[b'x'; 1001], 413, None),
    ] {
        let refused = send(&gateway, form(fields, content)).await;
        let error = refused.json()["error"].clone();
        assert_eq!(
            (refused.status, error["param"].as_str()),
            (status, param),
            "{fields:?} {error}"
        );
    }
    let list = gateway.get("/v1/files").await.json();
    assert_eq!(list["data"], json!([]), "nothing of them is kept");
    let input = upload(&gateway, "{}\n").await;
    let image = send(&gateway, form(&[("purpose", "vision")], b"x"))
        .await
        .json();
    for (name, value, param) in [
        ("input_file_id", json!("file-1"), "input_file_id"),
        ("input_file_id", image["id"].clone(), "input_file_id"),
        ("completion_window", json!("1d"), "completion_window"),
        ("endpoint", json!("/v1/models"), "endpoint"),
    ] {
        let mut body =
            json!({"input_file_id": input, "endpoint": CHAT, "completion_window": "24h"});
        body[name] = value;
        let refused = gateway.post("/v1/batches", &body).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(param))
        );
    }
    let batch = create(&gateway, &input).await.json();
    let failed = ended(&gateway, &batch).await;
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["errors"]["data"][0]["line"], 1);
    for path in [
        "/v1/files/file-1",
        "/v1/files/file-1/content",
        "/v1/batches/batch_1",
        "/v1/files/%ff",
    ] {
        assert_eq!(gateway.get(path).await.status, 404, "{path}");
    }
    assert_eq!(gateway.get("/v1/batches?after=batch_1").await.status, 404);
    // Without a directory, there is nothing of this.
    let without = Gateway::start(&[worker.address], &[]).await;
    for path in ["/v1/files", "/v1/batches", "/v1/messages/batches"] {
        let refused = without.get(path).await;
        assert_eq!(refused.status, 404);
        assert!(
            refused.json()["error"]["message"]
                .as_str()
                .unwrap()
                .contains("--data-dir"),
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn anthropics_batches_have_their_own_form() {
    let (data, worker) = (
        Data::new("messages"),
        ScriptedWorker::start(byte_model()).await,
    );
    let gateway = start(&worker, &data, &[]).await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let params =
        json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
    let requests =
        json!([{"custom_id": "a", "params": params}, {"custom_id": "b", "params": {"model": "m"}}]);
    let path = "/v1/messages/batches";
    let created = gateway
        .post(path, &json!({"requests": requests}))
        .await
        .json();
    assert_eq!(
        (
            &created["processing_status"],
            &created["request_counts"]["processing"]
        ),
        (&json!("in_progress"), &json!(2))
    );
    let own = format!("{path}/{}", created["id"].as_str().unwrap());
    let batch = until(&gateway, &own, |batch| {
        batch["processing_status"] == "ended"
    })
    .await;
    assert_eq!(
        batch["request_counts"],
        json!({"processing": 0, "succeeded": 1, "errored": 1, "canceled": 0, "expired": 0})
    );
    let results = gateway.get(batch["results_url"].as_str().unwrap()).await;
    let lines: Vec<Value> = std::str::from_utf8(&results.body)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&lines[0]["custom_id"], &lines[0]["result"]["type"]),
        (&json!("a"), &json!("succeeded"))
    );
    assert_eq!(lines[0]["result"]["message"]["content"][0]["text"], "ok");
    let error = &lines[1]["result"]["error"]["error"];
    assert_eq!(
        (&lines[1]["result"]["type"], &error["type"]),
        (&json!("errored"), &json!("invalid_request_error"))
    );
    for (body, param) in [
        (json!({"requests": []}), "requests"),
        (
            json!({"requests": [requests[0], requests[0]]}),
            "requests[1].custom_id",
        ),
        (
            json!({"requests": [{"custom_id": "a", "params": {"stream": true}}]}),
            "requests[0].params.stream",
        ),
    ] {
        let refused = gateway.post(path, &body).await;
        let message = refused.json()["error"]["message"].clone();
        assert_eq!(refused.status, 400, "{param}: {message}");
        let field = param.rsplit_once("].").map_or(param, |(_, field)| field);
        let named = format!("`{field}`");
        assert!(message.as_str().unwrap().contains(&named), "{message}");
    }
    let delete = Request::delete(&own)
        .header("host", "gateway")
        .body(Full::default())
        .unwrap();
    let deleted = send(&gateway, delete).await.json();
    assert_eq!(
        deleted,
        json!({"id": created["id"], "type": "message_batch_deleted"})
    );
    let gone = gateway.get(&own).await;
    assert_eq!(
        (gone.status, &gone.json()["error"]["type"]),
        (404, &json!("not_found_error"))
    );
}

#[tokio::test(start_paused = true)]
async fn lines_come_after_all_that_clients_ask_for() {
    let data = Data::new("last");
    let mut model = byte_model();
    model.description.capabilities.push("priority".to_owned());
    let mut worker = ScriptedWorker::start(model).await;
    let gateway = start(&worker, &data, &[]).await;
    let level = async |worker: &mut ScriptedWorker| {
        let request = worker.next_request().await;
        request.tokens(&tokens("ok")).await;
        request.finish(&[], FinishReason::EndId).await;
        let found = request.message.parameters.get("priority").cloned();
        found.and_then(|found| found.parameter_choice)
    };
    let input = upload(&gateway, &line("a", &chat("m"))).await;
    assert_eq!(create(&gateway, &input).await.status, 200);
    // The last of a worker's levels, which no client may ask for.
    assert_eq!(
        level(&mut worker).await,
        Some(ParameterChoice::Int64Param(100))
    );
    let asked = chat("m");
    let (found, answer) = tokio::join!(level(&mut worker), gateway.post(CHAT, &asked));
    assert_eq!((found, answer.status), (None, 200));
}

#[tokio::test(start_paused = true)]
async fn a_response_of_a_batch_displaces_none_that_clients_come_back_to() {
    let (data, worker) = (Data::new("kept"), ScriptedWorker::start(byte_model()).await);
    let gateway = start(&worker, &data, &[]).await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let body = json!({"model": "m", "input": "Hi"});
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body});
    let input = upload(&gateway, &line.to_string()).await;
    let asked =
        json!({"input_file_id": input, "endpoint": "/v1/responses", "completion_window": "24h"});
    let batch = gateway.post("/v1/batches", &asked).await.json();
    let batch = ended(&gateway, &batch).await;
    let results = results(&gateway, &batch["output_file_id"]).await;
    let response = &results[0]["response"]["body"];
    assert_eq!(response["store"], false, "it says so");
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).await.status, 404);
}
