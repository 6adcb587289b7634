//! A request whose prompt one worker computes and whose answer another one generates.

use std::time::Duration;

use inflight_kserve::assets::Phases;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_testkit::model::tokens;
use inflight_testkit::worker::{ScriptedModel, ScriptedWorker};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::{Client, Gateway, byte_model, chat};

const PATH: &str = "/v1/chat/completions";
const LEFT: &[u8] = b"blocks";

fn model(phases: Phases, resumes: bool) -> ScriptedModel {
    let mut model = byte_model();
    let capabilities = &mut model.description.capabilities;
    capabilities.push("context_phase".to_owned());
    if resumes {
        capabilities.push("resume".to_owned());
    }
    model.description.set_phases(phases);
    model
}

/// A gateway in front of a worker for contexts and one for what follows.
async fn apart(resumes: bool, extra: &[&str]) -> (ScriptedWorker, ScriptedWorker, Gateway) {
    let context = ScriptedWorker::start(model(Phases::Context, resumes)).await;
    let generation = ScriptedWorker::start(model(Phases::Generation, resumes)).await;
    let workers = [context.address, generation.address];
    let gateway = Gateway::start(&workers, extra).await.all_ready().await;
    (context, generation, gateway)
}

fn kind(message: &ModelInferRequest) -> Option<&str> {
    match &message.parameters.get("request_type")?.parameter_choice {
        Some(ParameterChoice::StringParam(kind)) => Some(kind),
        other => panic!("{other:?}"),
    }
}

fn values<T: inflight_kserve::tensor::Element>(message: &ModelInferRequest, name: &str) -> Vec<T> {
    let inputs = Tensors::inputs(message).unwrap();
    inputs.values(name).unwrap().unwrap_or_default()
}

fn text(events: &[String]) -> String {
    assert_eq!(events.last().unwrap(), "[DONE]", "{events:?}");
    let events = events[..events.len() - 1].iter();
    let parts = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    let content = parts.map(|event| {
        let content = &event["choices"][0]["delta"]["content"];
        content.as_str().unwrap_or_default().to_owned()
    });
    content.collect()
}

async fn metric(gateway: &Gateway, line: &str) -> bool {
    let page = gateway.get("/metrics").await.body;
    let page = String::from_utf8(page.to_vec()).unwrap();
    page.contains(&format!("inflight_gateway_{line}\n"))
}

