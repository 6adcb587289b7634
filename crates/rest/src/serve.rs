//! Answers one call through KServe's gRPC service, whatever serves it. Owns the order of things in a call; the
//! forms are the other modules'.

use std::future::poll_fn;

use axum::body::Body as HttpBody;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use inflight_kserve::inference as wire;
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::stop::asks_to_stop;
use inflight_kserve::streamed::StreamedResponse;
use serde::Deserialize;
use serde_json::json;
use tonic::{Extensions, Request, Status};

use crate::coding::Coding;
use crate::error::RestError;
use crate::events::{CheckedResponses, Form, GenerateBody, Next};
use crate::json::{PARAMETER, not_json};
use crate::reflect::to_json;
use crate::route::{ModelRef, Route};
use crate::{generate, infer, memory, settings};

/// Where the JSON of a request or a response ends, if tensors follow it.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// A request's id, as TensorRT-LLM's guides send it.
const REQUEST_ID: HeaderName = HeaderName::from_static("triton-request-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// What a response's body is made of.
pub type Body = HttpBody;

/// What answers: a worker's own service, or one that passes calls on.
pub trait Upstream: Sync {
    type Service: GrpcInferenceService;
    /// The responses to one request. Dropping them stops the work on it.
    type Responses: Stream<Item = Result<Self::Response, Status>> + Send + 'static;
    type Response: StreamedResponse;

    /// Answers every call but streams.
    fn service(&self) -> &Self::Service;

    /// Sends the one request of a separate stream.
    fn start(
        &self,
        request: Request<wire::ModelInferRequest>,
    ) -> impl Future<Output = Result<Self::Responses, Status>> + Send;

    /// What is said of an answer that has ended, besides its responses: headers of one in one piece, trailers of a
    /// stream.
    fn notes(responses: &Self::Responses) -> HeaderMap {
        let _ = responses;
        HeaderMap::new()
    }

    /// Does CPU work in proportion to `bytes` where such work may be done.
    fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, RestError> + Send + 'static,
    ) -> impl Future<Output = Result<T, RestError>> + Send {
        let _ = bytes;
        std::future::ready(work())
    }
}

/// One call, its body read.
#[derive(Debug)]
pub struct Call {
    pub route: Route,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What the upstream is to know of the request, with each of its calls.
    pub extensions: Extensions,
}

impl Call {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.extensions_mut() = self.extensions.clone();
        request
    }
}

/// Answers a call. Dropping the future, or the response's body, stops the work on it.
///
/// # Errors
/// What failed before there was anything to answer.
pub async fn serve<U: Upstream>(upstream: &U, call: Call) -> Result<Response<Body>, RestError> {
    match &call.route {
        Route::Infer(model) => infer(upstream, &call, model).await,
        Route::Generate(model) => generate_one(upstream, &call, model).await,
        Route::GenerateStream(model) => generate_stream(upstream, &call, model).await,
        _ => describe(upstream, &call).await,
    }
}

