//! One method of one path: what answers it, and what the document says of it. Which there are is `routes`'.

use axum::routing::MethodFilter;
use inflight_anthropic::{Message, ModelInfo, ModelPage, TokenCount};
use inflight_batches::{
    BatchList, BatchObject, FileList, FileObject, MessageBatch, MessageBatchList, Purpose,
};
use inflight_openai::embeddings::EmbeddingList;
use inflight_openai::rerank::Ranking;
use inflight_openai::tokenize::{DetokenizeResponse, TokenizeResponse, TokenizerInfo};
use inflight_openai::transcription::{TranscriptFormat, TranscriptJson, TranscriptVerboseJson};
use inflight_openai::{
    ChatCompletion, Completion, InputTokens, ModelCard, ModelList, RequestBody, responses,
};
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use crate::handled::Handled;
use crate::handlers::console::{Ended, Status};
use crate::handlers::health::{Health, Version};

/// One method of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// With its parameters in braces.
    pub(crate) path: &'static str,
    /// The same as the router has it.
    pub(crate) routed: &'static str,
    /// The same for metrics and log lines.
    pub(crate) label: &'static str,
    /// `None`: a call of KServe's, all of which one handler answers.
    pub(crate) handler: Option<fn() -> Handled>,
    pub(crate) id: &'static str,
    pub(crate) area: Area,
    pub(crate) summary: &'static str,
    pub(crate) body: Body,
    pub(crate) answer: ResponseBody,
    /// Whether the answer may be a stream of events.
    pub(crate) streams: bool,
    pub(crate) query: &'static [(&'static str, Type)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    /// As the router has it.
    pub(crate) const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Delete => MethodFilter::DELETE,
        }
    }

    /// As the document has it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Delete => "delete",
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Clients with a key, where keys are needed. It is a call of the API.
    Api,
    /// The same, but it is polled: not a call of the API.
    Key,
    Everybody,
}

/// What paths of one kind have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(super) tag: &'static str,
    pub(super) error: Error,
    pub(crate) access: Access,
}

impl Area {
    pub(crate) const fn new(tag: &'static str, error: Error, access: Access) -> Self {
        Self { tag, error, access }
    }
}

/// What a request has in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    None,
    OpenAi(RequestBody),
    /// `counts`: of `count_tokens`.
    Messages {
        counts: bool,
    },
    Object,
    /// A form with a file.
    Upload,
    /// A form with a clip.
    Clip {
        translates: bool,
    },
    AnyOrNone,
}

impl Body {
    pub(crate) fn schema(self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::OpenAi(body) => Some(body.schema()),
            Self::Messages { counts } => Some(inflight_anthropic::request_schema(counts)),
            Self::Object | Self::AnyOrNone => Some(json!({"type": "object"})),
            Self::Upload => Some(json!({
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": Purpose::GIVEN.map(Purpose::as_str)},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {"type": "integer"},
                },
            })),
            Self::Clip { translates } => Some(clip_schema(translates)),
        }
    }
}

fn clip_schema(translates: bool) -> Value {
    let mut schema = json!({
        "type": "object",
        "required": ["file", "model"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "model": {"type": "string"},
            "language": {"type": "string"},
            "prompt": {"type": "string"},
            "response_format": {"type": "string", "enum": TranscriptFormat::names()},
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
            "stream": {"type": "boolean"},
            "timestamp_granularities[]": {"type": "array", "items": {"type": "string", "enum": ["segment"]}},
        },
    });
    if translates && let Some(fields) = schema["properties"].as_object_mut() {
        fields.remove("language");
    }
    schema
}

impl Body {
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Upload | Self::Clip { .. } => "multipart/form-data",
            _ => "application/json",
        }
    }
}

/// What a request that succeeds is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseBody {
    ChatCompletion,
    Completion,
    Embeddings,
    Ranking,
    Transcript,
    Response,
    Items,
    Models,
    Model,
    Message,
    TokenCount,
    InputTokens,
    Tokens,
    Text,
    TokenizerInfo,
    Health,
    Version,
    Status,
    EndedRequests,
    File,
    Files,
    Batch,
    Batches,
    MessageBatch,
    MessageBatches,
    /// A JSON object without a schema of this document.
    Object,
    /// A JSON array without one.
    Array,
    /// The status says it all.
    Empty,
    Plain,
    Html,
}

