//! `/v1/responses`: a conversation's items become a chat, and its answer items again. Owns what becomes of ids
//! that a client names; generation is chat's, and what is kept for how long is `response_store`'s.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Uri;
use inflight_base::wall_clock::since_epoch;
use inflight_clients::client::Owner;
use inflight_openai::chat::ChatRequest;
use inflight_openai::responses::{
    self, AnswerWriter, Head, InputItem, Item, ResponseId, ResponseRequest, in_own_words,
};
use inflight_openai::{ApiError, ListQuery, PageLimit, Parsed};
use inflight_response_store::{Conversation, Keeper, Keeping, Kept, Running};
use inflight_streams::body::EventBody;
use inflight_streams::responses::{ResponseWriter, whole};

use super::answering;
use super::asking::Asking;
use super::background;
use super::chat;
use super::generate;
use super::named::{PathId, json, owner, text};
use super::prepared::Prepared;
use crate::error::HttpError;
use crate::middleware::RequestContext;
use crate::query;
use crate::state::AppState;

const ITEMS: PageLimit = PageLimit {
    usual: 20,
    most: 100,
};

/// What an answer needs besides its generation.
#[derive(Debug)]
struct ResponsePlan {
    head: Head,
    /// `None`: the response is not kept.
    keeping: Option<Keeping>,
}

/// `POST /v1/responses`.
pub(crate) async fn create_response(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    Ok(create(&state, request).await.map_err(in_own_words)?)
}

async fn create(state: &Arc<AppState>, request: Request) -> Result<Response, ApiError> {
    let owner = owner(&request);
    let context = request.extensions().get::<RequestContext>();
    let is_idle = context.is_some_and(|context| context.is_idle);
    let received = generate::receive(state, request).await?;
    let mut received = received;
    let reader = owner.clone();
    let read = move |state: &Asking<'_>, body: &[u8]| {
        let mut named = read(state, &reader, body)?;
        // A batch's would displace those that clients come back to.
        named.parsed.request.settings.store &= !is_idle;
        Ok(named)
    };
    let named = received.read(state, read).await?;
    received.enlarge(state, named.weight(), "input")?;
    let prepare = move |state: &Asking<'_>, _: &[u8]| prepare(state, owner, named);
    let prepared = received
        .prepare_with(state, state.rendering(), prepare)
        .await?;
    let (prepared, ResponsePlan { head, keeping }, arrival) = prepared;
    if head.settings.background {
        let keeping = keeping.ok_or_else(ApiError::background_not_kept)?;
        let start = background::Start {
            prepared: Arc::clone(&prepared),
            arrival,
            head,
            keeping,
        };
        let running = background::start(state, start);
        let mut answer = match &running.events {
            Some(events) => background::follow(Arc::clone(events), 0),
            None => json(running.object()),
        };
        answering::report_ignored(&mut answer, &prepared.ignored);
        return Ok(answer);
    }
    let keeper = keeping.map(Keeper::new);
    let mut active = answering::begin(state, &prepared, arrival).await?;
    let timing = answering::timing(&active, &prepared);
    let resumed = active.resumed();
    let answer = if prepared.generation.stream {
        let writer = AnswerWriter::streamed(head);
        answering::events(EventBody::new(active, |_, out| {
            ResponseWriter::begin(writer, keeper, out)
        }))
    } else {
        json(whole(
            &mut active,
            AnswerWriter::whole(head),
            keeper.as_ref(),
        ))
    };
    Ok(answering::finish(answer, &prepared, timing, resumed))
}

/// What `work` makes of the conversation of a request, which is not answered.
///
/// # Errors
/// As for a request that is; what `work` returns.
pub(super) async fn chat_request<T: Send + 'static>(
    state: &Arc<AppState>,
    request: Request,
    work: impl FnOnce(&Asking<'_>, Parsed<ChatRequest>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let owner = owner(&request);
    let mut received = generate::receive(state, request).await?;
    let read = move |state: &Asking<'_>, body: &[u8]| read(state, &owner, body);
    let named = received.read(state, read).await?;
    received.enlarge(state, named.weight(), "input")?;
    let convert = move |state: &Asking<'_>, _: &[u8]| work(state, named.chat()?);
    let (done, arrival) = received.work(state, state.rendering(), convert).await?;
    drop(arrival);
    Ok(done)
}

