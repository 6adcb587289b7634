//! Tools and reasoning: what the model is shown, and what becomes of what it writes.

use bytes::Bytes;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::{END, VOCABULARY, byte_model_files, tokens};
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, pair};

const PATH: &str = "/v1/chat/completions";

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
/// Shows tools, effort and the switch for thinking; opens the reasoning where that is on.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}\n<tool_call>{\"name\"</tool_call></think>{% endif %}\
     {% for message in messages %}{{ message.role }}:{{ message.content }}{{ message.reasoning_content }}\
     {{ message.tool_calls | tojson if message.tool_calls }}\n{% endfor %}\
     {{ reasoning_effort }}assistant:{% if enable_thinking %}<think>{% endif %}";

pub(crate) fn model() -> ScriptedModel {
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
    model
}

pub(crate) async fn serve(extra: &[&str]) -> (ScriptedWorker, Gateway) {
    let worker = ScriptedWorker::start(model()).await;
    let gateway = Gateway::start(&[worker.address], extra).await.ready().await;
    (worker, gateway)
}

pub(crate) fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    let map = body.as_object_mut().unwrap();
    map.extend(extra.as_object().unwrap().clone());
    body
}

fn tool(name: &str) -> Value {
    let parameters =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// The answer to a request for which the model writes `text`, ended by itself or by the length.
pub(crate) async fn answered(extra: Value, text: &str, end: FinishReason) -> Answer {
    let (worker, gateway) = serve(&[]).await;
    let mut tokens = tokens(text);
    if end == FinishReason::EndId {
        tokens.push(END);
    }
    let worker = worker.answer_all(tokens, end);
    let answer = gateway.post(PATH, &chat(extra)).await;
    worker.abort();
    answer
}

async fn message(extra: Value, text: &str) -> (Value, Value, Value) {
    let answer = answered(extra, text, FinishReason::EndId).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let mut body = answer.json();
    let usage = body["usage"].take();
    let mut choice = body["choices"][0].take();
    (
        choice["message"].take(),
        choice["finish_reason"].take(),
        usage,
    )
}

/// The text of a request's prompt.
pub(crate) fn prompt(request: &Received) -> String {
    let inputs = Tensors::inputs(&request.message).unwrap();
    let ids = inputs.values::<i32>("input_ids").unwrap().unwrap();
    let bytes = ids.into_iter().map(|id| u8::try_from(id).unwrap());
    String::from_utf8(bytes.collect()).unwrap()
}

/// All deltas of choice 0 and its finish reason, pieces of one kind joined.
pub(crate) fn deltas(events: &[String]) -> (Vec<Value>, Value) {
    let mut all: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        assert!(finish.is_null(), "nothing follows the finish reason");
        finish = choice["finish_reason"].clone();
        let delta = choice["delta"].clone();
        if delta != json!({}) {
            all.push(delta);
        }
    }
    (all, finish)
}

