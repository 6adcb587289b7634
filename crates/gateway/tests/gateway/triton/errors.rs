//! What goes wrong at the server: its status before the first row, its event after it, and that nobody
//! else notices.

use std::time::Duration;

use inflight_kserve::inference::model_infer_response::InferOutputTensor;
use inflight_kserve::tensor::{DataType, ResponseBuilder};
use inflight_testkit::model::{END, tokens};
use inflight_testkit::triton::Asked;
use inflight_testkit::triton_models::{token_model, tokens_response};
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{CHAT, exchange, front_with_tokenizer, open, shown};
use crate::support::{Client, chat};

/// How a request fails at the server.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Message(&'static str),
    Call(Code),
    /// The stream ends, and no response was the last.
    End,
    /// Raw bytes, type and shape of the output of this name.
    Output(&'static str, DataType, &'static [i64], &'static [u8]),
    /// An output that is named but has no data.
    NoData,
    /// Fewer log probabilities than tokens.
    LogProbs,
    /// Tokens without end.
    Endless,
}

impl Failure {
    async fn of(self, asked: Asked) {
        let mut response = ResponseBuilder::default();
        match self {
            Self::Message(text) => return asked.fail(text).await,
            Self::Call(code) => return asked.fail_call(Status::new(code, "a secret")).await,
            Self::End => return,
            Self::Output(name, kind, shape, data) => {
                response.push_raw(name, kind, shape, data.into());
            }
            Self::NoData => return asked.finish_message(no_data()).await,
            Self::Endless => {
                while !asked.is_cancelled() {
                    let mut response = tokens_response(&[97; 100]);
                    response.push("output_log_probs", &[1, 1, 100], &[-0.5f32; 100]);
                    asked.respond(response).await;
                    // A paused clock moves while everybody waits.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                return;
            }
            Self::LogProbs => {
                response.push("output_ids", &[1, 1, 2], &[97, 98]).push(
                    "output_log_probs",
                    &[1, 1, 1],
                    &[-0.5f32],
                );
            }
        }
        asked.finish(response).await;
    }
}

fn no_data() -> inflight_kserve::inference::ModelInferResponse {
    let mut response = tokens_response(&[97]).build();
    response.outputs.push(InferOutputTensor {
        name: "more".to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1, 2],
        ..InferOutputTensor::default()
    });
    response
}

const TRACEBACK: &str = "Traceback (most recent call last):\n  File \"/models/bls/1/model.py\", line 98, \
    in execute\n    for res in res_gen:\nException: [TensorRT-LLM][ERROR] Prompt length (90) exceeds \
    maximum input length (64). Set log level to info\n1  0x7f0e /models/lib.so(+0x1) [0x7f0e]\n";

/// The failure, its status and code, and what the client reads of the server's words.
const CASES: [(Failure, u16, &str, Option<&str>); 21] = {
    use Failure::*;
    const UNAVAILABLE: &str = "service_unavailable";
    const INTERNAL: &str = "server_error";
    [
        (
            Message(TRACEBACK),
            400,
            "",
            Some("Prompt length (90) exceeds maximum input length (64)"),
        ),
        (
            Message("Request for unknown model: 'm' is not found"),
            503,
            UNAVAILABLE,
            None,
        ),
        (
            Message("Request for unknown model: 'm' version 1 is not at ready state"),
            503,
            UNAVAILABLE,
            None,
        ),
        (
            Message("Exceeds maximum queue size"),
            503,
            UNAVAILABLE,
            None,
        ),
        (
            Message("Maximum queue size of 3 has been reached: the queue is full"),
            503,
            UNAVAILABLE,
            None,
        ),
        (Message("a secret: cudaErrorLaunch"), 500, INTERNAL, None),
        (Call(Code::Unavailable), 503, UNAVAILABLE, None),
        (Call(Code::Cancelled), 503, UNAVAILABLE, None),
        (Call(Code::ResourceExhausted), 503, UNAVAILABLE, None),
        (Call(Code::DeadlineExceeded), 504, "timeout", None),
        (Call(Code::Internal), 500, INTERNAL, None),
        (Call(Code::NotFound), 500, INTERNAL, None),
        (End, 503, UNAVAILABLE, None),
        (
            Output("output_ids", DataType::Fp32, &[1, 1, 1], &[0; 4]),
            500,
            INTERNAL,
            None,
        ),
        (
            Output("output_ids", DataType::Int32, &[1, 1, 2], &[0; 4]),
            500,
            INTERNAL,
            None,
        ),
        (
            Output("output_ids", DataType::Int32, &[-1], &[0; 4]),
            500,
            INTERNAL,
            None,
        ),
        (
            Output("output_ids", DataType::Int32, &[i64::MAX, 4], &[0; 4]),
            500,
            INTERNAL,
            None,
        ),
        (
            Output("sequence_length", DataType::Bytes, &[1], &[255; 4]),
            500,
            INTERNAL,
            None,
        ),
        (NoData, 500, INTERNAL, None),
        (LogProbs, 500, INTERNAL, None),
        (Endless, 500, INTERNAL, None),
    ]
};

