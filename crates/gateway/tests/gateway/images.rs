//! Images: to the worker as they came, in each API; and what is refused before a worker or a host hears of it.

use std::net::SocketAddr;

use bytes::Bytes;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::{VOCABULARY, byte_model_files, tokens};
use inflight_testkit::worker::{Received, ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Gateway, byte_model, chat};

const CHAT: &str = "/v1/chat/completions";
/// What is behind `iVBORw0KGgoAAA==`, `R0lGODlh` and `/9j/4A==`.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0";
const GIF: &[u8] = b"GIF89a";
const PNG_URL: &str = "data:image/png;base64,iVBORw0KGgoAAA==";
const GIF_URL: &str = "data:image/gif;base64,R0lGODlh";

/// A model that takes images, whose template writes `<i>` for each.
fn seeing_model() -> ScriptedModel {
    let template = "{% for message in messages %}{{ message.role }}:\
        {% if message.content is string %}{{ message.content }}{% else %}\
        {% for part in message.content %}{{ '<i>' if part.type == 'image' else part.text }}{% endfor %}\
        {% endif %};{% endfor %}";
    let files =
        byte_model_files()
            .into_iter()
            .map(|(name, content)| match name == "chat_template.jinja" {
                true => (name, Bytes::from_static(template.as_bytes())),
                false => (name, content),
            });
    let mut model = ScriptedModel::new("m", files.collect());
    model.description.vocab_size = VOCABULARY;
    model.description.capabilities.push("images".to_owned());
    model
}

async fn pair_with(model: ScriptedModel, options: &[&str]) -> (ScriptedWorker, Gateway) {
    let worker = ScriptedWorker::start(model).await;
    let gateway = Gateway::start(&[worker.address], options).await;
    (worker, gateway.ready().await)
}