pub(crate) fn joined(deltas: &[Value], pointer: &str) -> String {
    let texts = deltas
        .iter()
        .filter_map(|delta| delta.pointer(pointer)?.as_str());
    texts.collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_is_a_call_whole_and_streamed() {
    let tools = json!({"tools": [tool("f"), tool("g")]});
    let (message, finish, _) = message(tools.clone(), &format!("Wait.\n{CALL}\n")).await;
    let id = message["tool_calls"][0]["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("call_") && id.len() == 25, "{id}");
    assert_eq!(
        message,
        json!({"role": "assistant", "content": "Wait.\n", "refusal": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]})
    );
    assert_eq!(finish, "tool_calls");

    let mut streamed = tools;
    streamed["stream"] = json!(true);
    let two = format!("{CALL}\n{}", CALL.replace("\"f\"", "\"g\""));
    let answer = answered(streamed, &two, FinishReason::EndId).await;
    let (deltas, finish) = deltas(&answer.events());
    assert_eq!(finish, "tool_calls");
    assert_eq!(deltas[0], json!({"role": "assistant", "content": ""}));
    for (index, name) in [(0, "f"), (1, "g")] {
        let of_call = |delta: &&Value| delta.pointer("/tool_calls/0/index") == Some(&json!(index));
        let call: Vec<Value> = deltas.iter().filter(of_call).cloned().collect();
        let first = &call[0]["tool_calls"][0];
        assert_eq!(
            (&first["type"], &first["function"]),
            (&json!("function"), &json!({"name": name, "arguments": ""}))
        );
        assert!(first["id"].as_str().unwrap().starts_with("call_"));
        let rest: Vec<Value> = call[1..].to_vec();
        assert!(rest.len() > 3, "arguments come as they are generated");
        assert!(
            rest.iter()
                .all(|delta| delta["tool_calls"][0].get("id").is_none())
        );
        assert_eq!(
            joined(&rest, "/tool_calls/0/function/arguments"),
            "{\"a\": 1}"
        );
    }
    assert_eq!(joined(&deltas, "/content"), "");
}

#[tokio::test(start_paused = true)]
async fn text_stays_text_where_nothing_was_called() {
    for (text, content) in [
        ("a < b", "a < b"),
        (
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
            "",
        ),
        ("", ""),
    ] {
        let content = if content.is_empty() { text } else { content };
        let (message, finish, _) = message(json!({"tools": [tool("f")]}), text).await;
        assert_eq!(
            (&message["content"], &finish),
            (&json!(content), &json!("stop"))
        );
        assert!(message.get("tool_calls").is_none());
    }
    // Without tools nothing is looked for.
    let (message, finish, _) =
        message(json!({"tools": [tool("f")], "tool_choice": "none"}), CALL).await;
    assert_eq!(
        (&message["content"], &finish),
        (&json!(CALL), &json!("stop"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cut_is_told_as_it_is() {
    let cut = &CALL[..CALL.len() - 15];
    let answer = answered(json!({"tools": [tool("f")]}), cut, FinishReason::Length).await;
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], Value::Null);
    let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(arguments, "{\"a\": 1");
    let extra = json!({"tools": [tool("f")], "stop": "1}"});
    let answer = answered(extra, CALL, FinishReason::EndId).await;
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(start_paused = true)]
async fn one_call_ends_the_answer_where_only_one_is_wanted() {
    let (mut worker, gateway) = serve(&[]).await;
    let body = chat(json!({"tools": [tool("f")], "parallel_tool_calls": false, "stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens(CALL)).await;
        let stop = worker.next_request().await;
        assert!(stop.stop, "the worker need not go on");
        request
    };
    let (answer, _request) = tokio::join!(gateway.post(PATH, &body), serve);
    let (deltas, finish) = deltas(&answer.events());
    assert_eq!(finish, "tool_calls");
    assert_eq!(joined(&deltas, "/tool_calls/0/function/name"), "f");
}

#[tokio::test(start_paused = true)]
async fn reasoning_is_told_apart_and_counted() {
    let (message, finish, usage) = message(json!({}), "<think>Hm.</think>\n\nYes").await;
    assert_eq!(
        (&message["reasoning_content"], &message["content"], &finish),
        (&json!("Hm."), &json!("Yes"), &json!("stop"))
    );
    let counted = usage["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    assert!((3..=20).contains(&counted), "{usage}");

    // The prompt has opened it.
    let open = json!({"enable_thinking": true, "stream": true});
    let answer = answered(open, "Hm.</think>Yes", FinishReason::EndId).await;
    let (deltas, _) = deltas(&answer.events());
    assert_eq!(joined(&deltas, "/reasoning_content"), "Hm.");
    assert_eq!(joined(&deltas, "/content"), "Yes");

    let hidden = json!({"include_reasoning": false});
    let (message, _, usage) = self::message(hidden, "<think>Hm.</think>Yes").await;
    assert!(message.get("reasoning_content").is_none());
    assert_eq!(message["content"], "Yes");
    assert_ne!(usage["completion_tokens_details"]["reasoning_tokens"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_thinking_becomes_tokens_between_the_marks() {
    let (mut worker, gateway) = serve(&[]).await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let start = tokens("<think>");
    for (path, body, start) in [
        (PATH, json!({"messages": messages}), start.clone()),
        // The prompt has opened it.
        (
            PATH,
            json!({"messages": messages, "enable_thinking": true}),
            Vec::new(),
        ),
        // No grammar stands in the way of the mark.
        (
            PATH,
            json!({"messages": messages, "tools": [tool("f")]}),
            start.clone(),
        ),
        ("/v1/completions", json!({"prompt": "Hi"}), start),
        (
            "/v1/completions",
            json!({"prompt": "Hi<think>\n"}),
            Vec::new(),
        ),
        (
            "/v1/completions",
            json!({"prompt": tokens("Hi<think>")}),
            Vec::new(),
        ),
    ] {
        let mut sent = body.clone();
        sent["thinking_token_budget"] = json!(7);
        let serve = async {
            let request = worker.next_request().await;
            request.finish(&tokens("x"), FinishReason::Length).await;
            let inputs = Tensors::inputs(&request.message).unwrap();
            let ids = |name: &str| inputs.values::<i32>(name).unwrap().unwrap_or_default();
            (
                ids("inflight_thinking_budget"),
                ids("inflight_thinking_start_ids"),
                ids("inflight_thinking_end_ids"),
            )
        };
        let (answer, thinking) = tokio::join!(gateway.post(path, &sent), serve);
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        assert_eq!(thinking, (vec![7], start, tokens("</think>")), "{body}");
    }
    let (_worker, gateway) = serve(&["--reasoning-parser", "none"]).await;
    let body = chat(json!({"thinking_token_budget": 7}));
    let error = gateway.post(PATH, &body).await;
    let text = error.json()["error"]["message"].to_string();
    assert_eq!(error.status, 400);
    assert!(text.contains("--reasoning-parser"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn reasoning_has_the_name_that_the_operator_chooses() {
    for (option, names) in [
        ("reasoning", &["reasoning"][..]),
        ("both", &["reasoning_content", "reasoning"]),
    ] {
        let (worker, gateway) = serve(&["--reasoning-field", option]).await;
        let mut text = tokens("<think>Hm.</think>Yes");
        text.push(END);
        let worker = worker.answer_all(text, FinishReason::EndId);
        let whole = gateway.post(PATH, &chat(json!({}))).await.json();
        let streamed = gateway.post(PATH, &chat(json!({"stream": true}))).await;
        let (deltas, _) = deltas(&streamed.events());
        for name in ["reasoning_content", "reasoning"] {
            let expected = if names.contains(&name) { "Hm." } else { "" };
            let message = &whole["choices"][0]["message"];
            assert_eq!(message[name].as_str().unwrap_or_default(), expected);
            assert_eq!(joined(&deltas, &format!("/{name}")), expected);
        }
        worker.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn every_log_probability_is_told_beside_calls_and_reasoning() {
    let text = format!("<think>Hm</think>{CALL}");
    for stream in [false, true] {
        let extra = json!({"tools": [tool("f")], "logprobs": true, "stream": stream});
        let answer = answered(extra, &text, FinishReason::Length).await;
        if !stream {
            let content = &answer.json()["choices"][0]["message"]["content"];
            assert_eq!(content, &Value::Null);
        }
        let of = |value: &Value| {
            let list = value["choices"][0]["logprobs"]["content"].as_array();
            list.map_or(0, Vec::len)
        };
        let count: usize = match stream {
            false => of(&answer.json()),
            true => {
                let events = answer.events();
                let events = events.iter().filter(|event| *event != "[DONE]");
                events
                    .map(|event| of(&serde_json::from_str(event).unwrap()))
                    .sum()
            }
        };
        // Whoever scores a text counts its bytes: each is a token.
        assert_eq!(count, text.len(), "stream: {stream}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_model_is_shown_tools_earlier_calls_and_the_effort() {
    let (mut worker, gateway) = serve(&[]).await;
    let body = chat(
        json!({"tools": [tool("f")], "reasoning_effort": "low", "max_tokens": 1, "messages": [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": null, "reasoning": "R", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "one"}]}
        ]}),
    );
    let serve = async {
        let request = worker.next_request().await;
        let text = prompt(&request);
        request.finish(&tokens("x"), FinishReason::Length).await;
        text
    };
    let (answer, text) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.status, 200);
    assert!(answer.headers.get("x-inflight-ignored-fields").is_none());
    let tools = json!([tool("f")])
        .to_string()
        .replace("\":", "\": ")
        .replace(",\"", ", \"");
    assert!(text.starts_with(&format!("{}\n", tools)), "{text}");
    let call = r#"assistant:R[{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]"#;
    assert!(text.contains(call), "{text}");
    assert!(text.ends_with("tool:one\nlowassistant:"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_be_shown_or_read_says_what_helps() {
    let tools = chat(json!({"tools": [tool("f")]}));
    // The byte model's own template knows no tools.
    let (_worker, gateway) = pair().await;
    let error = gateway.post(PATH, &tools).await;
    assert_eq!(
        (error.status, &error.json()["error"]["param"]),
        (400, &json!("tools"))
    );

    let (worker, gateway) = serve(&["--tool-parser", "none", "--reasoning-parser", "m=none"]).await;
    let error = gateway.post(PATH, &tools).await.json();
    assert_eq!(error["error"]["param"], "tools");
    let text = error["error"]["message"].as_str().unwrap().to_owned();
    assert!(text.contains("`--tool-parser`"), "{text}");
    let _worker = worker.answer_all(tokens("<think>Hm</think>"), FinishReason::Length);
    let answer = gateway.post(PATH, &chat(json!({}))).await.json();
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        "<think>Hm</think>"
    );

    // What the template does not read has no effect, and is named.
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("x"), FinishReason::Length);
    let body = chat(json!({"reasoning_effort": "high", "enable_thinking": true}));
    let answer = gateway.post(PATH, &body).await;
    assert_eq!(
        answer.headers["x-inflight-ignored-fields"],
        "reasoning_effort, thinking"
    );
}

#[tokio::test(start_paused = true)]
async fn a_demanded_call_that_does_not_come_or_fit_is_an_error() {
    let rest = "{\"a\": 1}}\n</tool_call>";
    let wrong = rest.replace('1', "true");
    let wrong_call = CALL.replace('1', "true");
    let named = json!({"type": "function", "function": {"name": "g"}});
    let strict = |mut tool: Value| {
        tool["function"]["strict"] = json!(true);
        tool
    };
    let one = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
    let two = |choice: Value| json!({"tools": [tool("f"), tool("g")], "tool_choice": choice});
    let opened = CALL.strip_prefix("<tool_call>\n").unwrap();
    for (extra, text, part) in [
        // The prompt ends with the beginning of a call.
        (one(json!("required")), rest, None),
        (two(named.clone()), rest, None),
        (two(json!("required")), opened, None),
        (one(json!("required")), "No.", Some("called no tool")),
        (two(named), "No.", Some("called no tool")),
        (two(json!("required")), "No.", Some("called no tool")),
        (one(json!("required")), wrong.as_str(), Some("at `/a`")),
        (
            json!({"tools": [strict(tool("f"))]}),
            wrong_call.as_str(),
            Some("at `/a`"),
        ),
        (json!({"tools": [tool("f")]}), wrong_call.as_str(), None),
        (json!({"tools": [strict(tool("f"))]}), "No.", None),
    ] {
        let answer = answered(extra.clone(), text, FinishReason::EndId).await;
        let Some(part) = part else {
            assert_eq!(answer.status, 200, "{extra} {:?}", answer.body);
            continue;
        };
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["code"]),
            (502, &json!("invalid_answer")),
            "{extra}"
        );
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
        let mut streamed = extra;
        streamed["stream"] = json!(true);
        let answer = answered(streamed, text, FinishReason::EndId).await;
        // The tokens may come in one piece or in several: then a part of the answer was sent before.
        if answer.status != 502 {
            assert_eq!(answer.status, 200);
            let events = answer.events();
            let [.., last, done] = events.as_slice() else {
                panic!("{events:?}");
            };
            assert_eq!(done, "[DONE]");
            assert!(
                last.contains("invalid_answer") && last.contains(part),
                "{last}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_call_that_the_request_names_ends_with_stop() {
    let rest = CALL.strip_prefix("<tool_call>\n{\"name\": \"f\", \"arguments\": ");
    let rest = rest.unwrap();
    let opened = CALL.strip_prefix("<tool_call>\n").unwrap();
    let named = json!({"type": "function", "function": {"name": "f"}});
    let allowed = json!({"type": "function", "function": {"name": "f"}});
    let allowed =
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [allowed]}});
    let ended = FinishReason::EndId;
    for (choice, text, end, finish) in [
        (named.clone(), rest, ended, "stop"),
        (named, "{\"a\": ", FinishReason::Length, "length"),
        (json!("required"), opened, ended, "tool_calls"),
        (json!("auto"), CALL, ended, "tool_calls"),
        // As with `required`: there might be several.
        (allowed, rest, ended, "tool_calls"),
    ] {
        for stream in [false, true] {
            let tools = [tool("f"), tool("g")];
            let extra = json!({"tools": tools, "tool_choice": choice, "stream": stream});
            let answer = answered(extra.clone(), text, end).await;
            assert_eq!(answer.status, 200, "{extra} {:?}", answer.body);
            let found = match stream {
                true => deltas(&answer.events()).1,
                false => answer.json()["choices"][0]["finish_reason"].clone(),
            };
            assert_eq!(found, finish, "{extra}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_call_does_not_fit_ends_with_the_error() {
    let (mut worker, gateway) = serve(&[]).await;
    let body = chat(json!({"tools": [tool("f")], "tool_choice": "required", "stream": true}));
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("{\"a\": ")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let first = stream.next().await.unwrap();
    assert!(first.contains("\"role\""), "{first}");
    request
        .finish(&tokens("true}}\n</tool_call>"), FinishReason::Length)
        .await;
    let events = stream.rest().await;
    let [.., last, done] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert!(
        last.contains("invalid_answer") && done == "[DONE]",
        "{last}"
    );
    assert!(
        !events
            .iter()
            .any(|event| event.contains("\"finish_reason\":\""))
    );
}

/// What a worker that guides got and answered: the prompt's end, the guide's type and JSON.
async fn guided(extra: Value, text: &str) -> (String, Option<(String, Value)>, Answer) {
    let (end, guide, answer) = guided_as(&[], extra, text).await;
    let guide = guide.map(|(kind, guide)| (kind, serde_json::from_str(&guide).unwrap()));
    (end, guide, answer)
}

/// As [`guided`], behind a gateway with these options, with the guide's text as it is.
async fn guided_as(
    options: &[&str],
    extra: Value,
    text: &str,
) -> (String, Option<(String, String)>, Answer) {
    let mut model = model();
    model
        .description
        .capabilities
        .push("guided_decoding".to_owned());
    let mut worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], options)
        .await
        .ready()
        .await;
    let mut tokens = tokens(text);
    tokens.push(END);
    let serve = async {
        let request = worker.next_request().await;
        let inputs = Tensors::inputs(&request.message).unwrap();
        let text = |name: &str| {
            inputs
                .get(name)
                .map(|tensor| tensor.string().unwrap().to_owned())
        };
        let guide = text("guided_decoding_guide_type");
        let guide = guide.map(|kind| (kind, text("guided_decoding_guide").unwrap()));
        request.finish(&tokens, FinishReason::EndId).await;
        (prompt(&request), guide)
    };
    let body = chat(extra);
    let (answer, (prompt, guide)) = tokio::join!(gateway.post(PATH, &body), serve);
    let (_, end) = prompt.rsplit_once("assistant:").unwrap();
    (end.to_owned(), guide, answer)
}

#[tokio::test(start_paused = true)]
async fn demanded_and_strict_calls_are_guided_where_the_executor_can() {
    let called = |answer: &Answer| {
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let choice = &answer.json()["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        choice["message"]["tool_calls"][0]["function"].clone()
    };
    // The grammar ends the answer with the object.
    let one = json!({"tools": [tool("f")], "tool_choice": "required"});
    let (end, guide, answer) = guided(one, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}").await;
    assert_eq!(end, "<tool_call>\n");
    let (kind, schema) = guide.unwrap();
    let arguments = &schema["anyOf"][0]["properties"]["arguments"];
    let parameters = &tool("f")["function"]["parameters"];
    assert_eq!((kind.as_str(), arguments), ("json_schema", parameters));
    assert_eq!(
        called(&answer),
        json!({"name": "f", "arguments": "{\"a\": 1}"})
    );

    let two = json!({"tools": [tool("f"), tool("g")], "tool_choice": "required"});
    let (end, guide, answer) = guided(two, "{\"name\": \"g\", \"arguments\": {\"a\": 2}}").await;
    assert_eq!(end, "<tool_call>\n");
    assert_eq!(
        guide.unwrap().1["anyOf"][1]["properties"]["name"]["const"],
        "g"
    );
    assert_eq!(
        called(&answer),
        json!({"name": "g", "arguments": "{\"a\": 2}"})
    );

    let mut strict = tool("f");
    strict["function"]["strict"] = json!(true);
    let (end, guide, answer) = guided(json!({"tools": [strict]}), CALL).await;
    assert_eq!(
        (end.as_str(), guide.unwrap().0.as_str()),
        ("", "structural_tag")
    );
    called(&answer);

    // Nothing is demanded, or it cannot be guided: then it is checked.
    let (_, guide, _) = guided(json!({"tools": [tool("f")]}), "No.").await;
    assert_eq!(guide, None);
    let mut odd = tool("f");
    odd["function"]["parameters"]["not"] = json!({"required": ["b"]});
    let request = json!({"tools": [odd], "tool_choice": "required"});
    let written = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let (_, guide, answer) = guided(request, written).await;
    assert_eq!(guide, None);
    called(&answer);
}

#[tokio::test(start_paused = true)]
async fn a_demanded_call_is_guided_in_the_form_of_its_model() {
    for (parser, end, kind, written) in [
        (
            "qwen3_coder",
            "<tool_call>\n<function=",
            "regex",
            "f>\n<parameter=a>\n1\n</parameter>\n",
        ),
        (
            "glm45",
            "<tool_call>",
            "regex",
            "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n",
        ),
        ("pythonic", "[", "regex", "f(a=1)"),
        (
            "mistral",
            "[TOOL_CALLS] [",
            "json_schema",
            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        ),
        (
            "openai",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
            "json_schema",
            "{\"a\": 1}",
        ),
    ] {
        let named = json!({"type": "function", "function": {"name": "f"}});
        let extra = json!({"tools": [tool("f"), tool("g")], "tool_choice": named});
        let option = format!("--tool-parser={parser}");
        let (began, guide, answer) = guided_as(&[&option], extra.clone(), written).await;
        assert_eq!(began, end, "{parser}");
        let (found, text) = guide.unwrap();
        assert_eq!(found, kind, "{parser}");
        // The other function cannot be called.
        assert!(kind == "json_schema" || text.starts_with("(?:f"), "{text}");
        let answer = answer.json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "f", "{parser}: {answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"a": 1}), "{parser}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_calls_keeps_to_the_schema_of_its_format() {
    let schema = json!({"type": "object", "required": ["b"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let extra = json!({"tools": [tool("f")], "response_format": format});
    for (text, status) in [(CALL, 200), ("{\"b\": 1}", 200), ("{}", 502), ("Yes", 502)] {
        assert_eq!(
            answered(extra.clone(), text, FinishReason::EndId)
                .await
                .status,
            status,
            "{text}"
        );
    }
    let extra = json!({"tools": [tool("f")], "guided_regex": "a"});
    let error = answered(extra, "a", FinishReason::EndId).await.json();
    assert_eq!(error["error"]["param"], "guided_regex");
}

#[tokio::test(start_paused = true)]
async fn a_malformed_call_is_never_a_call_with_broken_json() {
    let broken = "<tool_call>\n{\"name\": \"f\", \"arguments\": {oops}}\n</tool_call>";
    let (message, finish, _) = message(json!({"tools": [tool("f")]}), broken).await;
    assert_eq!(
        message["content"], broken,
        "in one piece it is the text that it is"
    );
    assert!(
        message.get("tool_calls").is_none_or(Value::is_null),
        "{message}"
    );
    assert_eq!(finish, "stop");

    // All of it came before the first event, so the stream has not begun.
    let streamed = json!({"tools": [tool("f")], "stream": true});
    let answer = answered(streamed, broken, FinishReason::EndId).await;
    assert_eq!(answer.status, 502);
    let text = answer.json()["error"]["message"].to_string();
    assert!(text.contains("malformed"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn mistral_s_templates_see_ids_of_nine_characters() {
    let (mut worker, gateway) = serve(&["--tool-parser", "mistral"]).await;
    let turns = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_U1yPJ2C9vp3DVCunLBXt", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_U1yPJ2C9vp3DVCunLBXt", "content": "7"},
    ]);
    let body = chat(json!({"messages": turns, "tools": [tool("f")]}));
    let written = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]";
    let answering = async {
        let request = worker.next_request().await;
        let shown = prompt(&request);
        request.tokens(&tokens(written)).await;
        request.finish(&[END], FinishReason::EndId).await;
        shown
    };
    let (answer, shown) = tokio::join!(gateway.post(PATH, &body), answering);
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert!(!shown.contains("call_U1yPJ2C9vp3DVCunLBXt"), "{shown}");
    let (_, shown) = shown.split_once("\"id\":").unwrap();
    let shown = shown.split('"').nth(1).unwrap();
    assert!(
        shown.len() == 9 && shown.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{shown}"
    );
    let answer = answer.json();
    let id = answer["choices"][0]["message"]["tool_calls"][0]["id"]
        .as_str()
        .unwrap();
    assert!(
        id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{answer}"
    );
}
