use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use super::*;
use crate::messages::body_mutation::Mutation;
use crate::messages::processing_response::Response;
use crate::messages::{HeaderMap, HeaderValue, HttpTrailers, Metadata};
use crate::names::DESTINATION;

const ENDPOINT: &str = "10.0.0.7:8000";
/// With one for retries.
const ENDPOINTS: &str = "10.0.0.7:8000,10.0.0.8:8000";

fn headers(ends: bool, pairs: &[(&str, &str)]) -> Request {
    let value = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    Request::RequestHeaders(HttpHeaders {
        headers: Some(HeaderMap {
            headers: pairs.iter().map(value).collect(),
        }),
        end_of_stream: ends,
    })
}

fn body(text: &str, is_last: bool) -> Request {
    Request::RequestBody(HttpBody {
        body: Bytes::copy_from_slice(text.as_bytes()),
        end_of_stream: is_last,
    })
}

fn answer(text: &str, is_last: bool) -> Request {
    Request::ResponseBody(HttpBody {
        body: Bytes::copy_from_slice(text.as_bytes()),
        end_of_stream: is_last,
    })
}

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(request),
        ..ProcessingRequest::default()
    }
}

fn exchange(request: BodySendMode, response: BodySendMode) -> Exchange {
    let mut exchange = Exchange::new(1 << 20);
    exchange.set_modes(&ProtocolConfiguration {
        request_body_mode: request.into(),
        response_body_mode: response.into(),
    });
    exchange
}

/// Takes messages until a request is there to choose for, each of which gets this many replies.
fn until_choice(exchange: &mut Exchange, messages: Vec<(Request, usize)>) -> Box<HttpRequest> {
    let mut asked = None;
    for (request, replies) in messages {
        assert!(asked.is_none(), "chosen too early");
        match exchange.take(message(request)).unwrap() {
            Step::Reply(sent) => assert_eq!(sent.len(), replies),
            Step::Choose(request) => asked = Some(request),
        }
    }
    asked.expect("a choice")
}

/// Each reply in short: its kind, and what of a body it sends.
fn short(replies: &[ProcessingResponse]) -> Vec<String> {
    let common = |response: &Option<crate::messages::CommonResponse>| {
        let Some(response) = response else {
            return String::new();
        };
        let named = response.header_mutation.as_ref().map(|headers| {
            let value = headers.set_headers[0].header.as_ref().unwrap();
            format!(
                " {}={}",
                value.key,
                String::from_utf8_lossy(&value.raw_value)
            )
        });
        let sent = response.body_mutation.as_ref().map(|body| {
            let Some(Mutation::StreamedResponse(body)) = &body.mutation else {
                panic!("{body:?}");
            };
            let end = if body.end_of_stream { " end" } else { "" };
            format!(" {}{end}", String::from_utf8_lossy(&body.body))
        });
        named.unwrap_or_default() + &sent.unwrap_or_default()
    };
    let one = |reply: &ProcessingResponse| match reply.response.as_ref().unwrap() {
        Response::RequestHeaders(it) => format!("head{}", common(&it.response)),
        Response::ResponseHeaders(it) => format!("answer's head{}", common(&it.response)),
        Response::RequestBody(it) => format!("body{}", common(&it.response)),
        Response::ResponseBody(it) => format!("answer{}", common(&it.response)),
        Response::RequestTrailers(_) => "trailers".to_owned(),
        Response::ResponseTrailers(_) => "answer's trailers".to_owned(),
        Response::ImmediateResponse(it) => format!("{:?}", it.status),
    };
    replies.iter().map(one).collect()
}

fn replies(step: Step) -> Vec<String> {
    match step {
        Step::Reply(replies) => short(&replies),
        Step::Choose(request) => panic!("{request:?}"),
    }
}

