//! The worker of a request that another program sends there: a proxy that asks where it goes. Owns what of a request is
//! read for that, in each API, and that whatever is not understood goes somewhere all the same: its server says what is
//! wrong with it. Knows nothing of how a proxy asks.

use std::borrow::Cow;

use inflight_anthropic::request;
use inflight_kserve::inference::{ModelInferRequest, ModelReadyRequest};
use inflight_kserve::tensor::RequestBuilder;
use inflight_models::served::{Protocol, ServedModel};
use inflight_openai::chat::ChatRequest;
use inflight_openai::completions::CompletionRequest;
use inflight_openai::{ApiError, Generation, Parsed, chat, completions};
use inflight_parsers::CallIdForm;
use inflight_rest::Route;
use inflight_streams::error::no_worker;
use inflight_upstream::phases::Phases;
use inflight_upstream::placement::{CacheQuery, Prompts};
use inflight_upstream::prompt_request::PromptRequest;
use inflight_upstream::slot::WorkerSlot;
use inflight_upstream::table::Suits;
use inflight_upstream::visit::Visit;
use prost::Message;
use serde::Deserialize;
use tonic::Code;

use super::asking::Asking;
use super::locate::{Among, Located, locate_among, named_model};
use super::prepared::Prepared;
use super::{chat as chats, completions as texts, responses};
use crate::error;
use crate::state::AppState;

/// Where calls of KServe's gRPC service are.
const SERVICE: &str = "/inference.GRPCInferenceService/";

/// What of a request says where it goes.
#[derive(Debug)]
pub(crate) struct Sought(Known);

#[derive(Debug)]
enum Known {
    /// Its prompt.
    Prompt(Box<Prepared>),
    /// Its prompt, for servers of another maker, which alone know what else may be asked of them.
    Tokens {
        located: Located,
        tokens: Vec<i32>,
        salt: String,
    },
    /// Its model: its prompt cannot be read here.
    Model(Located),
    /// A request of KServe's, or as much of it as says which model it is for.
    Kserve(Box<ModelInferRequest>),
    /// Nothing.
    Any,
}

/// The prompt of Triton's `generate`.
#[derive(Deserialize)]
struct Prompted<'a> {
    #[serde(borrow, default)]
    text_input: Option<Cow<'a, str>>,
}

fn of(model_name: String, model_version: String) -> ModelInferRequest {
    ModelInferRequest {
        model_name,
        model_version,
        ..ModelInferRequest::default()
    }
}

/// Nothing is known of it.
impl Default for Sought {
    fn default() -> Self {
        Self(Known::Any)
    }
}

