//! What a picker sends to a proxy. Owns the form of each message; knows nothing of their order.

use bytes::Bytes;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::messages::body_mutation::Mutation;
use crate::messages::header_value_option::HeaderAppendAction;
use crate::messages::processing_response::Response;
use crate::messages::{
    BodyMutation, BodyResponse, CommonResponse, GrpcStatus, HeaderMutation, HeaderValue,
    HeaderValueOption, HeadersResponse, HttpStatus, ImmediateResponse, ProcessingResponse,
    StreamedBodyResponse, TrailersResponse,
};
use crate::names::{DESTINATION, DESTINATION_NAMESPACE};

/// Bytes of a body in one message: data planes refuse more than 64 KiB.
const PIECE: usize = 62_000;

/// Which way a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Request,
    Response,
}

fn reply(response: Response) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(response),
        dynamic_metadata: None,
    }
}

/// The head of a request stays as it is.
pub(crate) fn request_headers() -> ProcessingResponse {
    reply(Response::RequestHeaders(HeadersResponse::default()))
}

/// The head of an answer gets this header as well, if any.
pub(crate) fn response_headers(added: Option<&(String, String)>) -> ProcessingResponse {
    let response = added.map(|(name, value)| CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers: vec![HeaderValueOption {
                append_action: HeaderAppendAction::AppendIfExistsOrAdd.into(),
                ..header(name, value)
            }],
            remove_headers: Vec::new(),
        }),
        ..CommonResponse::default()
    });
    reply(Response::ResponseHeaders(HeadersResponse { response }))
}

/// A part of a body stays as it is, where the proxy keeps it.
pub(crate) fn kept_body(way: Way) -> ProcessingResponse {
    body(way, BodyResponse::default())
}

fn body(way: Way, response: BodyResponse) -> ProcessingResponse {
    reply(match way {
        Way::Request => Response::RequestBody(response),
        Way::Response => Response::ResponseBody(response),
    })
}

/// A part of a body that the proxy passes on once it gets it back, in as many messages as it takes.
pub(crate) fn sent_body(
    way: Way,
    bytes: &Bytes,
    is_last: bool,
    replies: &mut Vec<ProcessingResponse>,
) {
    let mut from = 0;
    loop {
        let to = bytes.len().min(from + PIECE);
        let streamed = StreamedBodyResponse {
            body: bytes.slice(from..to),
            end_of_stream: is_last && to == bytes.len(),
        };
        let response = CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::StreamedResponse(streamed)),
            }),
            ..CommonResponse::default()
        };
        replies.push(body(
            way,
            BodyResponse {
                response: Some(response),
            },
        ));
        from = to;
        if from == bytes.len() {
            return;
        }
    }
}

/// Trailers stay as they are.
pub(crate) fn trailers(way: Way) -> ProcessingResponse {
    let trailers = TrailersResponse::default();
    reply(match way {
        Way::Request => Response::RequestTrailers(trailers),
        Way::Response => Response::ResponseTrailers(trailers),
    })
}

/// The request's head, or its whole body where the head has gone, with the endpoints that it goes to.
pub(crate) fn chosen(endpoints: &str, at_body: bool) -> ProcessingResponse {
    let header = header(DESTINATION, endpoints);
    let response = Some(CommonResponse {
        header_mutation: Some(HeaderMutation {
            set_headers: vec![header],
            remove_headers: Vec::new(),
        }),
        body_mutation: None,
        clear_route_cache: true,
    });
    let mut message = match at_body {
        false => reply(Response::RequestHeaders(HeadersResponse { response })),
        true => body(Way::Request, BodyResponse { response }),
    };
    let named = |name: &str, kind| Struct {
        fields: [(name.to_owned(), Value { kind: Some(kind) })].into(),
    };
    let endpoints = Kind::StringValue(endpoints.to_owned());
    let inner = Kind::StructValue(named(DESTINATION, endpoints));
    message.dynamic_metadata = Some(named(DESTINATION_NAMESPACE, inner));
    message
}

/// An answer that the proxy gives in place of an endpoint's. `headers` are in small letters; with `grpc`, the code of gRPC,
/// `body` is the message of a call's status.
pub fn refusal<'a>(
    status: u16,
    grpc: Option<u32>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: impl Into<Bytes>,
) -> ProcessingResponse {
    let headers = headers.into_iter().map(|(name, value)| header(name, value));
    reply(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus {
            code: i32::from(status),
        }),
        headers: Some(HeaderMutation {
            set_headers: headers.collect(),
            remove_headers: Vec::new(),
        }),
        body: body.into(),
        grpc_status: grpc.map(|status| GrpcStatus { status }),
        // For the proxy's access log.
        details: "inflight_endpoint_picker".to_owned(),
    }))
}

fn header(name: &str, value: &str) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: name.to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}