impl ResponseBody {
    /// `None`: there is no body.
    pub(crate) const fn media_type(self) -> Option<&'static str> {
        match self {
            Self::Plain => Some("text/plain"),
            Self::Html => Some("text/html"),
            Self::Empty => None,
            _ => Some("application/json"),
        }
    }

    pub(crate) fn schema(self, generator: &mut SchemaGenerator) -> Value {
        let schema = match self {
            Self::ChatCompletion => generator.subschema_for::<ChatCompletion>(),
            Self::Completion => generator.subschema_for::<Completion>(),
            Self::Embeddings => generator.subschema_for::<EmbeddingList>(),
            Self::Ranking => generator.subschema_for::<Ranking>(),
            Self::Transcript => {
                let forms = [
                    generator.subschema_for::<TranscriptJson>(),
                    generator.subschema_for::<TranscriptVerboseJson>(),
                ];
                return json!({"anyOf": forms});
            }
            Self::Response => responses::object_schema(generator),
            Self::Items => responses::list_schema(generator),
            Self::Models => {
                let forms = [
                    generator.subschema_for::<ModelList>(),
                    generator.subschema_for::<ModelPage>(),
                ];
                return json!({"anyOf": forms});
            }
            Self::Model => {
                let forms = [
                    generator.subschema_for::<ModelCard>(),
                    generator.subschema_for::<ModelInfo>(),
                ];
                return json!({"anyOf": forms});
            }
            Self::Message => generator.subschema_for::<Message>(),
            Self::TokenCount => generator.subschema_for::<TokenCount>(),
            Self::InputTokens => generator.subschema_for::<InputTokens>(),
            Self::Tokens => generator.subschema_for::<TokenizeResponse>(),
            Self::Text => generator.subschema_for::<DetokenizeResponse>(),
            Self::TokenizerInfo => generator.subschema_for::<TokenizerInfo<'static>>(),
            Self::Health => generator.subschema_for::<Health>(),
            Self::Version => generator.subschema_for::<Version>(),
            Self::Status => generator.subschema_for::<Status>(),
            Self::EndedRequests => generator.subschema_for::<Ended>(),
            Self::File => generator.subschema_for::<FileObject>(),
            Self::Files => generator.subschema_for::<FileList>(),
            Self::Batch => generator.subschema_for::<BatchObject>(),
            Self::Batches => generator.subschema_for::<BatchList>(),
            Self::MessageBatch => generator.subschema_for::<MessageBatch>(),
            Self::MessageBatches => generator.subschema_for::<MessageBatchList>(),
            Self::Object => return json!({"type": "object"}),
            Self::Array => return json!({"type": "array"}),
            // Nothing is valid.
            Self::Empty => return json!(false),
            Self::Plain | Self::Html => return json!({"type": "string"}),
        };
        schema.into()
    }
}

/// Whose form a failure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    OpenAi,
    Anthropic,
    Triton,
    /// Nothing fails there, and nobody needs a key.
    None,
}

impl Error {
    pub(crate) const fn reference(self) -> Option<&'static str> {
        match self {
            Self::OpenAi => Some("#/components/schemas/Error"),
            Self::Anthropic => Some("#/components/schemas/AnthropicError"),
            Self::Triton => Some("#/components/schemas/TritonError"),
            Self::None => None,
        }
    }
}

/// What a parameter of the query is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Text,
    Integer,
}

/// Where a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Path,
    Query,
}

impl Place {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
        }
    }
}

/// How a row of the list is written.
impl Operation {
    /// Answers an object, until [`Operation::answers`] says otherwise.
    const fn new(
        method: Method,
        area: Area,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            routed: path,
            label: path,
            handler: None,
            id,
            area,
            summary,
            body: Body::None,
            answer: ResponseBody::Object,
            streams: false,
            query: &[],
        }
    }

    pub(crate) const fn get(
        area: Area,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Method::Get, area, path, id, summary)
    }

    pub(crate) const fn delete(
        area: Area,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Method::Delete, area, path, id, summary)
    }

    /// Takes an object, until [`Operation::takes`] says otherwise.
    pub(crate) const fn post(
        area: Area,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Method::Post, area, path, id, summary).takes(Body::Object)
    }

    pub(crate) const fn takes(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    pub(crate) const fn answers(mut self, answer: ResponseBody) -> Self {
        self.answer = answer;
        self
    }

    /// Whether there is a stream is the request's choice.
    pub(crate) const fn streams(mut self) -> Self {
        self.streams = true;
        self
    }

    pub(crate) const fn asks(mut self, query: &'static [(&'static str, Type)]) -> Self {
        self.query = query;
        self
    }

    /// What answers it.
    pub(crate) const fn by(mut self, handler: fn() -> Handled) -> Self {
        self.handler = Some(handler);
        self
    }

    /// Where the router has another form of the path.
    pub(crate) const fn routed(mut self, path: &'static str) -> Self {
        self.routed = path;
        self
    }

    /// The path that metrics and log lines have for it.
    pub(crate) const fn label(mut self, path: &'static str) -> Self {
        self.label = path;
        self
    }
}

impl Operation {
    /// What the answer is, in words.
    pub(crate) fn answer_text(&self) -> &'static str {
        match self.streams {
            true => "The answer, or its events where the request asks for a stream.",
            false => "The answer.",
        }
    }

    /// Names, places and schemas.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&'static str, Place, Value)> {
        let parts = self.path.split('/');
        let names = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let of_path = names.map(|name| (name, Place::Path, json!({"type": "string"})));
        let of_query = self.query.iter().map(|(name, kind)| {
            let kind = match kind {
                Type::Text => "string",
                Type::Integer => "integer",
            };
            (*name, Place::Query, json!({ "type": kind }))
        });
        of_path.chain(of_query)
    }
}
