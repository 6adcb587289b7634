//! `/openapi.json` and `/docs`: for everybody, and true to what is served.

use http::Request;
use http_body_util::Full;
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, byte_model, pair};

async fn ask(gateway: &Gateway, method: &str, path: &str) -> Answer {
    let body = match method {
        "POST" => "{}",
        _ => "",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "gateway")
        .header("content-type", "application/json")
        // At `/` there is something for browsers alone.
        .header("accept", "application/json, text/html")
        .body(Full::from(body))
        .unwrap();
    Client::connect(gateway.address).await.whole(request).await
}

#[tokio::test(start_paused = true)]
async fn a_method_is_served_where_the_document_has_it_and_nowhere_else() {
    let (_worker, gateway) = pair().await;
    let document = gateway.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    // Those of KServe have no router of their own.
    let paths = paths.iter().filter(|(path, _)| !path.starts_with("/v2"));
    let mut served = 0;
    for (path, methods) in paths {
        let concrete = path.replace("{id}", "resp_1").replace("{model}", "m");
        let concrete = concrete.replace("{file}", "main.js");
        for method in ["GET", "POST", "DELETE", "PUT", "PATCH"] {
            let answer = ask(&gateway, method, &concrete).await;
            let told: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let is_unknown = told["error"]["code"] == "unknown_url";
            match methods.get(method.to_lowercase()) {
                Some(_) => {
                    assert!(answer.status != 405 && !is_unknown, "{method} {path}");
                    served += 1;
                }
                None => assert_eq!(answer.status, 405, "{method} {path}"),
            }
        }
    }
    assert!(served > 20, "{served}");
}

#[tokio::test(start_paused = true)]
async fn the_document_and_its_page_need_no_key() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let answer = gateway.get("/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.json()["openapi"], "3.1.0");
    let schemas = &answer.json()["components"]["schemas"];
    assert_eq!(schemas["Error"]["required"], json!(["error"]));
    let page = gateway.get("/docs").await;
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(page.body.starts_with(b"<!doctype html>"));
}