#[tokio::test(start_paused = true)]
async fn each_failure_has_its_status_or_event_and_leaves_others_alone() {
    let (mut triton, gateway) = front_with_tokenizer([token_model("m")]).await;
    let mut other = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true}));
    let (mut others, under_way) = open(&mut triton, &mut other, (CHAT, &body), async |asked| {
        asked.respond(tokens_response(&tokens("o"))).await;
    })
    .await;
    assert_eq!(shown(&mut others).await, "");
    assert_eq!(shown(&mut others).await, "o");
    for (failure, status, code, told) in CASES {
        let code = match code {
            "" => Value::Null,
            code => json!(code),
        };
        for stream in [false, true] {
            let body = chat(json!({"stream": stream, "logprobs": true}));
            let serve = async |asked: Asked| failure.of(asked).await;
            let answer = exchange(&mut triton, &gateway, (CHAT, &body), serve).await;
            assert_eq!(answer.status, status, "{failure:?}");
            assert_eq!(answer.headers["content-type"], "application/json");
            let retry_after = answer.headers.contains_key("retry-after");
            assert_eq!(retry_after, status == 503, "{failure:?}");
            let answer = answer.json();
            assert_eq!(answer["error"]["code"], code, "{failure:?}");
            check_words(answer["error"]["message"].as_str().unwrap(), told);
        }
        let mut client = Client::connect(gateway.address).await;
        let body = chat(json!({"stream": true, "logprobs": true}));
        let begin = async |asked: &Asked| {
            let mut response = tokens_response(&[97]);
            response.push("output_log_probs", &[1, 1, 1], &[-0.5f32]);
            asked.respond(response).await;
        };
        let (mut stream, asked) = open(&mut triton, &mut client, (CHAT, &body), begin).await;
        assert_eq!(shown(&mut stream).await, "");
        assert_eq!(shown(&mut stream).await, "a");
        failure.of(asked).await;
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 2, "{failure:?}: {rest:?}");
        let error: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!(error["error"]["code"], code, "{failure:?}");
        check_words(error["error"]["message"].as_str().unwrap(), told);
        assert_eq!(rest[1], "[DONE]");
        // The client's connection is whole, and the other request's stream as well.
        assert_eq!(client.get("/health/ready").await.status, 200);
        under_way.respond(tokens_response(&tokens("+"))).await;
        assert_eq!(shown(&mut others).await, "+", "{failure:?}");
    }
    under_way.finish(tokens_response(&[END])).await;
    assert_eq!(others.rest().await.last().unwrap(), "[DONE]");
}

/// Internals are for the log only.
fn check_words(message: &str, told: Option<&str>) {
    for internal in ["secret", "Traceback", "/models", "0x7f0e", "output_ids"] {
        assert!(!message.contains(internal), "{message}");
    }
    if let Some(told) = told {
        assert!(message.contains(told), "{message}");
    }
}
