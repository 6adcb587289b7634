//! `/v1/responses`: answers and their events, and the responses that are kept.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::{VOCABULARY, byte_model_files, tokens};
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, byte_model, json_request, pair};

const PATH: &str = "/v1/responses";

fn request(fields: Value) -> Value {
    let mut body = json!({"model": "m", "input": "Hi"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The data of each event, whose name and number are checked.
fn events(answer: &Answer) -> Vec<Value> {
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert!(text.ends_with("\n\n"));
    let events = text.split_terminator("\n\n").enumerate();
    let events = events.map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number);
        data
    });
    events.collect()
}

fn names(events: &[Value]) -> Vec<String> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names
        .map(|name| name.trim_start_matches("response.").to_owned())
        .collect()
}

/// What the worker was asked, as text.
async fn prompt(worker: &mut ScriptedWorker, answer: &str) -> String {
    let request = worker.next_request().await;
    let inputs = Tensors::inputs(&request.message).unwrap();
    let ids: Vec<i32> = inputs.values("input_ids").unwrap().unwrap();
    request.tokens(&tokens(answer)).await;
    request.finish(&[], FinishReason::EndId).await;
    let bytes = ids.iter().map(|id| u8::try_from(*id).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

/// Asks, answers as the worker, and returns the prompt and the response.
async fn turn(
    gateway: &Gateway,
    worker: &mut ScriptedWorker,
    body: Value,
    answer: &str,
) -> (String, Value) {
    let post = async {
        let response = gateway.post(PATH, &body).await;
        // Before the worker is waited for in vain.
        assert_eq!(response.status, 200, "{}", response.json());
        response.json()
    };
    tokio::join!(prompt(worker, answer), post)
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_one_piece_has_what_sdks_require() {
    let (mut worker, gateway) = pair().await;
    let body = request(json!({"instructions": "Be brief.", "metadata": {"k": "v"}}));
    let (prompt, response) = turn(&gateway, &mut worker, body, "ok").await;
    assert_eq!(prompt, "system:Be brief.\nuser:Hi\nassistant:");
    let id = response["id"].as_str().unwrap();
    let item = id.replace("resp_", "msg_") + "0001";
    let times = (&response["created_at"], &response["completed_at"]);
    assert!(times.0.is_u64() && times.1.as_u64() >= times.0.as_u64());
    let mut rest = response.clone();
    for name in ["id", "created_at", "completed_at"] {
        rest.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(
        rest,
        json!({
            "object": "response", "status": "completed", "error": null, "incomplete_details": null,
            "model": "m", "background": false, "instructions": "Be brief.", "max_output_tokens": null,
            "max_tool_calls": null, "metadata": {"k": "v"}, "parallel_tool_calls": true,
            "previous_response_id": null, "prompt_cache_key": null,
            "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
            "service_tier": "default", "store": true, "temperature": 0.5,
            "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
            "tools": [], "top_logprobs": 0, "top_p": 0.75, "truncation": "disabled", "user": null,
            "output": [{"type": "message", "id": item, "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "ok"}]}],
            "usage": {"input_tokens": 35, "output_tokens": 3, "total_tokens": 38,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0}},
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_has_an_event_for_each_token_and_ends_with_the_response() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("a\"é"), FinishReason::EndId);
    let answer = gateway.post(PATH, &request(json!({"stream": true}))).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let events = events(&answer);
    let deltas: Vec<&str> = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, ["a", "\"", "é"]);
    let mut kinds = names(&events);
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], "a\"é");
    assert_eq!(last["usage"]["output_tokens"], 5);
    // It is kept as it was told.
    let path = format!("{PATH}/{}", last["id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).await.json(), *last);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_is_incomplete() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ab"), FinishReason::Length);
    for stream in [false, true] {
        let body = request(json!({"max_output_tokens": 2, "stream": stream}));
        let answer = gateway.post(PATH, &body).await;
        let response = match stream {
            true => {
                let last = events(&answer).pop().unwrap();
                assert_eq!(last["type"], "response.incomplete");
                last["response"].clone()
            }
            false => answer.json(),
        };
        assert_eq!(response["status"], "incomplete");
        assert_eq!(
            response["incomplete_details"],
            json!({"reason": "max_output_tokens"})
        );
        assert_eq!(response["max_output_tokens"], 2);
    }
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_come_when_they_are_included() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ab"), FinishReason::EndId);
    for (fields, count) in [
        (json!({"include": ["message.output_text.logprobs"]}), 2),
        (json!({"top_logprobs": 1}), 2),
        (json!({}), 0),
    ] {
        let whole = gateway.post(PATH, &request(fields.clone())).await.json();
        let part = &whole["output"][0]["content"][0];
        assert_eq!(part["logprobs"].as_array().unwrap().len(), count);
        let mut fields = fields;
        fields["stream"] = json!(true);
        let events = events(&gateway.post(PATH, &request(fields)).await);
        let told: usize = events
            .iter()
            .filter(|event| event["type"] == "response.output_text.delta")
            .map(|event| event["logprobs"].as_array().unwrap().len())
            .sum();
        assert_eq!(told, count);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_before_the_first_token_has_a_status_and_a_later_one_an_event() {
    let (mut worker, gateway) = pair().await;
    let body = request(json!({"stream": true}));
    let early = async {
        let request = worker.next_request().await;
        request.fail(tonic::Code::InvalidArgument, "no").await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), early);
    assert_eq!(answer.status, 400);
    let begun = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("a")).await;
        request
    };
    let mut client = Client::connect(gateway.address).await;
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), begun);
    request.fail(tonic::Code::Internal, "secret").await;
    let last = stream.rest().await.pop().unwrap();
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert!(!last.to_string().contains("secret"));
    // A response that failed is not kept.
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn errors_name_the_fields_of_this_endpoint() {
    let (_worker, gateway) = crate::tools::serve(&[]).await;
    let function =
        |name: &str, schema: Value| json!({"type": "function", "name": name, "parameters": schema});
    for (fields, param, code) in [
        (json!({"model": "x"}), "model", "model_not_found"),
        (
            json!({"input": "x".repeat(5000)}),
            "input",
            "context_length_exceeded",
        ),
        (
            json!({"truncation": "auto"}),
            "truncation",
            "unsupported_parameter",
        ),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
            "previous_response_not_found",
        ),
        (
            json!({"input": [{"type": "message", "role": "user", "content": [
                {"type": "input_image", "image_url": "data:"}]}]}),
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        // In a namespace, and behind a tool that may not be called.
        (
            json!({
                "tools": [function("f", json!({})), {"type": "namespace", "name": "n", "tools":
                    [function("g", json!({"$ref": "https://example.com/schema.json"}))]}],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools":
                    [{"type": "function", "name": "n__g"}]},
            }),
            "tools[1].tools[0].parameters",
            "invalid_value",
        ),
    ] {
        let answer = gateway.post(PATH, &request(fields.clone())).await;
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param, "{fields}: {error}");
        assert_eq!(error["code"], code, "{fields}: {error}");
    }
    let unknown = request(json!({"input": [{"type": "item_reference", "id": "msg_1"}]}));
    let answer = gateway.post(PATH, &unknown).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["param"], "input[0]");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_from_the_response_before() {
    let (mut worker, gateway) = pair().await;
    let (_, first) = turn(
        &gateway,
        &mut worker,
        request(json!({"instructions": "I"})),
        "A",
    )
    .await;
    let id = first["id"].as_str().unwrap();
    let next = request(json!({"input": "B", "previous_response_id": id}));
    let (prompt, second) = turn(&gateway, &mut worker, next, "C").await;
    // Instructions are of one request alone.
    assert_eq!(prompt, "user:Hi\nassistant:A\nuser:B\nassistant:");
    assert_eq!(second["previous_response_id"], id);
    // An item of an earlier response can be named.
    let item = first["output"][0]["id"].as_str().unwrap();
    let named = request(json!({"store": false, "input": [
        {"role": "user", "content": "x"},
        {"type": "item_reference", "id": item},
        {"role": "user", "content": "y"},
    ]}));
    let (prompt, third) = turn(&gateway, &mut worker, named, "D").await;
    assert_eq!(prompt, "user:x\nassistant:A\nuser:y\nassistant:");
    // What went into the second response: all before its own output, the last item first.
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let list = gateway.get(&format!("{path}?limit=2")).await.json();
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().unwrap().iter();
        items
            .map(|item| item["content"][0]["text"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(texts(&list), ["B", "A"]);
    assert_eq!(list["has_more"], true);
    let after = list["last_id"].as_str().unwrap();
    let list = gateway.get(&format!("{path}?after={after}")).await.json();
    assert_eq!(texts(&list), ["Hi"]);
    assert_eq!(list["has_more"], false);
    // `store: false` keeps nothing.
    let path = format!("{PATH}/{}", third["id"].as_str().unwrap());
    assert_eq!(third["store"], false);
    assert_eq!(gateway.get(&path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_response_can_be_read_again_and_deleted() {
    let (mut worker, gateway) = pair().await;
    let (_, first) = turn(&gateway, &mut worker, request(json!({})), "A").await;
    let id = first["id"].as_str().unwrap();
    let path = format!("{PATH}/{id}");
    assert_eq!(gateway.get(&path).await.json(), first);
    let streamed = gateway.get(&format!("{path}?stream=true")).await;
    assert_eq!(
        (streamed.status, &streamed.json()["error"]["param"]),
        (400, &json!("stream"))
    );
    let cancelled = gateway.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 400);
    let delete = || {
        let request = Request::delete(&path).header("host", "gateway");
        request.body(Full::default()).unwrap()
    };
    let mut client = Client::connect(gateway.address).await;
    let deleted = client.whole(delete()).await;
    assert_eq!(
        deleted.json(),
        json!({"id": id, "object": "response", "deleted": true})
    );
    assert_eq!(client.whole(delete()).await.status, 404);
    for path in [
        path.clone(),
        format!("{path}/input_items"),
        format!("{PATH}/resp_%ff"),
    ] {
        let answer = gateway.get(&path).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    let next = request(json!({"previous_response_id": id}));
    assert_eq!(gateway.post(PATH, &next).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_key_reads_its_own_responses_alone() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let file = std::env::temp_dir().join(format!("inflight-keys-{}", std::process::id()));
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let (workers, options) = ([worker.address], ["--api-key-file", file.to_str().unwrap()]);
    let gateway = Gateway::start(&workers, &options).await.ready().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let ask = async |mut request: Request<Full<Bytes>>, key: &str| {
        let value = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        Client::connect(gateway.address).await.whole(request).await
    };
    let response = ask(json_request(PATH, &request(json!({}))), "one")
        .await
        .json();
    let id = response["id"].as_str().unwrap();
    for (key, status) in [("one", 200), ("two", 404), ("three", 401)] {
        let get = Request::get(format!("{PATH}/{id}")).header("host", "gateway");
        let get = get.body(Full::default()).unwrap();
        assert_eq!(ask(get, key).await.status, status);
    }
    for (key, status) in [("two", 400), ("one", 200)] {
        let next = json_request(PATH, &request(json!({"previous_response_id": id})));
        assert_eq!(ask(next, key).await.status, status);
    }
    let _ = std::fs::remove_file(file);
}

/// Shows tools and calls, and opens the reasoning.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n<tool_call>{\"name\"</tool_call></think>{% endif %}\
     {% for message in messages %}{{ message.role }}:{{ message.content }}\
     {{ message.tool_calls | tojson if message.tool_calls }}\n{% endfor %}\
     assistant:<think>";

#[tokio::test(start_paused = true)]
async fn calls_and_reasoning_are_items_and_go_back_to_the_model() {
    let mut files = byte_model_files();
    for (name, content) in &mut files {
        if name == "chat_template.jinja" {
            *content = Bytes::from_static(TEMPLATE.as_bytes());
        }
    }
    let mut model = ScriptedModel::new("m", files);
    model.description.vocab_size = VOCABULARY;
    model.description.max_seq_len = 4096;
    model.description.max_input_len = 4095;
    let mut worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    let tools = json!([{"type": "function", "name": "f",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]);
    let said =
        "hm</think>Well.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let body = request(json!({"tools": tools}));
    let (shown, whole) = turn(&gateway, &mut worker, body.clone(), said).await;
    assert!(
        shown.starts_with(r#"[{"type": "function", "function": {"name": "f""#),
        "{shown}"
    );
    let output = whole["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(
        output[0]["content"],
        json!([{"type": "reasoning_text", "text": "hm"}])
    );
    assert_eq!(output[1]["content"][0]["text"], "Well.");
    assert_eq!(output[2]["name"], "f");
    let arguments: Value = serde_json::from_str(output[2]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"a": 1}));
    assert_eq!(whole["status"], "completed");
    let reasoning = &whole["usage"]["output_tokens_details"]["reasoning_tokens"];
    assert!(reasoning.as_u64().unwrap() > 0);

    // Streamed, it is the same, and every text comes in pieces.
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (_, answer) = tokio::join!(prompt(&mut worker, said), gateway.post(PATH, &streamed));
    let events = events(&answer);
    let joined = |name: &str| -> String {
        let of = events.iter().filter(|event| event["type"] == name);
        of.map(|event| event["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(joined("response.reasoning_text.delta"), "hm");
    assert_eq!(joined("response.output_text.delta"), "Well.");
    let written = joined("response.function_call_arguments.delta");
    assert_eq!(Value::from(written), output[2]["arguments"]);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][2]["name"], "f");

    // The call's result goes on from it.
    let next = request(
        json!({"tools": tools, "previous_response_id": whole["id"], "input": [
        {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "42"}]}),
    );
    let (shown, _) = turn(&gateway, &mut worker, next, "</think>So.").await;
    assert!(shown.contains("assistant:Well.[{"), "{shown}");
    assert!(shown.contains(r#""arguments": {"a": 1}"#), "{shown}");
    assert!(shown.contains("tool:42\n"), "{shown}");
    let hosted = request(json!({"tools": [{"type": "web_search"}]}));
    let refused = gateway.post(PATH, &hosted).await.json();
    assert_eq!(refused["error"]["param"], "tools[0].type");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_may_keep_nothing() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let (workers, options) = ([worker.address], ["--max-stored-responses", "0"]);
    let gateway = Gateway::start(&workers, &options).await.ready().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let response = gateway.post(PATH, &request(json!({}))).await.json();
    assert_eq!(response["store"], false);
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn items_named_by_id_count_as_if_they_were_sent() {
    let worker = ScriptedWorker::start(crate::tools::model()).await;
    let options = ["--max-body-bytes", "4000"];
    let gateway = Gateway::start(&[worker.address], &options)
        .await
        .ready()
        .await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::EndId);
    let kept = request(json!({"input": [{"role": "user", "content": "x".repeat(3000)}]}));
    let kept = gateway.post(PATH, &kept).await.json();
    let id = kept["id"].as_str().unwrap();
    let items = gateway
        .get(&format!("{PATH}/{id}/input_items"))
        .await
        .json();
    let item = items["data"][0]["id"].as_str().unwrap();

    let naming = |times| {
        let references = vec![json!({"type": "item_reference", "id": item}); times];
        request(json!({"input": references}))
    };
    assert_eq!(gateway.post(PATH, &naming(1)).await.status, 200);
    for body in [
        naming(30),
        request(json!({"previous_response_id": id, "input": "x".repeat(1500)})),
    ] {
        let refused = gateway.post(PATH, &body).await;
        assert_eq!(refused.status, 400);
        let error = &refused.json()["error"];
        assert_eq!(error["param"], "input");
        assert!(
            error["message"].as_str().unwrap().contains("`4000`"),
            "{error}"
        );
    }
}
