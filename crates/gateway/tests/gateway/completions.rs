//! Completions: the four forms of a prompt, several at once, echo, log probabilities.

use inflight_kserve::step::{FinishReason, PromptLogProbs};
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::{END, tokens};
use inflight_testkit::worker::{Received, row};
use serde_json::{Value, json};

use crate::support::{normalized, pair};

const PATH: &str = "/v1/completions";

fn input_ids(request: &Received) -> Vec<i32> {
    let inputs = Tensors::inputs(&request.message).unwrap();
    inputs.values("input_ids").unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_framed_to_the_letter() {
    let (mut worker, gateway) = pair().await;
    let body = json!({"model": "m", "prompt": "ab", "stream": true});
    let serve = async {
        let request = worker.next_request().await;
        request.finish(&tokens("cd"), FinishReason::Length).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let head = r#"{"id":"ID","object":"text_completion","created":TIME,"model":"m","system_fingerprint":null,"choices":["#;
    assert_eq!(
        normalized(&answer.events()),
        [
            format!(r#"{head}{{"index":0,"text":"c","logprobs":null,"finish_reason":null}}]}}"#),
            format!(r#"{head}{{"index":0,"text":"d","logprobs":null,"finish_reason":null}}]}}"#),
            format!(r#"{head}{{"index":0,"text":"","logprobs":null,"finish_reason":"length"}}]}}"#),
            "[DONE]".to_owned(),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn every_form_of_a_prompt_arrives_as_its_tokens() {
    let (mut worker, gateway) = pair().await;
    for (prompt, expected) in [
        (json!("ab"), vec![tokens("ab")]),
        (json!(["ab", "c"]), vec![tokens("ab"), tokens("c")]),
        (json!([97, 98]), vec![tokens("ab")]),
        (json!([[97], [98, 99]]), vec![tokens("a"), tokens("bc")]),
    ] {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        let serve = async {
            let mut seen = Vec::new();
            for _ in &expected {
                let request = worker.next_request().await;
                seen.push(input_ids(&request));
                request
                    .finish(&input_ids(&request), FinishReason::EndId)
                    .await;
            }
            seen
        };
        let (answer, seen) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(seen, expected, "{prompt}");
        let value = answer.json();
        assert_eq!(value["object"], "text_completion");
        let texts: Vec<_> = value["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| tokens(choice["text"].as_str().unwrap()))
            .collect();
        assert_eq!(texts, expected);
        let count: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(value["usage"]["prompt_tokens"], count);
        // The end tokens count.
        assert_eq!(value["usage"]["completion_tokens"], count + expected.len());
    }
}

#[tokio::test(start_paused = true)]
async fn several_prompts_with_several_choices_are_numbered_prompt_by_prompt() {
    let (mut worker, gateway) = pair().await;
    let body = json!({"model": "m", "prompt": ["a", "b"], "n": 2});
    let serve = async {
        let requests = [worker.next_request().await, worker.next_request().await];
        // The second prompt is quicker, and its second sequence quickest.
        for (request, name) in [(&requests[1], "B"), (&requests[0], "A")] {
            for (sequence, is_final) in [(1, false), (0, true)] {
                let text = tokens(&format!("{name}{sequence}"));
                let handle = request.handle;
                let mut rows = row(handle, sequence, &text, FinishReason::EndId, is_final);
                // What another sequence finds is what the first one has computed.
                let cached = if sequence == 0 { 1 } else { 9 };
                rows.cached_tokens = vec![(0, cached)];
                request.rows(rows).await;
            }
        }
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let value = answer.json();
    let details = &value["usage"]["prompt_tokens_details"];
    assert_eq!(details, &json!({"cached_tokens": 2}));
    let choices: Vec<(u64, &str)> = value["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| {
            (
                choice["index"].as_u64().unwrap(),
                choice["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(choices, [(0, "A0"), (1, "A1"), (2, "B0"), (3, "B1")]);
}

#[tokio::test(start_paused = true)]
async fn echo_puts_the_prompt_and_its_log_probabilities_first() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        let body = json!({"model": "m", "prompt": "ab", "echo": true, "logprobs": 1,
                          "max_tokens": 2, "stream": stream});
        let serve = async {
            let request = worker.next_request().await;
            let inputs = Tensors::inputs(&request.message).unwrap();
            let wanted = inputs
                .scalar::<i32>("inflight_num_prompt_log_probs")
                .unwrap();
            assert_eq!(wanted, Some(1));
            let mut rows = row(request.handle, 0, &tokens("cd"), FinishReason::Length, true);
            rows.log_prob_rows = vec![0];
            rows.log_probs = vec![-3.0, -4.0];
            rows.top_log_prob_rows = vec![0];
            rows.top_log_prob_widths = vec![1];
            rows.top_log_prob_ids = tokens("xd");
            rows.top_log_probs = vec![-0.5, -4.0];
            rows.prompt_log_probs = vec![PromptLogProbs {
                row: 0,
                values: vec![f32::NAN, -2.0],
                width: 1,
                top_ids: vec![-1, 98],
                top_values: vec![f32::NAN, -2.0],
            }];
            request.rows(rows).await;
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let (text, logprobs) = match stream {
            false => {
                let choice = &answer.json()["choices"][0];
                (choice["text"].clone(), choice["logprobs"].clone())
            }
            true => joined(&answer.events()),
        };
        assert_eq!(text, "abcd");
        assert_eq!(
            logprobs,
            json!({
                "tokens": ["a", "b", "c", "d"],
                "token_logprobs": [null, -2.0, -3.0, -4.0],
                // The token itself is told also where it is not among the likeliest.
                "top_logprobs": [null, {"b": -2.0}, {"x": -0.5, "c": -3.0}, {"d": -4.0}],
                "text_offset": [0, 1, 2, 3],
            })
        );
    }
}

/// The text and the log probabilities of a stream's events, put together. After the echo each event has the
/// log probability of one token.
fn joined(events: &[String]) -> (Value, Value) {
    let mut text = String::new();
    let mut columns = json!({});
    for (place, event) in events.iter().filter(|event| *event != "[DONE]").enumerate() {
        let event: Value = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        text += choice["text"].as_str().unwrap();
        let Some(logprobs) = choice["logprobs"].as_object() else {
            continue;
        };
        for (name, values) in logprobs {
            let values = values.as_array().unwrap();
            assert!(place == 0 || values.len() == 1, "{event}");
            let column = columns.as_object_mut().unwrap().entry(name.clone());
            let column = column.or_insert_with(|| json!([]));
            column
                .as_array_mut()
                .unwrap()
                .extend(values.iter().cloned());
        }
    }
    (text.into(), columns)
}

/// What lm-evaluation-harness sends to score a continuation: it drops the last entry, which belongs to the
/// generated token, and sums those of the continuation.
#[tokio::test(start_paused = true)]
async fn a_score_is_right_when_the_generated_token_is_the_end_token() {
    let (mut worker, gateway) = pair().await;
    for reported in [true, false] {
        let body = json!({"model": "m", "prompt": "ab", "echo": true, "logprobs": 1,
                          "max_tokens": 1, "temperature": 0});
        let serve = async {
            let request = worker.next_request().await;
            let end: &[i32] = if reported { &[END] } else { &[] };
            let mut rows = row(request.handle, 0, end, FinishReason::EndId, true);
            if reported {
                rows.log_prob_rows = vec![0];
                rows.log_probs = vec![-0.5];
            }
            rows.prompt_log_probs = vec![PromptLogProbs {
                row: 0,
                values: vec![f32::NAN, -2.0],
                width: 1,
                top_ids: vec![-1, 98],
                top_values: vec![f32::NAN, -2.0],
            }];
            request.rows(rows).await;
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let answer = answer.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "ab");
        assert_eq!(choice["finish_reason"], "stop");
        let generated = if reported { json!(-0.5) } else { json!(null) };
        assert_eq!(
            choice["logprobs"]["token_logprobs"],
            json!([null, -2.0, generated])
        );
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 3);
        assert_eq!(answer["usage"]["completion_tokens"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_token_is_shown_or_counted_where_only_the_prompt_is_scored() {
    let (mut worker, gateway) = pair().await;
    for stream in [false, true] {
        let body = json!({"model": "m", "prompt": "ab", "echo": true, "logprobs": 0,
                          "max_tokens": 0, "stream": stream});
        let serve = async {
            let request = worker.next_request().await;
            let inputs = Tensors::inputs(&request.message).unwrap();
            let length = inputs.scalar::<i32>("request_output_len").unwrap();
            assert_eq!(length, Some(1), "an executor generates at least one");
            let mut rows = row(request.handle, 0, &tokens("c"), FinishReason::Length, true);
            rows.log_prob_rows = vec![0];
            rows.log_probs = vec![-3.0];
            rows.prompt_log_probs = vec![PromptLogProbs {
                row: 0,
                values: vec![f32::NAN, -2.0],
                ..PromptLogProbs::default()
            }];
            request.rows(rows).await;
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let (text, logprobs) = match stream {
            true => joined(&answer.events()),
            false => {
                let answer = answer.json();
                assert_eq!(answer["usage"]["completion_tokens"], 0);
                let choice = &answer["choices"][0];
                assert_eq!(choice["finish_reason"], "length");
                (choice["text"].clone(), choice["logprobs"].clone())
            }
        };
        assert_eq!(text, "ab");
        assert_eq!(logprobs["token_logprobs"], json!([null, -2.0]));
        assert_eq!(logprobs["top_logprobs"], json!([null, {"b": -2.0}]));
    }
}

#[tokio::test(start_paused = true)]
async fn absent_max_tokens_is_16_and_less_where_the_context_ends() {
    let (mut worker, gateway) = pair().await;
    for (prompt, expected) in [("a".to_owned(), 16), ("a".repeat(60), 4)] {
        let body = json!({"model": "m", "prompt": prompt});
        let serve = async {
            let request = worker.next_request().await;
            let inputs = Tensors::inputs(&request.message).unwrap();
            let length = inputs.scalar::<i32>("request_output_len").unwrap();
            request.finish(&tokens("x"), FinishReason::EndId).await;
            length
        };
        let (answer, length) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.status, 200);
        assert_eq!(length, Some(expected));
    }
}
