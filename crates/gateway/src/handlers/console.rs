//! What the console asks: the gateway as it is now, and the latest requests. Owns the form of both; nothing here
//! changes anything. A client sees its key's requests alone.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Request, State};
use inflight_base::milliseconds;
use inflight_clients::client::{Client, Owner};
use inflight_clients::quota::Rate;
use inflight_streams::requests::{Facts, SentTo};
use inflight_upstream::connection::Connection;
use inflight_upstream::placement::CacheUsage;
use inflight_upstream::slot::WorkerSlot;
use schemars::JsonSchema;
use serde::Serialize;

use crate::query;
use crate::state::AppState;

/// Listed at once, of the open requests and of those that have ended.
const MOST_LISTED: usize = 100;

/// The gateway now.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Status {
    /// The gateway's own.
    version: &'static str,
    open: Open,
    workers: Vec<Worker>,
    /// What is left to the client's key; `null`: it has no limits.
    key: Option<Limits>,
}

/// The open requests of the client's key.
#[derive(Serialize, JsonSchema)]
struct Open {
    count: usize,
    /// Those of them without a token yet.
    waiting: usize,
    /// The oldest of them.
    requests: Vec<OpenRequest>,
}

#[derive(Serialize, JsonSchema)]
struct OpenRequest {
    id: String,
    /// The template of its path, or a method of gRPC.
    route: &'static str,
    model: String,
    worker: Option<String>,
    age_ms: f64,
    first_token_ms: Option<f64>,
    prompt_tokens: Option<u64>,
    /// `null`: nobody counts them, as for KServe's requests.
    completion_tokens: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct Worker {
    address: String,
    ready: bool,
    /// Why it is not ready.
    reason: String,
    /// Open requests there, KServe's included.
    active: usize,
    /// While it is connected.
    models: Vec<Model>,
}

#[derive(Serialize, JsonSchema)]
struct Model {
    name: String,
    /// Empty: a plain Triton server.
    executor: String,
    /// What distinguishes its weights, or its files, from those of others.
    version: String,
    /// Names of its LoRA adapters.
    adapters: Vec<String>,
    max_model_len: Option<usize>,
    /// How full its KV cache is; `null`: unknown. A plain Triton server does not report it.
    cache: Option<Cache>,
}

/// Blocks of a KV cache.
#[derive(Serialize, JsonSchema)]
struct Cache {
    blocks: u64,
    /// Held by requests.
    used: u64,
}

#[derive(Serialize, JsonSchema)]
struct Limits {
    requests: Option<Left>,
    tokens: Option<Left>,
}

/// One rate, in a minute.
#[derive(Serialize, JsonSchema)]
struct Left {
    limit: u64,
    remaining: u64,
    reset_ms: f64,
}

/// The latest requests of the client's key that have ended, the latest first.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ended {
    requests: Vec<EndedRequest>,
}

/// How a request went. Times are milliseconds since its arrival.
#[derive(Serialize, JsonSchema)]
struct EndedRequest {
    id: String,
    /// The template of its path, or a method of gRPC.
    route: &'static str,
    /// Empty: refused before it was read.
    model: String,
    /// Seconds since 1970.
    ended_s: f64,
    /// Until it was first sent to a worker.
    prepared_ms: f64,
    first_token_ms: Option<f64>,
    total_ms: f64,
    prompt_tokens: Option<u64>,
    cached_tokens: u64,
    /// `null`: nobody counts them, as for KServe's requests.
    completion_tokens: Option<u64>,
    /// `stop`, `length`, `error` or `cancelled`; `answered`: whole, over KServe; `refused`: an error before a worker had it.
    finish: &'static str,
    /// Of an error or a refusal.
    status: Option<u16>,
    /// Of a refusal, as the client got it.
    code: Option<&'static str>,
    /// The field that was wrong.
    param: Option<String>,
    workers: Vec<Visit>,
}

/// A worker that a request was sent to.
#[derive(Serialize, JsonSchema)]
struct Visit {
    address: String,
    sent_ms: f64,
    /// What was wrong with the worker before: `unavailable`, `full`, `silent` or `leaving`.
    because: Option<&'static str>,
}

