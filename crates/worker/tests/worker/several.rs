//! Several models in one process: each request reaches the model that it names, also on one stream, and what is the
//! server's is that of all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::assets::{DescribeRequest, FetchRequest};
use inflight_kserve::client::{TransportOptions, assets_client, connect};
use inflight_kserve::inference::{
    ModelInferRequest, ModelMetadataRequest, ModelReadyRequest, ModelStatisticsRequest,
    RepositoryIndexRequest,
};
use inflight_kserve::step::{FinishReason, Handle, Row};
use inflight_worker::executor::{
    ClientId, Executor, ExecutorFailed, IterationStats, ModelInfo, Request, ResponseBatch,
};
use inflight_worker::{FurtherModel, SimulatedExecutor, WorkerError, WorkerExit, WorkerOptions};
use tonic::Code;

use super::harness::{
    Script, Scripted, Worker, instant, is_final, last, options, output_ids, request, step_request,
    streaming, until,
};

fn further(name: &str) -> (FurtherModel, Script) {
    let (executor, script) = Scripted::new(&[]);
    let model = FurtherModel {
        name: name.to_owned(),
        executor,
        assets: BTreeMap::from([("config.json".to_owned(), "[]".into())]),
    };
    (model, script)
}

/// A worker of two models, which the test speaks for.
async fn two() -> (Worker, Script, Script) {
    let (executor, first) = Scripted::new(&[]);
    let (model, second) = further("b");
    let mut worker = Worker::start_several(executor, vec![model], options()).await;
    until(async || worker.is_ready().await).await;
    (worker, first, second)
}

fn of_second(mut message: ModelInferRequest) -> ModelInferRequest {
    message.model_name = "b_tensorrt_llm".to_owned();
    message
}

#[tokio::test]
async fn one_stream_carries_requests_of_both_models() {
    let (mut worker, first, second) = two().await;
    let mut stream = worker.stream().await;
    stream.send(streaming("x", &[1], 9)).await;
    stream.send(of_second(streaming("y", &[2], 9))).await;
    let (a, b) = (first.request().await, second.request().await);
    assert_eq!((a.input_token_ids, b.input_token_ids), (vec![1], vec![2]));
    let (a, b) = (a.client_id, b.client_id);
    assert_ne!(a, b, "a stream must tell them apart");
    second.give([Row::new(b, &[7])]);
    let response = stream.response().await;
    let named = |response: &inflight_kserve::inference::ModelInferResponse| {
        (
            response.model_name.clone(),
            response.id.clone(),
            output_ids(response),
        )
    };
    assert_eq!(
        named(&response),
        ("b_tensorrt_llm".into(), "y".into(), vec![7])
    );
    first.give([last(a, &[5], FinishReason::EndId)]);
    let response = stream.response().await;
    assert_eq!(
        named(&response),
        ("tensorrt_llm".into(), "x".into(), vec![5])
    );
    assert!(is_final(&response));
    // Stopped by its id, at the model that it names alone.
    stream.send(streaming("y", &[3], 9)).await;
    let again = first.request().await.client_id;
    let mut stop = request("y", &[1], 1);
    stop.scalar("stop", true);
    stream.send(of_second(stop.build())).await;
    assert_eq!(second.cancel().await, b);
    let response = stream.response().await;
    assert_eq!(
        named(&response),
        ("b_tensorrt_llm".into(), "y".into(), vec![])
    );
    // Whoever leaves ends what is left of both, each at its own executor.
    drop(stream);
    assert_eq!((first.cancel().await, second.cancel().await), (again, b));
    second.give([last(b, &[], FinishReason::Cancelled)]);
    first.give([last(again, &[], FinishReason::Cancelled)]);
}

#[tokio::test]
async fn the_handles_of_a_stream_are_of_one_model() {
    let (mut worker, first, second) = two().await;
    let mut stream = worker.stream().await;
    stream
        .send(of_second(step_request(1, &[1], 9).build()))
        .await;
    let b = second.request().await.client_id;
    second.give([Row::new(b, &[7])]);
    let message = stream.next().await.infer_response.unwrap();
    assert_eq!(message.model_name, "b_tensorrt_llm");
    // A new handle is refused alone; one in use ends with both requests.
    for handle in [2, 1] {
        stream.send(step_request(handle, &[1], 9).build()).await;
        let batch = stream.rows().await;
        assert_eq!(
            (&batch.ids, &batch.finals),
            (&vec![Handle(handle)], &vec![1])
        );
        let error = &batch.errors[0];
        assert_eq!(error.code, Code::FailedPrecondition);
        assert!(
            error.text.contains("`b_tensorrt_llm`") && error.text.contains("`tensorrt_llm`"),
            "{}",
            error.text
        );
    }
    assert_eq!(second.cancel().await, b);
    // Other requests on the stream may be of any model.
    stream.send(streaming("x", &[1], 9)).await;
    let a = first.request().await.client_id;
    first.give([last(a, &[5], FinishReason::EndId)]);
    assert_eq!(stream.response().await.model_name, "tensorrt_llm");
}

