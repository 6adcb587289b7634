//! `/v1/responses` in the background: clients come back for an answer, follow it, or stop it.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Client, Gateway, byte_model, pair};

const PATH: &str = "/v1/responses";

fn request(fields: Value) -> Value {
    let mut body = json!({"model": "m", "input": "Hi", "background": true});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn path(response: &Value) -> String {
    format!("{PATH}/{}", response["id"].as_str().unwrap())
}

/// The response once it has this status.
async fn until(gateway: &Gateway, path: &str, status: &str) -> Value {
    let poll = async {
        loop {
            let response = gateway.get(path).await.json();
            if response["status"] == status {
                return response;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), poll).await;
    found.unwrap_or_else(|_| panic!("never {status}"))
}

/// The numbers and names of events.
fn numbered(events: &[String]) -> Vec<(u64, String)> {
    let events = events.iter().map(|event| {
        let event: Value = serde_json::from_str(event).unwrap();
        let name = event["type"].as_str().unwrap().to_owned();
        (event["sequence_number"].as_u64().unwrap(), name)
    });
    events.collect()
}

#[tokio::test(start_paused = true)]
async fn a_client_comes_back_for_its_answer() {
    let (mut worker, gateway) = pair().await;
    let created = gateway.post(PATH, &request(json!({}))).await;
    assert_eq!(created.status, 200);
    let created = created.json();
    assert_eq!(
        (
            &created["status"],
            &created["background"],
            &created["output"]
        ),
        (&json!("queued"), &json!(true), &json!([]))
    );
    let path = path(&created);
    let asked = worker.next_request().await;
    let running = until(&gateway, &path, "in_progress").await;
    assert_eq!(running["id"], created["id"]);
    let items = gateway.get(&format!("{path}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "Hi");
    let next = request(json!({"previous_response_id": created["id"]}));
    let early = gateway.post(PATH, &next).await;
    assert_eq!(early.status, 400);
    assert_eq!(early.json()["error"]["param"], "previous_response_id");
    asked.finish(&tokens("ok"), FinishReason::EndId).await;
    let done = until(&gateway, &path, "completed").await;
    assert_eq!(done["output"][0]["content"][0]["text"], "ok");
    assert_eq!(done["usage"]["output_tokens"], 3);
    // It has ended, and stays as it is.
    let cancelled = gateway.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancelled.json(), done);
    let streamed = gateway.get(&format!("{path}?stream=true")).await;
    assert_eq!(streamed.json()["error"]["param"], "stream");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_followed_again_from_any_event() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let mut stream = client.open(PATH, &request(json!({"stream": true}))).await;
    let first = stream.next().await.unwrap();
    let created: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(created["type"], "response.created");
    let path = path(&created["response"]);
    let asked = worker.next_request().await;
    asked.tokens(&tokens("He")).await;
    while !stream.next().await.unwrap().contains("\"delta\":\"e\"") {}
    // Its client leaves, and the answer does not.
    drop(stream);
    drop(client);
    let mut client = Client::connect(gateway.address).await;
    let mut follower = client
        .open_get(&format!("{path}?stream=true&starting_after=1"))
        .await;
    let serve = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        asked.finish(&tokens("llo"), FinishReason::EndId).await;
    };
    let (rest, ()) = tokio::join!(follower.rest(), serve);
    let rest = numbered(&rest);
    let numbers: Vec<u64> = rest.iter().map(|(number, _)| *number).collect();
    let count = numbers.len() as u64;
    assert_eq!(numbers, (2..2 + count).collect::<Vec<_>>());
    assert_eq!(rest.last().unwrap().1, "response.completed");
    let done = until(&gateway, &path, "completed").await;
    assert_eq!(done["output"][0]["content"][0]["text"], "Hello");
    // And once more after its end.
    let mut again = client
        .open_get(&format!("{path}?stream=true&starting_after=4"))
        .await;
    assert_eq!(numbered(&again.rest().await), rest[3..]);
    for bad in ["x", "-1"] {
        let answer = gateway
            .get(&format!("{path}?stream=true&starting_after={bad}"))
            .await;
        assert_eq!(answer.json()["error"]["param"], "starting_after");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_stops_it_and_the_worker_with_it() {
    let (mut worker, gateway) = pair().await;
    for is_deleted in [false, true] {
        let created = gateway.post(PATH, &request(json!({}))).await.json();
        let path = path(&created);
        let asked = worker.next_request().await;
        asked.tokens(&tokens("He")).await;
        if is_deleted {
            let delete = Request::delete(&path).header("host", "gateway");
            let mut client = Client::connect(gateway.address).await;
            let deleted = client.whole(delete.body(Full::default()).unwrap()).await;
            assert_eq!(deleted.json()["deleted"], true);
            assert_eq!(gateway.get(&path).await.status, 404);
        } else {
            let cancel = format!("{path}/cancel");
            for _ in 0..2 {
                let cancelled = gateway.post(&cancel, &json!({})).await;
                assert_eq!(cancelled.json()["status"], "cancelled");
            }
            assert_eq!(gateway.get(&path).await.json()["status"], "cancelled");
        }
        let stop = worker.next_request().await;
        assert!(stop.stop && stop.handle == asked.handle);
    }
}

#[tokio::test(start_paused = true)]
async fn who_follows_one_that_is_stopped_reads_so() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let mut stream = client.open(PATH, &request(json!({"stream": true}))).await;
    let first: Value = serde_json::from_str(&stream.next().await.unwrap()).unwrap();
    worker.next_request().await.tokens(&tokens("He")).await;
    let cancel = format!("{}/cancel", path(&first["response"]));
    let nothing = json!({});
    let (rest, _) = tokio::join!(stream.rest(), gateway.post(&cancel, &nothing));
    let numbers: Vec<u64> = numbered(&rest).iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let last: Value = serde_json::from_str(rest.last().unwrap()).unwrap();
    assert_eq!(
        (&last["type"], &last["code"]),
        (&json!("error"), &json!("cancelled"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_kept_for_who_comes_back() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        let body = request(json!({"stream": stream}));
        let mut client = Client::connect(gateway.address).await;
        let path = if stream {
            let mut stream = client.open(PATH, &body).await;
            let asked = worker.next_request().await;
            asked.fail(Code::InvalidArgument, "no such thing").await;
            let events = stream.rest().await;
            let names = numbered(&events);
            assert_eq!(names.last().unwrap().1, "response.failed");
            let first: Value = serde_json::from_str(&events[0]).unwrap();
            path(&first["response"])
        } else {
            let created = gateway.post(PATH, &body).await.json();
            let asked = worker.next_request().await;
            asked.fail(Code::InvalidArgument, "no such thing").await;
            path(&created)
        };
        let failed = until(&gateway, &path, "failed").await;
        assert_eq!(failed["error"]["code"], "invalid_prompt");
        let message = failed["error"]["message"].as_str().unwrap();
        assert!(message.contains("no such thing"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_does_not_run_in_the_background() {
    let worker = inflight_testkit::worker::ScriptedWorker::start(byte_model()).await;
    for (extra, body) in [
        (&[][..], request(json!({"store": false}))),
        (&["--max-stored-responses", "0"], request(json!({}))),
    ] {
        let gateway = Gateway::start(&[worker.address], extra).await.ready().await;
        let refused = gateway.post(PATH, &body).await;
        assert_eq!(refused.status, 400);
        let error = &refused.json()["error"];
        assert_eq!(error["param"], "background");
        assert!(error["message"].as_str().unwrap().contains("`store`"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_follows_and_stops_its_own_alone() {
    let keys = std::env::temp_dir().join(format!("background-{}", std::process::id()));
    std::fs::write(&keys, "one\ntwo\n").unwrap();
    let mut worker = inflight_testkit::worker::ScriptedWorker::start(byte_model()).await;
    let options = ["--api-key-file", keys.to_str().unwrap()];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    let ask = |key: &str, method: http::Method, path: &str, body: &Value| {
        let body = if method == http::Method::GET {
            Vec::new()
        } else {
            serde_json::to_vec(body).unwrap()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "gateway")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {key}"))
            .body(Full::from(body))
            .unwrap();
        async {
            let mut client = Client::connect(gateway.address).await;
            client.whole(request).await
        }
    };
    let created = ask(
        "one",
        http::Method::POST,
        PATH,
        &request(json!({"stream": false})),
    )
    .await;
    let path = path(&created.json());
    let asked = worker.next_request().await;
    let nothing = json!({});
    for (method, suffix) in [
        (http::Method::GET, ""),
        (http::Method::GET, "?stream=true"),
        (http::Method::POST, "/cancel"),
        (http::Method::DELETE, ""),
    ] {
        let answer = ask("two", method, &format!("{path}{suffix}"), &nothing).await;
        assert_eq!(answer.status, 404, "{suffix}");
    }
    asked.finish(&tokens("ok"), FinishReason::EndId).await;
    loop {
        let found = ask("one", http::Method::GET, &path, &nothing).await.json();
        if found["status"] == "completed" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::remove_file(keys).unwrap();
}