/// The calls that make no model work.
async fn describe<U: Upstream>(upstream: &U, call: &Call) -> Result<Response<Body>, RestError> {
    let value = match &call.route {
        Route::Live => {
            let request = call.request(wire::ServerLiveRequest {});
            let live = upstream.service().server_live(request).await;
            return Ok(health(
                "live",
                live.is_ok_and(|answer| answer.into_inner().live),
            ));
        }
        Route::Ready => {
            let request = call.request(wire::ServerReadyRequest {});
            let ready = upstream.service().server_ready(request).await;
            return Ok(health(
                "ready",
                ready.is_ok_and(|answer| answer.into_inner().ready),
            ));
        }
        Route::ModelReady(ModelRef { name, version }) => {
            let message = wire::ModelReadyRequest {
                name: name.clone(),
                version: version.clone(),
            };
            let ready = upstream.service().model_ready(call.request(message)).await;
            if !ready.is_ok_and(|answer| answer.into_inner().ready) {
                return Err(RestError::invalid("Model version not ready"));
            }
            json!({"name": name, "ready": true})
        }
        Route::ServerMetadata => {
            let request = call.request(wire::ServerMetadataRequest {});
            let answer = upstream.service().server_metadata(request).await?;
            to_json("ServerMetadataResponse", answer.get_ref())?
        }
        Route::ModelMetadata(model) => {
            let metadata = metadata(upstream, call, model).await?;
            to_json("ModelMetadataResponse", &metadata)?
        }
        Route::ModelConfig(ModelRef { name, version }) => {
            let (name, version) = (name.clone(), version.clone());
            let request = call.request(wire::ModelConfigRequest { name, version });
            let answer = upstream.service().model_config(request).await?.into_inner();
            to_json("ModelConfig", &answer.config.unwrap_or_default())?
        }
        Route::Statistics(ModelRef { name, version }) => {
            let (name, version) = (name.clone(), version.clone());
            let request = call.request(wire::ModelStatisticsRequest { name, version });
            let answer = upstream.service().model_statistics(request).await?;
            to_json("ModelStatisticsResponse", answer.get_ref())?
        }
        Route::RepositoryIndex => index(upstream, call).await?,
        Route::Load(name) => {
            let message = wire::RepositoryModelLoadRequest {
                repository_name: String::new(),
                model_name: name.clone(),
                parameters: control_parameters(&call.body)?,
            };
            upstream
                .service()
                .repository_model_load(call.request(message))
                .await?;
            return Ok(Response::new(Body::empty()));
        }
        Route::Unload(name) => {
            let message = wire::RepositoryModelUnloadRequest {
                repository_name: String::new(),
                model_name: name.clone(),
                parameters: control_parameters(&call.body)?,
            };
            upstream
                .service()
                .repository_model_unload(call.request(message))
                .await?;
            return Ok(Response::new(Body::empty()));
        }
        Route::TraceSettings(name) => {
            let message = settings::trace_request(name, &call.body)?;
            let answer = upstream
                .service()
                .trace_setting(call.request(message))
                .await?;
            settings::trace_json(answer.into_inner())
        }
        Route::LogSettings => {
            let message = settings::log_request(&call.body)?;
            let answer = upstream
                .service()
                .log_settings(call.request(message))
                .await?;
            settings::log_json(answer.into_inner())
        }
        Route::SharedMemory(route) => {
            let request = call.request(());
            match memory::call(upstream.service(), route, &call.body, request).await? {
                Some(value) => value,
                None => return Ok(Response::new(Body::empty())),
            }
        }
        Route::Infer(_) | Route::Generate(_) | Route::GenerateStream(_) => {
            return Err(RestError::invalid("the call makes a model work"));
        }
    };
    Ok(with_type(JSON, Body::from(value.to_string())))
}

