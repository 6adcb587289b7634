use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{InferParameter, ModelInferResponse, ModelStreamInferResponse};
use inflight_kserve::names::FINAL_RESPONSE;
use inflight_kserve::stop::asks_to_stop;
use tonic::Code;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn stream(send_queue: usize) -> Arc<SharedStream> {
    Arc::new(SharedStream::unopened(SharingLimits {
        send_queue,
        slow_client: PATIENCE,
    }))
}

fn request(id: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "ensemble".to_owned(),
        id: id.to_owned(),
        ..ModelInferRequest::default()
    }
}

fn response(id: &str, version: &str, is_final: bool) -> EncodedResponse {
    let flag = InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(is_final)),
    };
    EncodedResponse::from(&ModelStreamInferResponse {
        infer_response: Some(ModelInferResponse {
            id: id.to_owned(),
            model_version: version.to_owned(),
            parameters: [(FINAL_RESPONSE.to_owned(), flag)].into(),
            ..ModelInferResponse::default()
        }),
        ..ModelStreamInferResponse::default()
    })
}

/// What is there for a request, without waiting.
fn read(responses: &mut SharedResponses) -> Vec<Result<String, Code>> {
    let ready = std::iter::from_fn(|| responses.next().now_or_never().flatten());
    let versions = ready.map(|response| match response {
        Ok(message) => Ok(message.view().unwrap().model_version.to_owned()),
        Err(status) => Err(status.code()),
    });
    versions.collect()
}

/// The ids of the requests that leave, with a mark on those that stop another.
fn sent(stream: &SharedStream) -> Vec<String> {
    let mut queue = stream.queue.stream();
    let ready = std::iter::from_fn(|| queue.next().now_or_never().flatten());
    let ids = ready.map(|message| match asks_to_stop(&message) {
        true => format!("stop {}", message.id),
        false => message.id,
    });
    ids.collect()
}

#[test]
fn each_response_finds_its_request() {
    let stream = stream(8);
    // Two clients may have chosen one id, and a third none.
    let mut requests: Vec<SharedResponses> = ["a.1", "a.1", ""]
        .map(|id| stream.send(request(id)).unwrap())
        .into();
    let ids: Vec<String> = requests.iter().map(|it| it.id().to_owned()).collect();
    assert!(ids[0].starts_with("a.1.") && ids[1].starts_with("a.1.") && ids[0] != ids[1]);
    assert_eq!(sent(&stream), ids);
    let mut ready = vec![
        response(&ids[1], "1", false),
        response(&ids[0], "2", true),
        response(&ids[2], "3", false),
        response(&ids[1], "4", true),
        // None of these is a request's.
        response(&ids[0], "5", true),
        response("", "6", true),
        response("a.zz", "7", true),
        response("a.ffffffffffffffff", "8", true),
        EncodedResponse::default(),
    ];
    stream.hand_out(&mut ready, Instant::now()).unwrap();
    assert!(ready.is_empty());
    let expected: [&[Result<&str, Code>]; 3] = [&[Ok("2")], &[Ok("1"), Ok("4")], &[Ok("3")]];
    for (responses, expected) in requests.iter_mut().zip(expected) {
        let got = read(responses);
        let got: Vec<_> = got
            .iter()
            .map(|it| it.as_deref().map_err(|code| *code))
            .collect();
        assert_eq!(got, expected);
    }
    drop(requests);
    // The others had ended.
    assert_eq!(sent(&stream), [format!("stop {}", ids[2])]);
}

#[test]
fn a_damaged_response_is_told_after_those_before_it() {
    let stream = stream(8);
    let mut open = stream.send(request("a")).unwrap();
    let mut ready = vec![
        response(open.id(), "1", false),
        EncodedResponse::new(Bytes::from_static(&[0x0a, 5])),
        response(open.id(), "2", false),
    ];
    let damaged = stream.hand_out(&mut ready, Instant::now()).unwrap_err();
    assert_eq!(damaged.code(), Code::Internal);
    stream.end(&damaged);
    assert_eq!(read(&mut open), [Ok("1".to_owned()), Err(Code::Internal)]);
}

#[test]
fn a_request_that_is_left_before_it_was_sent_is_taken_back() {
    let stream = stream(8);
    drop(stream.send(request("a")).unwrap());
    assert_eq!(sent(&stream), [""; 0]);
}

#[test]
fn a_full_queue_refuses_a_request() {
    let stream = stream(1);
    let first = stream.send(request("a")).unwrap();
    let refused = stream.send(request("b")).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // Nothing is left of it, and the server hears nothing of it.
    assert_eq!(stream.open_requests(), 1);
    assert_eq!(sent(&stream), [first.id()]);
}

#[test]
fn the_end_of_the_stream_ends_its_requests_after_what_came() {
    let stream = stream(8);
    let mut open = stream.send(request("a")).unwrap();
    let mut done = stream.send(request("b")).unwrap();
    let mut ready = vec![
        response(open.id(), "1", false),
        response(done.id(), "2", true),
    ];
    stream.hand_out(&mut ready, Instant::now()).unwrap();
    assert!(!stream.has_ended());
    stream.end(&Status::unavailable("the worker is gone"));
    assert!(stream.has_ended());
    assert_eq!(
        read(&mut open),
        [Ok("1".to_owned()), Err(Code::Unavailable)]
    );
    assert_eq!(read(&mut done), [Ok("2".to_owned())]);
    let refused = stream.send(request("c")).unwrap_err();
    assert_eq!(refused.message(), "the worker is gone");
}

#[test]
fn a_client_that_stops_reading_loses_its_request_and_no_other() {
    let stream = stream(8);
    let mut stalled = stream.send(request("a")).unwrap();
    let mut reads = stream.send(request("b")).unwrap();
    let ids = [stalled.id().to_owned(), reads.id().to_owned()];
    sent(&stream);
    let start = Instant::now();
    let mut ready = ids.iter().map(|id| response(id, "1", false)).collect();
    stream.hand_out(&mut ready, start).unwrap();
    stream.sweep(start, PATIENCE);
    assert_eq!(read(&mut reads), [Ok("1".to_owned())]);
    stream.sweep(start + PATIENCE - Duration::from_secs(1), PATIENCE);
    assert_eq!(sent(&stream), [""; 0]);
    stream.sweep(start + PATIENCE, PATIENCE);
    assert_eq!(sent(&stream), [format!("stop {}", ids[0])]);
    assert_eq!(
        read(&mut stalled),
        [Ok("1".to_owned()), Err(Code::DeadlineExceeded)]
    );
    assert_eq!(read(&mut reads), []);
}
