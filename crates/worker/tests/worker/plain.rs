//! Requests as any Triton client sends them: responses per request, shapes, final flags, stop.

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::model_config::SchedulingChoice;
use inflight_kserve::inference::{
    InferParameter, ModelConfigRequest, ModelInferResponse, ModelMetadataRequest,
    ModelStatisticsRequest, RepositoryIndexRequest, ServerMetadataRequest,
};
use inflight_kserve::names;
use inflight_kserve::step::{FinishReason, Row, StepBatch};
use inflight_kserve::tensor::{RequestBuilder, Tensors};
use inflight_worker::executor::{NamedTensor, ResponseBatch};

use super::harness::{
    LONG, Worker, ended, instant, is_final, last, output_ids, request, second, slow, streaming,
};

fn shape(response: &ModelInferResponse, name: &str) -> Option<Vec<i64>> {
    let output = response.outputs.iter().find(|output| output.name == name)?;
    Some(output.shape.clone())
}

fn names_of(response: &ModelInferResponse) -> Vec<&str> {
    response
        .outputs
        .iter()
        .map(|output| output.name.as_str())
        .collect()
}

#[tokio::test]
async fn streaming_responses_carry_new_tokens_and_the_last_is_final() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    stream.send(streaming("a", &[1, 2], 9)).await;
    let asked = script.request().await;
    assert!(asked.streaming);
    assert_eq!(asked.input_token_ids, [1, 2]);
    script.give([Row::new(asked.client_id, &[5])]);
    let response = stream.response().await;
    assert_eq!(
        (response.id.as_str(), output_ids(&response)),
        ("a", vec![5])
    );
    assert_eq!(shape(&response, "output_ids"), Some(vec![1, 1, 1]));
    assert_eq!(shape(&response, "sequence_length"), Some(vec![1, 1]));
    assert_eq!(names_of(&response), ["output_ids", "sequence_length"]);
    assert!(!is_final(&response));
    script.give([last(asked.client_id, &[], FinishReason::EndId)]);
    let response = stream.response().await;
    assert_eq!(shape(&response, "output_ids"), Some(vec![1, 1, 0]));
    assert!(is_final(&response));
    stream.finish();
    stream.assert_ended().await;
}

#[tokio::test]
async fn a_context_and_what_follows_it_are_two_requests() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    let asked = |id: &str, kind: &str| {
        let mut message = streaming(id, &[1, 2], 3);
        let kind = ParameterChoice::StringParam(kind.to_owned());
        let parameter = InferParameter {
            parameter_choice: Some(kind),
        };
        message
            .parameters
            .insert(names::REQUEST_TYPE.to_owned(), parameter);
        message
    };
    stream.send(asked("a", names::CONTEXT_ONLY)).await;
    let context = stream.response().await;
    assert!(is_final(&context));
    let outputs = Tensors::outputs(&context).unwrap();
    let params: Vec<u8> = outputs
        .require(names::CONTEXT_PHASE_PARAMS)
        .unwrap()
        .values()
        .unwrap();
    let mut rest = asked("b", names::GENERATION_ONLY);
    let mut input = RequestBuilder::new("tensorrt_llm", "b", 64);
    let shape = [1, params.len() as i64];
    let input = input
        .push::<u8>(names::CONTEXT_PHASE_PARAMS, &shape, &params)
        .build();
    rest.inputs.extend(input.inputs);
    rest.raw_input_contents.extend(input.raw_input_contents);
    stream.send(rest).await;
    let mut tokens = Vec::new();
    while tokens.len() < 3 {
        tokens.extend(output_ids(&stream.response().await));
    }
    assert_eq!(
        tokens[..1],
        output_ids(&context),
        "it begins with the first one"
    );
}

#[tokio::test]
async fn other_responses_repeat_the_prompt_unless_it_is_excluded() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    for (exclude, expected) in [(false, 2 + 3), (true, 3)] {
        let asked = request("a", &[1, 2], 3)
            .scalar("exclude_input_in_output", exclude)
            .build();
        stream.send(asked.clone()).await;
        let streamed = stream.response().await;
        assert!(is_final(&streamed));
        assert_eq!(output_ids(&streamed).len(), expected);
        // And the same over ModelInfer.
        let once = worker.client.model_infer(asked).await.unwrap().into_inner();
        assert_eq!(output_ids(&once), output_ids(&streamed));
    }
}