/// `POST /v1/responses/compact`, which would be read as a response's id.
pub(crate) async fn compact_response() -> HttpError {
    HttpError::from(ApiError::no_compaction())
}

/// A request and the kept responses that it names, nothing of which is copied yet.
struct Named {
    parsed: Parsed<ResponseRequest>,
    earlier: Conversation,
    input: Vec<NamedItem>,
}

enum NamedItem {
    Given(Item),
    /// The item of this id, which the conversation has.
    Kept(Conversation, String),
}

impl NamedItem {
    /// The item itself, copied where it is kept.
    fn item(self) -> Option<Item> {
        match self {
            Self::Given(item) => Some(item),
            kept @ Self::Kept(..) => kept.kept().cloned(),
        }
    }

    fn kept(&self) -> Option<&Item> {
        match self {
            Self::Given(_) => None,
            Self::Kept(conversation, id) => conversation.item(id),
        }
    }
}

impl Named {
    /// The conversation of a request that is not answered here.
    fn chat(self) -> Result<Parsed<ChatRequest>, ApiError> {
        let Self {
            parsed: Parsed { request, ignored },
            earlier,
            input,
        } = self;
        let input: Vec<Item> = input.into_iter().filter_map(NamedItem::item).collect();
        let request = request.chat(earlier.items(), &input)?;
        Ok(Parsed { request, ignored })
    }

    /// The bytes that it holds beyond its body once everything that it names is in its place.
    fn weight(&self) -> usize {
        let named = self.input.iter().filter_map(NamedItem::kept);
        let weights = named.map(Item::weight);
        weights.fold(self.earlier.weight(), usize::saturating_add)
    }
}

fn read(state: &AppState, owner: &Owner, body: &[u8]) -> Result<Named, ApiError> {
    let mut parsed = responses::parse(body)?;
    let request = &mut parsed.request;
    request.settings.store &= state.responses.keeps();
    let earlier = earlier(state, owner, request)?;
    let given = std::mem::take(&mut request.input);
    let input = given.into_iter().map(|item| find_item(state, owner, item));
    let input = input.collect::<Result<_, _>>()?;
    Ok(Named {
        parsed,
        earlier,
        input,
    })
}

/// The conversation of a request that another program answers.
///
/// # Errors
/// 400 where it names what this gateway does not have.
pub(super) fn read_chat(state: &AppState, body: &[u8]) -> Result<Parsed<ChatRequest>, ApiError> {
    read(state, &Owner::default(), body)?.chat()
}

fn prepare(
    state: &Asking<'_>,
    owner: Owner,
    named: Named,
) -> Result<(Prepared, ResponsePlan), ApiError> {
    let Named {
        parsed: Parsed { request, ignored },
        earlier,
        input,
    } = named;
    let id = ResponseId(rand::random());
    let mut input: Vec<Item> = input.into_iter().filter_map(NamedItem::item).collect();
    for (place, item) in input.iter_mut().enumerate() {
        item.name_with(|prefix| id.item(prefix, place));
    }
    let chat = request.chat(earlier.items(), &input)?;
    let parsed = Parsed {
        request: chat,
        ignored,
    };
    let prepared = chat::prepare_parsed(state, parsed)?;
    let ResponseRequest {
        mut settings,
        seals_reasoning,
        ..
    } = request;
    if let Some(prompt) = prepared.prompts.first() {
        // As they are used, the model's own defaults included.
        let is_greedy = prompt.params.top_k == 1;
        let used = if is_greedy {
            0.0
        } else {
            prompt.params.temperature
        };
        settings.temperature.get_or_insert(used);
        settings.top_p.get_or_insert(prompt.params.top_p);
    }
    let head = Head {
        id,
        created_at: since_epoch().as_secs(),
        model: prepared.generation.model.clone(),
        input_items: input.len(),
        seals_reasoning,
        settings: Arc::new(settings),
    };
    let keeping = head.settings.store.then(|| Keeping {
        store: Arc::clone(&state.responses),
        owner,
        id,
        earlier,
        input,
        background: None,
    });
    Ok((prepared, ResponsePlan { head, keeping }))
}

/// The conversation that a request continues.
fn earlier(
    state: &AppState,
    owner: &Owner,
    request: &ResponseRequest,
) -> Result<Conversation, ApiError> {
    let Some(id) = &request.settings.previous_response_id else {
        return Ok(Conversation::default());
    };
    let parsed = ResponseId::parse(id);
    if parsed.is_some_and(|id| state.responses.running(id, owner).is_some()) {
        return Err(ApiError::previous_response_runs(id));
    }
    let found = parsed.and_then(|id| state.responses.find(id, owner));
    let kept = found.ok_or_else(|| ApiError::previous_response_not_found(id))?;
    Ok(kept.conversation)
}