#[tokio::test(start_paused = true)]
async fn one_worker_computes_the_prompt_and_another_one_what_follows() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 9}));
    let serve = async {
        let first = context.next_request().await;
        assert_eq!(kind(&first.message), Some("context_only"));
        assert_eq!(values::<i32>(&first.message, "request_output_len"), [9]);
        first.context(tokens("H")[0], LEFT).await;
        let second = generation.next_request().await;
        assert_eq!(kind(&second.message), Some("generation_only"));
        let sent = values::<u8>(&second.message, names::CONTEXT_PHASE_PARAMS);
        assert_eq!(sent, LEFT);
        let generated = values::<i32>(&second.message, names::GENERATED_IDS);
        assert_eq!(generated, tokens("H"));
        for name in ["input_ids", "request_output_len", "seed"] {
            let inputs = |message| {
                let inputs = Tensors::inputs(message).unwrap();
                inputs.get(name).map(|tensor| format!("{tensor:?}"))
            };
            assert_eq!(inputs(&second.message), inputs(&first.message), "{name}");
        }
        second.finish(&tokens("ello"), FinishReason::EndId).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(text(&stream.rest().await), "Hello");
    assert!(metric(&gateway, "hand_over_seconds_count 1").await);
    assert!(metric(&gateway, "resumes_total{reason=\"unavailable\"} 0").await);
    assert!(metric(&gateway, "retries_total{reason=\"unavailable\"} 0").await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_one_piece_is_split_as_well() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    let body = chat(json!({"max_tokens": 9, "logprobs": true}));
    let serve = async {
        let first = context.next_request().await;
        first.context(tokens("H")[0], LEFT).await;
        let second = generation.next_request().await;
        second.finish(&tokens("i"), FinishReason::EndId).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.status, 200);
    assert!(answer.headers.get("x-inflight-resumed").is_none());
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_cannot_resume_repeats_the_first_token() {
    let (mut context, mut generation, gateway) = apart(false, &[]).await;
    let mut client = Client::connect(gateway.address).await;
    let body = chat(json!({"stream": true, "max_tokens": 9, "temperature": 0}));
    let serve = async {
        let first = context.next_request().await;
        let reason = FinishReason::NotFinished;
        first.context_ended(tokens("H")[0], LEFT, reason).await;
        let second = generation.next_request().await;
        assert_eq!(kind(&second.message), Some("generation_only"));
        assert!(values::<i32>(&second.message, names::GENERATED_IDS).is_empty());
        second.tokens(&tokens("H")).await;
        second.finish(&tokens("i"), FinishReason::EndId).await;
    };
    let (mut stream, ()) = tokio::join!(client.open(PATH, &body), serve);
    assert_eq!(text(&stream.rest().await), "Hi");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_its_first_token_ends_goes_nowhere_else() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    for (body, token, reason, expected) in [
        (json!({"max_tokens": 9, "stop": ["H"]}), "H", None, ""),
        (json!({"max_tokens": 9}), "", Some(FinishReason::EndId), ""),
    ] {
        let body = chat(body);
        let serve = async {
            let first = context.next_request().await;
            match reason {
                None => first.context(tokens(token)[0], LEFT).await,
                Some(reason) => first.finish(&[], reason).await,
            }
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let answer = answer.json();
        assert_eq!(answer["choices"][0]["message"]["content"], expected);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let nothing = tokio::time::timeout(Duration::from_secs(1), generation.next_request());
    assert!(nothing.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_split_goes_whole_to_the_other_worker() {
    let (_context, mut generation, gateway) = apart(true, &[]).await;
    for body in [json!({"max_tokens": 1}), json!({"max_tokens": 9, "n": 2})] {
        let serve = async {
            let request = generation.next_request().await;
            assert_eq!(kind(&request.message), None, "{body}");
            request.fail(Code::InvalidArgument, "enough").await;
        };
        let body = chat(body.clone());
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        assert_eq!(answer.status, 400);
    }
}

#[tokio::test(start_paused = true)]
async fn a_context_that_is_lost_is_computed_by_the_other_worker() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    let body = chat(json!({"max_tokens": 9}));
    let serve = async {
        context.next_request().await;
        context.kill();
        let whole = generation.next_request().await;
        assert_eq!(kind(&whole.message), None);
        whole.finish(&tokens("Hi"), FinishReason::EndId).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hi");
}

#[tokio::test(start_paused = true)]
async fn a_context_that_leaves_nothing_is_no_answer() {
    for reason in [FinishReason::Length, FinishReason::NotFinished] {
        let (mut context, mut generation, gateway) = apart(true, &[]).await;
        let body = chat(json!({"max_tokens": 9}));
        let serve = async {
            let first = context.next_request().await;
            first.finish(&tokens("H"), reason).await;
            let whole = generation.next_request().await;
            assert_eq!(kind(&whole.message), None);
            whole.finish(&tokens("Hi"), FinishReason::EndId).await;
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let answer = answer.json();
        assert_eq!(
            answer["choices"][0]["message"]["content"], "Hi",
            "{reason:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_other_worker_cannot_continue_is_computed_again() {
    for refusal in [Code::InvalidArgument, Code::Internal, Code::Unavailable] {
        let (mut context, mut generation, gateway) = apart(true, &[]).await;
        let body = chat(json!({"max_tokens": 9}));
        let serve = async {
            let first = context.next_request().await;
            first.context(tokens("H")[0], LEFT).await;
            let second = generation.next_request().await;
            second.fail(refusal, "its blocks are gone").await;
            // There is no third one: whoever is there, with what was generated.
            let again = context.next_request().await;
            assert_eq!(kind(&again.message), None, "{refusal:?}");
            let generated = values::<i32>(&again.message, names::GENERATED_IDS);
            assert_eq!(generated, tokens("H"));
            again.finish(&tokens("i"), FinishReason::EndId).await;
        };
        let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
        let answer = answer.json();
        assert_eq!(
            answer["choices"][0]["message"]["content"], "Hi",
            "{refusal:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_lost_after_the_hand_over_is_survived() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    let body = chat(json!({"max_tokens": 9}));
    let serve = async {
        let first = context.next_request().await;
        first.context(tokens("H")[0], LEFT).await;
        let second = generation.next_request().await;
        second.tokens(&tokens("e")).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        generation.kill();
        let third = context.next_request().await;
        assert_eq!(kind(&third.message), None);
        let generated = values::<i32>(&third.message, names::GENERATED_IDS);
        assert_eq!(generated, tokens("He"));
        third.finish(&tokens("llo"), FinishReason::EndId).await;
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello");
}

#[tokio::test(start_paused = true)]
async fn without_the_other_worker_the_one_for_contexts_does_all() {
    let (mut context, mut generation, gateway) = apart(true, &[]).await;
    let body = chat(json!({"max_tokens": 9}));
    let serve = async {
        let first = context.next_request().await;
        generation.kill();
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.context(tokens("H")[0], LEFT).await;
        let second = context.next_request().await;
        assert_eq!(kind(&second.message), None);
        second.finish(&tokens("i"), FinishReason::EndId).await;
        // The next one is not split any more.
        let whole = context.next_request().await;
        assert_eq!(kind(&whole.message), None);
        whole.finish(&tokens("Ho"), FinishReason::EndId).await;
    };
    let both = async {
        let one = gateway.post(PATH, &body).await.json();
        let two = gateway.post(PATH, &body).await.json();
        [one, two].map(|answer| answer["choices"][0]["message"]["content"].clone())
    };
    let (answers, ()) = tokio::join!(both, serve);
    assert_eq!(answers, ["Hi", "Ho"]);
}

#[tokio::test(start_paused = true)]
async fn requests_are_split_where_answers_do_not_survive_their_worker() {
    let extra = ["--max-resumes", "0", "--resume-wait-s", "0"];
    let (mut context, mut generation, gateway) = apart(true, &extra).await;
    let body = chat(json!({"max_tokens": 9}));
    let serve = async {
        let first = context.next_request().await;
        first.context(tokens("H")[0], LEFT).await;
        let second = generation.next_request().await;
        second.tokens(&tokens("e")).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        generation.kill();
    };
    let (answer, ()) = tokio::join!(gateway.post(PATH, &body), serve);
    assert_eq!(answer.status, 503);
}
