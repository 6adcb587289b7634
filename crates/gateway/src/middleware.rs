//! What every request passes through. Owns the order: the request gets its id, its head is checked,
//! the handler answers, the response carries the remaining quota and is logged. Knows nothing of handlers.

mod access_log;
mod rate_limits;
mod request_id;
mod timing;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderValue, Method, StatusCode, Version, header};
use inflight_clients::client::{Client, Owner};
use inflight_openai::ApiError;
use inflight_streams::requests::Failure;
use inflight_streams::requests::{End, Requests};
use inflight_upstream::trace::EntryPoint;

use self::access_log::Requested;
use self::rate_limits::Dialect;
pub(crate) use self::request_id::RequestContext;
pub(crate) use self::timing::Timing;
use crate::error;
use crate::request_body;
use crate::state::AppState;

/// What is known of a path before its handler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// For metrics and log lines.
    pub(crate) label: &'static str,
    /// Whether it is a call of an API.
    pub(crate) is_api: bool,
    /// Whether it is for clients with a key, where keys are needed.
    pub(crate) needs_key: bool,
}

/// What the middleware runs with.
#[derive(Clone)]
pub(crate) struct Around {
    pub(crate) state: Arc<AppState>,
    /// By path, as the router has it.
    pub(crate) known: Arc<HashMap<&'static str, Known>>,
}

/// Runs around every request.
pub(crate) async fn around(
    State(Around { state, known }): State<Around>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_anthropic = error::is_anthropic(path, request.headers());
    let here = known.get(path);
    let is_api = is_openais(path) || here.is_some_and(|known| known.is_api);
    let requested = Requested {
        route: access_log::route_label(&known, matched.as_ref().map(MatchedPath::as_str), path),
        is_openai: is_api && !is_anthropic,
        is_anthropic,
        is_kserve: error::is_kserve(path) && !error::is_probe(path),
        method: request.method().clone(),
    };
    let mut context = RequestContext::new(request.headers(), requested.route);
    let is_call = requested.is_openai || requested.is_anthropic || requested.is_kserve;
    let needs_key = is_call || here.is_some_and(|known| known.needs_key);
    if is_call {
        let method = access_log::method_label(request.method());
        let route = requested.route;
        context.record(state.tracer.as_ref(), EntryPoint::Http { method, route });
    }
    let allowed = state.access.check(&mut request, needs_key);
    let client = Client::of(request.extensions());
    let quota = client.and_then(|client| client.quota()).cloned();
    let listing = state
        .requests
        .as_ref()
        .filter(|_| is_call && requested.method == Method::POST);
    let listing = listing.map(|list| (list, client.map(|it| it.owner()).unwrap_or_default()));
    let mut response = match allowed {
        Ok(()) => {
            request.extensions_mut().insert(context.clone());
            next.run(request).await
        }
        Err(refused) => refuse(&refused, request, state.max_body_bytes).await,
    };
    if requested.is_anthropic {
        error::in_anthropics_form(&mut response, &context.id);
    }
    if let Some(quota) = quota {
        let dialect = match requested.is_anthropic {
            true => Dialect::Anthropic,
            false => Dialect::OpenAi,
        };
        rate_limits::add_headers(&quota.left(), dialect, response.headers_mut());
    }
    context.trace.status(response.status().as_u16());
    if let Some((list, owner)) = listing {
        list_refusal(list, owner, &context, &response);
    }
    access_log::record(&state.metrics, &context, &requested, &mut response);
    response
}

/// Lists a request that was answered with an error, for those who look. One without a valid key is nobody's.
fn list_refusal(list: &Requests, owner: Owner, context: &RequestContext, response: &Response) {
    let status = response.status();
    let Some(failure) = response.extensions().get::<Failure>() else {
        return;
    };
    if status == StatusCode::UNAUTHORIZED {
        return;
    }
    list.refuse(
        context.facts(Arc::default(), owner),
        End {
            status: status.as_u16(),
            failure: Some(failure.clone()),
            ..End::now(context.started.elapsed(), "refused")
        },
    );
}

/// Whether a path is of the OpenAI API, known or not.
fn is_openais(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Answers a request whose body nobody has read. Over HTTP/1 the client may be sending it still, and would
/// find a reset in place of the answer.
async fn refuse(refused: &ApiError, request: Request, max_body_bytes: usize) -> Response {
    let (parts, body) = request.into_parts();
    let mut response = match error::is_kserve(parts.uri.path()) {
        true => error::flat_response(refused),
        false => error::response(refused),
    };
    if parts.version < Version::HTTP_2 {
        request_body::discard_rest(&parts.headers, body, max_body_bytes).await;
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}
