//! The endpoint picker: a port on which a proxy, such as Envoy, asks for each HTTP request which worker's host it goes to.
//! Owns the course of one such stream; what is said when is `inflight_ext_proc`'s, and which worker it is the table's.

mod avoided;
mod endpoints;
mod health;
mod refusing;
mod unread;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use inflight_base::accept::accept;
use inflight_base::net::Listener;
use inflight_clients::admission::{Admitted, BodyMemory};
use inflight_ext_proc::messages::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use inflight_ext_proc::messages::{ProcessingRequest, ProcessingResponse};
use inflight_ext_proc::{Exchange, ExchangeError, Heard, HttpRequest, Step};
use inflight_http_server::{Port, within_grace};
use inflight_kserve::client::{TransportOptions, server};
use inflight_openai::ApiError;
use inflight_upstream::slot::WorkerSlot;
use inflight_upstream::visit::Visit;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_server::HealthServer;

use self::avoided::Avoided;
pub(crate) use self::endpoints::Endpoints;
use self::health::PickerHealth;
use self::refusing::refused;
use self::unread::unread;
use crate::handlers::answering::IGNORED_FIELDS;
use crate::handlers::asking::Asking;
use crate::handlers::picking::Sought;
use crate::state::AppState;

/// Answers that may wait for the proxy.
const WAITING: usize = 16;
/// Bytes that one stream may send ahead of being read; a proxy sends all its requests over a few connections.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// What the port takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickerLimits {
    pub max_connections: usize,
    /// Requests at once on one connection.
    pub max_requests: usize,
    /// How long open requests may take once `shutdown` has resolved.
    pub grace: Duration,
    /// Endpoints that are named for retries, besides the one of the request.
    pub fallbacks: usize,
}

/// Serves until `stopped` resolves and open requests have ended. Once `shutdown` has resolved, they have the grace
/// period.
pub(crate) async fn serve<L: Listener>(
    port: Port<L>,
    state: Arc<AppState>,
    endpoints: Endpoints,
    limits: PickerLimits,
    stopped: impl Future<Output = ()> + Send + 'static,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let health = HealthServer::new(PickerHealth::new(&state));
    let service = ExternalProcessorServer::new(Picker {
        state,
        endpoints: Arc::new(endpoints),
        avoided: Arc::default(),
        fallbacks: limits.fallbacks,
    });
    let serving = server(&TransportOptions {
        stream_window_bytes: STREAM_WINDOW,
        connection_window_bytes: CONNECTION_WINDOW,
        ..TransportOptions::default()
    })
    .max_concurrent_streams(u32::try_from(limits.max_requests).unwrap_or(u32::MAX))
    .add_service(health)
    .add_service(service)
    .serve_with_incoming_shutdown(
        accept(port.listener, limits.max_connections, port.tls),
        stopped,
    );
    within_grace("endpoint picker's", serving, shutdown, limits.grace).await;
}

struct Picker {
    state: Arc<AppState>,
    endpoints: Arc<Endpoints>,
    avoided: Arc<Avoided>,
    fallbacks: usize,
}

type ProcessingResult = Result<ProcessingResponse, Status>;