#[tokio::test]
async fn many_requests_are_served_on_one_stream_at_once() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    for id in 0..50 {
        stream.send(streaming(&id.to_string(), &[1], 20)).await;
    }
    let mut tokens = vec![0; 50];
    let mut ended = 0;
    while ended < 50 {
        let response = stream.response().await;
        tokens[response.id.parse::<usize>().unwrap()] += output_ids(&response).len();
        ended += usize::from(is_final(&response));
    }
    assert_eq!(tokens, vec![20; 50]);
}

#[tokio::test]
async fn a_batch_becomes_a_request_per_row_and_one_final_response() {
    let (mut worker, script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    let mut builder = RequestBuilder::new("tensorrt_llm", "b", 64);
    builder
        .push("input_ids", &[2, 3], &[1, 2, 3, 4, 99, 99])
        .push("input_lengths", &[2, 1], &[3, 1])
        .push("request_output_len", &[2, 1], &[5, 6])
        .push("streaming", &[2, 1], &[true, true]);
    stream.send(builder.build()).await;
    let (first, second) = (script.request().await, script.request().await);
    assert_eq!(
        (first.input_token_ids, first.max_tokens),
        (vec![1, 2, 3], 5)
    );
    assert_eq!((second.input_token_ids, second.max_tokens), (vec![4], 6));
    script.give([
        last(second.client_id, &[7], FinishReason::Length),
        last(first.client_id, &[8], FinishReason::Length),
    ]);
    for (batch_index, last) in [(1, false), (0, true)] {
        let response = stream.response().await;
        let index = Tensors::outputs(&response)
            .unwrap()
            .scalar::<i32>("batch_index")
            .unwrap();
        assert_eq!((index, is_final(&response)), (Some(batch_index), last));
    }
}

#[tokio::test]
async fn sequences_are_told_apart_by_their_index() {
    let (mut worker, script) = Worker::scripted(&["num_return_sequences"]).await;
    let mut stream = worker.stream().await;
    stream
        .send(
            request("", &[1], 9)
                .scalar("num_return_sequences", 2)
                .scalar("streaming", true)
                .build(),
        )
        .await;
    let asked = script.request().await;
    assert_eq!(asked.sampling_config.num_return_sequences, 2);
    script.give([
        ended(asked.client_id, &[5], FinishReason::Length),
        second(last(asked.client_id, &[6], FinishReason::Length)),
    ]);
    for (sequence, last) in [(0, false), (1, true)] {
        let response = stream.response().await;
        let index = Tensors::outputs(&response)
            .unwrap()
            .scalar::<i32>("sequence_index")
            .unwrap();
        assert_eq!((index, is_final(&response)), (Some(sequence), last));
    }
}

#[tokio::test]
async fn beams_are_one_response() {
    let (worker, script) = Worker::scripted(&["beam_search", "log_probs"]).await;
    let asked = request("", &[1], 9)
        .scalar("beam_width", 2)
        .scalar("return_log_probs", true)
        .scalar("exclude_input_in_output", true)
        .build();
    let mut client = worker.client.clone();
    let call = tokio::spawn(async move { client.model_infer(asked).await.unwrap().into_inner() });
    let id = script.request().await.client_id;
    script.give([
        Row {
            log_probs: Some(&[-0.5, -0.25, -0.25]),
            ..ended(id, &[5, 6, 7], FinishReason::Length)
        },
        Row {
            log_probs: Some(&[-2.0]),
            ..second(last(id, &[8], FinishReason::EndId))
        },
    ]);
    let response = call.await.unwrap();
    assert_eq!(shape(&response, "output_ids"), Some(vec![1, 2, 3]));
    assert_eq!(output_ids(&response), [5, 6, 7, 8, -1, -1]);
    let outputs = Tensors::outputs(&response).unwrap();
    assert_eq!(
        outputs.values::<i32>("sequence_length").unwrap(),
        Some(vec![3, 1])
    );
    assert_eq!(
        outputs.values::<f32>("cum_log_probs").unwrap(),
        Some(vec![-1.0, -2.0])
    );
    assert_eq!(shape(&response, "output_log_probs"), Some(vec![1, 2, 3]));
}

/// NVIDIA's client reads the log probabilities of every response, the last one too.
#[tokio::test]
async fn the_end_token_is_left_out_and_the_last_response_has_log_probabilities() {
    let (mut worker, script) = Worker::scripted(&["log_probs"]).await;
    let mut stream = worker.stream().await;
    let reported: (&[i32], Option<&[f32]>) = (&[2], Some(&[-0.25]));
    for (end, value) in [reported, (&[], None)] {
        let asked = request("a", &[1], 9)
            .scalar("end_id", 2)
            .scalar("streaming", true)
            .scalar("return_log_probs", true)
            .build();
        stream.send(asked).await;
        let id = script.request().await.client_id;
        script.give([Row {
            log_probs: Some(&[-0.5]),
            ..Row::new(id, &[5])
        }]);
        let first = stream.response().await;
        assert_eq!(output_ids(&first), [5]);
        script.give([Row {
            log_probs: value,
            ..last(id, end, FinishReason::EndId)
        }]);
        let last = stream.response().await;
        assert!(is_final(&last));
        assert_eq!(shape(&last, "output_ids"), Some(vec![1, 1, 0]));
        assert_eq!(shape(&last, "output_log_probs"), Some(vec![1, 1, 0]));
        let outputs = Tensors::outputs(&last).unwrap();
        let cumulative = outputs.values::<f32>("cum_log_probs").unwrap();
        assert_eq!(cumulative, Some(vec![-0.5]));
    }
}

#[tokio::test]
async fn outputs_are_those_asked_for() {
    let (mut worker, script) = Worker::scripted(&["log_probs", "context_logits"]).await;
    let mut stream = worker.stream().await;
    for (wanted, expected) in [
        (
            &[][..],
            &[
                "output_ids",
                "sequence_length",
                "cum_log_probs",
                "output_log_probs",
                "num_input_tokens",
                "context_logits",
            ][..],
        ),
        (&["output_ids"], &["output_ids"]),
        (
            &["context_logits", names::FINISH_REASON, names::CACHED_TOKENS],
            &[names::FINISH_REASON, names::CACHED_TOKENS, "context_logits"],
        ),
    ] {
        let mut builder = request("", &[1], 9);
        builder
            .scalar("return_log_probs", true)
            .scalar("return_context_logits", true)
            .scalar("return_num_input_tokens", true);
        for name in wanted {
            builder.output(*name);
        }
        stream.send(builder.build()).await;
        let id = script.request().await.client_id;
        let row = Row {
            log_probs: Some(&[-0.5]),
            cached_tokens: Some(8),
            ..last(id, &[5], FinishReason::EndId)
        };
        let logits = NamedTensor {
            name: "context_logits".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, 100],
            data: vec![0; 400].into(),
        };
        script.give_batch(ResponseBatch {
            rows: StepBatch::from_iter([row]),
            tensors: vec![(0, logits)],
        });
        assert_eq!(names_of(&stream.response().await), expected);
    }
}

