//! Start, readiness, assets, failure and shutdown.

use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::assets::{DescribeRequest, FetchRequest};
use inflight_kserve::client::{TransportOptions, assets_client, connect};
use inflight_kserve::step::{FinishReason, Handle, StepBatch, is_leaving};
use inflight_worker::executor::ResponseBatch;
use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerExit, WorkerOptions};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tonic::Code;

use super::harness::{
    LONG, Scripted, Stream, Worker, instant, last, options, request, slow, step_request, until,
};

#[tokio::test]
async fn the_worker_is_not_ready_before_its_first_token() {
    // The canary's iteration takes an hour.
    let options = SimulatedOptions {
        step_us: 3.6e9,
        ..instant()
    };
    let mut worker =
        Worker::start_unready(Arc::new(SimulatedExecutor::new(options)), self::options()).await;
    assert!(!worker.is_ready().await);
    let status = worker
        .client
        .model_infer(request("", &[1], 2).build())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(worker.stop().await, WorkerExit::Shutdown);
}

#[tokio::test]
async fn a_canary_that_never_comes_back_ends_the_worker() {
    let executor = SimulatedExecutor::new(SimulatedOptions {
        step_us: 3.6e9,
        ..instant()
    });
    let options = WorkerOptions {
        canary_timeout: Duration::from_millis(50),
        ..options()
    };
    let worker = Worker::start_unready(Arc::new(executor), options).await;
    let exit = worker.exit.await.unwrap().unwrap();
    assert!(matches!(exit, WorkerExit::ExecutorFailed(_)));
}

#[tokio::test]
async fn an_executor_that_fails_ends_every_request_and_the_worker() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    stream.start_step(1, &script).await;
    stream.start_plain("p", &script).await;
    script.fail("rank 3 is gone");
    let batch = stream.rows().await;
    assert_eq!((batch.ids, batch.finals), (vec![Handle(1)], vec![1]));
    assert_eq!(batch.errors[0].code, Code::Unavailable);
    // What broke is for the log, not for clients.
    assert!(!batch.errors[0].text.contains("rank 3"));
    let message = stream.next().await;
    assert!(
        message.error_message.contains("executor"),
        "{}",
        message.error_message
    );
    stream.assert_ended().await;
    let exit = worker.exit.await.unwrap().unwrap();
    assert_eq!(
        exit,
        WorkerExit::ExecutorFailed("the executor failed: rank 3 is gone".to_owned())
    );
}

#[tokio::test]
async fn an_executor_that_stands_still_ends_the_worker() {
    let (executor, script) = Scripted::new(&[]);
    let options = WorkerOptions {
        progress_timeout: Duration::from_millis(100),
        ..options()
    };
    let mut worker = Worker::start(executor, options).await;
    let mut stream = worker.stream().await;
    stream.start_step(1, &script).await;
    assert_eq!(stream.rows().await.finals, [1]);
    let exit = worker.exit.await.unwrap().unwrap();
    assert!(matches!(exit, WorkerExit::ExecutorFailed(reason) if reason.contains("no progress")));
}

#[tokio::test]
async fn a_malformed_batch_is_the_executors_failure() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let id = stream.start_step(1, &script).await;
    let mut rows = StepBatch::from_iter([last(id, &[5], FinishReason::EndId)]);
    rows.token_offsets = vec![0, 9];
    script.give_batch(ResponseBatch {
        rows,
        tensors: Vec::new(),
    });
    assert_eq!(stream.rows().await.errors.len(), 1);
    assert!(matches!(
        worker.exit.await.unwrap().unwrap(),
        WorkerExit::ExecutorFailed(_)
    ));
}

#[tokio::test]
async fn shutdown_lets_requests_finish_then_cancels() {
    let mut worker = Worker::simulated(slow()).await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, LONG, 9).build()).await;
    worker.until_active(1).await;
    let stop = tokio::spawn(worker.stop());
    let batch = stream.rows().await;
    assert_eq!(batch.finish_reasons, [FinishReason::Cancelled as u8]);
    assert_eq!(batch.errors[0].code, Code::Unavailable);
    // The stream ends properly although the client still had its side open.
    stream.assert_ended().await;
    assert_eq!(stop.await.unwrap(), WorkerExit::Shutdown);
}

