//! Chats with models that bring no chat template, and with templates that the operator gives.

use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_testkit::triton_models::{text_model, text_response};
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};

use crate::support::{Gateway, chat};
use crate::triton::{CHAT, Directory, exchange, front};

/// The byte model under this name, without its chat template.
fn bare_model(name: &str) -> ScriptedModel {
    let mut files = byte_model_files();
    files.retain(|(name, _)| name != "chat_template.jinja");
    let mut model = ScriptedModel::new(name, files);
    model.description.vocab_size = VOCABULARY;
    model
}

/// The prompt that a conversation becomes: the byte model's tokens are its bytes.
async fn prompt(gateway: &Gateway, model: &str) -> String {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "Hi"}]});
    let answer = gateway.post("/tokenize", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let tokens = answer.json()["tokens"].as_array().unwrap().clone();
    let bytes = tokens.iter().map(|token| token.as_u64().unwrap() as u8);
    String::from_utf8(bytes.collect()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_model_gets_the_template_that_is_given_for_it_or_a_built_in_one() {
    let directory = Directory::with(vec![
        ("own.jinja".to_owned(), "J{{ messages[0].content }}".into()),
        (
            "history.liquid".to_owned(),
            "{% for item in items %}[{{ item.identity }}]{{ item.content }}{% endfor %}>".into(),
        ),
    ]);
    let jinja = format!("--chat-template=b={}/own.jinja", directory.path());
    let file = format!(
        "--history-template-file={}/history.liquid",
        directory.path()
    );
    let a = ScriptedWorker::start(bare_model("a")).await;
    let b = ScriptedWorker::start(bare_model("b")).await;
    for (options, of_a, of_b) in [
        (vec![], "User: Hi\nASSISTANT:", "User: Hi\nASSISTANT:"),
        (
            vec!["--chat-template=vicuna", &jinja],
            "USER: Hi ASSISTANT:",
            "JHi",
        ),
        (vec![file.as_str(), &jinja], "[User]Hi>", "JHi"),
        (
            vec!["--history-template={{ items[0].identity }}/"],
            "User/",
            "User/",
        ),
    ] {
        let gateway = Gateway::start(&[a.address, b.address], &options).await;
        let gateway = gateway.all_ready().await;
        for (model, expected) in [("a", of_a), ("b", of_b)] {
            let prompt = prompt(&gateway, model).await;
            assert!(prompt.ends_with(expected), "{options:?} {model}: {prompt}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_text_model_needs_no_tokenizer_for_a_chat() {
    for (options, expected) in [
        (&[][..], "User: Hi\nASSISTANT:"),
        (
            &["--chat-template=m=baichuan2"],
            "<reserved_106>Hi<reserved_107>",
        ),
        (&["--history-template={{ items.size }}"], "1"),
    ] {
        let (mut triton, gateway) = front([text_model("m")], options).await;
        let body = chat(json!({"max_tokens": 5}));
        let answer = exchange(&mut triton, &gateway, (CHAT, &body), async |asked| {
            assert_eq!(asked.texts("text_input"), [expected]);
            asked.finish(text_response("b")).await;
        });
        let answer: Value = answer.await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_given_for_one_model_leaves_the_others_theirs() {
    let directory = Directory::new();
    let tokenizer = directory.path();
    let options = ["--tokenizer", tokenizer, "--chat-template=m=llama-2"];
    let models = [text_model("m"), text_model("n")];
    let (mut triton, gateway) = front(models, &options).await;
    for (model, expected) in [("m", "[INST] Hi [/INST]"), ("n", "user:Hi\nassistant:")] {
        let body = chat(json!({"max_tokens": 5, "model": model}));
        let answer = exchange(&mut triton, &gateway, (CHAT, &body), async |asked| {
            assert_eq!(asked.texts("text_input"), [expected]);
            asked.finish(text_response("b")).await;
        });
        assert_eq!(answer.await.status, 200);
    }
}
