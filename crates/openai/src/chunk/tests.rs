//! Frames against what serde_json would have written, byte for byte.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::logprobs::TokenLogprob;

const INFO: StreamInfo<'static> = StreamInfo {
    id: "chatcmpl-1",
    created: 1_700_000_000,
    model: "mo\"del",
    include_usage: false,
};

fn frame(write: impl FnOnce(&mut BytesMut)) -> String {
    let mut out = BytesMut::new();
    write(&mut out);
    String::from_utf8(out.to_vec()).unwrap()
}

fn event(body: &Value) -> String {
    format!("data: {body}\n\n")
}

fn chat(choice: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "mo\"del", "system_fingerprint": null, "choices": [choice]})
}

fn completion(choice: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "text_completion", "created": 1_700_000_000,
        "model": "mo\"del", "system_fingerprint": null, "choices": [choice]})
}

#[test]
fn chat_frames_are_openai_s() {
    let template = ChunkTemplate::chat(&INFO, 2);
    assert_eq!(
        frame(|out| template.write_role(out)),
        event(&chat(
            json!({"index": 2, "delta": {"role": "assistant", "content": ""},
            "logprobs": null, "finish_reason": null})
        ))
    );
    assert_eq!(
        frame(|out| template.write_content(out, "Hé\n\"")),
        event(&chat(json!({"index": 2, "delta": {"content": "Hé\n\""},
            "logprobs": null, "finish_reason": null})))
    );
    assert_eq!(
        frame(|out| template.write_finish(out, FinishReason::Length, None, FrameExtras::default())),
        event(&chat(
            json!({"index": 2, "delta": {}, "logprobs": null, "finish_reason": "length"})
        ))
    );
}

#[test]
fn reasoning_has_the_name_that_is_asked_for() {
    for (field, expected) in [
        ("reasoning_content", json!({"reasoning_content": "a\""})),
        ("reasoning", json!({"reasoning": "a\""})),
        (
            "both",
            json!({"reasoning_content": "a\"", "reasoning": "a\""}),
        ),
    ] {
        let template = ChunkTemplate::chat(&INFO, 0).with_reasoning(field.parse().unwrap());
        let delta = FrameDelta::Reasoning("a\"");
        let written = frame(|out| template.write_delta(out, delta, None, FrameExtras::default()));
        assert_eq!(
            written,
            event(&chat(json!({"index": 0, "delta": expected,
                "logprobs": null, "finish_reason": null})))
        );
    }
}

#[test]
fn frames_of_calls_and_reasoning_are_openai_s() {
    let template = ChunkTemplate::chat(&INFO, 1);
    let written =
        |delta| frame(|out| template.write_delta(out, delta, None, FrameExtras::default()));
    for (delta, expected) in [
        (FrameDelta::Content("a\""), json!({"content": "a\""})),
        (
            FrameDelta::Reasoning("a\""),
            json!({"reasoning_content": "a\""}),
        ),
        (
            FrameDelta::CallBegin {
                index: 2,
                id: "call_1",
                name: "f",
            },
            json!({"tool_calls": [{"index": 2, "id": "call_1", "type": "function",
                "function": {"name": "f", "arguments": ""}}]}),
        ),
        (
            FrameDelta::CallArguments {
                index: 2,
                json: "{\"a",
            },
            json!({"tool_calls": [{"index": 2, "function": {"arguments": "{\"a"}}]}),
        ),
        (
            FrameDelta::CustomBegin {
                index: 0,
                id: "call_1",
                name: "c",
            },
            json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "custom",
                "custom": {"name": "c", "input": ""}}]}),
        ),
        (
            FrameDelta::CustomInput {
                index: 0,
                text: "a\"\n",
            },
            json!({"tool_calls": [{"index": 0, "custom": {"input": "a\"\n"}}]}),
        ),
    ] {
        assert_eq!(
            written(delta),
            event(&chat(json!({"index": 1, "delta": expected,
                "logprobs": null, "finish_reason": null})))
        );
    }
}

#[test]
fn completion_frames_are_openai_s() {
    let template = ChunkTemplate::completion(&INFO, 0);
    assert_eq!(frame(|out| template.write_role(out)), "");
    assert_eq!(
        frame(|out| template.write_content(out, "Hi")),
        event(&completion(
            json!({"index": 0, "text": "Hi", "logprobs": null, "finish_reason": null})
        ))
    );
    assert_eq!(
        frame(|out| template.write_finish(
            out,
            FinishReason::Stop,
            Some(&StopReason::Text("a\"".into())),
            FrameExtras::default()
        )),
        event(&completion(
            json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "stop", "stop_reason": "a\""})
        ))
    );
}

