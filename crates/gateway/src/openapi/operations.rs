//! What the gateway serves, path by path. Owns the list that the document is made of; tests hold it to the router
//! and to KServe's routes.

use inflight_anthropic::{Message, ModelInfo, ModelPage, TokenCount};
use inflight_openai::embeddings::EmbeddingList;
use inflight_openai::tokenize::{DetokenizeResponse, TokenizeResponse, TokenizerInfo};
use inflight_openai::{ChatCompletion, Completion, ModelCard, ModelList, RequestBody, responses};
use schemars::SchemaGenerator;
use serde_json::{Value, json};

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
    Tokens,
    Text,
    TokenizerInfo,
    Health,
    Version,
    /// A JSON object without a schema of ours.
    Object,
    Plain,
    Html,
}

impl Answer {
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain",
            Self::Html => "text/html",
            _ => "application/json",
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
            Self::Tokens => generator.subschema_for::<TokenizeResponse>(),
            Self::Text => generator.subschema_for::<DetokenizeResponse>(),
            Self::TokenizerInfo => generator.subschema_for::<TokenizerInfo<'static>>(),
            Self::Health => generator.subschema_for::<Health>(),
            Self::Version => generator.subschema_for::<Version>(),
            Self::Object => return json!({"type": "object"}),
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

/// All of them, those of one path together.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: Method::Post,
        path: "/v1/chat/completions",
        id: "create_chat_completion",
        tag: "OpenAI",
        summary: "Answer a conversation",
        body: Body::OpenAi(RequestBody::Chat),
        answer: Answer::ChatCompletion,
        error: Error::OpenAi,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/completions",
        id: "create_completion",
        tag: "OpenAI",
        summary: "Continue a text",
        body: Body::OpenAi(RequestBody::Completions),
        answer: Answer::Completion,
        error: Error::OpenAi,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/embeddings",
        id: "create_embedding",
        tag: "OpenAI",
        summary: "Make vectors of texts",
        body: Body::OpenAi(RequestBody::Embeddings),
        answer: Answer::Embeddings,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/responses",
        id: "create_response",
        tag: "OpenAI",
        summary: "Answer a conversation, which may be kept",
        body: Body::OpenAi(RequestBody::Responses),
        answer: Answer::Response,
        error: Error::OpenAi,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v1/responses/{id}",
        id: "retrieve_response",
        tag: "OpenAI",
        summary: "A response that was kept",
        body: Body::None,
        answer: Answer::Response,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Delete,
        path: "/v1/responses/{id}",
        id: "delete_response",
        tag: "OpenAI",
        summary: "Forget a response",
        body: Body::None,
        answer: Answer::Object,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/responses/{id}/cancel",
        id: "cancel_response",
        tag: "OpenAI",
        summary: "Always a 400: no response runs in the background",
        body: Body::AnyOrNone,
        answer: Answer::Object,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v1/responses/{id}/input_items",
        id: "list_input_items",
        tag: "OpenAI",
        summary: "What a response was asked with",
        body: Body::None,
        answer: Answer::Items,
        error: Error::OpenAi,
        streams: false,
        query: &[
            ("limit", Type::Integer),
            ("after", Type::Text),
            ("order", Type::Text),
        ],
    },
    Operation {
        method: Method::Get,
        path: "/v1/models",
        id: "list_models",
        tag: "OpenAI",
        summary: "The models; in Anthropic's form with the header anthropic-version",
        body: Body::None,
        answer: Answer::Models,
        error: Error::OpenAi,
        streams: false,
        query: &[
            ("limit", Type::Integer),
            ("after_id", Type::Text),
            ("before_id", Type::Text),
        ],
    },
    Operation {
        method: Method::Get,
        path: "/v1/models/{model}",
        id: "retrieve_model",
        tag: "OpenAI",
        summary: "One model; its name may have slashes",
        body: Body::None,
        answer: Answer::Model,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/messages",
        id: "create_message",
        tag: "Anthropic",
        summary: "Answer a conversation",
        body: Body::Messages { counts: false },
        answer: Answer::Message,
        error: Error::Anthropic,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/messages/count_tokens",
        id: "count_message_tokens",
        tag: "Anthropic",
        summary: "Count the tokens of a conversation",
        body: Body::Messages { counts: true },
        answer: Answer::TokenCount,
        error: Error::Anthropic,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/load_lora_adapter",
        id: "load_lora_adapter",
        tag: "Adapters",
        summary: "Load a LoRA adapter at every worker of its model",
        body: Body::Object,
        answer: Answer::Plain,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v1/unload_lora_adapter",
        id: "unload_lora_adapter",
        tag: "Adapters",
        summary: "Unload a LoRA adapter at every worker of its model",
        body: Body::Object,
        answer: Answer::Plain,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/tokenize",
        id: "tokenize",
        tag: "Tokens",
        summary: "The tokens of a text or a conversation",
        body: Body::OpenAi(RequestBody::Tokenize),
        answer: Answer::Tokens,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/detokenize",
        id: "detokenize",
        tag: "Tokens",
        summary: "The text of tokens",
        body: Body::OpenAi(RequestBody::Detokenize),
        answer: Answer::Text,
        error: Error::OpenAi,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/tokenizer_info",
        id: "tokenizer_info",
        tag: "Tokens",
        summary: "The tokenizer's configuration and the chat template",
        body: Body::None,
        answer: Answer::TokenizerInfo,
        error: Error::OpenAi,
        streams: false,
        query: &[("model", Type::Text)],
    },
    Operation {
        method: Method::Get,
        path: "/health/live",
        id: "live",
        tag: "Health",
        summary: "Whether the process answers",
        body: Body::None,
        answer: Answer::Health,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/health/ready",
        id: "ready",
        tag: "Health",
        summary: "Whether some worker can take a request; else 503",
        body: Body::None,
        answer: Answer::Health,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/health",
        id: "health",
        tag: "Health",
        summary: "Whether some worker can take a request; else 503",
        body: Body::None,
        answer: Answer::Health,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/ping",
        id: "ping",
        tag: "Health",
        summary: "Whether some worker can take a request; else 503",
        body: Body::None,
        answer: Answer::Health,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/ping",
        id: "ping_by_post",
        tag: "Health",
        summary: "As GET",
        body: Body::AnyOrNone,
        answer: Answer::Health,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/version",
        id: "version",
        tag: "About",
        summary: "The gateway's version",
        body: Body::None,
        answer: Answer::Version,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/metrics",
        id: "metrics",
        tag: "About",
        summary: "Metrics for Prometheus",
        body: Body::None,
        answer: Answer::Plain,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/openapi.json",
        id: "openapi",
        tag: "About",
        summary: "This document",
        body: Body::None,
        answer: Answer::Object,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/docs",
        id: "docs",
        tag: "About",
        summary: "This document as a page",
        body: Body::None,
        answer: Answer::Html,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2",
        id: "server_metadata",
        tag: "KServe",
        summary: "What the server is",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/health/live",
        id: "server_live",
        tag: "KServe",
        summary: "Whether the server is alive",
        body: Body::None,
        answer: Answer::Object,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/health/ready",
        id: "server_ready",
        tag: "KServe",
        summary: "Whether the server is ready",
        body: Body::None,
        answer: Answer::Object,
        error: Error::None,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/stats",
        id: "statistics",
        tag: "KServe",
        summary: "Statistics of all models",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}",
        id: "model_metadata",
        tag: "KServe",
        summary: "A model's tensors",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/ready",
        id: "model_ready",
        tag: "KServe",
        summary: "Whether a model is ready",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/config",
        id: "model_config",
        tag: "KServe",
        summary: "A model's configuration",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/stats",
        id: "model_statistics",
        tag: "KServe",
        summary: "A model's statistics",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/infer",
        id: "infer",
        tag: "KServe",
        summary: "Tensors in, tensors out",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/generate",
        id: "generate",
        tag: "KServe",
        summary: "One JSON object in, one out",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/generate_stream",
        id: "generate_stream",
        tag: "KServe",
        summary: "The same with an event for each answer",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/versions/{version}",
        id: "version_metadata",
        tag: "KServe",
        summary: "A version's tensors",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/versions/{version}/ready",
        id: "version_ready",
        tag: "KServe",
        summary: "Whether a version is ready",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/versions/{version}/config",
        id: "version_config",
        tag: "KServe",
        summary: "A version's configuration",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/versions/{version}/stats",
        id: "version_statistics",
        tag: "KServe",
        summary: "A version's statistics",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/versions/{version}/infer",
        id: "version_infer",
        tag: "KServe",
        summary: "Tensors in, tensors out",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/versions/{version}/generate",
        id: "version_generate",
        tag: "KServe",
        summary: "One JSON object in, one out",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/versions/{version}/generate_stream",
        id: "version_generate_stream",
        tag: "KServe",
        summary: "The same with an event for each answer",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: true,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/repository/index",
        id: "repository_index",
        tag: "KServe",
        summary: "The models that are there",
        body: Body::AnyOrNone,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/repository/models/{name}/load",
        id: "load_model",
        tag: "KServe",
        summary: "Load a model, where the server behind can",
        body: Body::AnyOrNone,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/repository/models/{name}/unload",
        id: "unload_model",
        tag: "KServe",
        summary: "Unload a model, where the server behind can",
        body: Body::AnyOrNone,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/trace/setting",
        id: "trace_settings",
        tag: "KServe",
        summary: "What is traced",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/trace/setting",
        id: "change_trace_settings",
        tag: "KServe",
        summary: "Change what is traced",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/models/{name}/trace/setting",
        id: "model_trace_settings",
        tag: "KServe",
        summary: "What is traced of a model",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/models/{name}/trace/setting",
        id: "change_model_trace_settings",
        tag: "KServe",
        summary: "Change what is traced of a model",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Get,
        path: "/v2/logging",
        id: "log_settings",
        tag: "KServe",
        summary: "What is logged",
        body: Body::None,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    Operation {
        method: Method::Post,
        path: "/v2/logging",
        id: "change_log_settings",
        tag: "KServe",
        summary: "Change what is logged",
        body: Body::Object,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    },
    memory(
        Method::Get,
        "/v2/systemsharedmemory/status",
        "system_memory_regions",
        "The registered regions of system shared memory",
    ),
    memory(
        Method::Get,
        "/v2/systemsharedmemory/region/{name}/status",
        "system_memory_region",
        "A registered region of system shared memory",
    ),
    memory(
        Method::Post,
        "/v2/systemsharedmemory/region/{name}/register",
        "register_system_memory",
        "Register a region of system shared memory",
    ),
    memory(
        Method::Post,
        "/v2/systemsharedmemory/unregister",
        "unregister_all_system_memory",
        "Unregister all regions of system shared memory",
    ),
    memory(
        Method::Post,
        "/v2/systemsharedmemory/region/{name}/unregister",
        "unregister_system_memory",
        "Unregister a region of system shared memory",
    ),
    memory(
        Method::Get,
        "/v2/cudasharedmemory/status",
        "cuda_memory_regions",
        "The registered regions of CUDA shared memory",
    ),
    memory(
        Method::Get,
        "/v2/cudasharedmemory/region/{name}/status",
        "cuda_memory_region",
        "A registered region of CUDA shared memory",
    ),
    memory(
        Method::Post,
        "/v2/cudasharedmemory/region/{name}/register",
        "register_cuda_memory",
        "Register a region of CUDA shared memory",
    ),
    memory(
        Method::Post,
        "/v2/cudasharedmemory/unregister",
        "unregister_all_cuda_memory",
        "Unregister all regions of CUDA shared memory",
    ),
    memory(
        Method::Post,
        "/v2/cudasharedmemory/region/{name}/unregister",
        "unregister_cuda_memory",
        "Unregister a region of CUDA shared memory",
    ),
];

/// A call about shared memory, which is one server's own: a gateway refuses it.
const fn memory(
    method: Method,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
) -> Operation {
    Operation {
        body: match method {
            Method::Get => Body::None,
            _ => Body::AnyOrNone,
        },
        method,
        path,
        id,
        tag: "KServe",
        summary,
        answer: Answer::Object,
        error: Error::Triton,
        streams: false,
        query: &[],
    }
}
