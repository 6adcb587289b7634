//! Anthropic's API: framing to the letter, why answers end, counts, and every failure in its envelope.

use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{Received, ScriptedWorker, row};
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, byte_model, json_request, pair};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A request of one short message, with more fields; null takes one away.
fn message(fields: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 5,
        "messages": [{"role": "user", "content": "Hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The prompt of a request as text.
fn prompt(request: &Received) -> String {
    let inputs = Tensors::inputs(&request.message).unwrap();
    let ids: Vec<i32> = inputs.values("input_ids").unwrap().unwrap();
    ids.iter()
        .map(|id| char::from(u8::try_from(*id).unwrap()))
        .collect()
}

/// The stream without the id of its message.
fn normalized(events: &[String]) -> Vec<String> {
    let start: Value = serde_json::from_str(&events[0]).unwrap();
    let id = start["message"]["id"].as_str().unwrap();
    assert!(id.starts_with("msg_"), "{id}");
    events.iter().map(|event| event.replace(id, "ID")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_framed_to_the_letter() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("He")).await;
        request
    };
    let body = message(json!({"stream": true}));
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(stream.next().await.unwrap());
    }
    request.tokens(&tokens("y\"")).await;
    request.finish(&[], FinishReason::EndId).await;
    events.extend(stream.rest().await);
    let delta = |text: &str| {
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        )
    };
    let usage = |generated: u32| {
        format!(
            r#""usage":{{"input_tokens":18,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":{generated}}}"#
        )
    };
    assert_eq!(
        normalized(&events),
        [
            format!(
                r#"{{"type":"message_start","message":{{"id":"ID","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,{}}}}}"#,
                usage(0)
            ),
            r#"{"type":"ping"}"#.to_owned(),
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#
                .to_owned(),
            delta("H"),
            delta("e"),
            delta("y"),
            delta("\\\""),
            r#"{"type":"content_block_stop","index":0}"#.to_owned(),
            format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn","stop_sequence":null}},{}}}"#,
                usage(5)
            ),
            r#"{"type":"message_stop"}"#.to_owned(),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_has_text_usage_and_stop_reason() {
    let (mut worker, gateway) = pair().await;
    let serve = async {
        let request = worker.next_request().await;
        let text = tokens("Hello");
        let mut last = row(request.handle, 0, &text, FinishReason::Length, true);
        last.cached_tokens = vec![(0, 16)];
        request.rows(last).await;
    };
    let body = message(json!({"speed": "fast"}));
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.headers["x-inflight-ignored-fields"], "speed");
    assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);
    assert!(!answer.headers.contains_key("openai-version"));
    let mut value = answer.json();
    assert!(value["id"].as_str().unwrap().starts_with("msg_"));
    value["id"] = json!("ID");
    assert_eq!(
        value,
        json!({
            "id": "ID", "type": "message", "role": "assistant", "model": "m",
            "content": [{"type": "text", "text": "Hello"}],
            "stop_reason": "max_tokens", "stop_sequence": null,
            "usage": {"input_tokens": 2, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 16, "output_tokens": 5},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_tells_why_it_ended() {
    let (mut worker, gateway) = pair().await;
    // The context holds 64 tokens, and the prompt has 18.
    let whole = "x".repeat(46);
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    for (fields, generated, reason, content, stop_reason, stop) in [
        (
            json!({}),
            "Hi",
            FinishReason::EndId,
            text("Hi"),
            "end_turn",
            json!(null),
        ),
        (
            json!({}),
            "",
            FinishReason::EndId,
            json!([]),
            "end_turn",
            json!(null),
        ),
        (
            json!({}),
            "Hello",
            FinishReason::Length,
            text("Hello"),
            "max_tokens",
            json!(null),
        ),
        (
            json!({"max_tokens": 0}),
            "x",
            FinishReason::Length,
            json!([]),
            "max_tokens",
            json!(null),
        ),
        (
            json!({"stop_sequences": ["no", "EN"]}),
            "aENb",
            FinishReason::Length,
            text("a"),
            "stop_sequence",
            json!("EN"),
        ),
        (
            json!({"max_tokens": 32_000}),
            &whole,
            FinishReason::Length,
            text(&whole),
            "model_context_window_exceeded",
            json!(null),
        ),
        (
            json!({"max_tokens": 46}),
            &whole,
            FinishReason::Length,
            text(&whole),
            "max_tokens",
            json!(null),
        ),
    ] {
        for stream in [false, true] {
            let mut body = message(fields.clone());
            body["stream"] = json!(stream);
            let serve = async {
                let mut request = worker.next_request().await;
                while request.stop {
                    request = worker.next_request().await;
                }
                request.finish(&tokens(generated), reason).await;
            };
            let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
            assert_eq!(answer.status, 200, "{body}");
            let (told, ended) = match stream {
                false => (answer.json()["content"].clone(), answer.json()),
                true => {
                    let (told, ended) = streamed(&answer);
                    let told = if told.is_empty() {
                        json!([])
                    } else {
                        text(&told)
                    };
                    (told, ended)
                }
            };
            assert_eq!(told, content, "{body}");
            assert_eq!(ended["stop_reason"], stop_reason, "{body}");
            assert_eq!(ended["stop_sequence"], stop, "{body}");
        }
    }
}

/// The text of a complete stream, and the delta that ends its message.
fn streamed(answer: &Answer) -> (String, Value) {
    let events: Vec<Value> = answer
        .events()
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let texts = events
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str());
    let end = events.iter().find(|event| event["type"] == "message_delta");
    (texts.collect(), end.unwrap()["delta"].clone())
}

#[tokio::test(start_paused = true)]
async fn a_conversation_reaches_the_models_template_and_is_counted_alike() {
    let (mut worker, gateway) = pair().await;
    let user = |content: Value| json!({"role": "user", "content": content});
    let assistant = |content: Value| json!({"role": "assistant", "content": content});
    for (fields, expected) in [
        (
            json!({"system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]}),
            "system:S\nuser:Hi\nassistant:",
        ),
        (
            json!({"messages": [user(json!([{"type": "text", "text": "a"}])), assistant(json!("b")), user(json!("c"))]}),
            "user:a\nassistant:b\nuser:c\nassistant:",
        ),
        (
            json!({"messages": [user(json!("a")), assistant(json!("So"))]}),
            "user:a\nassistant:So",
        ),
        (
            json!({"messages": [user(json!("a")),
                assistant(json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])),
                user(json!([{"type": "tool_result", "tool_use_id": "t", "content": "r"}]))]}),
            "user:a\nassistant:\ntool:r\nassistant:",
        ),
    ] {
        let mut body = message(fields);
        let serve = async {
            let request = worker.next_request().await;
            let prompt = prompt(&request);
            request.finish(&tokens("!"), FinishReason::EndId).await;
            prompt
        };
        let (answer, prompt) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.status, 200);
        assert_eq!(prompt, expected);
        body.as_object_mut().unwrap().remove("max_tokens");
        let counted = gateway.post(COUNT, &body).await;
        assert_eq!(counted.json(), json!({"input_tokens": expected.len()}));
        assert_eq!(answer.json()["usage"]["input_tokens"], expected.len());
    }
}

#[tokio::test(start_paused = true)]
async fn failures_come_in_anthropics_envelope() {
    let (_worker, gateway) = pair().await;
    let long = "a".repeat(100);
    for (path, body, status, word, tells) in [
        (
            PATH,
            message(json!({"max_tokens": null})),
            400,
            "invalid_request_error",
            "`max_tokens`",
        ),
        (
            PATH,
            message(json!({"model": "other"})),
            404,
            "not_found_error",
            "`m`",
        ),
        (
            COUNT,
            message(json!({"model": "other"})),
            404,
            "not_found_error",
            "`m`",
        ),
        (
            PATH,
            message(json!({"messages": [{"role": "user", "content": long}]})),
            400,
            "invalid_request_error",
            "64",
        ),
        (
            PATH,
            message(json!({"container": "c"})),
            400,
            "invalid_request_error",
            "`container`",
        ),
        (
            "/v1/messages/threads",
            json!({}),
            404,
            "not_found_error",
            "`POST /v1/messages/threads`",
        ),
    ] {
        let answer = gateway.post(path, &body).await;
        expect_error(&answer, status, word, tells);
    }
    let answer = gateway.get(PATH).await;
    expect_error(&answer, 405, "invalid_request_error", "`GET`");
}

fn expect_error(answer: &Answer, status: u16, word: &str, tells: &str) {
    let body = answer.json();
    assert_eq!(answer.status, status, "{body}");
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], word);
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains(tells), "{message}");
    let id = answer.headers["request-id"].to_str().unwrap();
    assert_eq!(body["request_id"], id);
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_room_is_529_before_the_stream_and_an_event_in_it() {
    let (mut worker, gateway) = pair().await;
    let body = message(json!({"stream": true}));
    let serve = async { worker.next_request().await.fail(8, "full").await };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    expect_error(&answer, 529, "overloaded_error", "full");
    assert!(answer.headers.contains_key("retry-after"));
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("H")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    for _ in 0..4 {
        stream.next().await.unwrap();
    }
    request.fail(13, "secret cause").await;
    let rest = stream.rest().await;
    let [failure] = rest.as_slice() else {
        panic!("one event, the last: {rest:?}");
    };
    let failure: Value = serde_json::from_str(failure).unwrap();
    assert_eq!(failure["type"], "error");
    assert_eq!(failure["error"]["type"], "api_error");
    assert!(failure["request_id"].as_str().unwrap().starts_with("req_"));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_read_from_either_header() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let gateway = Gateway::start(&[worker.address], &["--api-key", "right"]).await;
    let gateway = gateway.ready().await;
    for (headers, status) in [
        (&[][..], 401),
        (&[("x-api-key", "wrong")], 401),
        (&[("x-api-key", "right")], 200),
        (&[("authorization", "Bearer right")], 200),
        (
            &[("authorization", "Bearer wrong"), ("x-api-key", "right")],
            200,
        ),
        (
            &[("authorization", "Bearer right"), ("x-api-key", "wrong")],
            200,
        ),
    ] {
        let mut client = Client::connect(gateway.address).await;
        let mut request: Request<Full<_>> = json_request(COUNT, &message(json!({})));
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let answer = client.whole(request).await;
        assert_eq!(answer.status, status, "{headers:?}");
        if status == 401 {
            expect_error(&answer, 401, "authentication_error", "`x-api-key: KEY`");
        }
    }
}
