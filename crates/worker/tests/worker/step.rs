//! Step batching: one message per iteration, exactly one final row per handle, whatever happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::names;
use inflight_kserve::step::{Code, FinishReason, Handle, Row, RowError, StepBatch, stop_request};
use inflight_worker::executor::ClientId;
use inflight_worker::{SimulatedExecutor, SimulatedOptions, WorkerOptions};

use super::harness::{LONG, Stream, Worker, instant, last, options, slow, step_request};

/// What a request got, up to its final row.
#[derive(Default)]
struct Outcome {
    tokens: Vec<i32>,
    /// Of the final row, once it is there.
    finish_reason: Option<FinishReason>,
    error: Option<RowError>,
}

/// Reads until so many handles have their final row, by number.
async fn outcomes(stream: &mut Stream, handles: usize) -> HashMap<u64, Outcome> {
    let mut outcomes: HashMap<u64, Outcome> = HashMap::new();
    let mut finished = 0;
    while finished < handles {
        let batch = stream.rows().await;
        for row in batch.rows() {
            let outcome = outcomes.entry(row.id.0).or_default();
            assert_eq!(outcome.finish_reason, None, "a row after the final one");
            outcome.tokens.extend(row.tokens);
            if row.is_final {
                outcome.finish_reason = Some(row.finish_reason);
                outcome.error = row.error.cloned();
                finished += 1;
            }
        }
    }
    outcomes
}

/// Asserts that a message holds nothing but the final row of one handle.
fn assert_only_final(batch: &StepBatch, handle: u64) {
    assert_eq!(
        (&batch.ids, &batch.finals),
        (&vec![Handle(handle)], &vec![1])
    );
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
    for (handle, outcome) in outcomes(&mut stream, 200).await {
        assert_eq!(outcome.tokens.len(), 1 + handle as usize % 50);
        assert_eq!(outcome.finish_reason, Some(FinishReason::Length));
    }
    worker.until_active(0).await;
    let successes = r#"nv_inference_request_success{model="tensorrt_llm",version="1"}"#;
    assert_eq!(worker.metric(successes).await, 200.0);
}

#[tokio::test]
async fn an_iteration_is_one_message_with_all_its_rows() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let seven = stream.start_step(7, &script).await;
    let nine = stream.start_step(9, &script).await;
    script.give([Row::new(nine, &[5]), Row::new(seven, &[6])]);
    let batch = stream.rows().await;
    assert_eq!(batch.ids, [Handle(9), Handle(7)]);
    assert_eq!(batch.token_ids, [5, 6]);
    assert_eq!(batch.finals, [0, 0]);
}

#[tokio::test]
async fn two_streams_get_their_own_rows_under_their_own_handles() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let (mut first, mut second) = (worker.stream().await, worker.stream().await);
    // The same handle on both: it is unique on its stream only.
    let of_first = first.start_step(1, &script).await;
    let of_second = second.start_step(1, &script).await;
    script.give([
        Row::new(of_first, &[5]),
        last(of_second, &[6], FinishReason::EndId),
        Row::new(ClientId(u64::MAX), &[7]),
    ]);
    assert_eq!(first.rows().await.token_ids, [5]);
    let batch = second.rows().await;
    assert_eq!((batch.token_ids, batch.finals), (vec![6], vec![1]));
}

#[tokio::test]
async fn stop_by_handle_ends_in_one_final_row() {
    let mut worker = Worker::simulated(slow()).await;
    let mut stream = worker.stream().await;
    stream.send(step_request(1, LONG, 10).build()).await;
    // Handle 2 is unknown and gets no answer; two stops of 1 still give one final row.
    for handle in [2, 1, 1] {
        let stop = stop_request("tensorrt_llm", Handle(handle));
        stream.send(stop).await;
    }
    let batch = stream.rows().await;
    assert_only_final(&batch, 1);
    assert_eq!(batch.finish_reasons, [FinishReason::Cancelled as u8]);
    stream.finish();
    stream.assert_ended().await;
}

#[tokio::test]
async fn losing_the_stream_cancels_its_handles() {
    let mut worker = Worker::simulated(slow()).await;
    let stream = worker.stream().await;
    for handle in 0..5 {
        stream.send(step_request(handle, LONG, 10).build()).await;
    }
    worker.until_active(5).await;
    drop(stream);
    worker.until_active(0).await;
    let cancelled =
        r#"nv_inference_request_failure{model="tensorrt_llm",version="1",reason="CANCELED"}"#;
    assert_eq!(worker.metric(cancelled).await, 5.0);
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
    let outcomes = outcomes(&mut stream, 5).await;
    for (handle, code, name) in [
        (1, Code::InvalidArgument, "`request_output_len`"),
        (2, Code::Unimplemented, "`inflight_min_p`"),
        (3, Code::InvalidArgument, "`input_ids`"),
        (4, Code::Unimplemented, "`beam_width`"),
    ] {
        let error = outcomes[&handle].error.as_ref().expect("an error row");
        assert_eq!(error.code, code, "{}", error.text);
        assert!(error.text.contains(name), "{}", error.text);
    }
    assert_eq!(outcomes[&5].tokens.len(), 3);
}

#[tokio::test]
async fn a_live_handle_used_again_ends_both_requests_with_one_final_row() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let first = stream.start_step(1, &script).await;
    stream.send(step_request(1, &[1], 9).build()).await;
    let batch = stream.rows().await;
    assert_only_final(&batch, 1);
    assert_eq!(batch.errors[0].code, Code::AlreadyExists);
    assert_eq!(script.cancel().await, first);
    script.give([last(first, &[5], FinishReason::Cancelled)]);
    // The first request's row is dropped, and the handle is free again.
    let second = stream.start_step(1, &script).await;
    script.give([last(second, &[6], FinishReason::EndId)]);
    assert_eq!(stream.rows().await.token_ids, [6]);
}