#[tokio::test]
async fn stop_by_request_id_from_other_streams_and_connections() {
    let mut worker = Worker::simulated(slow()).await;
    let mut stream = worker.stream().await;
    stream.send(streaming("a", LONG, 9)).await;
    worker.until_active(1).await;
    let mut other = worker.stream().await;
    let stop = |id: &str| {
        let mut builder = request(id, &[0], 0);
        builder.scalar("stop", true);
        let mut message = builder.build();
        // The dummies that Triton's documentation asks for.
        message.raw_input_contents[1] = 0_i32.to_le_bytes().to_vec().into();
        message
    };
    other.send(stop("a")).await;
    let reply = other.response().await;
    assert_eq!(
        (reply.id.as_str(), reply.outputs.len(), is_final(&reply)),
        ("a", 0, true)
    );
    let ended = stream.response().await;
    assert!(is_final(&ended));
    // On this machine an id is enough, as in Triton.
    let mut stranger = worker.reconnected().await;
    let mut strange = stranger.stream().await;
    for once in [false, true] {
        stream.send(streaming("b", LONG, 9)).await;
        worker.until_active(1).await;
        if once {
            stranger.client.model_infer(stop("b")).await.unwrap();
        } else {
            strange.send(stop("b")).await;
            assert!(is_final(&strange.response().await));
        }
        assert!(is_final(&stream.response().await));
    }
    // Unknown: it may have finished. Without an id: nothing to stop.
    other.send(stop("gone")).await;
    assert!(is_final(&other.response().await));
    other.send(stop("")).await;
    let refused = other.next().await;
    assert!(
        refused.error_message.contains("request id"),
        "{}",
        refused.error_message
    );
}

