//! Tool calls and thinking in Anthropic's blocks.

use bytes::Bytes;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::{END, VOCABULARY, byte_model_files, tokens};
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};

use crate::support::{Answer, Gateway};

const PATH: &str = "/v1/messages";
const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
/// Shows tools and results; opens the thinking where that is on.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n<tool_call>{\"name\"</tool_call></think>{% endif %}\
     {% for message in messages %}{{ message.role }}:{{ message.reasoning_content }}{{ message.content }}\
     {{ message.tool_calls | tojson if message.tool_calls }}\n{% endfor %}\
     assistant:{% if enable_thinking %}<think>{% endif %}";

async fn serve() -> (ScriptedWorker, Gateway) {
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
    let worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &["--tool-parser=hermes"])
        .await
        .ready()
        .await;
    (worker, gateway)
}

/// A request with one tool, with more fields.
fn message(fields: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let mut body = json!({"model": "m", "max_tokens": 2000,
        "tools": [{"name": "f", "description": "Does.", "input_schema": schema}],
        "messages": [{"role": "user", "content": "Hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The answer to a request that is not refused.
async fn posted(gateway: &Gateway, body: &Value) -> Answer {
    let answer = gateway.post(PATH, body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer
}

fn prompt(request: &Received) -> String {
    let inputs = Tensors::inputs(&request.message).unwrap();
    let ids: Vec<i32> = inputs.values("input_ids").unwrap().unwrap();
    let bytes = ids.into_iter().map(|id| u8::try_from(id).unwrap());
    String::from_utf8(bytes.collect()).unwrap()
}

/// What a stream's blocks add up to, as Anthropic's SDKs do it, and the delta that ends the message.
fn accumulated(events: &[String]) -> (Vec<Value>, Value) {
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    let mut end = Value::Null;
    for event in events {
        let event: Value = serde_json::from_str(event).unwrap();
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(index, blocks.len());
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                assert_eq!(index + 1, blocks.len(), "only the last block grows");
                let delta = &event["delta"];
                for (kind, from, field) in [
                    ("text_delta", "text", "text"),
                    ("thinking_delta", "thinking", "thinking"),
                    ("signature_delta", "signature", "signature"),
                ] {
                    if delta["type"] == kind {
                        let grown = format!(
                            "{}{}",
                            blocks[index][field].as_str().unwrap(),
                            delta[from].as_str().unwrap()
                        );
                        blocks[index][field] = json!(grown);
                    }
                }
                if delta["type"] == "input_json_delta" {
                    inputs[index].push_str(delta["partial_json"].as_str().unwrap());
                }
            }
            "message_delta" => end = event["delta"].clone(),
            _ => {}
        }
    }
    for (block, input) in blocks.iter_mut().zip(inputs) {
        if !input.is_empty() {
            block["input"] = serde_json::from_str(&input).unwrap();
        }
    }
    (blocks, end)
}

#[tokio::test(start_paused = true)]
async fn thoughts_text_and_calls_are_blocks_whole_and_streamed() {
    let (mut worker, gateway) = serve().await;
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let call = |id: &Value| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let thought =
        |text: &str| json!({"type": "thinking", "thinking": text, "signature": "inflight"});
    for (fields, generated, expected, reason) in [
        (
            json!({"thinking": thinking}),
            format!("Hm.</think>Wait:{CALL}"),
            vec![Some(thought("Hm.")), Some(text("Wait:")), None],
            "tool_use",
        ),
        (
            json!({}),
            format!("{CALL}\n{CALL}"),
            vec![None, None],
            "tool_use",
        ),
        (
            json!({}),
            "No.".to_owned(),
            vec![Some(text("No."))],
            "end_turn",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}),
            "Hm.</think>No.".to_owned(),
            vec![Some(text("No."))],
            "end_turn",
        ),
    ] {
        for stream in [false, true] {
            let mut body = message(fields.clone());
            body["stream"] = json!(stream);
            let answering = async {
                let request = worker.next_request().await;
                for token in tokens(&generated) {
                    request.tokens(&[token]).await;
                }
                request.finish(&[END], FinishReason::EndId).await;
            };
            let (answer, ()) = tokio::join!(posted(&gateway, &body), answering);
            let (blocks, end) = match stream {
                true => accumulated(&answer.events()),
                false => {
                    let answer = answer.json();
                    (answer["content"].as_array().unwrap().clone(), answer)
                }
            };
            assert_eq!(end["stop_reason"], reason, "{generated}");
            if !stream {
                let thought = end["usage"]["output_tokens_details"]["thinking_tokens"].as_u64();
                assert_eq!(thought.is_some(), fields.get("thinking").is_some());
            }
            let expected: Vec<Value> = expected
                .iter()
                .zip(&blocks)
                .map(|(expected, found)| expected.clone().unwrap_or_else(|| call(&found["id"])))
                .collect();
            assert_eq!(blocks, expected, "{generated}");
            let ids: Vec<&Value> = blocks.iter().map(|block| &block["id"]).collect();
            assert!(ids.len() < 2 || ids[0] != ids[1] || ids[0].is_null());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cut_says_so_and_has_no_input() {
    let (mut worker, gateway) = serve().await;
    let answering = async {
        let request = worker.next_request().await;
        let cut = &CALL[..CALL.find("1}").unwrap()];
        request.finish(&tokens(cut), FinishReason::Length).await;
    };
    let body = message(json!({}));
    let (answer, ()) = tokio::join!(posted(&gateway, &body), answering);
    let answer = answer.json();
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["content"][0]["type"], "tool_use");
    assert_eq!(answer["content"][0]["input"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn tools_calls_and_results_reach_the_template() {
    let (mut worker, gateway) = serve().await;
    let turns = json!([{"role": "user", "content": "Go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "inflight"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "two"}]}]);
    let mut body = message(json!({"messages": turns}));
    let answering = async {
        let request = worker.next_request().await;
        request.finish(&[END], FinishReason::EndId).await;
        prompt(&request)
    };
    let (_, prompt) = tokio::join!(posted(&gateway, &body), answering);
    for part in [
        "\"name\": \"f\"",
        "\"description\": \"Does.\"",
        "\"parameters\": {\"type\": \"object\"",
        "user:Go\n",
        "assistant:Hm.[{",
        "\"arguments\": {\"a\": 1}",
        "tool:two\n",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
    body.as_object_mut().unwrap().remove("max_tokens");
    let counted = gateway.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(counted.json(), json!({"input_tokens": prompt.len()}));
}