#[tokio::test]
async fn a_worker_that_leaves_says_so_where_requests_may_continue_elsewhere() {
    let mut worker = Worker::simulated(slow()).await;
    let (mut step, mut plain) = (worker.stream().await, worker.stream().await);
    step.send(step_request(1, LONG, 9).build()).await;
    plain.send(request("p", LONG, 9).build()).await;
    worker.until_active(2).await;
    let stop = tokio::spawn(worker.stop());
    let announced = step.next().await.infer_response.unwrap();
    assert!(is_leaving(&(&announced).into()), "{announced:?}");
    let ended = step.rows().await;
    assert_eq!(ended.finish_reasons, [FinishReason::Cancelled as u8]);
    // Other clients would take it for an answer.
    let failed = plain.next().await;
    assert!(failed.error_message.contains("shutting down"), "{failed:?}");
    plain.assert_ended().await;
    assert_eq!(stop.await.unwrap(), WorkerExit::Shutdown);
}

#[tokio::test]
async fn a_worker_that_leaves_says_so_before_it_had_a_request_of_a_gateway() {
    let mut worker = Worker::simulated(slow()).await;
    let mut idle = Stream::of_steps(&mut worker.client, "tensorrt_llm").await;
    let mut unknown = Stream::of_steps(&mut worker.client, "another").await;
    let busy = worker.stream().await;
    busy.send(request("p", LONG, 9).build()).await;
    worker.until_active(1).await;
    let stop = tokio::spawn(worker.stop());
    let announced = idle.response().await;
    assert!(is_leaving(&(&announced).into()), "{announced:?}");
    idle.assert_ended().await;
    unknown.assert_ended().await;
    assert_eq!(stop.await.unwrap(), WorkerExit::Shutdown);
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let worker = Worker::simulated(instant()).await;
    let options = WorkerOptions {
        grpc_port: worker.grpc.port(),
        ..options()
    };
    let executor = Arc::new(SimulatedExecutor::new(instant()));
    let error = inflight_worker::serve(executor, options, |_| (), std::future::pending())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&worker.grpc.port().to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_until_one_ends() {
    let options = WorkerOptions {
        max_grpc_connections: 2,
        ..options()
    };
    let executor = Arc::new(SimulatedExecutor::new(instant()));
    // The worker's own client has the first place.
    let mut worker = Worker::start(executor, options).await;
    let mut byte = [0];
    let mut second = TcpStream::connect(worker.grpc).await.unwrap();
    // The server's greeting shows that it was accepted.
    second.read_exact(&mut byte).await.unwrap();
    let is_closed = async || {
        let mut third = TcpStream::connect(worker.grpc).await.unwrap();
        let mut byte = [0];
        !matches!(third.read(&mut byte).await, Ok(1))
    };
    for _ in 0..3 {
        assert!(is_closed().await);
    }
    drop(second);
    until(async || !is_closed().await).await;
    assert!(worker.is_ready().await, "the first connection goes on");
}

#[tokio::test]
async fn the_models_files_are_described_and_fetched_by_hash() {
    let worker = Worker::simulated(instant()).await;
    let channel = connect(&worker.grpc.to_string(), &TransportOptions::default())
        .await
        .unwrap();
    let mut client = assets_client(channel);
    let model = client
        .describe(DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(model.core_model_name, "tensorrt_llm");
    assert_eq!(model.executor, "simulated");
    let content_hash = model.content_hash;
    let mut files = client
        .fetch(FetchRequest { content_hash })
        .await
        .unwrap()
        .into_inner();
    let chunk = files.message().await.unwrap().unwrap();
    assert_eq!(
        (chunk.file_name.as_str(), &chunk.data[..]),
        ("config.json", &b"{}"[..])
    );
    assert!(files.message().await.unwrap().is_none());
    let refused = client
        .fetch(FetchRequest {
            content_hash: "x".to_owned(),
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn adapters_are_announced_with_the_ids_to_ask_for_them() {
    let (executor, _script) = Scripted::new(&[]);
    let worker = Worker::start(executor, options()).await;
    let channel = connect(&worker.grpc.to_string(), &TransportOptions::default())
        .await
        .unwrap();
    let model = assets_client(channel)
        .describe(DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    let adapters: Vec<_> = model
        .adapters
        .iter()
        .map(|adapter| (adapter.name.as_str(), adapter.lora_task_id))
        .collect();
    assert_eq!(adapters, [("support", 7)]);
}