#[tokio::test]
async fn the_server_speaks_for_all_its_models() {
    let (mut worker, first, second) = two().await;
    let client = &mut worker.client;
    let asked = client.model_infer(of_second(request("", &[2], 1).build()));
    let answered = async {
        let id = second.request().await.client_id;
        second.give([last(id, &[9], FinishReason::Length)]);
    };
    let (response, ()) = tokio::join!(asked, answered);
    let response = response.unwrap().into_inner();
    assert_eq!(
        (response.model_name.as_str(), output_ids(&response)),
        ("b_tensorrt_llm", vec![2, 9])
    );
    assert!(
        tokio::time::timeout(std::time::Duration::ZERO, first.request())
            .await
            .is_err()
    );

    let index = client
        .repository_index(RepositoryIndexRequest::default())
        .await;
    let models = index.unwrap().into_inner().models;
    let states: Vec<_> = models
        .iter()
        .map(|model| (model.name.as_str(), model.state.as_str()))
        .collect();
    assert_eq!(
        states,
        [("tensorrt_llm", "READY"), ("b_tensorrt_llm", "READY")]
    );

    let all = client
        .model_statistics(ModelStatisticsRequest::default())
        .await;
    let all = all.unwrap().into_inner().model_stats;
    let counts: Vec<_> = all
        .iter()
        .map(|model| (model.name.as_str(), model.inference_count))
        .collect();
    assert_eq!(counts, [("tensorrt_llm", 0), ("b_tensorrt_llm", 1)]);

    for (name, is_there) in [
        ("tensorrt_llm", true),
        ("b_tensorrt_llm", true),
        ("b", false),
    ] {
        let asked = ModelReadyRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        assert_eq!(
            client.model_ready(asked).await.unwrap().into_inner().ready,
            is_there,
            "{name}"
        );
        let asked = ModelMetadataRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        match client.model_metadata(asked).await {
            Ok(metadata) => assert_eq!(metadata.into_inner().name, name),
            Err(status) => {
                assert!(!is_there);
                assert_eq!(status.code(), Code::NotFound);
                assert_eq!(
                    status.message(),
                    "Request for unknown model: `b` is not found; this worker serves `tensorrt_llm`, `b_tensorrt_llm`"
                );
            }
        }
    }
    // Without a tokenizer the text models of either set are not there, and say why.
    for (name, core) in [
        ("ensemble", "`tensorrt_llm`"),
        ("b_ensemble", "`b_tensorrt_llm`"),
    ] {
        let mut message = request("", &[1], 1).build();
        message.model_name = name.to_owned();
        let status = client.model_infer(message).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(
            status.message().contains("tokenizer") && status.message().contains(core),
            "{status}"
        );
    }
    let success =
        |model: &str| format!(r#"nv_inference_request_success{{model="{model}",version="1"}}"#);
    assert_eq!(worker.metric(&success("tensorrt_llm")).await, 0.0);
    assert_eq!(worker.metric(&success("b_tensorrt_llm")).await, 1.0);
    assert_eq!(
        worker
            .metric(r#"inflight_worker_prompt_tokens_total{model="b"}"#)
            .await,
        1.0
    );
}

/// An executor that takes requests and never answers.
struct Silent;

impl Executor for Silent {
    fn info(&self) -> ModelInfo {
        Scripted::new(&[]).0.info()
    }

    fn enqueue(&self, _: Vec<Request>) -> Result<(), ExecutorFailed> {
        Ok(())
    }

    fn cancel(&self, _: &[ClientId]) -> Result<(), ExecutorFailed> {
        Ok(())
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        std::thread::sleep(timeout.min(Duration::from_millis(20)));
        Ok(ResponseBatch::default())
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        Ok(Vec::new())
    }

    fn shutdown(&self) {}
}

#[tokio::test]
async fn the_server_is_ready_when_every_model_is() {
    let (executor, _script) = Scripted::new(&[]);
    let silent = FurtherModel {
        executor: Arc::new(Silent),
        ..further("b").0
    };
    let mut worker = Worker::start_several(executor, vec![silent], options()).await;
    let ready = async |worker: &mut Worker, name: &str| {
        let asked = ModelReadyRequest {
            name: name.to_owned(),
            ..Default::default()
        };
        let answer = worker.client.model_ready(asked).await;
        answer.unwrap().into_inner().ready
    };
    until(async || ready(&mut worker, "tensorrt_llm").await).await;
    assert!(!ready(&mut worker, "b_tensorrt_llm").await);
    assert!(!worker.is_ready().await);
    let index = worker
        .client
        .repository_index(RepositoryIndexRequest::default());
    let models = index.await.unwrap().into_inner().models;
    let states: Vec<_> = models.iter().map(|model| model.state.as_str()).collect();
    assert_eq!(states, ["READY", "LOADING"]);
    let status = worker
        .client
        .model_infer(of_second(request("", &[1], 1).build()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(worker.stop().await, WorkerExit::Shutdown);
}

#[tokio::test]
async fn a_gateway_hears_of_every_model_and_its_files() {
    let (worker, _first, _second) = two().await;
    let (address, transport) = (worker.grpc.to_string(), TransportOptions::default());
    let mut client = assets_client(connect(&address, &transport).await.unwrap());
    let first = client
        .describe(DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    let second = &first.further_models[0];
    assert_eq!(second.served_model_name, "b");
    assert_eq!(second.core_model_name, "b_tensorrt_llm");
    for (model, content) in [(&first, "{}"), (second, "[]")] {
        let content_hash = model.content_hash.clone();
        let files = client.fetch(FetchRequest { content_hash }).await;
        let chunk = files
            .unwrap()
            .into_inner()
            .message()
            .await
            .unwrap()
            .unwrap();
        assert_eq!(chunk.data, content);
    }
}

#[tokio::test]
async fn one_failed_executor_ends_the_worker_and_is_named() {
    let (mut worker, _first, second) = two().await;
    let mut stream = worker.stream().await;
    stream.send(of_second(streaming("y", &[2], 9))).await;
    second.request().await;
    second.fail("out of memory");
    let message = stream.next().await;
    assert!(
        message.error_message.contains("the executor failed"),
        "{message:?}"
    );
    let exit = tokio::time::timeout(super::harness::PATIENCE, worker.exit);
    let WorkerExit::ExecutorFailed(reason) = exit.await.unwrap().unwrap().unwrap() else {
        panic!("an executor failed");
    };
    assert!(
        reason.starts_with("`b`: ") && reason.contains("out of memory"),
        "{reason}"
    );
}

#[tokio::test]
async fn shutdown_drains_every_model() {
    let (mut worker, first, second) = two().await;
    let mut stream = worker.stream().await;
    stream.send(streaming("x", &[1], 9)).await;
    stream.send(of_second(streaming("y", &[2], 9))).await;
    let ids = (
        first.request().await.client_id,
        second.request().await.client_id,
    );
    let stop = tokio::spawn(worker.stop());
    assert_eq!((first.cancel().await, second.cancel().await), ids);
    first.give([last(ids.0, &[], FinishReason::Cancelled)]);
    second.give([last(ids.1, &[], FinishReason::Cancelled)]);
    for _ in 0..2 {
        assert_ne!(stream.next().await.error_message, "");
    }
    stream.assert_ended().await;
    assert_eq!(stop.await.unwrap(), WorkerExit::Shutdown);
}

#[tokio::test]
async fn two_models_of_one_name_are_refused() {
    let table: [(&str, &[&str], &str); 4] = [
        ("tensorrt_llm", &["b", "b"], "`b`"),
        ("tensorrt_llm", &["inflight-demo"], "`inflight-demo`"),
        ("b_tensorrt_llm", &["b"], "`b_tensorrt_llm`"),
        ("b_ensemble", &["b"], "`b_ensemble`"),
    ];
    for (core, names, told) in table {
        let options = WorkerOptions {
            core_model_name: core.to_owned(),
            ..options()
        };
        let further = names.iter().map(|name| further(name).0).collect();
        let executor = Arc::new(SimulatedExecutor::new(instant()));
        let served = inflight_worker::serve_models(
            executor,
            further,
            options,
            None,
            |_| (),
            std::future::pending(),
        );
        let error = served.await.unwrap_err();
        assert!(matches!(error, WorkerError::SameName(_)), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
}
