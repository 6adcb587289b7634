//! The models of the process, and which of them a request is for. A process with one model pays nothing for this: its
//! requests go to that model, whose own answer says if the name is wrong.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::step::leaving_message;
use inflight_traces::TraceContext;
use parking_lot::Mutex;
use tonic::{Code, Request, Status};

use super::refusal::Refusal;
use super::settings::LogSettings;
use super::{DraftWorker, Shared};
use crate::adapters::Adapters;
use crate::cache::Board;
use crate::catalog::{self, Catalog, Known};
use crate::engine::{Engine, Health, place_of};
use crate::executor::ClientId;
use crate::options::LogLevel;
use crate::outbox::Outbox;
use crate::request::{self, Limits};
use crate::shared_memory::Regions;
use crate::trace::{Tracing, context_of};

/// What is the process's, whichever model a request is for.
pub(crate) struct Common {
    pub(super) regions: Regions,
    pub(super) log: LogSettings,
    /// `None`: no traces are exported.
    pub(super) tracing: Option<Tracing>,
    /// Open streams, so that a draining worker can end them.
    streams: Mutex<Vec<Weak<Outbox>>>,
}

impl Common {
    pub(crate) fn new(log_level: Option<LogLevel>, tracing: Option<Tracing>) -> Self {
        Self {
            regions: Regions::default(),
            log: LogSettings::new(log_level),
            tracing,
            streams: Mutex::default(),
        }
    }

    /// The outbox of a new stream.
    pub(super) fn open(&self) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::default());
        let mut streams = self.streams.lock();
        // At most doubles between two sweeps, which amortizes their cost.
        if streams.len() == streams.capacity() {
            streams.retain(|outbox| outbox.strong_count() > 0);
        }
        streams.push(Arc::downgrade(&outbox));
        outbox
    }

    /// The streams that are open.
    fn open_streams(&self) -> Vec<Arc<Outbox>> {
        self.streams
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Ends every stream once everything that waits on it is sent.
    fn finish_streams(&self) {
        for outbox in self.streams.lock().drain(..) {
            if let Some(outbox) = outbox.upgrade() {
                outbox.finish();
            }
        }
    }
}

/// The models, in the order of their engines' places.
pub(crate) struct Models {
    common: Arc<Common>,
    first: Arc<Shared>,
    further: Vec<Arc<Shared>>,
}

/// One model, as a service is made of it.
pub(crate) struct ModelParts {
    pub(crate) engine: Arc<Engine>,
    pub(crate) limits: Limits,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) cache: Arc<Board>,
    pub(crate) draft: Option<DraftWorker>,
    /// `None`: requests for this model name no adapter's files.
    pub(crate) adapters: Option<Arc<Adapters>>,
}

impl Models {
    /// `first` is the model of place 0, and `further` those of the places after it.
    pub(crate) fn new(
        common: Common,
        first: ModelParts,
        further: impl Iterator<Item = ModelParts>,
    ) -> Self {
        let common = Arc::new(common);
        let shared = |parts| {
            let ModelParts {
                engine,
                limits,
                catalog,
                cache,
                draft,
                adapters,
            } = parts;
            Arc::new(Shared {
                engine,
                limits,
                catalog,
                cache,
                draft,
                adapters,
                common: Arc::clone(&common),
            })
        };
        Self {
            first: shared(first),
            further: further.map(shared).collect(),
            common,
        }
    }

    pub(super) fn common(&self) -> &Common {
        &self.common
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Shared>> {
        std::iter::once(&self.first).chain(&self.further)
    }

    pub(crate) fn first(&self) -> &Arc<Shared> {
        &self.first
    }

    fn at(&self, place: u8) -> &Arc<Shared> {
        let further = usize::from(place).checked_sub(1);
        further
            .and_then(|place| self.further.get(place))
            .unwrap_or(&self.first)
    }

    /// The model whose set of names has this one.
    ///
    /// # Errors
    /// The text of a NOT_FOUND.
    pub(super) fn route(&self, name: &str) -> Result<&Arc<Shared>, String> {
        if self.further.is_empty() {
            return Ok(&self.first);
        }
        let found = self.all().find(|shared| shared.catalog.has(name));
        found.ok_or_else(|| catalog::unknown(name, self.all().map(|shared| &*shared.catalog)))
    }

    /// Counts a request that is for no model, as every model counts those that it refuses.
    pub(super) fn refused(&self) {
        self.first.engine.metrics.refused();
    }

    /// The model that has a name.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub(crate) fn named(&self, name: &str) -> Result<&Arc<Shared>, Status> {
        let shared = self.route(name).map_err(Status::not_found)?;
        let known = shared.catalog.find(name, "");
        known.map_err(Status::not_found)?;
        Ok(shared)
    }