#[tonic::async_trait]
impl ExternalProcessor for Picker {
    type ProcessStream = ReceiverStream<ProcessingResult>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let (sender, answers) = mpsc::channel(WAITING);
        let passage = Passage {
            state: Arc::clone(&self.state),
            endpoints: Arc::clone(&self.endpoints),
            avoided: Arc::clone(&self.avoided),
            fallbacks: self.fallbacks,
            sender: sender.clone(),
        };
        let incoming = request.into_inner();
        tokio::spawn(async move {
            tokio::select! {
                () = passage.run(incoming) => {}
                // The proxy has left; with the passage, its request ends.
                () = sender.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// One request's way past the picker.
struct Passage {
    state: Arc<AppState>,
    endpoints: Arc<Endpoints>,
    avoided: Arc<Avoided>,
    fallbacks: usize,
    sender: mpsc::Sender<ProcessingResult>,
}

/// A request that goes to the endpoint that was picked for it.
struct Sent {
    visit: Visit,
    /// The endpoint, and behind it those for retries.
    endpoints: Vec<String>,
    _place: Admitted,
}

impl Passage {
    async fn run(self, mut incoming: Streaming<ProcessingRequest>) {
        let mut exchange = Exchange::new(self.state.max_body_bytes);
        let mut memory = BodyMemory::default();
        let mut sent: Option<Sent> = None;
        while let Ok(Some(message)) = incoming.message().await {
            let step = exchange.take(message);
            let held = self.state.admission.hold(&mut memory, exchange.held());
            let replies = match (step, held) {
                (_, Err(error)) => return self.refuse(exchange.request(), &error).await,
                (Err(ExchangeError::TooLarge { limit }), _) => {
                    let error = ApiError::payload_too_large(limit as u64);
                    return self.refuse(exchange.request(), &error).await;
                }
                (Err(error @ ExchangeError::NoHeaders), _) => {
                    let status = Status::invalid_argument(error.to_string());
                    let _ = self.sender.send(Err(status)).await;
                    return;
                }
                (Ok(Step::Reply(replies)), _) => replies,
                (Ok(Step::Choose(request)), _) => match self.choose(&request).await {
                    Ok(chosen) => {
                        if let Some(names) = unread(&request.headers) {
                            exchange.add_to_answer(IGNORED_FIELDS.as_str(), &names);
                        }
                        let replies = exchange.chosen(&chosen.endpoints.join(","));
                        memory = BodyMemory::default();
                        sent = Some(chosen);
                        replies
                    }
                    Err(error) => return self.refuse(Some(&request), &error).await,
                },
            };
            for reply in replies {
                if self.sender.send(Ok(reply)).await.is_err() {
                    return;
                }
            }
            self.note(&mut sent, exchange.heard());
        }
    }

    /// Picks the endpoint of a request.
    async fn choose(&self, request: &HttpRequest) -> Result<Sent, ApiError> {
        let began = Instant::now();
        let Self {
            state, endpoints, ..
        } = self;
        let place = state.admission.admit(None)?;
        let sought = self.read(request).await?;
        let may = |endpoint: String| request.may_go_to(&endpoint);
        let fits = |slot: &WorkerSlot| {
            request.subset.is_none() || endpoints.of(&slot.address).is_some_and(may)
        };
        let avoided = self.avoided.now();
        let is_good = |slot: &WorkerSlot| !avoided.contains(&slot.address) && fits(slot);
        let visit = match sought.pick(state, is_good, self.fallbacks).await {
            Err(_) if !avoided.is_empty() => sought.pick(state, fits, self.fallbacks).await?,
            picked => picked?,
        };
        let endpoints = self.named(&visit).await?;
        let by = sought.label();
        let seconds = began.elapsed().as_secs_f64();
        state.metrics.picks.picked(by, seconds);
        tracing::debug!(path = request.path, ?endpoints, by, "endpoint picked");
        Ok(Sent {
            visit,
            endpoints,
            _place: place,
        })
    }

    /// The endpoint of a request, and behind it those for retries, each once: workers of one host may share one.
    async fn named(&self, visit: &Visit) -> Result<Vec<String>, ApiError> {
        let first = self.endpoints.resolve(visit.worker());
        let others = visit.others().map(|other| self.endpoints.resolve(other));
        let (first, others) = tokio::join!(first, join_all(others));
        let mut named = vec![first?];
        for other in others.into_iter().flatten() {
            if !named.contains(&other) {
                named.push(other);
            }
        }
        Ok(named)
    }

    /// Reads it where a body of its size may be worked on.
    async fn read(&self, request: &HttpRequest) -> Result<Sought, ApiError> {
        let state = Arc::clone(&self.state);
        let salt = state.access.cache_salt(&request.headers);
        if request.is_grpc() {
            return Ok(Sought::read_call(&request.path, request.first_message()));
        }
        let method = http::Method::from_bytes(request.method.as_bytes()).unwrap_or_default();
        let (path, body) = (request.path.clone(), request.body.clone());
        let work = move || Sought::read(&Asking::new(&state, salt), (&method, &path), &body);
        let kind = self.state.rendering();
        let size = request.body.len();
        self.state.admission.work(size, kind, work).await
    }

    async fn refuse(&self, request: Option<&HttpRequest>, error: &ApiError) {
        tracing::debug!(%error, "no endpoint");
        self.state.metrics.picks.refused();
        let _ = self.sender.send(Ok(refused(request, error))).await;
    }

    /// Notes at its worker what the answer says, which may be another one than was picked.
    fn note(&self, noted: &mut Option<Sent>, heard: &Heard) {
        let Some(sent) = noted else { return };
        if let Some(served) = &heard.served
            && !sent.is_at(served)
        {
            self.state.metrics.picks.retried();
            let Some(slot) = self.worker_at(served, &sent.visit) else {
                // No worker of this gateway.
                *noted = None;
                return;
            };
            self.avoided.add(sent.visit.worker());
            sent.visit.moved(&slot);
            sent.endpoints = vec![served.clone()];
        }
        if heard.has_begun {
            sent.visit.started();
        }
        if let Some(tokens) = heard.cached_tokens {
            sent.visit.found_cached(tokens);
        }
    }

    /// The worker at this endpoint; of several, the one that was next.
    fn worker_at(&self, endpoint: &str, visit: &Visit) -> Option<Arc<WorkerSlot>> {
        let is_there = |slot: &&Arc<WorkerSlot>| {
            let own = self.endpoints.of(&slot.address);
            own.is_some_and(|own| own == endpoint)
        };
        let workers = self.state.table.workers();
        let place = |slot: &Arc<WorkerSlot>| visit.others().position(|one| *one == slot.address);
        let there = workers.iter().filter(is_there);
        let nearest = there.min_by_key(|slot| place(slot).unwrap_or(usize::MAX));
        nearest.cloned()
    }
}

impl Sent {
    /// Whether it is at this endpoint.
    fn is_at(&self, endpoint: &str) -> bool {
        self.endpoints.first().is_some_and(|one| one == endpoint)
    }
}
