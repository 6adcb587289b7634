//! What chat and completions share between the body and a request that can be sent: admission, the thread that
//! prepares, the model. Owns the order within each step; each step's rules are elsewhere.

use std::sync::Arc;

use axum::extract::Request;
use inflight_openai::{ApiError, Generation, IgnoredFields};
use inflight_upstream::delivery::{CallContext, Place};
use inflight_upstream::model::capability::{Capability, lacks};
use inflight_upstream::model::sampling_params::ImageFiles;
use inflight_upstream::trace::Trace;
use tokio::time::Instant;

use super::deadline::deadline;
use super::locate::Located;
use super::prompt::PreparedPrompt;
use super::resuming::wants_tokens_early;
use crate::admission::{Admitted, BodyMemory, Work};
use crate::client::{Client, Owner};
use crate::images::{Files, Wanted};
use crate::metrics::FieldLabels;
use crate::middleware::RequestContext;
use crate::request_body::{self, RequestBody};
use crate::state::AppState;
use crate::stream::answer::AnswerOptions;

/// An admitted request and its body.
#[derive(Debug)]
pub(super) struct Received {
    arrival: Arrival,
    body: RequestBody,
    /// Bytes of the body and of what it names.
    size: usize,
}

/// Where a request came from, and its place among the admitted ones.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) context: RequestContext,
    pub(super) admitted: Admitted,
    client: Option<Arc<Client>>,
}

impl Arrival {
    /// Whose it is.
    pub(super) fn owner(&self) -> Owner {
        let client = self.client.as_ref();
        client.map(|client| client.owner()).unwrap_or_default()
    }

    /// For calls that are not streams of the gateway's own; with the place that they hold.
    pub(super) fn call(self) -> (CallContext, Arc<Admitted>) {
        let Self {
            context, admitted, ..
        } = self;
        let place = Arc::new(admitted);
        let call = CallContext {
            request_id: context.id,
            // Its calls may be many, and at once.
            trace: context.trace.as_parent(),
            deadline: context.deadline,
            place: Some(Arc::clone(&place) as Place),
            ..CallContext::default()
        };
        (call, place)
    }
}

/// A request that is checked, rendered and tokenized.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) model: Located,
    pub(super) generation: Generation,
    pub(super) prompts: Vec<PreparedPrompt>,
    /// `Some(k)`: choices report log probabilities, with k alternatives.
    pub(super) log_probs: Option<u32>,
    /// Where answers may be more than text.
    pub(super) answer: Option<AnswerOptions>,
    pub(super) ignored: IgnoredFields,
    /// Of the one prompt of a chat.
    pub(super) images: Pictures,
}

/// The images of a request.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    pub(super) wanted: Vec<Wanted>,
    /// What their files hold until the answer begins.
    memory: BodyMemory,
}

impl From<Vec<Wanted>> for Pictures {
    fn from(wanted: Vec<Wanted>) -> Self {
        let memory = BodyMemory::default();
        Self { wanted, memory }
    }
}

impl Prepared {
    /// Whether the answer comes from the worker in parts, so that its first token is seen.
    pub(super) fn is_in_parts(&self) -> bool {
        let triton = self.model.served.triton();
        let mut prompts = self.prompts.iter();
        prompts.all(|prompt| prompt.params.streaming) && triton.is_none_or(|model| model.decoupled)
    }

    fn may_drop_guide(&self) -> bool {
        let answer = self.answer.as_ref();
        answer.is_some_and(|answer| answer.may_drop_guide)
    }

    /// Gives the prompt its images.
    fn add_images(&mut self, Files { files, held }: Files) {
        self.images.memory = held;
        if let Some(prompt) = self.prompts.first_mut() {
            let extras = prompt.params.extras.get_or_insert_default();
            extras.images = ImageFiles(files);
        }
    }

