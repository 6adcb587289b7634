//! What chat and completions share between the body and a request that can be sent: admission, the thread that
//! prepares, the model. Owns the order within each step; each step's rules are elsewhere.

use std::sync::Arc;

use axum::extract::Request;
use inflight_clients::admission::Work;
use inflight_clients::client::Client;
use inflight_openai::{ApiError, IgnoredFields};

use super::arrival::Arrival;
use super::asking::Asking;
use super::deadline::deadline;
use super::prepared::Prepared;
use super::preparing;
use crate::metrics::FieldLabels;
use crate::middleware::RequestContext;
use crate::request_body::{self, RequestBody};
use crate::state::AppState;

/// An admitted request and its body.
#[derive(Debug)]
pub(super) struct Received {
    arrival: Arrival,
    body: RequestBody,
    /// Bytes of the body and of what it names.
    size: usize,
}

/// Reads the body and admits the request.
///
/// # Errors
/// See [`request_body::read`]; 429 when too many requests are open.
pub(super) async fn receive(state: &AppState, request: Request) -> Result<Received, ApiError> {
    let (mut parts, body) = request.into_parts();
    let mut context = RequestContext::of(&mut parts);
    let until = deadline(&parts.headers, state.request_timeout, context.started);
    let limit = state.max_body_bytes;
    let client = Client::of(&parts.extensions);
    let body = request_body::read(&parts.headers, body, limit, &state.admission, client).await?;
    // Refused only now: an answer before the end of the body costs the client its connection.
    context.deadline = until?;
    let admitted = state.admission.admit(client)?;
    context.trace.received();
    let arrival = Arrival {
        context,
        admitted,
        client: client.cloned(),
    };
    let size = body.bytes.len();
    Ok(Received {
        arrival,
        body,
        size,
    })
}

impl Received {
    /// Reads the body where a body of its size may be worked on, and keeps it.
    ///
    /// # Errors
    /// What `read` returns; 503 when too many large bodies wait already.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        state: &Arc<AppState>,
        read: impl FnOnce(&Asking<'_>, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let bytes = self.body.bytes.clone();
        let shared = Arc::clone(state);
        let client = self.arrival.client.clone();
        let work = move || read(&Asking::of(&shared, client.as_ref()), &bytes);
        state.admission.work(self.size, Work::Computes, work).await
    }

    /// Treats it as at least this large: handling it costs more than reading it.
    pub(super) fn at_least(mut self, bytes: usize) -> Self {
        self.size = self.size.max(bytes);
        self
    }

    /// Counts `more` bytes that the body names but does not contain, before they are copied.
    ///
    /// # Errors
    /// 400 for `param` when a body of so many bytes would be refused; 503 when others hold the memory.
    pub(super) fn enlarge(
        &mut self,
        state: &AppState,
        more: usize,
        param: &'static str,
    ) -> Result<(), ApiError> {
        if more == 0 {
            return Ok(());
        }
        self.size = self.size.saturating_add(more);
        if self.size > state.max_body_bytes {
            return Err(ApiError::invalid_request(
                param,
                format!(
                    "The request has `{}` bytes together with the items and responses that it names by id; at most \
                     `{}` are allowed. Name fewer of them, or send a shorter conversation.",
                    self.size, state.max_body_bytes
                ),
            ));
        }
        state.admission.hold(&mut self.body.held, self.size)
    }

    /// Prepares the request where a body of its size may be worked on; `kind` is what `prepare` does.
    ///
    /// # Errors
    /// What `prepare` returns; 503 when too many large bodies wait already.
    pub(super) async fn prepare(
        self,
        state: &Arc<AppState>,
        kind: Work,
        prepare: impl FnOnce(&Asking<'_>, &[u8]) -> Result<Prepared, ApiError> + Send + 'static,
    ) -> Result<(Arc<Prepared>, Arrival), ApiError> {
        let prepare = |asking: &Asking<'_>, body: &[u8]| Ok((prepare(asking, body)?, ()));
        let (prepared, (), arrival) = self.prepare_with(state, kind, prepare).await?;
        Ok((prepared, arrival))
    }

    /// Like [`Received::prepare`], where `prepare` returns more than the prepared request.
    ///
    /// # Errors
    /// See [`Received::prepare`].
    pub(super) async fn prepare_with<T: Send + 'static>(
        self,
        state: &Arc<AppState>,
        kind: Work,
        prepare: impl FnOnce(&Asking<'_>, &[u8]) -> Result<(Prepared, T), ApiError> + Send + 'static,
    ) -> Result<(Arc<Prepared>, T, Arrival), ApiError> {
        let ((mut prepared, more), mut arrival) = self.work(state, kind, prepare).await?;
        preparing::compile_checks(state, &prepared).await?;
        preparing::take_places(state, &mut arrival, &prepared)?;
        preparing::mark(&arrival, &mut prepared);
        preparing::check_guide(state, &mut prepared).await?;
        preparing::fetch_images(state, &arrival, &mut prepared).await?;
        preparing::ask_for_tokens_early(state, &mut prepared);
        count_ignored(state, &prepared.ignored);
        Ok((Arc::new(prepared), more, arrival))
    }

    /// Does what a body asks for where a body of its size may be worked on; `kind` is what it does.
    ///
    /// # Errors
    /// What `work` returns; 503 when too many large bodies wait already.
    pub(super) async fn work<T: Send + 'static>(
        self,
        state: &Arc<AppState>,
        kind: Work,
        work: impl FnOnce(&Asking<'_>, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Arrival), ApiError> {
        let Self {
            arrival,
            body,
            size,
        } = self;
        let shared = Arc::clone(state);
        let client = arrival.client.clone();
        let work = move || {
            let RequestBody { bytes, held } = body;
            let done = work(&Asking::of(&shared, client.as_ref()), &bytes);
            // The body's memory is free from here on.
            drop((bytes, held));
            done
        };
        let done = state.admission.work(size, kind, work).await?;
        Ok((done, arrival))
    }
}

/// Counts the fields that had no effect.
pub(super) fn count_ignored(state: &AppState, ignored: &IgnoredFields) {
    for field in ignored.labels() {
        state
            .metrics
            .ignored_fields
            .get_or_create(&FieldLabels { field })
            .inc();
    }
}