/// How a server is: Triton's status, 200 or 400, and the Open Inference Protocol's body.
pub fn health(what: &str, is_well: bool) -> Response<Body> {
    let mut response = with_type(JSON, Body::from(json!({ what: is_well }).to_string()));
    if !is_well {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    response
}

async fn metadata<U: Upstream>(
    upstream: &U,
    call: &Call,
    model: &ModelRef,
) -> Result<wire::ModelMetadataResponse, RestError> {
    let request = call.request(wire::ModelMetadataRequest {
        name: model.name.clone(),
        version: model.version.clone(),
    });
    Ok(upstream
        .service()
        .model_metadata(request)
        .await?
        .into_inner())
}

async fn index<U: Upstream>(upstream: &U, call: &Call) -> Result<serde_json::Value, RestError> {
    #[derive(Default, Deserialize)]
    struct Asked {
        #[serde(default)]
        ready: bool,
    }
    let asked = match call.body.is_empty() {
        true => Asked::default(),
        false => serde_json::from_slice(&call.body).map_err(not_json)?,
    };
    let request = call.request(wire::RepositoryIndexRequest {
        repository_name: String::new(),
        ready: asked.ready,
    });
    let models = upstream
        .service()
        .repository_index(request)
        .await?
        .into_inner()
        .models;
    // Triton leaves out what is empty.
    let models = models.into_iter().map(|model| {
        let mut entry = json!({ "name": model.name });
        for (key, value) in [
            ("version", model.version),
            ("state", model.state),
            ("reason", model.reason),
        ] {
            if !value.is_empty() {
                entry[key] = value.into();
            }
        }
        entry
    });
    Ok(models.collect())
}

/// The `parameters` of a call that loads or unloads a model.
fn control_parameters(
    body: &[u8],
) -> Result<std::collections::HashMap<String, wire::ModelRepositoryParameter>, RestError> {
    use wire::model_repository_parameter::ParameterChoice;
    #[derive(Default, Deserialize)]
    struct Asked {
        #[serde(default)]
        parameters: serde_json::Map<String, serde_json::Value>,
    }
    let asked = match body.is_empty() {
        true => Asked::default(),
        false => serde_json::from_slice(body).map_err(not_json)?,
    };
    let parameters = asked.parameters.into_iter().map(|(name, value)| {
        let choice = match (value.as_bool(), value.as_i64(), value.as_str()) {
            (Some(flag), ..) => ParameterChoice::BoolParam(flag),
            (_, Some(number), _) => ParameterChoice::Int64Param(number),
            (.., Some(text)) => ParameterChoice::StringParam(text.to_owned()),
            _ => {
                let text = format!("the parameter `{name}` must be {PARAMETER}");
                return Err(RestError::invalid(text));
            }
        };
        let parameter = wire::ModelRepositoryParameter {
            parameter_choice: Some(choice),
        };
        Ok((name, parameter))
    });
    parameters.collect()
}

async fn infer<U: Upstream>(
    upstream: &U,
    call: &Call,
    model: &ModelRef,
) -> Result<Response<Body>, RestError> {
    let json_length = call.headers.get(JSON_LENGTH).map(|value| {
        let length = value.to_str().ok().and_then(|text| text.parse().ok());
        length
            .ok_or_else(|| RestError::invalid(format!("`{JSON_LENGTH}` must be a number of bytes")))
    });
    let json_length = json_length.transpose()?;
    let (named, body) = (model.clone(), call.body.clone());
    let work = move || infer::parse(&named, &body, json_length);
    // Packed tensors are not looked at.
    let bytes = json_length.unwrap_or(call.body.len());
    let (message, form) = upstream.work(bytes, work).await?;
    let response = upstream
        .service()
        .model_infer(call.request(message))
        .await?;
    let infer::Encoded { body, json_length } = infer::write(response.get_ref(), &form)?;
    let coding = Coding::accepted(&call.headers);
    let (body, coding) = match coding {
        Some(coding) => {
            // An answer may be much larger than its request.
            let bytes = body.len();
            let work = move || {
                let shrunk = coding.shrink(&body);
                Ok(shrunk.map_or((body, None), |shrunk| (shrunk, Some(coding))))
            };
            upstream.work(bytes, work).await?
        }
        None => (body, None),
    };
    let mut response = match json_length {
        Some(length) => {
            let mut response = with_type(OCTETS, Body::from(body));
            // Of the body before it was compressed.
            response
                .headers_mut()
                .insert(JSON_LENGTH, HeaderValue::from(length));
            response
        }
        None => with_type(JSON, Body::from(body)),
    };
    if let Some(coding) = coding {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_ENCODING, coding.name());
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    Ok(response)
}

/// Starts a request of the generate extension.
async fn start_generate<U: Upstream>(
    upstream: &U,
    call: &Call,
    model: &ModelRef,
) -> Result<CheckedResponses<U::Responses>, RestError> {
    let metadata = metadata(upstream, call, model).await?;
    let (named, body) = (model.clone(), call.body.clone());
    let work = move || generate::parse(&named, &metadata, &body);
    let mut message = upstream.work(call.body.len(), work).await?;
    if message.id.is_empty()
        && let Some(id) = call.headers.get(REQUEST_ID)
    {
        let id = id
            .to_str()
            .map_err(|_| RestError::invalid(format!("`{REQUEST_ID}` must be printable ASCII")))?;
        id.clone_into(&mut message.id);
    }
    let is_stop = asks_to_stop(&message);
    let responses = upstream.start(call.request(message)).await?;
    Ok(CheckedResponses::new(responses, is_stop, U::notes))
}

async fn generate_one<U: Upstream>(
    upstream: &U,
    call: &Call,
    model: &ModelRef,
) -> Result<Response<Body>, RestError> {
    let mut responses = start_generate(upstream, call, model).await?;
    let mut body = Vec::new();
    let mut count = 0;
    while poll_fn(|context| responses.poll_write(context, Form::Object, &mut body)).await?
        == Next::Written
    {
        count += 1;
        if count > 1 {
            break;
        }
    }
    if count != 1 {
        return Err(RestError::invalid(
            "generate expects model to produce exactly 1 response, use generate stream for model that generates \
             various number of responses",
        ));
    }
    let mut response = with_type(JSON, Body::from(body));
    response.headers_mut().extend(responses.notes());
    Ok(response)
}

async fn generate_stream<U: Upstream>(
    upstream: &U,
    call: &Call,
    model: &ModelRef,
) -> Result<Response<Body>, RestError> {
    let mut responses = start_generate(upstream, call, model).await?;
    // What fails before the first response has its own status.
    let mut first = Vec::new();
    poll_fn(|context| responses.poll_write(context, Form::Event, &mut first)).await?;
    let body = GenerateBody::new(first, responses);
    let mut response = with_type(EVENTS, Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise collect events in its buffer.
    let name = HeaderName::from_static("x-accel-buffering");
    headers.insert(name, HeaderValue::from_static("no"));
    Ok(response)
}

fn with_type(content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    response
}