#[test]
fn log_probabilities_stand_in_their_frame() {
    let logprobs = ChatLogprobs {
        content: vec![TokenLogprob {
            token: "Hi".into(),
            logprob: -0.5,
            bytes: Some(b"Hi".to_vec()),
            top_logprobs: Vec::new(),
        }],
        refusal: None,
    };
    let template = ChunkTemplate::chat(&INFO, 0);
    assert_eq!(
        frame(|out| template.write_delta(
            out,
            FrameDelta::Content("Hi"),
            Some(FrameLogprobs::Chat(&logprobs)),
            FrameExtras::default()
        )),
        event(&chat(json!({"index": 0, "delta": {"content": "Hi"},
            "logprobs": {"content": [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105],
                "top_logprobs": []}], "refusal": null},
            "finish_reason": null})))
    );
    let logprobs = CompletionLogprobs {
        tokens: vec!["Hi".into()],
        token_logprobs: vec![Some(-0.5)],
        top_logprobs: None,
        text_offset: vec![0],
    };
    let template = ChunkTemplate::completion(&INFO, 0);
    assert_eq!(
        frame(|out| template.write_delta(
            out,
            FrameDelta::Content("Hi"),
            Some(FrameLogprobs::Completion(&logprobs)),
            FrameExtras::default()
        )),
        event(&completion(json!({"index": 0, "text": "Hi",
            "logprobs": {"tokens": ["Hi"], "token_logprobs": [-0.5], "top_logprobs": null,
                "text_offset": [0]},
            "finish_reason": null})))
    );
}

#[test]
fn with_usage_asked_for_every_frame_says_null_but_the_last() {
    let info = StreamInfo {
        include_usage: true,
        ..INFO
    };
    for template in [
        ChunkTemplate::chat(&info, 0),
        ChunkTemplate::completion(&info, 0),
    ] {
        let mut out = BytesMut::new();
        template.write_content(&mut out, "a");
        template.write_finish(&mut out, FinishReason::Stop, None, FrameExtras::default());
        template.write_usage(&mut out, &Usage::new(3, 2, 1));
        out.put_slice(DONE);
        let text = String::from_utf8(out.to_vec()).unwrap();
        let bodies: Vec<&str> = text
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(bodies.len(), 4);
        for body in &bodies[..2] {
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body.get("usage"), Some(&Value::Null));
        }
        let last: Value = serde_json::from_str(bodies[2]).unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(
            last["usage"],
            json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 0}})
        );
        assert_eq!(bodies[3], "[DONE]");
    }
}

#[test]
fn an_error_is_an_event_with_the_envelope() {
    let error = ApiError::unavailable("The worker was lost.");
    assert_eq!(
        frame(|out| write_error(out, &error)),
        event(
            &json!({"error": {"message": "The worker was lost.", "type": "server_error",
            "param": null, "code": "service_unavailable"}})
        )
    );
}

proptest! {
    #[test]
    fn any_text_makes_one_event_that_reads_back(text in ".{0,60}|[\\x00-\\x20\"\\\\]{0,20}", index in any::<u32>()) {
        let template = ChunkTemplate::chat(&INFO, index);
        let written = frame(|out| template.write_content(out, &text));
        let body = written.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        prop_assert!(!body.contains(['\n', '\r']));
        let body: Value = serde_json::from_str(body).unwrap();
        prop_assert_eq!(&body["choices"][0]["delta"]["content"], &json!(text));
        prop_assert_eq!(&body["choices"][0]["index"], &json!(index));
    }
}

#[test]
fn extras_stand_where_vllm_has_them() {
    let usage = Usage::new(3, 2, 0);
    let extras = FrameExtras {
        token_ids: Some(&[5, 6]),
        prompt_token_ids: Some(&[1]),
        usage: Some(usage),
    };
    let read = |template: &ChunkTemplate, extras| -> Value {
        let text = frame(|out| template.write_delta(out, FrameDelta::Content("Hi"), None, extras));
        serde_json::from_str(text.strip_prefix("data: ").unwrap().trim_end()).unwrap()
    };
    let chat = read(&ChunkTemplate::chat(&INFO, 0), extras);
    assert_eq!(chat["choices"][0]["token_ids"], json!([5, 6]));
    assert_eq!(chat["choices"][0]["delta"]["content"], "Hi");
    assert_eq!(chat["prompt_token_ids"], json!([1]));
    assert_eq!(chat["usage"]["completion_tokens"], 2);
    let completion = read(&ChunkTemplate::completion(&INFO, 0), extras);
    assert_eq!(completion["choices"][0]["prompt_token_ids"], json!([1]));
    assert!(completion.get("prompt_token_ids").is_none());
    let template = ChunkTemplate::chat(&INFO, 0);
    let plain = frame(|out| {
        template.write_delta(out, FrameDelta::Content("Hi"), None, FrameExtras::default())
    });
    assert_eq!(plain, frame(|out| template.write_content(out, "Hi")));
    let role = frame(|out| template.write_role_with(out, FrameExtras::default()));
    assert_eq!(role, frame(|out| template.write_role(out)));
}
