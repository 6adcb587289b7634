//! The gateway before a plain Triton server, which the tests script: what it is asked, and what becomes
//! of what it says.

mod adapters;
mod demands;
mod errors;
mod leaving;
mod llmapi;
mod models;
mod options;
mod repeated;
mod text;
mod tokens;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use inflight_kserve::inference::ModelConfig;
use inflight_testkit::model::{VOCABULARY, byte_model_files};
use inflight_testkit::triton::{Asked, ScriptedTriton};
use serde_json::{Value, json};

use crate::support::{Answer, Client, Gateway, Stream};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// A directory of model files; removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// The byte model's files and a `config.json` that tells its vocabulary and 64 tokens of context.
    pub(crate) fn new() -> Self {
        let config = json!({"vocab_size": VOCABULARY, "max_position_embeddings": 64});
        let config = Bytes::from(config.to_string());
        let mut files = byte_model_files();
        files.push(("config.json".to_owned(), config));
        Self::with(files)
    }

    /// These files.
    pub(crate) fn with(files: Vec<(String, Bytes)>) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("inflight-gateway-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        for (name, content) in files {
            std::fs::write(path.join(name), content).unwrap();
        }
        Self(path)
    }

    /// What `--tokenizer` takes.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server with these models and a gateway that is ready, which has read its files.
pub(crate) async fn front(
    models: impl IntoIterator<Item = ModelConfig>,
    options: &[&str],
) -> (ScriptedTriton, Gateway) {
    let triton = ScriptedTriton::start(models).await;
    let gateway = Gateway::start(&[triton.address], options).await;
    (triton, gateway.ready().await)
}

/// The same with the byte model's tokenizer.
pub(crate) async fn front_with_tokenizer(
    models: impl IntoIterator<Item = ModelConfig>,
) -> (ScriptedTriton, Gateway) {
    let directory = Directory::new();
    // What is lost with the server ends at once.
    let options = ["--tokenizer", directory.path(), "--resume-wait-s", "0"];
    front(models, &options).await
}

/// Posts, and lets the server answer the one request that this makes.
pub(crate) async fn exchange(
    triton: &mut ScriptedTriton,
    gateway: &Gateway,
    (path, body): (&str, &Value),
    serve: impl AsyncFnOnce(Asked),
) -> Answer {
    let serve = async { serve(triton.next_request().await).await };
    let (answer, ()) = tokio::join!(gateway.post(path, body), serve);
    answer
}

/// Opens a stream, whose request gets its first response from `begin`.
pub(crate) async fn open(
    triton: &mut ScriptedTriton,
    client: &mut Client,
    (path, body): (&str, &Value),
    begin: impl AsyncFnOnce(&Asked),
) -> (Stream, Asked) {
    let serve = async {
        let asked = triton.next_request().await;
        begin(&asked).await;
        asked
    };
    tokio::join!(client.open(path, body), serve)
}

/// A completions request with more fields.
pub(crate) fn completion(fields: Value) -> Value {
    let mut body = json!({"model": "m", "prompt": "Hi"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The next event's only choice.
pub(crate) async fn choice(stream: &mut Stream) -> Value {
    let event = stream.next().await.expect("an event");
    let event: Value = serde_json::from_str(&event).expect("JSON");
    event["choices"][0].clone()
}

/// The text of the next event, of either endpoint.
pub(crate) async fn shown(stream: &mut Stream) -> String {
    let choice = choice(stream).await;
    let text = choice["text"].as_str();
    let text = text.or_else(|| choice["delta"]["content"].as_str());
    text.expect("a text").to_owned()
}
