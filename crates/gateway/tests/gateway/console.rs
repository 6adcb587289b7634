//! The console: who gets it, under which headers, and what it may see.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::proxy::HoldingProxy;
use inflight_testkit::triton::ScriptedTriton;
use inflight_testkit::triton_models::{text_model, text_response, token_model, tokens_response};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};
use tonic::Status;

use crate::support::{Answer, Client, Gateway, byte_model, chat, pair};

const CHAT: &str = "/v1/chat/completions";
const GENERATE: &str = "/v2/models/ensemble/generate";
const STREAM: &str = "/v2/models/ensemble/generate_stream";
/// As Chromium sends it.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";

/// The answer to a GET with these headers.
async fn ask(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path).header("host", "gateway");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::default()).unwrap();
    Client::connect(gateway.address).await.whole(request).await
}

/// What `path` answers the holder of `key`.
async fn of_key(gateway: &Gateway, path: &str, key: &str) -> Value {
    let answer = ask(gateway, path, &[("x-api-key", key)]).await;
    assert_eq!(answer.status, 200, "{path}");
    answer.json()
}

#[tokio::test(start_paused = true)]
async fn browsers_get_a_page_that_runs_nothing_but_its_own_files() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let page = ask(&gateway, "/", &[("accept", BROWSER)]).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["vary"], "accept");
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    let named: Vec<&str> = text
        .split('"')
        .filter(|part| part.starts_with("console/"))
        .collect();
    assert!(
        named.contains(&"console/main.js") && named.len() > 3,
        "{named:?}"
    );
    for name in named {
        let file = ask(&gateway, &format!("/{name}"), &[]).await;
        assert_eq!(
            file.status, 200,
            "{name}: a page loads its files without a key"
        );
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
    }
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    let directives: Vec<&str> = policy.split(';').map(str::trim).collect();
    for directive in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ] {
        assert!(directives.contains(&directive), "{directive} in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
}

#[tokio::test(start_paused = true)]
async fn programs_get_at_the_root_what_they_got_without_a_page() {
    let (_worker, gateway) = pair().await;
    for accept in [
        &[][..],
        &[("accept", "*/*")],
        &[("accept", "application/json")],
    ] {
        let answer = ask(&gateway, "/", accept).await;
        assert_eq!(answer.status, 404, "{accept:?}");
        assert_eq!(answer.json()["error"]["code"], "unknown_url");
        assert_eq!(answer.headers["vary"], "accept");
    }
    let posted = gateway.post("/", &json!({})).await;
    assert_eq!(posted.status, 405);
    let missing = ask(&gateway, "/console/none.js", &[]).await;
    assert_eq!(missing.json()["error"]["code"], "unknown_url");
}

#[tokio::test(start_paused = true)]
async fn a_browser_that_has_a_file_gets_it_again_only_when_it_has_changed() {
    let (_worker, gateway) = pair().await;
    for (path, accept) in [("/", BROWSER), ("/console/main.js", "*/*")] {
        let first = ask(&gateway, path, &[("accept", accept)]).await;
        assert_eq!(first.headers["cache-control"], "no-cache");
        let tag = first.headers["etag"].to_str().unwrap();
        let again = [("accept", accept), ("if-none-match", tag)];
        let again = ask(&gateway, path, &again).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert_eq!(again.headers["etag"], tag);
        let other = [("accept", accept), ("if-none-match", "\"other\"")];
        assert_eq!(ask(&gateway, path, &other).await.body, first.body);
    }
}

#[tokio::test(start_paused = true)]
async fn the_option_takes_all_of_it_away() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--console=false"]).await;
    for path in [
        "/",
        "/console/main.js",
        "/console/status",
        "/console/requests",
    ] {
        let answer = ask(&gateway, path, &[("accept", BROWSER)]).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "unknown_url");
    }
    assert_eq!(gateway.post("/", &json!({})).await.status, 404);
    assert_eq!(ask(&gateway, "/docs", &[]).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn an_open_request_is_seen_while_it_lives_and_afterwards() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let begin = async {
        let request = worker.next_request().await;
        let waits = gateway.get("/console/status").await.json();
        assert_eq!(
            (&waits["open"]["count"], &waits["open"]["waiting"]),
            (&json!(1), &json!(1))
        );
        request.tokens(&tokens("ab")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(CHAT, &body), begin);
    let status = gateway.get("/console/status").await.json();
    assert_eq!(status["open"]["waiting"], 0);
    let open = &status["open"]["requests"][0];
    assert_eq!(open["completion_tokens"], 2);
    assert_eq!(open["model"], "m");
    assert_eq!(open["worker"], json!(worker.address.to_string()));
    assert!(open["age_ms"].as_f64() >= open["first_token_ms"].as_f64());
    let of_worker = &status["workers"][0];
    assert_eq!(
        (&of_worker["ready"], &of_worker["active"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(of_worker["models"][0]["name"], "m");
    assert_eq!(status["key"], Value::Null);
    request.finish(&tokens("c"), FinishReason::Length).await;
    stream.rest().await;
    let id = open["id"].as_str().unwrap();
    let path = format!("/console/requests?id={id}");
    let ended = gateway.get(&path).await.json();
    let [ended] = &ended["requests"].as_array().unwrap()[..] else {
        panic!("{ended}")
    };
    assert_eq!(
        (&ended["finish"], &ended["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
    assert_eq!(ended["prompt_tokens"], open["prompt_tokens"]);
    let times =
        ["prepared_ms", "first_token_ms", "total_ms"].map(|name| ended[name].as_f64().unwrap());
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(
        ended["workers"][0]["address"],
        json!(worker.address.to_string())
    );
    assert_eq!(ended["workers"][0]["because"], Value::Null);
    let other = gateway.get("/console/requests?id=other").await.json();
    assert_eq!(other["requests"], json!([]));
    let none = gateway.get("/console/status").await.json();
    assert_eq!(none["open"]["count"], 0);
}

/// What becomes of the first worker of a request.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Killed,
    Silent,
}

#[tokio::test(start_paused = true)]
async fn a_request_that_moved_says_where_and_why() {
    for (loss, because) in [(Loss::Killed, "unavailable"), (Loss::Silent, "silent")] {
        let mut workers = [
            ScriptedWorker::start(byte_model()).await,
            ScriptedWorker::start(byte_model()).await,
        ];
        let proxies = workers
            .each_ref()
            .map(|worker| HoldingProxy::start(worker.address));
        let addresses = proxies.each_ref().map(|proxy| proxy.address);
        let options = ["--worker-silence-s", "0.5"];
        let gateway = Gateway::start(&addresses, &options).await.all_ready().await;
        let serve = async {
            let [one, two] = &mut workers;
            let first = tokio::select! {
                _ = one.next_request() => 0,
                _ = two.next_request() => 1,
            };
            match loss {
                Loss::Killed => workers[first].kill(),
                Loss::Silent => proxies[first].hold(),
            }
            let request = workers[1 - first].next_request().await;
            request.finish(&tokens("ok"), FinishReason::EndId).await;
            [first, 1 - first].map(|place| addresses[place].to_string())
        };
        let body = chat(json!({}));
        let (answer, [first, second]) = tokio::join!(gateway.post(CHAT, &body), serve);
        assert_eq!(answer.status, 200, "{loss:?}");
        let ended = gateway.get("/console/requests").await.json();
        let visits = ended["requests"][0]["workers"].as_array().unwrap();
        let told: Vec<_> = visits
            .iter()
            .map(|visit| (&visit["address"], &visit["because"]))
            .collect();
        let expected = [
            (&json!(first), &Value::Null),
            (&json!(second), &json!(because)),
        ];
        assert_eq!(told, expected, "{loss:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_kserve_that_fails_has_failed() {
    // It may continue elsewhere, or not.
    for resumes in ["0", "3"] {
        // At its beginning, or in its middle; as Triton says it, and as a worker does.
        for (begins, is_triton) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut triton = ScriptedTriton::start([text_model("ensemble")]).await;
            let options = ["--max-resumes", resumes];
            let gateway = Gateway::start(&[triton.address], &options)
                .await
                .heard()
                .await;
            let serve = async {
                let asked = triton.next_request().await;
                if begins {
                    asked.respond(text_response("a")).await;
                }
                match is_triton {
                    true => asked.fail("broken").await,
                    false => asked.refuse(tonic::Code::Internal, "broken").await,
                }
            };
            let body = json!({"text_input": "Hi", "max_tokens": 20});
            let (answer, ()) = tokio::join!(gateway.post(STREAM, &body), serve);
            let case = format!("{resumes} {begins} {is_triton}");
            match begins {
                true => assert_eq!(answer.events().len(), 2, "{case}"),
                false => assert_eq!(answer.status, 500, "{case}"),
            }
            let finish = ended(&gateway, &["finish"]).await;
            assert_eq!(finish, [json!(["error"])], "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_needed_and_shows_its_own_requests_alone() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let file = std::env::temp_dir().join(format!("inflight-console-{}", std::process::id()));
    std::fs::write(&file, "one requests=5 tokens=500\ntwo\n").unwrap();
    let options = ["--api-key-file", file.to_str().unwrap()];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    std::fs::remove_file(&file).unwrap();
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    for path in ["/console/status", "/console/requests"] {
        for key in [&[][..], &[("x-api-key", "wrong")]] {
            assert_eq!(ask(&gateway, path, key).await.status, 401, "{path} {key:?}");
        }
    }
    let request = Request::post(CHAT)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .header("x-api-key", "one")
        .body(Full::from(chat(json!({})).to_string()))
        .unwrap();
    let answer = Client::connect(gateway.address).await.whole(request).await;
    assert_eq!(answer.status, 200);
    let own = of_key(&gateway, "/console/requests", "one").await;
    assert_eq!(own["requests"].as_array().unwrap().len(), 1);
    let others = of_key(&gateway, "/console/requests", "two").await;
    assert_eq!(others["requests"], json!([]));
    let status = of_key(&gateway, "/console/status", "one").await;
    assert_eq!(status["key"]["requests"]["limit"], 5);
    assert_eq!(status["key"]["requests"]["remaining"], 4);
    assert_eq!(status["key"]["tokens"]["limit"], 500);
    let unlimited = of_key(&gateway, "/console/status", "two").await;
    assert_eq!(unlimited["key"], Value::Null);
}

/// The latest requests that have ended, each as these fields of it.
async fn ended(gateway: &Gateway, fields: &[&str]) -> Vec<Value> {
    let ended = gateway.get("/console/requests").await.json();
    let requests = ended["requests"].as_array().unwrap();
    let of = |one: &Value| fields.iter().map(|field| one[*field].clone()).collect();
    requests.iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_request_of_kserve_is_seen_while_it_lives_and_afterwards() {
    let mut triton = ScriptedTriton::start([text_model("ensemble")]).await;
    let gateway = Gateway::start(&[triton.address], &[]).await.heard().await;
    let mut client = Client::connect(gateway.address).await;
    let body = json!({"text_input": "hello", "max_tokens": 5});
    let begin = async {
        let asked = triton.next_request().await;
        let waits = gateway.get("/console/status").await.json();
        assert_eq!(waits["open"]["waiting"], 1);
        asked.respond(text_response("a")).await;
        asked
    };
    let (mut stream, asked) = tokio::join!(client.open(STREAM, &body), begin);
    stream.next().await.unwrap();
    let status = gateway.get("/console/status").await.json();
    assert_eq!(
        (&status["open"]["count"], &status["open"]["waiting"]),
        (&json!(1), &json!(0))
    );
    let open = &status["open"]["requests"][0];
    assert_eq!(open["route"], "/v2/models/{model}/generate_stream");
    assert_eq!(open["model"], "ensemble");
    assert_eq!(open["worker"], json!(triton.address.to_string()));
    assert_eq!(open["completion_tokens"], Value::Null, "nobody counts them");
    asked.finish_empty().await;
    stream.rest().await;
    let fields = ["finish", "status", "completion_tokens"];
    let whole = json!(["answered", null, null]);
    assert_eq!(ended(&gateway, &fields).await, std::slice::from_ref(&whole));
    let answered = async { triton.next_request().await.finish(text_response("b")).await };
    tokio::join!(gateway.post(GENERATE, &body), answered);
    assert_eq!(ended(&gateway, &fields).await, [whole.clone(), whole]);
    for visits in ended(&gateway, &["workers"]).await {
        let visits = visits[0].as_array().unwrap();
        assert_eq!(visits.len(), 1, "what is asked about the model is no visit");
    }
    let none = gateway.get("/console/status").await.json();
    assert_eq!(none["open"]["count"], 0);
}

#[tokio::test(start_paused = true)]
async fn tokens_of_kserves_streams_are_counted_where_responses_have_them() {
    let mut triton = ScriptedTriton::start([token_model("tensorrt_llm")]).await;
    let gateway = Gateway::start(&[triton.address], &[]).await.heard().await;
    let mut client = Client::connect(gateway.address).await;
    let path = "/v2/models/tensorrt_llm/generate_stream";
    let body = json!({"input_ids": [1, 2], "input_lengths": 2, "request_output_len": 5, "streaming": true});
    let begin = async {
        let asked = triton.next_request().await;
        asked.respond(tokens_response(&tokens("ab"))).await;
        asked
    };
    let (mut stream, asked) = tokio::join!(client.open(path, &body), begin);
    stream.next().await.unwrap();
    let status = gateway.get("/console/status").await.json();
    assert_eq!(status["open"]["requests"][0]["completion_tokens"], 2);
    asked.finish(tokens_response(&tokens("c"))).await;
    stream.rest().await;
    assert_eq!(ended(&gateway, &["completion_tokens"]).await, [json!([3])]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_request_of_kserve_has_its_reason() {
    let mut triton = ScriptedTriton::start([text_model("ensemble")]).await;
    let gateway = Gateway::start(&[triton.address], &[]).await.heard().await;
    let body = json!({"text_input": "hello", "max_tokens": 5});
    for (path, kind, finish, status) in [
        (GENERATE, "in band", "error", json!(500)),
        (STREAM, "status", "error", json!(500)),
        (STREAM, "begun in band", "error", json!(500)),
        (STREAM, "begun status", "error", json!(500)),
    ] {
        let serve = async {
            let asked = triton.next_request().await;
            if kind.starts_with("begun") {
                asked.respond(text_response("a")).await;
            }
            match kind.ends_with("in band") {
                true => asked.fail("broken").await,
                false => asked.fail_call(Status::internal("broken")).await,
            }
        };
        tokio::join!(gateway.post(path, &body), serve);
        let latest = &ended(&gateway, &["finish", "status"]).await[0];
        assert_eq!(latest, &json!([finish, status]), "{path} {kind}");
    }
    let mut client = Client::connect(gateway.address).await;
    let begin = async {
        let asked = triton.next_request().await;
        asked.respond(text_response("a")).await;
        asked
    };
    let (_stream, asked) = tokio::join!(client.open(STREAM, &body), begin);
    client.leave();
    asked.cancelled().await;
    let poll = async {
        while ended(&gateway, &["finish"]).await[0] != json!(["cancelled"]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let listed = tokio::time::timeout(Duration::from_secs(10), poll).await;
    listed.expect("it is listed as left by its client");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_listed_with_its_reason() {
    let (_worker, gateway) = pair().await;
    let fields = ["route", "finish", "status", "code", "param", "workers"];
    let kserve = "/v2/models/none/generate";
    for (path, body, expected) in [
        (
            CHAT,
            chat(json!({"max_tokens": -1})),
            json!([
                CHAT,
                "refused",
                400,
                "integer_below_min_value",
                "max_tokens",
                []
            ]),
        ),
        (
            CHAT,
            chat(json!({"model": "none"})),
            json!([CHAT, "refused", 404, "model_not_found", "model", []]),
        ),
        (
            CHAT,
            json!("text"),
            json!([CHAT, "refused", 400, null, null, []]),
        ),
        (
            kserve,
            json!({"text_input": "hello"}),
            json!([
                "/v2/models/{model}/generate",
                "refused",
                404,
                null,
                null,
                []
            ]),
        ),
    ] {
        let before = ended(&gateway, &fields).await.len();
        let answer = gateway.post(path, &body).await;
        assert!(answer.status >= 400, "{path} {body}");
        let latest = ended(&gateway, &fields).await;
        assert_eq!(latest.len(), before + 1, "once: {path} {body}");
        assert_eq!(latest[0], expected, "{path} {body}");
    }
    let known = ended(&gateway, &fields).await.len();
    gateway.get("/v1/models/none").await;
    gateway.get("/v2/models/none").await;
    gateway.get("/nothing").await;
    assert_eq!(
        ended(&gateway, &fields).await.len(),
        known,
        "no model was to work"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_worker_or_a_place_are_listed() {
    let mut worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--max-concurrent-requests=1"])
        .await
        .ready()
        .await;
    let fields = ["finish", "status"];
    let body = chat(json!({}));
    let serve = async {
        let request = worker.next_request().await;
        let refused = gateway.post(CHAT, &body).await;
        assert_eq!(refused.status, 429);
        request.finish(&tokens("ok"), FinishReason::EndId).await;
    };
    tokio::join!(gateway.post(CHAT, &body), serve);
    assert_eq!(
        ended(&gateway, &fields).await,
        [json!(["stop", null]), json!(["refused", 429])]
    );
    worker.kill();
    gateway.wait_for_readiness(503).await;
    assert_eq!(gateway.post(CHAT, &body).await.status, 503);
    assert_eq!(ended(&gateway, &fields).await[0], json!(["refused", 503]));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_its_worker_fails_is_listed_once() {
    let (mut worker, gateway) = pair().await;
    let serve = async {
        let request = worker.next_request().await;
        request.fail(tonic::Code::InvalidArgument, "no").await;
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(gateway.post(CHAT, &body), serve);
    assert_eq!(answer.status, 400);
    let listed = ended(&gateway, &["finish", "status"]).await;
    assert_eq!(listed, [json!(["error", 400])]);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_their_keys_own_and_a_wrong_key_is_nobodys() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let file = std::env::temp_dir().join(format!("inflight-refusals-{}", std::process::id()));
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let options = ["--api-key-file", file.to_str().unwrap()];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    std::fs::remove_file(&file).unwrap();
    let send = |key: &'static str| {
        let request = Request::post(CHAT)
            .header("host", "gateway")
            .header("content-type", "application/json")
            .header("x-api-key", key)
            .body(Full::from(chat(json!({"max_tokens": -1})).to_string()))
            .unwrap();
        let address = gateway.address;
        async move { Client::connect(address).await.whole(request).await.status }
    };
    assert_eq!(send("wrong").await, 401);
    assert_eq!(send("one").await, 400);
    let own = of_key(&gateway, "/console/requests", "one").await;
    assert_eq!(own["requests"].as_array().unwrap().len(), 1);
    let others = of_key(&gateway, "/console/requests", "two").await;
    assert_eq!(others["requests"], json!([]));
}