    /// The model of this name and version.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub(super) fn find(&self, name: &str, version: &str) -> Result<(&Shared, Known), Status> {
        let shared = self.route(name).map_err(Status::not_found)?;
        let known = shared.catalog.find(name, version);
        Ok((shared, known.map_err(Status::not_found)?))
    }

    /// The model that answers a request of a stream; or why none does, and the one that may say so: it owns the
    /// request's handle.
    fn route_on<'a>(
        &'a self,
        message: &ModelInferRequest,
        outbox: &Outbox,
    ) -> Result<&'a Arc<Shared>, (&'a Arc<Shared>, Refusal)> {
        if self.further.is_empty() {
            return Ok(&self.first);
        }
        let refused = |place, code, text| {
            let refusal = Refusal {
                code,
                text,
                retry_after_ms: 0,
            };
            (self.at(place), refusal)
        };
        let shared = self
            .route(&message.model_name)
            .map_err(|text| refused(outbox.steps_of().unwrap_or(0), Code::NotFound, text))?;
        let place = shared.engine.place();
        if request::handle_of_malformed(message).is_some() && outbox.bind_steps(place) != place {
            let owner = outbox.bind_steps(place);
            let text = format!(
                "the handles on this stream belong to `{}`; open another stream for `{}`",
                self.at(owner).limits.core_model,
                message.model_name
            );
            return Err(refused(owner, Code::FailedPrecondition, text));
        }
        Ok(shared)
    }

    /// Handles one request of a stream, of whichever model.
    pub(super) async fn receive(
        &self,
        message: ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        call: Option<&TraceContext>,
    ) {
        match self.route_on(&message, outbox) {
            Ok(shared) => shared.receive(message, outbox, peer, call).await,
            Err((shared, refusal)) => shared.turn_away(&message, outbox, call, refusal),
        }
    }

    /// The model that handles on a stream are of.
    pub(super) fn of_steps(&self, outbox: &Outbox) -> &Shared {
        match outbox.steps_of() {
            Some(place) => self.at(place),
            None => &self.first,
        }
    }

    /// Cancels requests whose stream is gone.
    pub(super) fn abandon(&self, client_ids: &[ClientId]) {
        self.each_engine(client_ids, Engine::abandon);
    }

    /// Cancels requests that are to end without an error.
    pub(super) fn stop_requests(&self, client_ids: &[ClientId]) {
        self.each_engine(client_ids, Engine::stop_requests);
    }

    fn each_engine(&self, client_ids: &[ClientId], then: impl Fn(&Engine, &[ClientId])) {
        if self.further.is_empty() {
            return then(&self.first.engine, client_ids);
        }
        for shared in self.all() {
            let own = client_ids
                .iter()
                .filter(|id| place_of(**id) == shared.engine.place());
            let own: Vec<ClientId> = own.copied().collect();
            if !own.is_empty() {
                then(&shared.engine, &own);
            }
        }
    }

    /// Says on every stream of step messages that the process is about to end.
    pub(super) fn announce_leaving(&self) {
        for outbox in self.common.open_streams() {
            if let Some(place) = outbox.steps_of() {
                let model = &self.at(place).limits.core_model;
                outbox.reply(leaving_message(model));
            }
        }
    }

    pub(super) fn finish_streams(&self) {
        for shared in self.all() {
            shared.cache.close();
        }
        self.common.finish_streams();
    }

    /// Whether every model can be asked that ever can be.
    pub(super) fn is_ready(&self) -> bool {
        self.all().all(|shared| shared.is_ready())
    }

    /// Whether no model's executor has failed.
    pub(super) fn is_live(&self) -> bool {
        let failed = |shared: &Arc<Shared>| shared.engine.health().borrow().failed.is_some();
        !self.all().any(failed)
    }

    /// Every model's state now.
    pub(super) fn healths(&self) -> impl Iterator<Item = (&Shared, Health)> {
        self.all()
            .map(|shared| (&**shared, shared.engine.health().borrow().clone()))
    }

    /// The trace context that a call came with, where traces are exported.
    pub(super) fn call_trace<T>(&self, request: &Request<T>) -> Option<TraceContext> {
        self.common.tracing.as_ref()?;
        let headers = request.metadata().as_ref();
        // Over HTTP it is the port that read it.
        let of_http = || request.extensions().get::<TraceContext>().cloned();
        context_of(headers).or_else(of_http)
    }
}