#[tokio::test]
async fn the_last_response_has_log_probabilities_without_a_token() {
    let (mut worker, script) = Worker::scripted(&["log_probs"]).await;
    let mut stream = worker.stream().await;
    let mut builder = request("", &[1], 9);
    builder
        .scalar("streaming", true)
        .scalar("return_log_probs", true);
    stream.send(builder.build()).await;
    let id = script.request().await.client_id;
    script.give([Row {
        log_probs: Some(&[-0.5, -0.25]),
        ..Row::new(id, &[5, 6])
    }]);
    assert_eq!(
        shape(&stream.response().await, "output_log_probs"),
        Some(vec![1, 1, 2])
    );
    script.give([last(id, &[], FinishReason::EndId)]);
    let response = stream.response().await;
    assert!(is_final(&response));
    assert_eq!(shape(&response, "output_log_probs"), Some(vec![1, 1, 0]));
    let outputs = Tensors::outputs(&response).unwrap();
    assert_eq!(
        outputs.values::<f32>("cum_log_probs").unwrap(),
        Some(vec![-0.75])
    );
}

#[tokio::test]
async fn losing_the_stream_or_the_call_cancels_its_requests() {
    let mut worker = Worker::simulated(slow()).await;
    let stream = worker.stream().await;
    stream.send(streaming("a", LONG, 9)).await;
    let mut client = worker.client.clone();
    let call = tokio::spawn(async move { client.model_infer(request("b", LONG, 9).build()).await });
    worker.until_active(2).await;
    drop(stream);
    call.abort();
    worker.until_active(0).await;
}

#[tokio::test]
async fn tokens_that_wait_become_one_response() {
    let mut worker = Worker::simulated(instant()).await;
    let mut stream = worker.stream().await;
    for id in 0..200 {
        stream.send(streaming(&id.to_string(), &[1], 4000)).await;
    }
    worker.until_active(0).await;
    let (mut responses, mut tokens, mut ended) = (0, 0, 0);
    while ended < 200 {
        let response = stream.response().await;
        responses += 1;
        tokens += output_ids(&response).len();
        ended += usize::from(is_final(&response));
    }
    assert_eq!(tokens, 200 * 4000);
    assert!(responses < 200 * 4000 / 2, "{responses} responses");
}

