//! Bad requests: each is answered by name, nothing else is disturbed.

use inflight_kserve::inference::{
    CudaSharedMemoryStatusRequest, ModelInferRequest, ModelMetadataRequest,
    RepositoryModelLoadRequest, TraceSettingRequest, trace_setting_request,
};
use inflight_kserve::names;
use inflight_kserve::tensor::RequestBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use super::harness::{Scripted, Worker, instant, options, request};

/// What is asked, and the status and name that the answer has.
fn cases() -> Vec<(ModelInferRequest, Code, &'static str)> {
    use Code::{InvalidArgument, NotFound, Unimplemented};
    let base = || request("x", &[1, 2], 4);
    let mut cases = Vec::new();
    let mut case =
        |mut builder: RequestBuilder, code, name| cases.push((builder.build(), code, name));
    let with = |add: &dyn Fn(&mut RequestBuilder)| {
        let mut builder = base();
        add(&mut builder);
        builder
    };
    case(
        RequestBuilder::new("ensemble", "", 0),
        NotFound,
        "`ensemble`",
    );
    case(
        RequestBuilder::new("nonsense", "", 0),
        NotFound,
        "`nonsense`",
    );
    case(
        RequestBuilder::new("tensorrt_llm", "", 0),
        InvalidArgument,
        "`request_output_len`",
    );
    case(
        with(&|b| {
            b.scalar("no_such_input", 1);
        }),
        InvalidArgument,
        "`no_such_input`",
    );
    case(
        with(&|b| {
            b.output("no_such_output");
        }),
        InvalidArgument,
        "`no_such_output`",
    );
    case(
        with(&|b| {
            b.scalar("temperature", 1_i32);
        }),
        InvalidArgument,
        "`temperature`",
    );
    case(
        with(&|b| {
            b.scalar("temperature", f32::NAN);
        }),
        InvalidArgument,
        "`temperature`",
    );
    case(
        with(&|b| {
            b.scalar("temperature", -1_f32);
        }),
        InvalidArgument,
        "`temperature`",
    );
    case(
        with(&|b| {
            b.scalar("runtime_top_p", 1.5_f32);
        }),
        InvalidArgument,
        "`runtime_top_p`",
    );
    case(
        with(&|b| {
            b.scalar("runtime_top_k", -1);
        }),
        InvalidArgument,
        "`runtime_top_k`",
    );
    case(
        with(&|b| {
            b.vector("seed", &[1_u64, 2]);
        }),
        InvalidArgument,
        "`seed`",
    );
    case(
        with(&|b| {
            b.scalar("end_id", 100);
        }),
        InvalidArgument,
        "`end_id`",
    );
    case(
        with(&|b| {
            b.scalar("input_lengths", 2);
        }),
        InvalidArgument,
        "`input_lengths`",
    );
    case(
        with(&|b| {
            b.push("stop_words_list", &[1, 3, 1], &[1, 2, 3]);
        }),
        InvalidArgument,
        "`stop_words_list`",
    );
    case(
        with(&|b| {
            b.push("stop_words_list", &[1, 2, 1], &[1, 9]);
        }),
        InvalidArgument,
        "`stop_words_list`",
    );
    case(
        with(&|b| {
            b.push("seed", &[2, 1], &[1_u64, 2]);
        }),
        InvalidArgument,
        "`seed`",
    );
    case(
        with(&|b| {
            b.scalar("beam_width", 2);
        }),
        Unimplemented,
        "`beam_width`",
    );
    case(
        with(&|b| {
            b.scalar("num_return_sequences", 3);
        }),
        Unimplemented,
        "`num_return_sequences`",
    );
    case(
        with(&|b| {
            b.scalar("repetition_penalty", 1.2_f32);
        }),
        Unimplemented,
        "`repetition_penalty`",
    );
    case(
        with(&|b| {
            b.scalar("return_log_probs", true);
        }),
        Unimplemented,
        "`return_log_probs`",
    );
    case(
        with(&|b| {
            b.scalar("lora_task_id", 1_u64);
        }),
        Unimplemented,
        "`lora_task_id`",
    );
    case(
        with(&|b| {
            b.push_bytes("guided_decoding_guide", &[1, 1], ["{}"]);
        }),
        Unimplemented,
        "`guided_decoding_guide`",
    );
    case(
        with(&|b| {
            b.scalar("streaming", true);
        }),
        Unimplemented,
        "decoupled",
    );
    case(request("x", &[], 4), InvalidArgument, "`input_ids`");
    case(request("x", &[100], 4), InvalidArgument, "`input_ids`");
    case(request("x", &[-1], 4), InvalidArgument, "`input_ids`");
    case(request("x", &[1; 33], 4), InvalidArgument, "`input_ids`");
    case(
        request("x", &[1; 2_500_000], 4),
        InvalidArgument,
        "`input_ids`",
    );
    case(
        request("x", &[1], 64),
        InvalidArgument,
        "`request_output_len`",
    );
    case(
        request("x", &[1], i32::MAX),
        InvalidArgument,
        "`request_output_len`",
    );
    case(
        request("x", &[1], -1),
        InvalidArgument,
        "`request_output_len`",
    );
    case(
        request("x", &[1], 0),
        InvalidArgument,
        "`request_output_len`",
    );
    let mut short = base().build();
    short.raw_input_contents[0] = vec![1, 2, 3].into();
    cases.push((short, InvalidArgument, "`input_ids`"));
    let mut length = request("x", &[1, 2], 4).build();
    length.raw_input_contents[1] = 3_i32.to_le_bytes().to_vec().into();
    cases.push((length, InvalidArgument, "`input_lengths`"));
    let mut unknown = base().build();
    unknown.inputs[0].datatype = "INT33".to_owned();
    cases.push((unknown, InvalidArgument, "`input_ids`"));
    let mut huge = base().build();
    huge.inputs[0].shape = vec![i64::MAX, i64::MAX];
    cases.push((huge, InvalidArgument, "`input_ids`"));
    cases
}