fn url(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn asked(parts: &[Value]) -> Value {
    let text = json!({"type": "text", "text": "?"});
    let content: Vec<Value> = parts.iter().chain([&text]).cloned().collect();
    chat(json!({"messages": [{"role": "user", "content": content}]}))
}

/// The prompt and the images of a request.
fn given(request: &Received) -> (Vec<i32>, Vec<Vec<u8>>) {
    let inputs = Tensors::inputs(&request.message).unwrap();
    let images = inputs.iter().find(|input| input.name == "inflight_images");
    let images = images.map(|input| {
        let elements = input.elements().unwrap();
        elements.map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    let ids = inputs.values("input_ids").unwrap().unwrap();
    (ids, images.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn files_reach_the_worker_as_they_came_in_each_api() {
    let (mut worker, gateway) = pair_with(seeing_model(), &[]).await;
    let responses = json!({"model": "m", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": PNG_URL},
        {"type": "input_text", "text": "?"},
        {"type": "input_image", "image_url": GIF_URL, "detail": "auto"},
    ]}]});
    let source = |kind: &str, data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}});
    let messages = json!({"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": [
        source("image/png", "iVBORw0KGgoAAA=="),
        {"type": "text", "text": "?"},
        source("image/gif", "R0lGODlh"),
    ]}]});
    let mut chat = asked(&[url(PNG_URL)]);
    let parts = chat["messages"][0]["content"].as_array_mut().unwrap();
    parts.push(url(GIF_URL));
    for (path, body) in [
        (CHAT, chat),
        ("/v1/responses", responses),
        ("/v1/messages", messages),
    ] {
        let serve = async {
            let request = worker.next_request().await;
            request.finish(&tokens("x"), FinishReason::EndId).await;
            given(&request)
        };
        let (answer, (ids, images)) = tokio::join!(gateway.post(path, &body), serve);
        assert_eq!(answer.status, 200, "{path}: {}", answer.json());
        assert_eq!(ids, tokens("user:<i>?<i>;"), "{path}");
        assert_eq!(images, [PNG, GIF], "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_shown_its_images_again() {
    let (mut worker, gateway) = pair_with(seeing_model(), &[]).await;
    let path = "/v1/responses";
    let first = json!({"model": "m", "input": [{"role": "user", "content": [
        {"type": "input_image", "image_url": PNG_URL}]}]});
    let mut id = Value::Null;
    for (body, prompt) in [
        (first, "user:<i>;"),
        (
            json!({"model": "m", "input": "And?"}),
            "user:<i>;assistant:x;user:And?;",
        ),
    ] {
        let mut body = body;
        body["previous_response_id"] = id;
        let serve = async {
            let request = worker.next_request().await;
            request.finish(&tokens("x"), FinishReason::EndId).await;
            given(&request)
        };
        let (answer, (ids, images)) = tokio::join!(gateway.post(path, &body), serve);
        assert_eq!((ids, images), (tokens(prompt), vec![PNG.to_vec()]));
        id = answer.json()["id"].clone();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_to_another_worker_takes_its_images_along() {
    let mut first = ScriptedWorker::start(seeing_model()).await;
    let mut second = ScriptedWorker::start(seeing_model()).await;
    let gateway = Gateway::start(&[first.address, second.address], &[]).await;
    let gateway = gateway.all_ready().await;
    let body = asked(&[url(PNG_URL)]);
    let serve = async {
        let (lost, other) = tokio::select! {
            request = first.next_request() => (request, &mut second),
            request = second.next_request() => (request, &mut first),
        };
        lost.fail(inflight_kserve::step::Code::Unavailable, "full")
            .await;
        let request = other.next_request().await;
        request.finish(&tokens("x"), FinishReason::EndId).await;
        (given(&lost), given(&request))
    };
    let (answer, (lost, found)) = tokio::join!(gateway.post(CHAT, &body), serve);
    assert_eq!(answer.status, 200);
    assert_eq!(lost, found);
    assert_eq!(found.1, [PNG]);
}

// With the host's own sockets, for which a paused clock would not wait.
#[tokio::test]
async fn what_cannot_be_had_is_refused_by_its_place() {
    let options = ["--image-max-bytes=12", "--images-per-request=2"];
    let (_worker, gateway) = pair_with(seeing_model(), &options).await;
    let gif = || url(GIF_URL);
    let mut cut = asked(&[gif()]);
    cut["truncate_prompt_tokens"] = json!(5);
    for (body, param, words) in [
        (
            asked(&[url("data:image/png;base64,!")]),
            "messages[0].content[0]",
            "not a valid `data:` URL",
        ),
        (
            asked(&[gif(), url("data:text/html;base64,PGh0bWw+")]),
            "messages[0].content[1]",
            "neither a PNG",
        ),
        (
            asked(&[url("data:;base64,R0lGODlhAAAAAAAAAAAA")]),
            "messages[0].content[0]",
            "larger than 12 bytes",
        ),
        (
            asked(&[gif(), gif(), gif()]),
            "messages[0].content[2]",
            "exceeds the limit of 2 images",
        ),
        (
            asked(&[url("https://example.com/a.png")]),
            "messages[0].content[0]",
            "this server does not fetch images",
        ),
        (
            asked(&[url("file:///etc/passwd")]),
            "messages[0].content[0]",
            "starts with `file:`",
        ),
        (
            asked(&[url("a.png")]),
            "messages[0].content[0]",
            "not a valid URL",
        ),
        (
            cut,
            "truncate_prompt_tokens",
            "not supported for a conversation with images",
        ),
    ] {
        let answer = gateway.post(CHAT, &body).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(param)),
            "{error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    let image =
        json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}});
    let body =
        json!({"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": [image]}]});
    let answer = gateway.post("/v1/messages", &body).await.json();
    assert_eq!(answer["error"]["type"], "invalid_request_error");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("`messages[0].content[0]` has a URL"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn images_together_fit_a_message_to_the_worker() {
    let options = ["--grpc-max-message-bytes=4096"];
    let (_worker, gateway) = pair_with(seeing_model(), &options).await;
    let file = format!("data:;base64,R0lGODlh{}", "AAAA".repeat(500));
    let body = asked(&[url(&file), url(&file), url(&file)]);
    let error = gateway.post(CHAT, &body).await.json()["error"].clone();
    assert_eq!(error["param"], "messages[0].content[2]", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("larger than 3072 bytes together"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_or_a_template_without_images_refuses_them_by_name() {
    let mut unseen = byte_model();
    unseen.description.capabilities.push("images".to_owned());
    for (model, words) in [
        (
            byte_model(),
            "needs `images`, which this model's executor (`fake`) does not support",
        ),
        (unseen, "the model's chat template cannot show images"),
    ] {
        let (_worker, gateway) = pair_with(model, &["--image-host=*"]).await;
        // Nobody is asked for it.
        for body in [asked(&[url(PNG_URL)]), asked(&[url("http://127.0.0.1/")])] {
            let answer = gateway.post(CHAT, &body).await;
            let error = &answer.json()["error"];
            assert_eq!(
                (answer.status, &error["code"]),
                (400, &json!("unsupported_parameter"))
            );
            assert_eq!(error["param"], "messages[0].content[0]");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_without_the_files() {
    let (_worker, gateway) = pair_with(seeing_model(), &[]).await;
    let messages = json!([{"role": "user", "content": [url("https://example.com/a.png")]}]);
    let answer = gateway
        .post("/tokenize", &json!({"model": "m", "messages": messages}))
        .await;
    assert_eq!(answer.json()["count"], "user:<i>;".len());
    let image =
        json!({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [image]}]});
    let answer = gateway.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(answer.json()["input_tokens"], "user:<i>;".len());
}

/// A server of one file.
async fn host(file: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let answer = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", file].concat();
            stream.write_all(&answer).await.unwrap();
        }
    });
    address
}

// With the host's own sockets, for which a paused clock would not wait.
#[tokio::test]
async fn files_elsewhere_are_fetched_where_both_the_host_and_its_address_are_allowed() {
    let address = host(PNG).await;
    let body = asked(&[url(&format!("http://{address}/a.png")), url(GIF_URL)]);
    let named = format!("--image-host={address}");
    let (mut worker, gateway) =
        pair_with(seeing_model(), &[&named, "--image-network=127.0.0.0/8"]).await;
    let serve = async {
        let request = worker.next_request().await;
        request.finish(&tokens("x"), FinishReason::EndId).await;
        given(&request)
    };
    let (answer, (ids, images)) = tokio::join!(gateway.post(CHAT, &body), serve);
    assert_eq!(answer.status, 200);
    assert_eq!(
        (ids, images),
        (tokens("user:<i><i>?;"), vec![PNG.to_vec(), GIF.to_vec()])
    );
    // Without the address, and without the host.
    for (options, words) in [
        (
            vec![named.as_str()],
            "whose address is not on the public internet",
        ),
        (
            vec!["--image-host=example.com"],
            "from which this server does not fetch images",
        ),
    ] {
        let (_worker, gateway) = pair_with(seeing_model(), &options).await;
        let error = gateway.post(CHAT, &body).await.json()["error"].clone();
        assert_eq!(error["param"], "messages[0].content[0]");
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    }
}