#[test]
fn the_endpoints_are_named_in_each_way_of_sending_bodies() {
    use BodySendMode::{Buffered, FullDuplexStreamed, None, Streamed};
    let named = format!("head {DESTINATION}={ENDPOINTS}");
    for (mode, messages, seen, sent) in [
        (
            FullDuplexStreamed,
            vec![
                (headers(false, &[]), 0),
                (body("{\"a\"", false), 0),
                (body(":1}", true), 0),
            ],
            "{\"a\":1}",
            vec![named.clone(), "body {\"a\":1} end".to_owned()],
        ),
        (
            FullDuplexStreamed,
            vec![(headers(false, &[]), 0), (body("", true), 0)],
            "",
            vec![named.clone(), "body  end".to_owned()],
        ),
        (
            FullDuplexStreamed,
            vec![(headers(true, &[]), 0)],
            "",
            vec![named.clone()],
        ),
        (
            FullDuplexStreamed,
            vec![
                (headers(false, &[]), 0),
                (body("x", false), 0),
                (Request::RequestTrailers(HttpTrailers::default()), 0),
            ],
            "x",
            vec![named.clone(), "body x".to_owned(), "trailers".to_owned()],
        ),
        (
            Buffered,
            vec![(headers(false, &[]), 1), (body("x", true), 0)],
            "x",
            vec![format!("body {DESTINATION}={ENDPOINTS}")],
        ),
        (
            Buffered,
            vec![(headers(true, &[]), 0)],
            "",
            vec![named.clone()],
        ),
        (
            Streamed,
            vec![(headers(false, &[]), 0)],
            "",
            vec![named.clone()],
        ),
        (None, vec![(headers(false, &[]), 0)], "", vec![named]),
    ] {
        let mut exchange = exchange(mode, None);
        let request = until_choice(&mut exchange, messages);
        assert_eq!(request.body, seen, "{mode:?}");
        let replies = exchange.chosen(ENDPOINTS);
        assert_eq!(short(&replies), sent, "{mode:?}");
        let Some(Kind::StructValue(inner)) =
            &replies[0].dynamic_metadata.as_ref().unwrap().fields["envoy.lb"].kind
        else {
            panic!("{replies:?}");
        };
        let value = Kind::StringValue(ENDPOINTS.to_owned());
        assert_eq!(inner.fields[DESTINATION].kind, Some(value));
    }
}

#[test]
fn a_call_of_grpc_is_chosen_for_by_its_first_message_and_the_rest_follows() {
    let mut exchange = exchange(BodySendMode::FullDuplexStreamed, BodySendMode::None);
    let grpc = [("content-type", "application/grpc+proto")];
    let request = until_choice(
        &mut exchange,
        vec![
            (headers(false, &grpc), 0),
            (body("\0\0\0", false), 0),
            (body("\0\x03ab", false), 0),
            (body("cd", false), 0),
        ],
    );
    assert_eq!(request.first_message(), Some(&b"abc"[..]));
    assert_eq!(&request.body[..], b"\0\0\0\0\x03abcd");
    assert_eq!(
        short(&exchange.chosen(ENDPOINT))[1],
        "body \0\0\0\0\x03abcd"
    );
    for (text, is_last, expected) in [("more", false, "body more"), ("", true, "body  end")] {
        let step = exchange.take(message(body(text, is_last))).unwrap();
        assert_eq!(replies(step), [expected]);
    }
}

#[test]
fn a_form_passes_however_large_it_is() {
    use BodySendMode::{Buffered, FullDuplexStreamed};
    let form = [("content-type", "multipart/form-data; boundary=x")];
    for (mode, passed) in [
        (FullDuplexStreamed, "body 123456789 end"),
        (Buffered, "body"),
    ] {
        let mut exchange = Exchange::new(8);
        exchange.set_modes(&ProtocolConfiguration {
            request_body_mode: mode.into(),
            response_body_mode: BodySendMode::None.into(),
        });
        until_choice(&mut exchange, vec![(headers(false, &form), 0)]);
        let named = format!("head {DESTINATION}={ENDPOINT}");
        assert_eq!(short(&exchange.chosen(ENDPOINT)), [named]);
        let step = exchange.take(message(body("123456789", true))).unwrap();
        assert_eq!(replies(step), [passed]);
    }
}

#[test]
fn a_large_body_goes_back_in_pieces() {
    let mut exchange = exchange(BodySendMode::FullDuplexStreamed, BodySendMode::None);
    let text = "x".repeat(150_000);
    let request = until_choice(
        &mut exchange,
        vec![(headers(false, &[]), 0), (body(&text, true), 0)],
    );
    assert_eq!(request.body.len(), text.len());
    let sent = short(&exchange.chosen(ENDPOINT));
    let ends: Vec<bool> = sent.iter().map(|piece| piece.ends_with(" end")).collect();
    assert_eq!(ends, [false, false, false, true]);
    let bytes: usize = sent[1..]
        .iter()
        .map(|piece| piece.matches('x').count())
        .sum();
    assert_eq!(bytes, text.len());
}

#[test]
fn no_more_of_a_body_is_held_than_is_allowed() {
    let mut exchange = Exchange::new(8);
    for (text, expected) in [("12345", Ok(())), ("6789", Err(8))] {
        if text == "12345" {
            exchange.take(message(headers(false, &[]))).unwrap();
        }
        let taken = exchange.take(message(body(text, false)));
        let taken = taken.map(|_| ()).map_err(|error| match error {
            ExchangeError::TooLarge { limit } => limit,
            other => panic!("{other}"),
        });
        assert_eq!(taken, expected);
    }
    assert_eq!(exchange.held(), 5);
    assert!(exchange.request().is_some());
    let mut exchange = Exchange::new(8);
    let early = exchange.take(message(body("x", true))).unwrap_err();
    assert_eq!(early, ExchangeError::NoHeaders);
}

