//! Custom tools, which take a text: in chat and in responses, whole and streamed, and held to their grammars.

use inflight_kserve::step::FinishReason;
use inflight_testkit::model::{END, tokens};
use inflight_testkit::worker::ScriptedWorker;
use serde_json::{Value, json};

use crate::support::{Answer, Gateway};
use crate::tools::{answered, chat, deltas, joined, prompt, serve};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// What the model writes to call the tool `run` with this text.
fn call(text: &str) -> String {
    let arguments = json!({"input": text});
    format!("<tool_call>\n{{\"name\": \"run\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn tool(format: Value) -> Value {
    json!({"type": "custom", "custom": {"name": "run", "description": "Runs a script.", "format": format}})
}

fn grammar(syntax: &str, definition: &str) -> Value {
    json!({"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}})
}

/// Asks `/v1/responses`, where the model writes `text`.
async fn response(fields: Value, text: &str) -> Answer {
    let (worker, gateway) = serve(&[]).await;
    let mut written = tokens(text);
    written.push(END);
    let worker = worker.answer_all(written, FinishReason::EndId);
    let mut body = json!({"model": "m", "input": "Hi"});
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    let answer = gateway.post(RESPONSES, &body).await;
    worker.abort();
    answer
}

#[tokio::test(start_paused = true)]
async fn a_call_in_chat_has_the_text_whole_and_streamed() {
    let text = "echo \"ä\"\n\tls";
    let tools = json!({"tools": [tool(json!({"type": "text"}))]});
    let answer = answered(tools.clone(), &call(text), FinishReason::EndId).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let told = &choice["message"]["tool_calls"][0];
    let id = &told["id"];
    assert_eq!(
        told,
        &json!({"id": id, "type": "custom", "custom": {"input": text, "name": "run"}})
    );

    let mut streamed = tools;
    streamed["stream"] = json!(true);
    let answer = answered(streamed, &call(text), FinishReason::EndId).await;
    let (deltas, finish) = deltas(&answer.events());
    assert_eq!(finish, "tool_calls");
    let first = &deltas[1]["tool_calls"][0];
    assert_eq!(
        (&first["type"], &first["custom"]),
        (&json!("custom"), &json!({"name": "run", "input": ""}))
    );
    assert!(deltas.len() > 8, "the text comes as it is generated");
    let input = joined(&deltas[2..], "/tool_calls/0/custom/input");
    assert_eq!(input, text);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_a_response_is_an_item_of_its_own() {
    let text = "two\nlines";
    let tools = json!({"tools": [{"type": "custom", "name": "run"}]});
    let answer = response(tools.clone(), &call(text)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    let item = &body["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["input"]),
        (
            &json!("custom_tool_call"),
            &json!("run"),
            &json!("two\nlines")
        )
    );
    let mut streamed = tools;
    streamed["stream"] = json!(true);
    let answer = response(streamed, &call(text)).await;
    let events: Vec<Value> = answer
        .events()
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let of = |name: &str| -> Vec<&Value> {
        let of = events.iter().filter(|event| event["type"] == name);
        of.collect()
    };
    let deltas = of("response.custom_tool_call_input.delta");
    assert!(deltas.len() > 3);
    let joined: String = deltas
        .iter()
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    let done = of("response.custom_tool_call_input.done");
    assert_eq!((joined.as_str(), &done[0]["input"]), (text, &json!(text)));
    assert!(of("response.function_call_arguments.delta").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_text_that_breaks_its_grammar_is_an_error_and_never_a_call() {
    const SUM: &str = "start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/";
    for (format, text, fits) in [
        (grammar("lark", SUM), "1+22", true),
        (grammar("lark", SUM), "1+", false),
        (grammar("lark", SUM), "one", false),
        (grammar("regex", "^[a-z]{3}$"), "abc", true),
        (grammar("regex", "^[a-z]{3}$"), "abcd", false),
    ] {
        let tools = json!({"tools": [tool(format.clone())]});
        let answer = answered(tools, &call(text), FinishReason::EndId).await;
        let body = answer.json();
        match fits {
            true => {
                let told = &body["choices"][0]["message"]["tool_calls"][0]["custom"]["input"];
                assert_eq!((answer.status, told), (200, &json!(text)), "{format}");
            }
            false => {
                let error = &body["error"];
                assert_eq!(
                    (answer.status, &error["code"]),
                    (502, &json!("invalid_answer"))
                );
                let message = error["message"].as_str().unwrap();
                assert!(
                    message.contains("`run`") && message.contains("grammar"),
                    "{message}"
                );
            }
        }
    }
    // Nor is anything else than a text.
    let other =
        "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"script\": \"ls\"}}\n</tool_call>";
    for stream in [false, true] {
        let tools = json!({"tools": [tool(json!({"type": "text"}))], "stream": stream});
        let answer = answered(tools, other, FinishReason::EndId).await;
        let told = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(told.contains("not a string"), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_grammar_is_named_before_a_worker_is_asked() {
    for (format, words) in [
        (
            grammar("lark", "start: nothing"),
            "grammar cannot be followed",
        ),
        (
            grammar("regex", "(a"),
            "regular expression cannot be followed",
        ),
    ] {
        let (_worker, gateway) = serve(&[]).await;
        let body = chat(json!({"tools": [tool(format)]}));
        let answer = gateway.post(CHAT, &body).await;
        let body = answer.json();
        let error = &body["error"];
        let param = "tools[0].custom.format.grammar.definition";
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_demanded_call_is_begun_for_the_model() {
    let (mut worker, gateway) = serve(&[]).await;
    let body = chat(json!({
        "tools": [tool(json!({"type": "text"}))],
        "tool_choice": {"type": "custom", "custom": {"name": "run"}},
    }));
    let (answer, shown) = tokio::join!(gateway.post(CHAT, &body), async {
        let request = worker.next_request().await;
        let shown = prompt(&request);
        let rest = "{\"input\": \"ls\"}}\n</tool_call>";
        request.finish(&tokens(rest), FinishReason::EndId).await;
        shown
    });
    let begun = "<tool_call>\n{\"name\": \"run\", \"arguments\": ";
    assert!(shown.ends_with(begun), "{shown}");
    assert!(
        shown.contains("\"input\": {\"type\": \"string\"}"),
        "{shown}"
    );
    let body = answer.json();
    let told = &body["choices"][0]["message"]["tool_calls"][0]["custom"];
    assert_eq!(told, &json!({"input": "ls", "name": "run"}));
}

#[tokio::test(start_paused = true)]
async fn a_guided_call_is_held_to_its_regular_expression() {
    let mut model = crate::tools::model();
    let capabilities = &mut model.description.capabilities;
    capabilities.push("guided_decoding".to_owned());
    let mut worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    let body = chat(json!({
        "tools": [tool(grammar("regex", "[a-z]+"))], "tool_choice": "required",
    }));
    let (answer, guide) = tokio::join!(gateway.post(CHAT, &body), async {
        let request = worker.next_request().await;
        let text = format!("{:?}", request.message.raw_input_contents);
        let rest = "{\"name\": \"run\", \"arguments\": {\"input\": \"ls\"}}";
        request.finish(&tokens(rest), FinishReason::EndId).await;
        text
    });
    assert!(guide.contains("^(?:[a-z]+)$"), "{guide}");
    let body = answer.json();
    let told = &body["choices"][0]["message"]["tool_calls"][0]["custom"];
    assert_eq!(told, &json!({"input": "ls", "name": "run"}), "{body}");
}
