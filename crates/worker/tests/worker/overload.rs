//! More work than the executor can do in time, deadlines, and answers that the worker cuts short.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::step::{FinishReason, Row};
use inflight_worker::WorkerOptions;
use inflight_worker::executor::ClientId;
use tonic::Code;

use super::harness::{
    LONG, Scripted, Worker, is_final, last, options, request, slow, step_request, streaming,
};

/// How many sequences the scripted executor runs at once.
const PLACES: u64 = 4;

fn timeout(microseconds: i64) -> ParameterChoice {
    ParameterChoice::Int64Param(microseconds)
}

#[tokio::test]
async fn beyond_the_line_requests_are_refused_at_once_and_in_it_when_the_limit_has_passed() {
    let limit = Duration::from_millis(300);
    let (executor, script) = Scripted::new(&[]);
    let options = WorkerOptions {
        max_queue_wait: limit,
        ..options()
    };
    let mut worker = Worker::start(executor, options).await;
    let mut stream = worker.stream().await;
    let started = Instant::now();
    // A batch, as much again in the line, and one too many.
    for handle in 0..=2 * PLACES {
        stream.send(step_request(handle, &[1], 9).build()).await;
    }
    let mut given: Vec<ClientId> = Vec::new();
    for _ in 0..2 * PLACES {
        given.push(script.request().await.client_id);
    }
    let refused = stream.rows().await;
    assert!(started.elapsed() < limit, "refused at once");
    assert_eq!(refused.ids.len(), 1);
    assert_eq!(refused.ids[0].0, 2 * PLACES);
    assert_eq!(refused.errors[0].code, Code::ResourceExhausted);
    assert_eq!(refused.errors[0].retry_after_ms, 300);

    let mut expired = BTreeSet::new();
    while expired.len() < PLACES as usize {
        let rows = stream.rows().await;
        assert_eq!(rows.finals, vec![1; rows.ids.len()]);
        for (id, error) in rows.ids.iter().zip(&rows.errors) {
            assert_eq!(error.code, Code::ResourceExhausted);
            expired.insert(id.0);
        }
    }
    assert!(started.elapsed() >= limit);
    assert_eq!(expired, (PLACES..2 * PLACES).collect());
    // The executor forgets them as well; what it still says of them goes nowhere.
    let mut cancelled = BTreeSet::new();
    for _ in 0..PLACES {
        cancelled.insert(script.cancel().await);
    }
    let (running, waited) = given.split_at(PLACES as usize);
    assert_eq!(cancelled, waited.iter().copied().collect());
    script.give(
        waited
            .iter()
            .map(|id| last(*id, &[], FinishReason::Cancelled)),
    );
    script.give(
        running
            .iter()
            .map(|id| last(*id, &[7], FinishReason::EndId)),
    );
    let rows = stream.rows().await;
    assert_eq!(rows.ids.len(), PLACES as usize);
    assert!(rows.errors.is_empty());
    let rejected =
        r#"nv_inference_request_failure{model="tensorrt_llm",version="1",reason="REJECTED"}"#;
    assert_eq!(worker.metric(rejected).await, 1.0 + PLACES as f64);
}

#[tokio::test]
async fn a_request_that_runs_is_not_bound_by_the_limit_of_the_line() {
    let (executor, script) = Scripted::new(&[]);
    let options = WorkerOptions {
        max_queue_wait: Duration::from_millis(1),
        ..options()
    };
    let mut worker = Worker::start(executor, options).await;
    let mut stream = worker.stream().await;
    let first = stream.start_step(1, &script).await;
    // Ended by its deadline long after the first one's limit in the line would have passed.
    let mut second = step_request(2, &[1], 9);
    second.parameter(names::TIMEOUT, timeout(30_000));
    stream.send(second.build()).await;
    let rows = stream.rows().await;
    assert_eq!((rows.ids.len(), rows.ids[0].0), (1, 2));
    script.give([last(first, &[7], FinishReason::EndId)]);
    let rows = stream.rows().await;
    assert_eq!(rows.token_ids, [7]);
    assert!(rows.errors.is_empty());
}

#[tokio::test]
async fn a_deadline_ends_what_runs_with_an_error_on_every_call() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let mut step = step_request(1, &[1], 9);
    step.parameter(names::TIMEOUT, timeout(100_000));
    stream.send(step.build()).await;
    let id = script.request().await.client_id;
    script.give([Row::new(id, &[5])]);
    assert_eq!(stream.rows().await.token_ids, [5]);
    let rows = stream.rows().await;
    assert_eq!((rows.ids[0].0, rows.finals[0]), (1, 1));
    assert_eq!(rows.errors[0].code, Code::DeadlineExceeded);
    assert_eq!(script.cancel().await, id);

    let mut plain = request("p", &[1], 9);
    plain
        .scalar("streaming", true)
        .parameter(names::TIMEOUT, timeout(20_000));
    stream.send(plain.build()).await;
    let message = stream.next().await;
    assert!(message.error_message.contains("time"), "{message:?}");
    assert!(is_final(&message.infer_response.unwrap()));

    let mut whole = request("w", &[1], 9);
    whole.parameter(names::TIMEOUT, timeout(20_000));
    let status = worker.client.model_infer(whole.build()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_call_that_is_refused_says_when_to_retry() {
    let executor = Arc::new(inflight_worker::SimulatedExecutor::new(
        inflight_worker::SimulatedOptions {
            max_batch_size: 1,
            ..slow()
        },
    ));
    let mut worker = Worker::start(executor, options()).await;
    let stream = worker.stream().await;
    stream.send(streaming("a", LONG, 9)).await;
    stream.send(streaming("b", LONG, 9)).await;
    worker.until_active(2).await;
    let call = worker.client.model_infer(request("c", LONG, 9).build());
    let status = call.await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let retry = status.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert_eq!(retry.to_str().unwrap(), "2000");
}

#[tokio::test]
async fn what_the_executor_cuts_short_is_an_error() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    for (reason, code, word) in [
        (FinishReason::Cancelled, Code::Unavailable, "cancelled"),
        (FinishReason::TimedOut, Code::DeadlineExceeded, "time"),
    ] {
        let step = stream.start_step(1, &script).await;
        script.give([last(step, &[5], reason)]);
        assert_eq!(stream.rows().await.errors[0].code, code);

        let plain = stream.start_plain("p", &script).await;
        script.give([last(plain, &[5], reason)]);
        let message = stream.next().await;
        assert!(message.error_message.contains(word), "{message:?}");
        assert!(is_final(&message.infer_response.unwrap()));
    }
}

#[tokio::test]
async fn a_shutdown_past_the_drain_time_is_an_error_on_every_call() {
    let mut worker = Worker::simulated(slow()).await;
    let mut stream = worker.stream().await;
    stream.send(streaming("a", LONG, 9)).await;
    let mut client = worker.client.clone();
    let call = tokio::spawn(async move { client.model_infer(request("b", LONG, 9).build()).await });
    worker.until_active(2).await;
    let stop = tokio::spawn(worker.stop());
    let message = stream.next().await;
    assert!(
        message.error_message.contains("shutting down"),
        "{message:?}"
    );
    stream.assert_ended().await;
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    stop.await.unwrap();
}