#[tokio::test]
async fn every_bad_request_is_refused_by_name() {
    let (mut worker, _script) = Worker::scripted(&[]).await;
    let mut stream = worker.stream().await;
    for (place, (message, code, name)) in cases().into_iter().enumerate() {
        let status = worker
            .client
            .model_infer(message.clone())
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "case {place}: {}", status.message());
        assert!(
            status.message().contains(name),
            "case {place}: {}",
            status.message()
        );
        if name == "decoupled" {
            continue;
        }
        // In a stream the same text comes in band, and the stream goes on.
        let id = message.id.clone();
        stream.send(message).await;
        let answer = stream.next().await;
        assert_eq!(answer.error_message, status.message());
        assert_eq!(answer.infer_response.unwrap().id, id);
    }
}

#[tokio::test]
async fn neutral_values_ask_for_nothing() {
    let mut worker = Worker::simulated(instant()).await;
    let mut builder = request("", &[1], 2);
    builder
        .scalar("beam_width", 1)
        .scalar("num_return_sequences", 1)
        .scalar("repetition_penalty", 1_f32)
        .scalar("presence_penalty", 0_f32)
        .scalar("frequency_penalty", 0_f32)
        .scalar("len_penalty", 1_f32)
        .scalar("return_log_probs", false)
        .scalar("return_context_logits", false)
        .scalar("early_stopping", false)
        .scalar(names::MIN_P, 0_f32)
        .scalar(names::NUM_TOP_LOG_PROBS, 0)
        .push("bad_words_list", &[1, 2, 0], &[0_i32; 0])
        .push("stop_words_list", &[1, 2, 0], &[0_i32; 0])
        .vector("embedding_bias", &[0_f32; 0]);
    worker.client.model_infer(builder.build()).await.unwrap();
}

#[tokio::test]
async fn tensors_without_batch_dimension_are_taken() {
    let mut worker = Worker::simulated(instant()).await;
    let mut builder = RequestBuilder::new("tensorrt_llm", "", 64);
    builder
        .push("input_ids", &[3], &[1, 2, 3])
        .push("input_lengths", &[1], &[3])
        .push("request_output_len", &[], &[2])
        .push("stop_words_list", &[2, 1], &[5, 1]);
    worker.client.model_infer(builder.build()).await.unwrap();
}

#[tokio::test]
async fn logits_larger_than_a_message_are_refused_by_name_and_size() {
    let (executor, _script) = Scripted::new(&["context_logits", "generation_logits"]);
    let options = inflight_worker::WorkerOptions {
        max_message_bytes: 4096,
        ..options()
    };
    let mut worker = Worker::start(executor, options).await;
    for (flag, output, prompt, max_tokens) in [
        ("return_context_logits", "`context_logits`", 11, 1),
        ("return_generation_logits", "`generation_logits`", 1, 11),
    ] {
        let asked = request("", &vec![1; prompt], max_tokens)
            .scalar(flag, true)
            .build();
        let status = worker.client.model_infer(asked).await.unwrap_err();
        assert!(status.message().contains(output), "{}", status.message());
        assert!(status.message().contains("`4400`"), "{}", status.message());
    }
}

#[tokio::test]
async fn what_is_not_supported_says_so() {
    let mut worker = Worker::simulated(instant()).await;
    let client = &mut worker.client;
    let timestamps = trace_setting_request::SettingValue {
        value: vec!["TIMESTAMPS".to_owned()],
    };
    let refused = [
        client
            .repository_model_load(RepositoryModelLoadRequest::default())
            .await
            .unwrap_err(),
        client
            .cuda_shared_memory_status(CudaSharedMemoryStatusRequest::default())
            .await
            .unwrap_err(),
        client
            .trace_setting(TraceSettingRequest {
                settings: [("trace_level".to_owned(), timestamps)].into(),
                ..TraceSettingRequest::default()
            })
            .await
            .unwrap_err(),
    ];
    for (status, name) in refused.iter().zip([
        "explicit model load / unload is not allowed",
        "CudaSharedMemoryStatus",
        "start it with `--otlp-endpoint`",
    ]) {
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(status.message().contains(name), "{}", status.message());
    }
    let asked = ModelMetadataRequest {
        name: "preprocessing".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        client.model_metadata(asked).await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_long_text_fits_a_status() {
    let mut worker = Worker::start(Scripted::new(&[]).0, options()).await;
    let long = "é".repeat(20_000);
    let mut unknown_input = request("x", &[1, 2], 4);
    unknown_input.scalar(long.as_str(), 1);
    for (message, code) in [
        (unknown_input.build(), Code::InvalidArgument),
        (RequestBuilder::new(&long, "", 0).build(), Code::NotFound),
    ] {
        let refused = worker.client.model_infer(message).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains('é'), "{refused:?}");
    }
}

#[tokio::test]
async fn the_metrics_port_answers_to_no_name_of_others() {
    let worker = Worker::start(Scripted::new(&[]).0, options()).await;
    for (host, status) in [("localhost", "200"), ("page.example", "403")] {
        let mut socket = tokio::net::TcpStream::connect(worker.metrics)
            .await
            .unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).await.unwrap();
        let line = format!("HTTP/1.1 {status} ");
        assert!(page.starts_with(&line), "{host}: {page}");
    }
}