    /// Keeps the parts of the KV cache that its key's prompts fill from the prompts of other keys.
    fn salt_cache(&mut self, of_key: &str) {
        if lacks(&self.model.served, Capability::CacheSalt).is_some() {
            return;
        }
        for prompt in &mut self.prompts {
            let salt = &mut prompt.params.extras.get_or_insert_default().cache_salt;
            // A client's own salt divides its key's part further, and reaches no other.
            *salt = Some(match salt {
                Some(own) => format!("{of_key}{own}"),
                None => of_key.to_owned(),
            });
        }
    }

    /// Leaves the answer to the model; it is checked when it is there.
    fn drop_guide(&mut self) {
        if let Some(extensions) = &mut self.generation.extensions {
            extensions.guide = None;
        }
        for prompt in &mut self.prompts {
            if let Some(extras) = &mut prompt.params.extras {
                extras.guide = None;
            }
        }
        if let Some(call) = self.answer.as_mut().and_then(|answer| answer.call.as_mut()) {
            call.suffix = None;
        }
    }
}

/// Reads the body and admits the request.
///
/// # Errors
/// See [`request_body::read`]; 429 when too many requests are open.
pub(super) async fn receive(state: &AppState, request: Request) -> Result<Received, ApiError> {
    let (mut parts, body) = request.into_parts();
    let context = parts.extensions.remove::<RequestContext>();
    let mut context = context.unwrap_or_else(|| RequestContext {
        id: Arc::from(""),
        started: Instant::now(),
        trace: Trace::None,
        deadline: None,
    });
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
        read: impl FnOnce(&AppState, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let bytes = self.body.bytes.clone();
        let shared = Arc::clone(state);
        let work = move || read(&shared, &bytes);
        state.admission.work(self.size, Work::Computes, work).await
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
        prepare: impl FnOnce(&AppState, &[u8]) -> Result<Prepared, ApiError> + Send + 'static,
    ) -> Result<(Arc<Prepared>, Arrival), ApiError> {
        let prepare = |state: &AppState, body: &[u8]| Ok((prepare(state, body)?, ()));
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
        prepare: impl FnOnce(&AppState, &[u8]) -> Result<(Prepared, T), ApiError> + Send + 'static,
    ) -> Result<(Arc<Prepared>, T, Arrival), ApiError> {
        let ((mut prepared, more), mut arrival) = self.work(state, kind, prepare).await?;
        let check = prepared.answer.as_ref();
        let check = check.and_then(|answer| answer.check.clone());
        for grammar in check.iter().flat_map(|check| check.grammars()) {
            state.guides.compile(grammar).await?;
        }
        let sequences = prepared.prompts.len() * prepared.generation.n as usize;
        arrival.admitted.widen(&state.admission, sequences)?;
        if let Some(salt) = arrival
            .client
            .as_ref()
            .and_then(|client| client.cache_salt())
        {
            prepared.salt_cache(&salt);
        }
        let extensions = prepared.generation.extensions.as_ref();
        if let Some(guide) = extensions.and_then(|extensions| extensions.guide.as_ref()) {
            let verdict = state.guides.check(guide).await;
            match verdict {
                Err(error) if error.status() == 400 && prepared.may_drop_guide() => {
                    prepared.drop_guide();
                }
                verdict => verdict?,
            }
        }
        let wanted = std::mem::take(&mut prepared.images.wanted);
        if !wanted.is_empty() {
            let client = arrival.client.as_ref();
            let files = state.images.collect(&state.admission, client, wanted);
            prepared.add_images(files.await?);
        }
        let wants_first = state.first_token_timeout.is_some();
        if prepared.model.served.triton().is_none()
            && (wants_first || wants_tokens_early(state, &prepared))
        {
            // Otherwise the first token of an answer in one piece arrives with its last.
            for prompt in &mut prepared.prompts {
                let params = &mut prompt.params;
                let is_early = !params.streaming && params.beams().is_none();
                params.may_wait = is_early && params.log_probs.is_none();
                params.streaming |= is_early;
            }
        }
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
        work: impl FnOnce(&AppState, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Arrival), ApiError> {
        let Self {
            arrival,
            body,
            size,
        } = self;
        let shared = Arc::clone(state);
        let work = move || {
            let RequestBody { bytes, held } = body;
            let done = work(&shared, &bytes);
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
