//! `/tokenize`, `/detokenize` and `/tokenizer_info`: which model's tokenizer answers, and where there is none.

use bytes::Bytes;
use inflight_kserve::step::FinishReason;
use inflight_testkit::model::{VOCABULARY, byte_model_files, tokens};
use inflight_testkit::triton::ScriptedTriton;
use inflight_testkit::triton_models::text_model;
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::json;

use crate::support::{Gateway, byte_model, pair, two_models};
use crate::triton::Directory;

#[tokio::test(start_paused = true)]
async fn the_only_model_need_not_be_named() {
    let (_worker, gateway) = pair().await;
    for model in [json!({}), json!({"model": "m"}), json!({"model": null})] {
        let mut body = json!({"prompt": "Hi", "add_special_tokens": false});
        body.as_object_mut()
            .unwrap()
            .extend(model.as_object().unwrap().clone());
        let answer = gateway.post("/tokenize", &body).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.json(),
            json!({"count": 2, "max_model_len": 64, "tokens": tokens("Hi"), "token_strs": null})
        );
    }
    let body = json!({"tokens": tokens("Hi")});
    let answer = gateway.post("/detokenize", &body).await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"prompt": "Hi"}))
    );
}

#[tokio::test(start_paused = true)]
async fn the_model_that_is_named_answers() {
    let (_workers, gateway) = two_models().await;
    for (path, input) in [
        ("/tokenize", json!({"prompt": "Hi", "model": "n"})),
        ("/detokenize", json!({"tokens": tokens("Hi"), "model": "n"})),
    ] {
        assert_eq!(gateway.post(path, &input).await.status, 200, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tokenizer_is_told_with_the_template_that_renders() {
    let mut files = byte_model_files();
    let config = r#"{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": false, "vocab_file": "/a/vocab.json",
        "chat_template": "never used"}"#;
    let legacy = r#"{"eos_token": {"content": "<|end|>", "lstrip": false}}"#;
    for (name, text) in [
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", legacy),
    ] {
        files.push((name.to_owned(), Bytes::from_static(text.as_bytes())));
    }
    let own = String::from_utf8_lossy(&files[1].1).into_owned();
    let one = ScriptedWorker::start(ScriptedModel::new("org/one", files)).await;
    let two = ScriptedWorker::start(byte_model()).await;
    let workers = [one.address, two.address];
    let given = ["--chat-template", "m=chatml"];
    let gateway = Gateway::start(&workers, &given).await.all_ready().await;
    let answer = gateway.get("/tokenizer_info?model=org%2Fone").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        answer.json(),
        json!({
            "tokenizer_class": "GPT2Tokenizer", "add_bos_token": false,
            "eos_token": {"content": "<|end|>", "lstrip": false}, "chat_template": own,
        })
    );
    let answer = gateway.get("/tokenizer_info?model=m").await.json();
    assert_eq!(answer["tokenizer_class"], "PreTrainedTokenizerFast");
    let template = answer["chat_template"].as_str().unwrap();
    assert!(template.contains("<|im_start|>"), "{template}");
    for (path, status, word) in [
        ("/tokenizer_info", 400, "`?model=NAME`"),
        ("/tokenizer_info?model=", 400, "`?model=NAME`"),
        ("/tokenizer_info?model=none", 404, "`none`"),
    ] {
        let answer = gateway.get(path).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (status, &json!("model")));
        let text = error["message"].as_str().unwrap();
        assert!(text.contains(word), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_liquid_template_is_no_chat_template_to_tell() {
    let worker = ScriptedWorker::start(byte_model()).await;
    let given = ["--history-template", "{{ items[0].content }}"];
    let gateway = Gateway::start(&[worker.address], &given)
        .await
        .ready()
        .await;
    let answer = gateway.get("/tokenizer_info").await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"tokenizer_class": "PreTrainedTokenizerFast"}))
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_tokenizes_itself_has_none_to_ask() {
    let triton = ScriptedTriton::start([text_model("t")]).await;
    let gateway = Gateway::start(&[triton.address], &[]).await.ready().await;
    for (path, body, param) in [
        ("/tokenize", json!({"prompt": "Hi"}), "prompt"),
        ("/detokenize", json!({"tokens": [1]}), "tokens"),
    ] {
        let answer = gateway.post(path, &body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(param)));
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("`--tokenizer`"), "{text}");
    }
    let answer = gateway.get("/tokenizer_info").await;
    let text = answer.json()["error"]["message"].to_string();
    assert_eq!(answer.status, 400);
    assert!(text.contains("`--tokenizer`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_counted_as_it_is_answered() {
    let (worker, gateway) = pair().await;
    let worker = worker.answer_all(tokens("yes"), FinishReason::Length);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = json!({"model": "m", "messages": messages});
    let answer = gateway.post("/v1/chat/completions", &chat).await.json();
    let prompt = &answer["usage"]["prompt_tokens"];
    let counted = gateway.post("/v1/chat/completions/input_tokens", &chat);
    assert_eq!(counted.await.json(), json!({"input_tokens": prompt}));

    let body = json!({"model": "m", "input": "Hi"});
    let kept = gateway.post("/v1/responses", &body).await.json();
    let counted = gateway.post("/v1/responses/input_tokens", &body).await;
    let object = "response.input_tokens";
    assert_eq!(
        counted.json(),
        json!({"object": object, "input_tokens": kept["usage"]["input_tokens"]})
    );
    let next = json!({"model": "m", "input": "So?", "previous_response_id": kept["id"]});
    let counted = gateway
        .post("/v1/responses/input_tokens", &next)
        .await
        .json();
    let answer = gateway.post("/v1/responses", &next).await.json();
    assert_eq!(counted["input_tokens"], answer["usage"]["input_tokens"]);
    assert!(counted["input_tokens"].as_u64() > prompt.as_u64());
    worker.abort();

    let unknown = json!({"model": "m", "input": "Hi", "previous_response_id": "resp_1"});
    let refused = gateway.post("/v1/responses/input_tokens", &unknown).await;
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    let refused = gateway.post("/v1/responses/compact", &body).await;
    let message = refused.json()["error"]["message"].to_string();
    assert_eq!(refused.status, 400);
    assert!(message.contains("not compacted"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn text_is_not_lost_on_a_template_that_reads_parts() {
    let mut files = byte_model_files();
    let template = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}\
        {% if part.type == 'text' %}{{ part.text }}|{% endif %}{% endfor %}{% endfor %}";
    for (name, content) in &mut files {
        if name == "chat_template.jinja" {
            *content = Bytes::from_static(template.as_bytes());
        }
    }
    let mut model = ScriptedModel::new("m", files);
    model.description.vocab_size = VOCABULARY;
    let worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], &[]).await.ready().await;
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    for (content, expected) in [(json!("Hi"), "<user>Hi|"), (parts, "<user>one|two|")] {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let answer = gateway.post("/tokenize", &body).await.json();
        assert_eq!(answer["tokens"], json!(tokens(expected)), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_of_the_model_s_own_is_passed_on_where_its_template_shows_it() {
    let messages = json!([
        {"role": "document", "content": "Cats purr."},
        {"role": "user", "content": "Do cats purr?"},
    ]);
    // The first writes every role, the second leaves out what it does not know.
    let shows = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let hides = "{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}";
    let directory = Directory::with(vec![
        ("shows.jinja".to_owned(), shows.into()),
        ("hides.jinja".to_owned(), hides.into()),
    ]);
    let worker = ScriptedWorker::start(byte_model()).await;
    let body = json!({"messages": messages});
    for (template, expected) in [
        ("shows", Ok("<document>Cats purr.<user>Do cats purr?")),
        ("hides", Err("messages[0].role")),
    ] {
        let option = format!("--chat-template={}/{template}.jinja", directory.path());
        let gateway = Gateway::start(&[worker.address], &[&option]).await;
        let gateway = gateway.ready().await;
        let answer = gateway.post("/tokenize", &body).await.json();
        match expected {
            Ok(text) => assert_eq!(answer["tokens"], json!(tokens(text)), "{answer}"),
            Err(param) => assert_eq!(answer["error"]["param"], param, "{answer}"),
        }
    }
}