/// An item of a request, which may only name it.
fn find_item(state: &AppState, owner: &Owner, item: InputItem) -> Result<NamedItem, ApiError> {
    match item {
        InputItem::Item(item) => Ok(NamedItem::Given(item)),
        InputItem::Reference { place, id } => {
            let of = ResponseId::of_item(&id);
            let kept = of.and_then(|of| state.responses.find(of, owner));
            let conversation = kept.map(|kept| kept.conversation);
            match conversation.filter(|conversation| conversation.item(&id).is_some()) {
                Some(conversation) => Ok(NamedItem::Kept(conversation, id)),
                None => Err(ApiError::item_not_found(&id, place)),
            }
        }
    }
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn retrieve_response(
    State(state): State<Arc<AppState>>,
    id: PathId,
    uri: Uri,
    request: Request,
) -> Result<Response, HttpError> {
    let (body, events) = match running(&state, &id, &request) {
        Some(running) => (running.object(), running.events.clone()),
        None => {
            let kept = find(&state, id, &request)?;
            (kept.body, kept.events)
        }
    };
    if query::value(&uri, "stream").is_none_or(|value| value != "true") {
        return Ok(json(body));
    }
    let events = events.ok_or_else(ApiError::response_not_streamed)?;
    Ok(background::follow(events, first_event(&uri)?))
}

/// The number of the first event that a client wants.
fn first_event(uri: &Uri) -> Result<usize, ApiError> {
    let Some(after) = query::value(uri, "starting_after") else {
        return Ok(0);
    };
    let number = after.parse::<u32>().map_err(|_| {
        ApiError::invalid_request(
            "starting_after",
            "`starting_after` must be the number of an event: its `sequence_number`.",
        )
    })?;
    Ok(number as usize + 1)
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete_response(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    if let Some(running) = running(&state, &id, &request) {
        running.stop().await;
    }
    let id = text(id);
    let owner = owner(&request);
    let deleted = ResponseId::parse(&id).is_some_and(|id| state.responses.delete(id, &owner));
    if !deleted {
        return Err(HttpError::from(ApiError::response_not_found(&id)));
    }
    let body = serde_json::json!({"id": id, "object": "response", "deleted": true});
    Ok(axum::Json(body).into_response())
}

/// `POST /v1/responses/{id}/cancel`, which is for responses in the background. One that has ended stays as it is.
pub(crate) async fn cancel_response(
    State(state): State<Arc<AppState>>,
    id: PathId,
    request: Request,
) -> Result<Response, HttpError> {
    if let Some(running) = running(&state, &id, &request) {
        running.stop().await;
    }
    let kept = find(&state, id, &request)?;
    if !kept.is_background {
        return Err(HttpError::from(ApiError::invalid_body(
            "Cannot cancel a synchronous response. Close the connection of its request instead.",
        )));
    }
    Ok(json(kept.body))
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn list_input_items(
    State(state): State<Arc<AppState>>,
    id: PathId,
    uri: Uri,
    request: Request,
) -> Result<Response, HttpError> {
    let query = ListQuery::read(&query::pairs(&uri), ITEMS)?;
    if let Some(running) = running(&state, &id, &request)
        && let Some(page) = running
            .keeper
            .with_input(|items| responses::list(&query, items))
    {
        return Ok(json(Bytes::from(page?)));
    }
    let kept = find(&state, id, &request)?;
    let page = responses::list(&query, kept.conversation.input())?;
    Ok(json(Bytes::from(page)))
}

/// The response of this name, while it runs in the background.
fn running(state: &AppState, id: &PathId, request: &Request) -> Option<Arc<Running>> {
    let name = id.as_ref().ok()?;
    let id = ResponseId::parse(name)?;
    state.responses.running(id, &owner(request))
}

fn find(state: &AppState, id: PathId, request: &Request) -> Result<Kept, ApiError> {
    let id = text(id);
    let owner = owner(request);
    let found = ResponseId::parse(&id).and_then(|id| state.responses.find(id, &owner));
    found.ok_or_else(|| ApiError::response_not_found(&id))
}