#[test]
fn an_answer_passes_and_is_heard() {
    use BodySendMode::{FullDuplexStreamed, None, Streamed};
    let usage = "{\"cached_tokens\":48}";
    for (mode, at_head, sent) in [
        (
            FullDuplexStreamed,
            false,
            vec![format!("answer {usage} end")],
        ),
        (Streamed, false, vec!["answer".to_owned()]),
        (None, true, vec![]),
    ] {
        let mut exchange = exchange(FullDuplexStreamed, mode);
        let head = HttpHeaders::default();
        let namespace = Struct {
            fields: [(
                "x-gateway-destination-endpoint-served".to_owned(),
                Value {
                    kind: Some(Kind::StringValue(ENDPOINT.to_owned())),
                },
            )]
            .into(),
        };
        let metadata = Metadata {
            filter_metadata: [("envoy.lb".to_owned(), namespace)].into(),
        };
        let step = exchange.take(ProcessingRequest {
            metadata_context: Some(metadata),
            ..message(Request::ResponseHeaders(head))
        });
        assert_eq!(replies(step.unwrap()), ["answer's head"]);
        assert_eq!(exchange.heard().has_begun, at_head, "{mode:?}");
        assert_eq!(exchange.heard().served.as_deref(), Some(ENDPOINT));
        if !sent.is_empty() {
            let step = exchange.take(message(answer(usage, true))).unwrap();
            assert_eq!(replies(step), sent);
            assert!(exchange.heard().has_begun);
            assert_eq!(exchange.heard().cached_tokens, Some(48));
        }
        let trailers = Request::ResponseTrailers(HttpTrailers::default());
        let step = exchange.take(message(trailers)).unwrap();
        assert_eq!(replies(step), ["answer's trailers"]);
    }
}

#[test]
fn an_answer_gets_a_header_besides_its_own() {
    let mut exchange = exchange(BodySendMode::FullDuplexStreamed, BodySendMode::None);
    until_choice(&mut exchange, vec![(headers(true, &[]), 0)]);
    exchange.add_to_answer("x-more", "a,b");
    exchange.chosen(ENDPOINT);
    let step = exchange.take(message(Request::ResponseHeaders(HttpHeaders::default())));
    assert_eq!(replies(step.unwrap()), ["answer's head x-more=a,b"]);
}

#[test]
fn a_proxy_that_only_shows_gets_no_answer() {
    let mut exchange = Exchange::new(8);
    let step = exchange.take(ProcessingRequest {
        observability_mode: true,
        ..message(headers(true, &[]))
    });
    assert!(replies(step.unwrap()).is_empty());
}

#[test]
fn the_request_is_read_from_what_proxies_send() {
    let list = |addresses: &[&str]| {
        let values = addresses.iter().map(|address| Value {
            kind: Some(Kind::StringValue((*address).to_owned())),
        });
        Kind::ListValue(ListValue {
            values: values.collect(),
        })
    };
    let text = |text: &str| Kind::StringValue(text.to_owned());
    for (hint, expected) in [
        (None, [true, true]),
        (Some(list(&[ENDPOINT])), [true, false]),
        (Some(list(&["10.0.0.8"])), [false, true]),
        (Some(list(&[])), [false, false]),
        (Some(text(" 10.0.0.8:8000, 10.0.0.9:1")), [false, true]),
        (Some(Kind::BoolValue(true)), [true, true]),
    ] {
        let mut exchange = exchange(BodySendMode::None, BodySendMode::None);
        let namespace = hint.map(|kind| Struct {
            fields: [(
                "x-gateway-destination-endpoint-subset".to_owned(),
                Value { kind: Some(kind) },
            )]
            .into(),
        });
        let filter_metadata = namespace
            .into_iter()
            .map(|namespace| ("envoy.lb.subset_hint".to_owned(), namespace));
        let pairs = [
            (":path", "/v1/chat/completions?a=b"),
            (":method", "POST"),
            ("x-request-id", "r1"),
            ("not a name", "x"),
        ];
        let step = exchange.take(ProcessingRequest {
            metadata_context: Some(Metadata {
                filter_metadata: filter_metadata.collect(),
            }),
            ..message(headers(false, &pairs))
        });
        let Step::Choose(request) = step.unwrap() else {
            panic!("nothing to choose");
        };
        assert_eq!(request.path, "/v1/chat/completions?a=b");
        assert_eq!(request.method, "POST");
        assert_eq!(request.headers.len(), 1);
        assert_eq!(request.headers["x-request-id"], "r1");
        let may = [ENDPOINT, "10.0.0.8:8000"].map(|endpoint| request.may_go_to(endpoint));
        assert_eq!(may, expected);
    }
}
