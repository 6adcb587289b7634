//! Step batching: one message per iteration, exactly one final row per handle, whatever happens.

use std::collections::HashMap;
use std::time::Duration;

use inflight_kserve::names;
use inflight_kserve::step::{FinishReason, StepBatch, stop_request};
use inflight_worker::SimulatedOptions;

use super::harness::{
    LONG, Script, Scripted, Stream, Worker, instant, options, request, rows, slow, step_request,
    until,
};

const ALIVE: FinishReason = FinishReason::NotFinished;

/// Reads until each handle has its final row; tokens and last rows by handle.
async fn collect(stream: &mut Stream, handles: usize) -> HashMap<u64, (Vec<i32>, StepBatch)> {
    let mut tokens: HashMap<u64, Vec<i32>> = HashMap::new();
    let mut ended = HashMap::new();
    while ended.len() < handles {
        let batch = stream.rows().await;
        for row in batch.rows() {
            assert!(!ended.contains_key(&row.handle), "rows after the final one");
            tokens.entry(row.handle).or_default().extend(row.tokens);
            if row.is_final {
                ended.insert(row.handle, batch.clone());
            }
        }
    }
    ended
        .into_iter()
        .map(|(handle, batch)| (handle, (tokens.remove(&handle).unwrap_or_default(), batch)))
        .collect()
}

fn error_of(batch: &StepBatch, handle: u64) -> (i32, String) {
    let row = batch
        .rows()
        .find(|row| row.handle == handle && row.is_final)
        .unwrap();
    let error = row.error.expect("an error row");
    (error.code, error.text.clone())
}

async fn scripted() -> (Worker, Script) {
    let (executor, script) = Scripted::new(&["num_return_sequences", "log_probs"]);
    (Worker::start(executor, options()).await, script)
}

#[tokio::test]
async fn many_requests_on_one_stream_all_end_with_all_their_tokens() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    for handle in 0..200 {
        stream
            .send(step_request(handle, &[1, 2, 3], 1 + (handle as i32 % 50)).build())
            .await;
    }
    let ended = collect(&mut stream, 200).await;
    for (handle, (tokens, batch)) in ended {
        assert_eq!(tokens.len(), 1 + handle as usize % 50);
        let row = batch
            .rows()
            .find(|row| row.handle == handle && row.is_final)
            .unwrap();
        assert_eq!(row.finish_reason, FinishReason::Length);
    }
    assert_eq!(worker.active().await, 0.0);
    let labels = "{model=\"tensorrt_llm\",version=\"1\"}";
    assert_eq!(
        worker
            .metric(&format!("nv_inference_request_success{labels}"))
            .await,
        200.0
    );
}

#[tokio::test]
async fn an_iteration_is_one_message_with_all_its_rows() {
    let (mut worker, script) = scripted().await;
    let mut stream = worker.stream().await;
    let mut ids = Vec::new();
    for handle in [7, 9] {
        stream.send(step_request(handle, &[1], 9).build()).await;
        ids.push(script.request().await.client_id);
    }
    script.give(rows(&[
        (ids[1], 0, &[5], ALIVE, false),
        (ids[0], 0, &[6], ALIVE, false),
    ]));
    let batch = stream.rows().await;
    assert_eq!(batch.handles, [9, 7]);
    assert_eq!(batch.token_ids, [5, 6]);
    assert_eq!(batch.finals, [0, 0]);
}

#[tokio::test]
async fn two_streams_get_their_own_rows_under_their_own_handles() {
    let (mut worker, script) = scripted().await;
    let mut streams = [worker.stream().await, worker.stream().await];
    let mut ids = Vec::new();
    for stream in &streams {
        // The same handle on both: it is unique on its stream only.
        stream.send(step_request(1, &[1], 9).build()).await;
        ids.push(script.request().await.client_id);
    }
    script.give(rows(&[
        (ids[0], 0, &[5], ALIVE, false),
        (ids[1], 0, &[6], FinishReason::EndId, true),
        (u64::MAX, 0, &[7], ALIVE, false),
    ]));
    assert_eq!(streams[0].rows().await.token_ids, [5]);
    let batch = streams[1].rows().await;
    assert_eq!((batch.token_ids, batch.finals), (vec![6], vec![1]));
}