impl Sought {
    /// Reads a request of this path.
    ///
    /// # Errors
    /// 404 or 503: no server has the model that it names.
    pub(crate) fn read(
        state: &Asking<'_>,
        (method, path): (&http::Method, &str),
        body: &[u8],
    ) -> Result<Self, ApiError> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        if error::is_kserve(path) {
            return Ok(Self::of_http(method, path, body));
        }
        let asked = match path {
            "/v1/chat/completions" => chat::parse(body).map(ParsedRequest::Chat),
            "/v1/messages" => request::parse(body).map(ParsedRequest::Chat),
            "/v1/responses" => responses::read_chat(state, body).map(ParsedRequest::Chat),
            "/v1/completions" => completions::parse(body).map(ParsedRequest::Completion),
            _ => return Self::of_model(state, body),
        };
        let mut asked = match asked {
            Ok(asked) => asked,
            Err(reason) => return Self::by_load(state, body, &reason),
        };
        let located = locate_among(state, &mut asked.generation().model, Among::Endpoints)?;
        let known = match located.served.protocol {
            Protocol::Watched => {
                let salt = asked.salt().unwrap_or_default();
                let tokens = asked.tokens(state, &located.served);
                tokens.map(|tokens| Known::Tokens {
                    located,
                    tokens,
                    salt,
                })
            }
            _ => asked.prepare(state).map(|mut prepared| {
                if let Some(salt) = state.salt() {
                    prepared.salt_cache(salt);
                }
                Known::Prompt(Box::new(prepared))
            }),
        };
        known.map_or_else(
            |reason| Self::by_load(state, body, &reason),
            |known| Ok(Self(known)),
        )
    }

    fn by_load(state: &AppState, body: &[u8], reason: &ApiError) -> Result<Self, ApiError> {
        tracing::debug!(%reason, "the prompt cannot be read; a worker is picked by load");
        Self::of_model(state, body)
    }

    fn of_model(state: &AppState, body: &[u8]) -> Result<Self, ApiError> {
        let Some(model) = named_model(body) else {
            return Ok(Self::default());
        };
        let mut model = model.into_owned();
        let located = locate_among(state, &mut model, Among::Endpoints)?;
        Ok(Self(Known::Model(located)))
    }

    /// Reads a call of KServe's gRPC service by its first `message`; `None`: it cannot be read.
    pub(crate) fn read_call(path: &str, message: Option<&[u8]>) -> Self {
        let method = path.strip_prefix(SERVICE).unwrap_or_default();
        let message = message.unwrap_or_default();
        let request = match method {
            "ModelInfer" | "ModelStreamInfer" => ModelInferRequest::decode(message).ok(),
            // All of them begin with a model's name and version.
            "ModelReady" | "ModelMetadata" | "ModelConfig" | "ModelStatistics" => {
                let named = ModelReadyRequest::decode(message).ok();
                named.map(|ModelReadyRequest { name, version }| of(name, version))
            }
            _ => None,
        };
        let named = request.filter(|request| !request.model_name.is_empty());
        named.map_or_else(Self::default, |request| {
            Self(Known::Kserve(Box::new(request)))
        })
    }

    /// Reads a request of KServe's HTTP API: its model is in the path, and a `generate` has its prompt in the
    /// body.
    fn of_http(method: &http::Method, path: &str, body: &[u8]) -> Self {
        let Ok(route) = Route::of(method, path) else {
            return Self::default();
        };
        let (model, text) = match route {
            Route::Generate(model) | Route::GenerateStream(model) => {
                let prompt = serde_json::from_slice::<Prompted<'_>>(body);
                (model, prompt.ok().and_then(|prompt| prompt.text_input))
            }
            Route::Infer(model)
            | Route::ModelReady(model)
            | Route::ModelMetadata(model)
            | Route::ModelConfig(model)
            | Route::Statistics(model) => (model, None),
            _ => return Self::default(),
        };
        if model.name.is_empty() {
            return Self::default();
        }
        let mut request = of(model.name, model.version);
        if let Some(text) = text {
            let mut built = RequestBuilder::new("", "", 0);
            built.push_bytes("text_input", &[1, 1], [text.as_bytes()]);
            let built = built.build();
            request.inputs = built.inputs;
            request.raw_input_contents = built.raw_input_contents;
        }
        Self(Known::Kserve(Box::new(request)))
    }

    /// How it is picked, for metrics.
    pub(crate) fn label(&self) -> &'static str {
        match &self.0 {
            Known::Prompt(_) | Known::Tokens { .. } => "prompt",
            Known::Kserve(request) if !request.inputs.is_empty() => "prompt",
            Known::Model(_) | Known::Kserve(_) => "model",
            Known::Any => "load",
        }
    }

    /// Picks a worker that `fits`, where the request counts from now on, with at most so many `others` that would be next.
    ///
    /// # Errors
    /// 503: none is ready; 400: no server has the model of KServe's request.
    pub(crate) async fn pick(
        &self,
        state: &AppState,
        fits: impl Fn(&WorkerSlot) -> bool,
        others: usize,
    ) -> Result<Visit, ApiError> {
        let visit = match &self.0 {
            Known::Prompt(prepared) => {
                let prompts: Vec<PromptRequest<'_>> = prompts(prepared).collect();
                let asked = Prompts::new(&prompts, &prepared.block_keys);
                let located = &prepared.model;
                let ask = |block_tokens| asked.ask(block_tokens);
                let entry = &located.entry;
                entry.pick_visited(suits(located), fits, Some(&ask), others)
            }
            Known::Tokens {
                located,
                tokens,
                salt,
            } => {
                let adapter = located.adapter.as_ref().map(|adapter| adapter.task_id);
                let salt = salt.as_bytes();
                let ask = |block_tokens| CacheQuery::of_prompt(tokens, adapter, salt, block_tokens);
                let entry = &located.entry;
                entry.pick_visited(suits(located), fits, Some(&ask), others)
            }
            Known::Model(located) => {
                let entry = &located.entry;
                entry.pick_visited(suits(located), fits, None, others)
            }
            Known::Kserve(request) => {
                let visit = state.forward.visit(request, fits, others).await;
                return visit.map_err(|status| match status.code() {
                    Code::Unavailable => ApiError::unavailable(status.message()),
                    _ => ApiError::invalid_request("model_name", status.message()),
                });
            }
            Known::Any => state.table.pick_visited(fits, others),
        };
        visit.ok_or_else(no_worker)
    }
}

fn suits(located: &Located) -> Suits<'_> {
    Suits {
        content_hash: &located.served.description.content_hash,
        adapter: located.adapter.as_ref(),
        phases: Phases::Both,
        resumes: false,
        weights: None,
        watched: true,
        without: None,
    }
}

/// A request of an API whose prompt can be read.
enum ParsedRequest {
    Chat(Parsed<ChatRequest>),
    Completion(Parsed<CompletionRequest>),
}

impl ParsedRequest {
    fn generation(&mut self) -> &mut Generation {
        match self {
            Self::Chat(parsed) => &mut parsed.request.generation,
            Self::Completion(parsed) => &mut parsed.request.generation,
        }
    }

    /// What divides its cached prompt from others, by its own words.
    fn salt(&mut self) -> Option<String> {
        let extensions = self.generation().extensions.as_ref()?;
        extensions.cache_salt.clone()
    }

    /// As a request of this gateway.
    fn prepare(self, state: &Asking<'_>) -> Result<Prepared, ApiError> {
        match self {
            Self::Chat(parsed) => chats::prepare_parsed(state, parsed),
            Self::Completion(parsed) => texts::prepare_parsed(state, parsed),
        }
    }

    /// The tokens of its prompt, or of its longest one.
    fn tokens(mut self, state: &Asking<'_>, served: &ServedModel) -> Result<Vec<i32>, ApiError> {
        let scope = state.scope_of(self.generation());
        let tokens = match self {
            // Its server changes no ids of calls.
            Self::Chat(Parsed {
                request,
                mut ignored,
            }) => chats::tokens(served, request, CallIdForm::Any, &mut ignored, scope)?,
            Self::Completion(Parsed { request, .. }) => texts::longest(served, request, scope)?,
        };
        Ok(tokens.into_iter().map(u32::cast_signed).collect())
    }
}

/// The prompts as caches know them; nothing else of them is used.
fn prompts(prepared: &Prepared) -> impl Iterator<Item = PromptRequest<'_>> {
    prepared.prompts.iter().map(|prompt| PromptRequest {
        params: &prompt.params,
        tokens: &prompt.tokens,
        text: &prompt.text,
        stop: &[],
        is_counted: prompt.count.is_some(),
        request_id: "",
        trace: None,
        timeout: None,
        generated: &[],
        phases: Phases::Both,
    })
}
