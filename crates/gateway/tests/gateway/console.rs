//! The console: who gets it, under which headers, and what it may see.

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, byte_model, chat, pair};

const CHAT: &str = "/v1/chat/completions";
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
async fn a_request_that_moved_says_where_and_why() {
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(ScriptedWorker::start(byte_model()).await);
    }
    let addresses: Vec<_> = workers.iter().map(|worker| worker.address).collect();
    let gateway = Gateway::start(&addresses, &[]).await.all_ready().await;
    let [mut one, mut two]: [ScriptedWorker; 2] = workers.try_into().unwrap();
    let serve = async {
        tokio::select! {
            _ = one.next_request() => {
                one.kill();
                two.next_request().await.finish(&tokens("ok"), FinishReason::EndId).await;
                [&one, &two].map(|worker| worker.address.to_string())
            }
            _ = two.next_request() => {
                two.kill();
                one.next_request().await.finish(&tokens("ok"), FinishReason::EndId).await;
                [&two, &one].map(|worker| worker.address.to_string())
            }
        }
    };
    let body = chat(json!({}));
    let (answer, [first, second]) = tokio::join!(gateway.post(CHAT, &body), serve);
    assert_eq!(answer.status, 200);
    let ended = gateway.get("/console/requests").await.json();
    let visits = ended["requests"][0]["workers"].as_array().unwrap();
    let told: Vec<_> = visits
        .iter()
        .map(|visit| (&visit["address"], &visit["because"]))
        .collect();
    assert_eq!(
        told,
        [
            (&json!(first), &Value::Null),
            (&json!(second), &json!("unavailable")),
        ]
    );
}

#[tokio::test]
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