#[tokio::test]
async fn rows_after_the_final_one_are_dropped() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let id = stream.start_step(1, &script).await;
    script.give([
        last(id, &[5], FinishReason::EndId),
        last(id, &[6], FinishReason::EndId),
    ]);
    script.give([last(id, &[7], FinishReason::EndId)]);
    let batch = stream.rows().await;
    assert_eq!((batch.token_ids, batch.finals), (vec![5], vec![1]));
    stream.finish();
    stream.assert_ended().await;
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
    worker.until_active(0).await;
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
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let unnamed = stream.start_step(1, &script).await;
    let mut request = step_request(2, &[1], 9);
    stream
        .send(request.output(names::CACHED_TOKENS).build())
        .await;
    let named = script.request().await.client_id;
    let with_cached_tokens = |id, count| Row {
        cached_tokens: Some(count),
        ..Row::new(id, &[5])
    };
    script.give([
        with_cached_tokens(unnamed, 8),
        with_cached_tokens(named, 16),
    ]);
    assert_eq!(stream.rows().await.cached_tokens, [(1, 16)]);
}

#[tokio::test]
async fn a_context_comes_with_what_it_leaves() {
    let mut worker = Worker::start(Arc::new(SimulatedExecutor::new(instant())), options()).await;
    let mut stream = worker.stream().await;
    let phase = |handle, kind: &str| {
        let mut request = step_request(handle, &[1, 2], 3);
        request.parameter(
            names::REQUEST_TYPE,
            ParameterChoice::StringParam(kind.to_owned()),
        );
        request
    };
    stream.send(phase(1, names::CONTEXT_ONLY).build()).await;
    let batch = stream.rows().await;
    assert_eq!(batch.token_ids.len(), 1);
    assert_eq!(batch.finals, [1]);
    let params = batch.context_phases[0].params.clone();
    let mut rest = phase(2, names::GENERATION_ONLY);
    let shape = [1, params.len() as i64];
    rest.push::<u8>(names::CONTEXT_PHASE_PARAMS, &shape, &params);
    rest.vector(names::GENERATED_IDS, &batch.token_ids);
    stream.send(rest.build()).await;
    let mut tokens = batch.token_ids;
    loop {
        let batch = stream.rows().await;
        tokens.extend(&batch.token_ids);
        if batch.finals.contains(&1) {
            break;
        }
    }
    stream.send(step_request(3, &[1, 2], 3).build()).await;
    let mut whole = Vec::new();
    while whole.len() < 3 {
        whole.extend(stream.rows().await.token_ids);
    }
    assert_eq!(tokens, whole);
}

#[tokio::test]
async fn a_context_that_leaves_nothing_is_an_error() {
    let (mut worker, script) = Worker::scripted(&["context_phase"]).await;
    let mut stream = worker.stream().await;
    let mut request = step_request(1, &[1, 2], 3);
    request.parameter(
        names::REQUEST_TYPE,
        ParameterChoice::StringParam(names::CONTEXT_ONLY.to_owned()),
    );
    stream.send(request.build()).await;
    let asked = script.request().await.client_id;
    script.give([Row {
        finish_reason: FinishReason::Length,
        is_final: true,
        ..Row::new(asked, &[5])
    }]);
    let batch = stream.rows().await;
    assert_eq!(batch.errors[0].code, Code::Internal);
    assert!(batch.errors[0].text.contains("`context_phase_params`"));
}

#[tokio::test]
async fn more_than_the_worker_holds_is_refused_row_by_row() {
    let executor = SimulatedExecutor::new(SimulatedOptions {
        max_batch_size: 2,
        ..slow()
    });
    let options = WorkerOptions {
        max_queued_requests: 1,
        ..options()
    };
    let mut worker = Worker::start(Arc::new(executor), options).await;
    let mut stream = worker.stream().await;
    for handle in 0..4 {
        stream.send(step_request(handle, LONG, 10).build()).await;
    }
    let batch = stream.rows().await;
    assert_only_final(&batch, 3);
    assert_eq!(batch.errors[0].code, Code::ResourceExhausted);
}

#[tokio::test]
async fn a_client_that_never_reads_is_cancelled() {
    let executor = SimulatedExecutor::new(SimulatedOptions {
        step_us: 1000.0,
        max_seq_len: 1_000_000,
        num_blocks: 1_000_000,
        ..instant()
    });
    let options = WorkerOptions {
        slow_reader_timeout: Duration::from_millis(100),
        ..options()
    };
    let mut worker = Worker::start(Arc::new(executor), options).await;
    let stream = worker.stream().await;
    // Enough to fill the windows within a few iterations: logits would, rows of many sequences do.
    for handle in 0..250 {
        stream
            .send(step_request(handle, &[1], 900_000).build())
            .await;
    }
    worker.until_active(250).await;
    worker.until_active(0).await;
    drop(stream);
}

#[tokio::test]
async fn plain_requests_share_a_stream_with_step_requests() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let step = stream.start_step(1, &script).await;
    let plain = stream.start_plain("p", &script).await;
    script.give([Row::new(step, &[5]), Row::new(plain, &[6])]);
    assert_eq!(stream.rows().await.token_ids, [5]);
    assert_eq!(stream.response().await.id, "p");
}