#[tokio::test]
async fn stop_by_handle_ends_in_one_final_row() {
    let mut worker = Worker::simulated(slow()).await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, LONG, 10).build()).await;
    stream.send(stop_request("tensorrt_llm", 2)).await; // unknown: no answer
    stream.send(stop_request("tensorrt_llm", 1)).await;
    stream.send(stop_request("tensorrt_llm", 1)).await; // again: still one final row
    let batch = stream.rows().await;
    assert_eq!((batch.handles, batch.finals), (vec![1], vec![1]));
    assert_eq!(batch.finish_reasons, [FinishReason::Cancelled as u8]);
    stream.finish();
    assert!(stream.message().await.unwrap().is_none());
}

#[tokio::test]
async fn losing_the_stream_cancels_its_handles() {
    let mut worker = Worker::simulated(slow()).await;
    let stream = worker.stream().await;
    for handle in 0..5 {
        stream.send(step_request(handle, LONG, 10).build()).await;
    }
    until(async || worker.active().await == 5.0).await;
    drop(stream);
    until(async || worker.active().await == 0.0).await;
    let labels = "{model=\"tensorrt_llm\",version=\"1\",reason=\"CANCELED\"}";
    assert_eq!(
        worker
            .metric(&format!("nv_inference_request_failure{labels}"))
            .await,
        5.0
    );
}

#[tokio::test]
async fn a_bad_request_is_its_handles_error_row_and_disturbs_no_other() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &[1], 0).build()).await;
    stream
        .send(
            step_request(2, &[1], 3)
                .scalar(names::MIN_P, 0.5_f32)
                .build(),
        )
        .await;
    let mut malformed = step_request(3, &[1], 3).build();
    malformed.inputs[0].shape = vec![1, 2];
    stream.send(malformed).await;
    stream
        .send(step_request(4, &[1], 3).scalar("beam_width", 2_i32).build())
        .await;
    stream.send(step_request(5, &[1], 3).build()).await;
    let ended = collect(&mut stream, 5).await;
    for (handle, code, name) in [
        (1, 3, "`request_output_len`"),
        (2, 12, "`inflight_min_p`"),
        (3, 3, "`input_ids`"),
        (4, 12, "`beam_width`"),
    ] {
        let (actual, text) = error_of(&ended[&handle].1, handle);
        assert_eq!(actual, code, "{text}");
        assert!(text.contains(name), "{text}");
    }
    assert_eq!(ended[&5].0.len(), 3);
}

#[tokio::test]
async fn a_live_handle_used_again_ends_both_requests_with_one_final_row() {
    let (mut worker, script) = scripted().await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &[1], 9).build()).await;
    let first = script.request().await.client_id;
    stream.send(step_request(1, &[1], 9).build()).await;
    let batch = stream.rows().await;
    assert_eq!((&batch.handles, &batch.finals), (&vec![1], &vec![1]));
    assert_eq!(error_of(&batch, 1).0, 6);
    assert_eq!(script.cancel().await, first);
    script.give(rows(&[(first, 0, &[5], FinishReason::Cancelled, true)]));
    // The silenced row goes nowhere; the handle is free again.
    stream.send(step_request(1, &[1], 9).build()).await;
    let second = script.request().await.client_id;
    script.give(rows(&[(second, 0, &[6], FinishReason::EndId, true)]));
    assert_eq!(stream.rows().await.token_ids, [6]);
}