/// `GET /console/status`.
pub(crate) async fn status(State(state): State<Arc<AppState>>, request: Request) -> Json<Status> {
    let open = match &state.requests {
        Some(requests) => requests.open(&owner(&request)),
        None => Vec::new(),
    };
    let quota = Client::of(request.extensions()).and_then(|client| client.quota());
    let left = quota.map(|quota| quota.left());
    let waiting = open.iter().filter(|facts| facts.first_output().is_none());
    Json(Status {
        version: env!("CARGO_PKG_VERSION"),
        open: Open {
            count: open.len(),
            waiting: waiting.count(),
            requests: open.iter().take(MOST_LISTED).map(open_request).collect(),
        },
        workers: state.table.workers().iter().map(worker).collect(),
        key: left.map(|left| Limits {
            requests: left.requests.map(rate),
            tokens: left.tokens.map(rate),
        }),
    })
}

/// `GET /console/requests`, with `?id=ID` those of one id: clients choose ids, so there may be several.
pub(crate) async fn requests(State(state): State<Arc<AppState>>, request: Request) -> Json<Ended> {
    let ended = match &state.requests {
        Some(requests) => requests.ended(&owner(&request)),
        None => Vec::new(),
    };
    let wanted = query::value(request.uri(), "id");
    let found = ended
        .iter()
        .filter(|facts| wanted.as_deref().is_none_or(|id| *facts.id == *id))
        .take(MOST_LISTED);
    Json(Ended {
        requests: found.filter_map(ended_request).collect(),
    })
}

fn owner(request: &Request) -> Owner {
    let client = Client::of(request.extensions());
    client.map(|client| client.owner()).unwrap_or_default()
}

fn open_request(facts: &Arc<Facts>) -> OpenRequest {
    OpenRequest {
        id: facts.id.to_string(),
        route: facts.route,
        model: facts.model.to_string(),
        worker: facts.servers().pop().map(|sent| sent.worker.to_string()),
        age_ms: milliseconds(facts.age()),
        first_token_ms: facts.first_output().map(milliseconds),
        prompt_tokens: facts.prompt_tokens(),
        completion_tokens: facts.completion_tokens(),
    }
}

fn ended_request(facts: &Arc<Facts>) -> Option<EndedRequest> {
    let end = facts.end()?;
    let servers = facts.servers();
    let failure = end.failure.as_ref();
    let since_1970 = end.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(EndedRequest {
        id: facts.id.to_string(),
        route: facts.route,
        model: facts.model.to_string(),
        ended_s: since_1970.as_secs_f64(),
        prepared_ms: servers.first().map_or(0.0, |first| milliseconds(first.at)),
        first_token_ms: facts.first_output().map(milliseconds),
        total_ms: milliseconds(end.total),
        prompt_tokens: facts.prompt_tokens(),
        cached_tokens: end.cached_tokens,
        completion_tokens: facts.completion_tokens(),
        finish: end.finish,
        status: Some(end.status).filter(|status| *status > 0),
        code: failure.and_then(|failure| failure.code),
        param: failure.and_then(|failure| failure.param.clone()),
        workers: servers.into_iter().map(visit).collect(),
    })
}

fn visit(sent: SentTo) -> Visit {
    Visit {
        address: sent.worker.to_string(),
        sent_ms: milliseconds(sent.at),
        because: sent.because,
    }
}

fn worker(slot: &Arc<WorkerSlot>) -> Worker {
    Worker {
        address: slot.address.to_string(),
        ready: slot.is_ready(),
        reason: slot.reason(),
        active: slot.active(),
        models: slot.connections().iter().map(model).collect(),
    }
}

fn model(connection: &Arc<Connection>) -> Model {
    let description = &connection.served.description;
    let version = match &*description.weights {
        "" => &description.content_hash,
        weights => weights,
    };
    let adapters = connection.adapters();
    Model {
        name: description.served_model_name.clone(),
        executor: description.executor.clone(),
        version: version.to_owned(),
        adapters: adapters
            .iter()
            .map(|adapter| adapter.name.clone())
            .collect(),
        max_model_len: connection.served.context(),
        cache: connection
            .seat()
            .and_then(|seat| seat.cache_usage())
            .map(|CacheUsage { blocks, used }| Cache { blocks, used }),
    }
}

fn rate(rate: Rate) -> Left {
    Left {
        limit: rate.limit,
        remaining: rate.remaining,
        reset_ms: milliseconds(rate.reset),
    }
}
