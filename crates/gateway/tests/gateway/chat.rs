//! Chat: framing to the letter, text, stop strings, choices, log probabilities, usage.

use inflight_kserve::step::FinishReason;
use inflight_testkit::model::{END, SECOND_END, tokens};
use inflight_testkit::worker::{join, row};
use serde_json::{Value, json};

use crate::support::{Client, chat, normalized, pair};

const PATH: &str = "/v1/chat/completions";

fn content(events: &[String], index: u64) -> String {
    events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter(|event| event["choices"][0]["index"] == index)
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_framed_to_the_letter() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("He")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = Vec::new();
    for _ in 0..3 {
        events.push(stream.next().await.unwrap());
    }
    request.tokens(&tokens("y\"")).await;
    for _ in 0..2 {
        events.push(stream.next().await.unwrap());
    }
    request.finish(&[], FinishReason::EndId).await;
    events.extend(stream.rest().await);
    let head = r#"{"id":"ID","object":"chat.completion.chunk","created":TIME,"model":"m","system_fingerprint":null,"choices":["#;
    let with = |rest: &str| format!("{head}{rest}");
    assert_eq!(
        normalized(&events),
        [
            with(
                r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ),
            with(
                r#"{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ),
            with(
                r#"{"index":0,"delta":{"content":"e"},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ),
            with(
                r#"{"index":0,"delta":{"content":"y"},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ),
            with(
                r#"{"index":0,"delta":{"content":"\""},"logprobs":null,"finish_reason":null}],"usage":null}"#
            ),
            with(r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}"#),
            with(
                r#"],"usage":{"prompt_tokens":18,"completion_tokens":5,"total_tokens":23,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#
            ),
            "[DONE]".to_owned(),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn each_event_carries_the_usage_so_far_if_asked() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = chat(json!({"stream": true, "stream_options": options}));
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("H")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    let mut events = Vec::new();
    for _ in 0..2 {
        events.push(stream.next().await.unwrap());
    }
    request.tokens(&tokens("e")).await;
    events.push(stream.next().await.unwrap());
    request.finish(&[], FinishReason::EndId).await;
    events.extend(stream.rest().await);
    let totals: Vec<(Value, Value)> = events
        .iter()
        .filter(|event| *event != "[DONE]")
        .map(|event| {
            let usage = &serde_json::from_str::<Value>(event).unwrap()["usage"];
            (
                usage["completion_tokens"].clone(),
                usage["total_tokens"].clone(),
            )
        })
        .collect();
    // The role; the two tokens; the end token with the finish reason; the usage alone.
    let expected = [(0, 18), (1, 19), (2, 20), (3, 21), (3, 21)];
    assert_eq!(totals, expected.map(|(own, all)| (json!(own), json!(all))));
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_stream_has_its_headers() {
    let (worker, gateway) = pair().await;
    let _worker = worker.answer_all(tokens("ok"), FinishReason::Length);
    let answer = gateway
        .post(PATH, &chat(json!({"stream": true, "service_tier": "flex"})))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["openai-version"], "2020-10-01");
    assert_eq!(answer.headers["x-inflight-ignored-fields"], "service_tier");
    assert!(answer.headers.contains_key("openai-processing-ms"));
    assert!(
        answer.headers["x-request-id"]
            .to_str()
            .unwrap()
            .starts_with("req_")
    );
    assert_eq!(content(&answer.events(), 0), "ok");
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_has_text_usage_and_finish_reason() {
    let (mut worker, gateway) = pair().await;
    let body = chat(json!({"max_tokens": 5}));
    let serve = async {
        let request = worker.next_request().await;
        let mut last = row(
            request.handle,
            0,
            &tokens("Hello"),
            FinishReason::Length,
            true,
        );
        last.cached_tokens = vec![(0, 16)];
        request.rows(last).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let mut value = answer.json();
    assert!(value["id"].as_str().unwrap().starts_with("chatcmpl-"));
    value["id"] = json!("ID");
    value["created"] = json!(0);
    assert_eq!(
        value,
        json!({
            "id": "ID", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": null},
                "logprobs": null,
                "finish_reason": "length",
            }],
            "usage": {
                "prompt_tokens": 18, "completion_tokens": 5, "total_tokens": 23,
                "prompt_tokens_details": {"cached_tokens": 16},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "system_fingerprint": null,
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_character_is_never_split() {
    let (mut worker, gateway) = pair().await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let bytes = tokens("é€");
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&bytes[..1]).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(stream.text().await, "", "the role");
    request.tokens(&bytes[1..3]).await;
    assert_eq!(stream.text().await, "é");
    request.tokens(&bytes[3..]).await;
    assert_eq!(stream.text().await, "€");
    request.finish(&[], FinishReason::EndId).await;
    assert_eq!(stream.rest().await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_second_end_token_ends_the_text_and_is_counted_but_not_shown() {
    let (mut worker, gateway) = pair().await;
    let serve = async {
        let request = worker.next_request().await;
        request.tokens(&tokens("Hi")).await;
        request
            .finish(&[i32::from(b'!'), SECOND_END], FinishReason::StopWords)
            .await;
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let value = answer.json();
    assert_eq!(value["choices"][0]["message"]["content"], "Hi!");
    assert_eq!(value["choices"][0]["finish_reason"], "stop");
    assert_eq!(value["usage"]["completion_tokens"], 4);
}

#[tokio::test(start_paused = true)]
async fn a_stop_string_across_tokens_is_cut_and_frees_the_worker() {
    let (mut worker, gateway) = pair().await;
    let body =
        chat(json!({"stop": ["END"], "stream": true, "stream_options": {"include_usage": true}}));
    let mut client = Client::connect(gateway.address).await;
    let serve = async {
        let request = worker.next_request().await;
        assert!(!request.stop);
        request.tokens(&tokens("abE")).await;
        request
    };
    let (mut stream, request) = tokio::join!(client.open(PATH, &body), serve);
    for text in ["", "a", "b"] {
        assert_eq!(stream.text().await, text);
    }
    // What may become a stop string was held back.
    request.tokens(&tokens("NoENDxyz")).await;
    assert_eq!(stream.text().await, "ENo");
    let rest = stream.rest().await;
    assert!(rest[0].contains(r#""finish_reason":"stop""#));
    assert!(rest[1].contains(r#""completion_tokens":8"#), "{}", rest[1]);
    assert_eq!(rest[2], "[DONE]");
    let stop = worker.next_request().await;
    assert_eq!((stop.stop, stop.handle), (true, request.handle));
    // The worker's last row comes to a handle that nobody holds, and harms nothing.
    request.finish(&[], FinishReason::Cancelled).await;
    let serve = async {
        worker
            .next_request()
            .await
            .finish(&tokens("b"), FinishReason::EndId)
            .await
    };
    let body = chat(json!({}));
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "b");
}

#[tokio::test(start_paused = true)]
async fn choices_come_interleaved_and_each_ends_once() {
    let (mut worker, gateway) = pair().await;
    let body = chat(json!({"n": 2, "stream": true}));
    let serve = async {
        let request = worker.next_request().await;
        let handle = request.handle;
        let unfinished = FinishReason::NotFinished;
        request
            .rows(join(&[
                row(handle, 1, &tokens("B1"), unfinished, false),
                row(handle, 0, &tokens("A1"), unfinished, false),
            ]))
            .await;
        request
            .rows(row(handle, 1, &tokens("B2"), FinishReason::EndId, false))
            .await;
        request
            .rows(row(handle, 0, &tokens("A2"), FinishReason::Length, true))
            .await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let events = answer.events();
    assert_eq!(content(&events, 0), "A1A2");
    assert_eq!(content(&events, 1), "B1B2");
    let count = |text: &str| events.iter().filter(|event| event.contains(text)).count();
    assert_eq!(count(r#""role":"assistant""#), 2);
    assert_eq!(count(r#""finish_reason":"stop""#), 1);
    assert_eq!(count(r#""finish_reason":"length""#), 1);
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_stay_beside_their_text() {
    let (mut worker, gateway) = pair().await;
    let body = chat(json!({"logprobs": true, "top_logprobs": 1, "stop": "cd"}));
    let serve = async {
        let request = worker.next_request().await;
        let mut rows = row(
            request.handle,
            0,
            &tokens("abcd"),
            FinishReason::NotFinished,
            false,
        );
        rows.log_prob_rows = vec![0];
        rows.log_probs = vec![-0.5, -1.5, -2.5, -3.5];
        rows.top_log_prob_rows = vec![0];
        rows.top_log_prob_widths = vec![1];
        rows.top_log_prob_ids = vec![97, END, END, 100];
        rows.top_log_probs = vec![-0.5, -0.25, -0.1, -3.5];
        request.rows(rows).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let choice = &answer.json()["choices"][0];
    assert_eq!(choice["message"]["content"], "ab");
    assert_eq!(
        choice["logprobs"],
        json!({"content": [
            {"token": "a", "logprob": -0.5, "bytes": [97],
             "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]},
            {"token": "b", "logprob": -1.5, "bytes": [98],
             "top_logprobs": [{"token": "<|end|>", "logprob": -0.25, "bytes": b"<|end|>"}]},
        ], "refusal": null})
    );
}

#[tokio::test(start_paused = true)]
async fn named_tokens_are_listed_behind_the_one_that_came() {
    let (mut worker, gateway) = pair().await;
    let body = chat(json!({"logprobs": true, "logprob_token_ids": [98, 97]}));
    let serve = async {
        let request = worker.next_request().await;
        let mut rows = row(request.handle, 0, &tokens("ac"), FinishReason::Length, true);
        rows.log_prob_rows = vec![0];
        rows.log_probs = vec![-0.5, -1.5];
        rows.top_log_prob_rows = vec![0];
        rows.top_log_prob_widths = vec![2];
        rows.top_log_prob_ids = vec![98, 97, 98, 97];
        rows.top_log_probs = vec![-2.5, -0.5, -3.5, -4.5];
        request.rows(rows).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let content = answer.json()["choices"][0]["logprobs"]["content"].clone();
    let listed = |position: usize| {
        let tops = content[position]["top_logprobs"].as_array().unwrap();
        let pairs = tops.iter().map(|top| json!([top["token"], top["logprob"]]));
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(listed(0), [json!(["a", -0.5]), json!(["b", -2.5])]);
    assert_eq!(
        listed(1),
        [json!(["c", -1.5]), json!(["b", -3.5]), json!(["a", -4.5])]
    );
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_the_template_without_special_tokens() {
    let (mut worker, gateway) = pair().await;
    let body = json!({"model": "m", "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]});
    let serve = async {
        let request = worker.next_request().await;
        let inputs = inflight_kserve::tensor::Tensors::inputs(&request.message).unwrap();
        let ids = inputs.values::<i32>("input_ids").unwrap().unwrap();
        request.finish(&tokens("x"), FinishReason::EndId).await;
        ids
    };
    let (answer, ids) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.status, 200);
    assert_eq!(ids, tokens("system:Be brief.\nuser:Hi\nassistant:"));
}