#[tokio::test]
async fn rows_after_the_final_one_go_nowhere() {
    let (mut worker, script) = scripted().await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &[1], 9).build()).await;
    let id = script.request().await.client_id;
    script.give(rows(&[
        (id, 0, &[5], FinishReason::EndId, true),
        (id, 0, &[6], FinishReason::EndId, true),
    ]));
    script.give(rows(&[(id, 0, &[7], FinishReason::EndId, true)]));
    let batch = stream.rows().await;
    assert_eq!((batch.token_ids, batch.finals), (vec![5], vec![1]));
    stream.finish();
    assert!(stream.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_client_that_is_behind_gets_the_rows_of_many_iterations_merged() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    let (handles, tokens) = (100, 4000);
    for handle in 0..handles {
        stream
            .send(step_request(handle, &[1], tokens).build())
            .await;
    }
    // The executor is through long before anything is read: 400,000 rows of 26 bytes are more than
    // the windows hold.
    until(async || worker.active().await == 0.0).await;
    let mut messages = 0;
    let mut ended = 0;
    let mut count = 0;
    while ended < handles {
        let batch = stream.rows().await;
        messages += 1;
        ended += batch
            .finals
            .iter()
            .map(|last| u64::from(*last))
            .sum::<u64>();
        count += batch.token_ids.len();
    }
    assert_eq!(count, handles as usize * tokens as usize);
    assert!(
        messages < tokens,
        "{messages} messages for {tokens} iterations"
    );
}

#[tokio::test]
async fn cached_tokens_come_only_when_named() {
    let (mut worker, script) = scripted().await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &[1], 9).build()).await;
    let first = script.request().await.client_id;
    stream
        .send(
            step_request(2, &[1], 9)
                .output(names::CACHED_TOKENS)
                .build(),
        )
        .await;
    let second = script.request().await.client_id;
    let mut batch = rows(&[
        (first, 0, &[5], ALIVE, false),
        (second, 0, &[6], ALIVE, false),
    ]);
    batch.rows.cached_tokens = vec![(0, 8), (1, 16)];
    script.give(batch);
    assert_eq!(stream.rows().await.cached_tokens, [(1, 16)]);
}

#[tokio::test]
async fn more_than_the_worker_holds_is_refused_row_by_row() {
    let executor = inflight_worker::SimulatedExecutor::new(SimulatedOptions {
        max_batch_size: 2,
        ..slow()
    });
    let options = inflight_worker::WorkerOptions {
        max_queued_requests: 1,
        ..options()
    };
    let mut worker = Worker::start(std::sync::Arc::new(executor), options).await;
    let mut stream = worker.stream().await;
    for handle in 0..4 {
        stream.send(step_request(handle, LONG, 10).build()).await;
    }
    let batch = stream.rows().await;
    assert_eq!(batch.handles, [3]);
    assert_eq!(error_of(&batch, 3).0, 8);
}

#[tokio::test]
async fn a_client_that_never_reads_is_cancelled() {
    let executor = inflight_worker::SimulatedExecutor::new(SimulatedOptions {
        step_us: 1000.0,
        max_seq_len: 1_000_000,
        num_blocks: 1_000_000,
        ..instant()
    });
    let options = inflight_worker::WorkerOptions {
        slow_reader_timeout: Duration::from_millis(100),
        ..options()
    };
    let mut worker = Worker::start(std::sync::Arc::new(executor), options).await;
    let stream = worker.stream().await;
    // Enough to fill the windows within a few iterations: logits would, rows of many sequences do.
    for handle in 0..250 {
        stream
            .send(step_request(handle, &[1], 900_000).build())
            .await;
    }
    until(async || worker.active().await == 250.0).await;
    until(async || worker.active().await == 0.0).await;
    drop(stream);
}

#[tokio::test]
async fn plain_requests_share_a_stream_with_step_requests() {
    let (mut worker, script) = scripted().await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, &[1], 9).build()).await;
    let step = script.request().await.client_id;
    stream
        .send(request("p", &[1], 9).scalar("streaming", true).build())
        .await;
    let plain = script.request().await.client_id;
    script.give(rows(&[
        (step, 0, &[5], ALIVE, false),
        (plain, 0, &[6], ALIVE, false),
    ]));
    assert_eq!(stream.rows().await.token_ids, [5]);
    assert_eq!(stream.response().await.id, "p");
}
