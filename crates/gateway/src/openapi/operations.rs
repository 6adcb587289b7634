//! What the document says of one method of one path: the forms of its body and of its answers. Which there are is
//! `served`'s.

use inflight_anthropic::{Message, ModelInfo, ModelPage, TokenCount};
use inflight_openai::embeddings::EmbeddingList;
use inflight_openai::tokenize::{DetokenizeResponse, TokenizeResponse, TokenizerInfo};
use inflight_openai::{
    ChatCompletion, Completion, InputTokens, ModelCard, ModelList, RequestBody, responses,
};
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use crate::handlers::console::{Ended, Status};
use crate::handlers::health::{Health, Version};

/// One method of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) method: Method,
    /// With its parameters in braces.
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) tag: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Body,
    pub(super) answer: Answer,
    pub(super) error: Error,
    /// Whether the answer may be a stream of events.
    pub(super) streams: bool,
    pub(super) query: &'static [(&'static str, Type)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    /// As the document has it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Delete => "delete",
        }
    }
}

/// What a request has in its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    OpenAi(RequestBody),
    /// `counts`: of `count_tokens`.
    Messages {
        counts: bool,
    },
    Object,
    AnyOrNone,
}

impl Body {
    pub(super) fn schema(self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::OpenAi(body) => Some(body.schema()),
            Self::Messages { counts } => Some(inflight_anthropic::request_schema(counts)),
            Self::Object | Self::AnyOrNone => Some(json!({"type": "object"})),
        }
    }
}

/// What a request that succeeds is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    ChatCompletion,
    Completion,
    Embeddings,
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
    /// A JSON object without a schema of this document.
    Object,
    /// A JSON array without one.
    Array,
    /// The status says it all.
    Empty,
    Plain,
    Html,
}

impl Answer {
    /// `None`: there is no body.
    pub(super) const fn media_type(self) -> Option<&'static str> {
        match self {
            Self::Plain => Some("text/plain"),
            Self::Html => Some("text/html"),
            Self::Empty => None,
            _ => Some("application/json"),
        }
    }

    pub(super) fn schema(self, generator: &mut SchemaGenerator) -> Value {
        let schema = match self {
            Self::ChatCompletion => generator.subschema_for::<ChatCompletion>(),
            Self::Completion => generator.subschema_for::<Completion>(),
            Self::Embeddings => generator.subschema_for::<EmbeddingList>(),
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
pub(super) enum Error {
    OpenAi,
    Anthropic,
    Triton,
    /// Nothing fails there, and nobody needs a key.
    None,
}

impl Error {
    pub(super) const fn reference(self) -> Option<&'static str> {
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
pub(super) enum Type {
    Text,
    Integer,
}

/// Where a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Path,
    Query,
}

impl Place {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
        }
    }
}

impl Operation {
    /// What the answer is, in words.
    pub(super) fn answer_text(&self) -> &'static str {
        match self.streams {
            true => "The answer, or its events where the request asks for a stream.",
            false => "The answer.",
        }
    }

    /// Names, places and schemas.
    pub(super) fn parameters(&self) -> impl Iterator<Item = (&'static str, Place, Value)> {
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
