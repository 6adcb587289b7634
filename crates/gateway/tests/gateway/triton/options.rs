//! What the command line says of Triton's models: tokenizers and context lengths.

use bytes::Bytes;
use inflight_testkit::model::{byte_model_files, tokens};
use inflight_testkit::triton::Asked;
use inflight_testkit::triton_models::{text_model, text_response, token_model, tokens_response};
use serde_json::json;

use super::{CHAT, COMPLETIONS, Directory, completion, exchange, front, front_with_tokenizer};
use crate::support::{PATIENCE, chat};

/// Runs the command; it must end by itself. Its exit code and standard error.
async fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_inflight-gateway"));
    command.args(["--port", "0", "--worker", "127.0.0.1:9"]);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.expect("it ends in time").unwrap().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

#[tokio::test(start_paused = true)]
async fn tokenizer_files_that_cannot_be_used_end_the_command_with_one_sentence() {
    let files = |name: &str, content: &'static str| {
        let mut files = byte_model_files();
        files.retain(|(other, _)| other != name);
        files.push((name.to_owned(), Bytes::from_static(content.as_bytes())));
        Directory::with(files)
    };
    let empty = Directory::with(Vec::new());
    let corrupt = files("tokenizer.json", "{\"version\": 1}");
    let cut = files("generation_config.json", "{\"eos_token_id\":");
    let file = format!("{}/tokenizer.json", corrupt.path());
    for (path, named) in [
        ("/nowhere/at/all", "/nowhere/at/all/tokenizer.json"),
        (empty.path(), empty.path()),
        (file.as_str(), file.as_str()),
        (corrupt.path(), corrupt.path()),
        (cut.path(), "generation_config.json"),
    ] {
        for argument in [path.to_owned(), format!("m={path}")] {
            let (code, said) = run(&["--tokenizer", &argument]).await;
            assert_eq!(code, Some(2), "{argument}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(
                said.starts_with("error: ") && said.contains(named),
                "{said}"
            );
        }
    }
    for arguments in [
        ["--tokenizer", ""],
        ["--tokenizer", "m="],
        ["--tokenizer", "=directory"],
        ["--max-seq-len", "many"],
        ["--max-seq-len", "m=-1"],
    ] {
        let (code, said) = run(&arguments).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(arguments[0]), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_models_own_tokenizer_comes_before_the_one_for_all() {
    let mut files = byte_model_files();
    for (name, content) in &mut files {
        if name == "chat_template.jinja" {
            *content = Bytes::from_static(b"[{{ messages[0].content }}]");
        }
    }
    let (general, own) = (Directory::new(), Directory::with(files));
    let own = format!("b={}", own.path());
    let options = ["--tokenizer", general.path(), "--tokenizer", own.as_str()];
    let (mut triton, gateway) = front([token_model("a"), token_model("b")], &options).await;
    for (model, prompt) in [("a", "user:Hi\nassistant:"), ("b", "[Hi]")] {
        let body = chat(json!({"model": model, "max_tokens": 5}));
        let serve = async |asked: Asked| {
            assert_eq!(asked.message.model_name, model);
            assert_eq!(asked.values::<i32>("input_ids"), tokens(prompt));
            asked.finish(tokens_response(&tokens("ok"))).await;
        };
        let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
        assert_eq!(answer.status, 200, "{model}");
    }
    // Only its own: the other model of token ids has none and is not served.
    let (_triton, gateway) =
        front([token_model("a"), token_model("b")], &["--tokenizer", &own]).await;
    assert_eq!(gateway.get("/v1/models/b").await.status, 200);
    assert_eq!(gateway.get("/v1/models/a").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_context_length_that_is_told_is_kept() {
    let directory = Directory::new();
    // The files say 64; the prompt has 18 tokens.
    for (option, context) in [
        (None, 64),
        (Some("30"), 30),
        (Some("m=30"), 30),
        (Some("n=30"), 64),
    ] {
        let mut options = vec!["--tokenizer", directory.path()];
        options.extend(
            option
                .into_iter()
                .flat_map(|value| ["--max-seq-len", value]),
        );
        let (mut triton, gateway) = front([token_model("m")], &options).await;
        let card = gateway.get("/v1/models/m").await.json();
        assert_eq!(card["max_model_len"], context, "{option:?}");
        let body = chat(json!({"max_tokens": context - 17}));
        let answer = gateway.post(CHAT, &body).await;
        assert_eq!(answer.status, 400, "{option:?}");
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        // What is left of it is what a chat gets that asks for nothing.
        for max_tokens in [json!(context - 18), json!(null)] {
            let body = chat(json!({"max_tokens": max_tokens}));
            let serve = async |asked: Asked| {
                assert_eq!(asked.values::<i32>("request_output_len"), [context - 18]);
                asked.finish(tokens_response(&tokens("ok"))).await;
            };
            let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
            assert_eq!(answer.status, 200, "{option:?} {max_tokens}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_context_is_known_a_chat_must_say_how_much_to_generate() {
    let directory = Directory::with(byte_model_files());
    let options = ["--tokenizer", directory.path()];
    let (mut triton, gateway) = front([token_model("m")], &options).await;
    let card = gateway.get("/v1/models/m").await.json();
    assert!(card["max_model_len"].is_null(), "{card}");
    let answer = gateway.post(CHAT, &chat(json!({}))).await;
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["param"]),
        (400, &json!("max_tokens"))
    );
    assert!(error["message"].as_str().unwrap().contains("--max-seq-len"));
    // However much: the server knows what fits.
    let body = chat(json!({"max_tokens": 100_000}));
    let serve = async |asked: Asked| {
        assert_eq!(asked.values::<i32>("request_output_len"), [100_000]);
        asked.finish(tokens_response(&tokens("ok"))).await;
    };
    let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
    assert_eq!(answer.status, 200);
    // Completions have a default of their own.
    let (mut triton, gateway) = front([text_model("m")], &[]).await;
    let serve = async |asked: Asked| {
        assert_eq!(asked.values::<i32>("max_tokens"), [16]);
        asked.finish(text_response("ok")).await;
    };
    let body = completion(json!({}));
    let answer = exchange(&mut triton, &gateway, (COMPLETIONS, &body), serve).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_without_room_is_refused_before_it_is_sent() {
    let (_triton, gateway) = front_with_tokenizer([text_model("m")]).await;
    for prompt in ["a".repeat(64), "a".repeat(100_000)] {
        let answer = gateway
            .post(COMPLETIONS, &completion(json!({"prompt": prompt})))
            .await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    }
}
