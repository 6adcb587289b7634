//! KServe's HTTP API, `/v2`. Owns what a call is let through and how long it may take, as for `/v1`; its forms are
//! inflight-rest's, and which server answers is `upstream`'s.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use inflight_clients::admission::Work;
use inflight_clients::client::Client;
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::streamed::EncodedResponse;
use inflight_openai::ApiError;
use inflight_rest::{Call, Coding, RestError, Route, Upstream};
use inflight_streams::prompts_mover::noted;
use inflight_streams::requests::{Witnessed, shortened};
use inflight_upstream::delivery::{CallContext, Permit, Witness};
use inflight_upstream::forward::{ForwardCall, ForwardStream};
use tonic::{Extensions, Status};

use super::deadline::deadline;
use crate::caller::caller;
use crate::error;
use crate::middleware::RequestContext;
use crate::request_body::{self, RequestBody};
use crate::state::AppState;

/// Any call of the API.
pub(crate) async fn call(State(state): State<Arc<AppState>>, request: Request) -> Response {
    let route = match Route::of(request.method(), request.uri().path()) {
        Ok(route) => route,
        Err(none) => return none.response(),
    };
    if !state.serves_kserve && !matches!(route, Route::Live | Route::Ready) {
        let text = "This gateway does not serve KServe's API. Start it without `--kserve=false`, or ask a worker.";
        return RestError::new(StatusCode::NOT_FOUND, text).response();
    }
    let (mut parts, body) = request.into_parts();
    let context = RequestContext::of(&mut parts);
    let client = Client::of(&parts.extensions).cloned();
    let witnessed = witness(&state, &route, &context, client.as_deref());
    let unread = UnreadCall {
        parts,
        body,
        context,
        client,
        witness: witnessed.clone().map(|it| it as Arc<dyn Witness>),
    };
    match answer(&state, route, unread).await {
        Ok(response) => response,
        Err(failed) => {
            if let Some(witnessed) = witnessed {
                match &failed {
                    Failed::Gateway(error) => witnessed.failed(error),
                    Failed::Server(error) => witnessed.failed_by_server(error),
                }
            }
            match failed {
                Failed::Gateway(error) => error::flat_response(&error),
                Failed::Server(error) => error::marked(error.response()),
            }
        }
    }
}

/// Lists a request that makes a model work for those who look.
fn witness(
    state: &AppState,
    route: &Route,
    context: &RequestContext,
    client: Option<&Client>,
) -> Option<Arc<Witnessed>> {
    let requests = state.requests.as_ref()?;
    let (Route::Infer(model) | Route::Generate(model) | Route::GenerateStream(model)) = route
    else {
        return None;
    };
    let owner = client.map(|client| client.owner()).unwrap_or_default();
    let facts = context.facts(shortened(&model.name), owner);
    Some(Witnessed::new(requests, facts))
}

/// A call that nobody has read.
struct UnreadCall {
    parts: Parts,
    body: Body,
    context: RequestContext,
    client: Option<Arc<Client>>,
    witness: Option<Arc<dyn Witness>>,
}

/// Who failed a call: the gateway, or who answers it.
enum Failed {
    Gateway(ApiError),
    Server(RestError),
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Gateway(error)
    }
}

impl From<RestError> for Failed {
    fn from(error: RestError) -> Self {
        Self::Server(error)
    }
}

async fn answer(
    state: &Arc<AppState>,
    route: Route,
    unread: UnreadCall,
) -> Result<Response, Failed> {
    let UnreadCall {
        parts,
        body,
        mut context,
        client,
        witness,
    } = unread;
    if route == Route::Ready && state.is_draining() {
        return Ok(inflight_rest::health("ready", false));
    }
    let until = deadline(&parts.headers, state.request_timeout, context.started);
    let body = if parts.method == http::Method::POST {
        let (headers, limit) = (&parts.headers, state.max_body_bytes);
        let body = request_body::read(headers, body, limit, &state.admission, client.as_ref());
        // Refused only behind it: an answer before the end of the body costs the client its connection.
        let body = body.await?;
        Some(match Coding::of_body(headers)? {
            None => body,
            Some(coding) => expanded(state, coding, body).await?,
        })
    } else {
        None
    };
    context.deadline = until?;
    let place = if route.is_inference() {
        Some(Arc::new(state.admission.admit(client.as_ref())?) as Permit)
    } else {
        None
    };
    let is_stream = matches!(route, Route::GenerateStream(_));
    let first_output = || state.first_output(context.started);
    let mut call = CallContext {
        first_output: is_stream.then(first_output).flatten(),
        place,
        caller: client.as_deref().map(caller),
        witness,
        ..context.call()
    };
    context.trace.received();
    let bytes = body
        .as_ref()
        .map_or_else(Bytes::new, |body| body.bytes.clone());
    if let Route::Generate(model) | Route::GenerateStream(model) = &route {
        let model = (&*model.name, &*model.version);
        if state.forward.limits_question(model) {
            let (read, size) = (bytes.clone(), bytes.len());
            let work = move || Ok(inflight_rest::generate::timeout(&read));
            let time = state.admission.work(size, Work::Computes, work).await?;
            state.forward.limit_question(model, time, &mut call);
        }
    }
    let asked = Call {
        route,
        headers: parts.headers,
        body: bytes,
        extensions: Extensions::new(),
    };
    let forward = Arc::clone(&state.forward);
    let upstream = Sender {
        state,
        call: ForwardCall {
            forward,
            context: call,
        },
    };
    Ok(inflight_rest::serve(&upstream, asked).await?)
}

/// A compressed body as it was before. What it becomes counts in the memory for bodies.
async fn expanded(
    state: &Arc<AppState>,
    coding: Coding,
    body: RequestBody,
) -> Result<RequestBody, Failed> {
    let RequestBody { bytes, mut held } = body;
    let (shared, size) = (Arc::clone(state), bytes.len());
    let work = move || {
        let reserve = |more: usize| {
            let reserved = shared.admission.hold(&mut held, size + more);
            reserved.map_err(Failed::Gateway)
        };
        let expanded = coding.expand(&bytes, shared.max_body_bytes, reserve);
        Ok(expanded.map(|bytes| RequestBody { bytes, held }))
    };
    // Most bodies become several times as large.
    let bytes = size.saturating_mul(8);
    state.admission.work(bytes, Work::Computes, work).await?
}

/// The servers, with the gateway's threads for large bodies.
struct Sender<'a> {
    state: &'a AppState,
    call: ForwardCall,
}

impl Upstream for Sender<'_> {
    type Service = ForwardCall;
    type Responses = ForwardStream;
    type Response = EncodedResponse;

    fn service(&self) -> &ForwardCall {
        &self.call
    }

    async fn start(
        &self,
        request: tonic::Request<ModelInferRequest>,
    ) -> Result<ForwardStream, Status> {
        let ForwardCall { forward, context } = &self.call;
        let message = request.into_inner();
        forward.stream(message, context.clone()).await
    }

    fn notes(responses: &ForwardStream) -> HeaderMap {
        responses.report().map(noted).unwrap_or_default()
    }

    async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, RestError> + Send + 'static,
    ) -> Result<T, RestError> {
        let work = move || Ok(work());
        let done = self.state.admission.work(bytes, Work::Computes, work).await;
        done.unwrap_or_else(|error| {
            let status = StatusCode::from_u16(error.status());
            Err(RestError {
                status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                message: error.message.clone(),
                retry_after_s: error.retry_after_s(),
            })
        })
    }
}