#[tokio::test]
async fn the_server_describes_itself_and_its_model() {
    let mut worker = Worker::simulated(instant()).await;
    let client = &mut worker.client;
    let server = client
        .server_metadata(ServerMetadataRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(
        server
            .extensions
            .iter()
            .any(|name| name == names::STEP_BATCHING_EXTENSION)
    );
    let asked = ModelMetadataRequest {
        name: "tensorrt_llm".to_owned(),
        ..Default::default()
    };
    let model = client.model_metadata(asked).await.unwrap().into_inner();
    let input = |name: &str| {
        model
            .inputs
            .iter()
            .find(|input| input.name == name)
            .unwrap()
    };
    assert_eq!(input("input_ids").shape, [-1, -1]);
    assert_eq!(input("stop_words_list").shape, [-1, 2, -1]);
    assert_eq!(input("guided_decoding_guide").datatype, "BYTES");
    assert_eq!(model.outputs[0].shape, [-1, -1, -1]);
    let asked = ModelConfigRequest {
        name: "tensorrt_llm".to_owned(),
        ..Default::default()
    };
    let config = client
        .model_config(asked)
        .await
        .unwrap()
        .into_inner()
        .config
        .unwrap();
    assert!(config.model_transaction_policy.unwrap().decoupled);
    assert_eq!(config.max_batch_size, 256);
    assert_eq!(config.input.len(), model.inputs.len());
    assert!(
        !config
            .input
            .iter()
            .find(|input| input.name == "input_lengths")
            .unwrap()
            .optional
    );
    let index = client
        .repository_index(RepositoryIndexRequest::default())
        .await
        .unwrap();
    assert_eq!(index.into_inner().models[0].state, "READY");
    client
        .model_infer(request("", &[1], 2).build())
        .await
        .unwrap();
    let statistics = client
        .model_statistics(ModelStatisticsRequest::default())
        .await
        .unwrap();
    let statistics = statistics.into_inner().model_stats.remove(0);
    assert_eq!(statistics.inference_count, 1);
    assert_eq!(
        statistics.inference_stats.unwrap().success.unwrap().count,
        1
    );
}

#[tokio::test]
async fn the_empty_final_response_parameter_is_taken_by_its_type() {
    let mut worker = Worker::simulated(instant()).await;
    let mut builder = request("", &[1], 2);
    builder.bool_parameter(names::ENABLE_EMPTY_FINAL_RESPONSE, true);
    let response = worker
        .client
        .model_infer(builder.build())
        .await
        .unwrap()
        .into_inner();
    assert!(is_final(&response));
    let mut builder = request("", &[1], 2);
    builder.parameter(
        names::ENABLE_EMPTY_FINAL_RESPONSE,
        ParameterChoice::Int64Param(1),
    );
    assert!(worker.client.model_infer(builder.build()).await.is_err());
}

#[tokio::test]
async fn a_context_only_request_is_answered_with_its_context_phase() {
    let (mut worker, script) = Worker::scripted(&["context_phase"]).await;
    let mut stream = worker.stream().await;
    for left in [true, false] {
        let mut builder = request("a", &[1, 2], 1);
        let kind = ParameterChoice::StringParam("context_only".to_owned());
        builder.parameter("request_type", kind);
        stream.send(builder.build()).await;
        let asked = script.request().await;
        assert_eq!(asked.tensors[0].name, "request_type");
        let phase = NamedTensor {
            name: "context_phase_params".to_owned(),
            datatype: "UINT8".to_owned(),
            shape: vec![3],
            data: vec![7, 8, 9].into(),
        };
        script.give_batch(ResponseBatch {
            rows: StepBatch::from_iter([last(asked.client_id, &[5], FinishReason::Length)]),
            tensors: left.then_some((0, phase)).into_iter().collect(),
        });
        if left {
            let response = stream.response().await;
            let outputs = Tensors::outputs(&response).unwrap();
            let phase: Option<Vec<u8>> = outputs.values("context_phase_params").unwrap();
            assert_eq!(phase, Some(vec![7, 8, 9]));
            assert!(is_final(&response));
        } else {
            let message = stream.next().await;
            assert!(message.error_message.contains("`context_phase_params`"));
            assert!(is_final(&message.infer_response.unwrap()));
        }
    }
}

#[tokio::test]
async fn priorities_are_announced_where_they_count() {
    for (capabilities, levels) in [(&["priority"][..], Some((100, 50))), (&[], None)] {
        let (mut worker, _script) = Worker::scripted(capabilities).await;
        let asked = ModelConfigRequest {
            name: "tensorrt_llm".to_owned(),
            ..Default::default()
        };
        let config = worker.client.model_config(asked).await.unwrap();
        let found = match config.into_inner().config.unwrap().scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => {
                Some((batching.priority_levels, batching.default_priority_level))
            }
            _ => None,
        };
        assert_eq!(found, levels);
    }
}
