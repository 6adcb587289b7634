//! What the gateway serves, path by path. Owns the list that the document is made of; tests hold it to the router
//! and to KServe's routes.

use inflight_openai::RequestBody;

use super::operations::{Answer, Body, Error, Method, Operation, Type};

/// What paths of one kind have in common.
#[derive(Clone, Copy, Debug)]
struct Area {
    tag: &'static str,
    error: Error,
}

impl Area {
    const fn new(tag: &'static str, error: Error) -> Self {
        Self { tag, error }
    }
}

const OPENAI: Area = Area::new("OpenAI", Error::OpenAi);
const ANTHROPIC: Area = Area::new("Anthropic", Error::Anthropic);
const ADAPTERS: Area = Area::new("Adapters", Error::OpenAi);
const TOKENS: Area = Area::new("Tokens", Error::OpenAi);
const HEALTH: Area = Area::new("Health", Error::None);
const ABOUT: Area = Area::new("About", Error::None);
/// Needs a key, like the API.
const CONSOLE: Area = Area::new("About", Error::OpenAi);
const KSERVE: Area = Area::new("KServe", Error::Triton);
const KSERVE_HEALTH: Area = Area::new("KServe", Error::None);

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
            id,
            tag: area.tag,
            summary,
            body: Body::None,
            answer: Answer::Object,
            error: area.error,
            streams: false,
            query: &[],
        }
    }

    const fn get(area: Area, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::Get, area, path, id, summary)
    }

    const fn delete(
        area: Area,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Method::Delete, area, path, id, summary)
    }

    /// Takes an object, until [`Operation::takes`] says otherwise.
    const fn post(area: Area, path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::Post, area, path, id, summary).takes(Body::Object)
    }

    const fn takes(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    const fn answers(mut self, answer: Answer) -> Self {
        self.answer = answer;
        self
    }

    /// Whether there is a stream is the request's choice.
    const fn streams(mut self) -> Self {
        self.streams = true;
        self
    }

    const fn asks(mut self, query: &'static [(&'static str, Type)]) -> Self {
        self.query = query;
        self
    }
}

/// All of them, those of one path together.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation::post(
        OPENAI,
        "/v1/chat/completions",
        "create_chat_completion",
        "Answer a conversation",
    )
    .takes(Body::OpenAi(RequestBody::Chat))
    .answers(Answer::ChatCompletion)
    .streams(),
    Operation::post(
        OPENAI,
        "/v1/chat/completions/input_tokens",
        "count_chat_tokens",
        "Count the tokens of a conversation",
    )
    .takes(Body::OpenAi(RequestBody::Chat))
    .answers(Answer::InputTokens),
    Operation::post(
        OPENAI,
        "/v1/completions",
        "create_completion",
        "Continue a text",
    )
    .takes(Body::OpenAi(RequestBody::Completions))
    .answers(Answer::Completion)
    .streams(),
    Operation::post(
        OPENAI,
        "/v1/embeddings",
        "create_embedding",
        "Compute embeddings of texts",
    )
    .takes(Body::OpenAi(RequestBody::Embeddings))
    .answers(Answer::Embeddings),
    Operation::post(
        OPENAI,
        "/v1/responses",
        "create_response",
        "Answer a conversation, which may be kept",
    )
    .takes(Body::OpenAi(RequestBody::Responses))
    .answers(Answer::Response)
    .streams(),
    Operation::post(
        OPENAI,
        "/v1/responses/input_tokens",
        "count_response_tokens",
        "Count the tokens of a conversation",
    )
    .takes(Body::OpenAi(RequestBody::Responses))
    .answers(Answer::InputTokens),
    Operation::post(
        OPENAI,
        "/v1/responses/compact",
        "compact_response",
        "Always a 400: conversations are not compacted",
    )
    .takes(Body::AnyOrNone),
    Operation::get(
        OPENAI,
        "/v1/responses/{id}",
        "retrieve_response",
        "A response that was kept",
    )
    .answers(Answer::Response),
    Operation::delete(
        OPENAI,
        "/v1/responses/{id}",
        "delete_response",
        "Forget a response",
    ),
    Operation::post(
        OPENAI,
        "/v1/responses/{id}/cancel",
        "cancel_response",
        "Always a 400: no response runs in the background",
    )
    .takes(Body::AnyOrNone),
    Operation::get(
        OPENAI,
        "/v1/responses/{id}/input_items",
        "list_input_items",
        "What a response was asked with",
    )
    .answers(Answer::Items)
    .asks(&[
        ("limit", Type::Integer),
        ("after", Type::Text),
        ("order", Type::Text),
    ]),
    Operation::get(
        OPENAI,
        "/v1/models",
        "list_models",
        "The models; in Anthropic's form with the header anthropic-version",
    )
    .answers(Answer::Models)
    .asks(&[
        ("limit", Type::Integer),
        ("after_id", Type::Text),
        ("before_id", Type::Text),
    ]),
    Operation::get(
        OPENAI,
        "/v1/models/{model}",
        "retrieve_model",
        "One model; its name may have slashes",
    )
    .answers(Answer::Model),
    Operation::post(
        ANTHROPIC,
        "/v1/messages",
        "create_message",
        "Answer a conversation",
    )
    .takes(Body::Messages { counts: false })
    .answers(Answer::Message)
    .streams(),
    Operation::post(
        ANTHROPIC,
        "/v1/messages/count_tokens",
        "count_message_tokens",
        "Count the tokens of a conversation",
    )
    .takes(Body::Messages { counts: true })
    .answers(Answer::TokenCount),
    Operation::post(
        ADAPTERS,
        "/v1/load_lora_adapter",
        "load_lora_adapter",
        "Load a LoRA adapter at every worker of its model",
    )
    .answers(Answer::Plain),
    Operation::post(
        ADAPTERS,
        "/v1/unload_lora_adapter",
        "unload_lora_adapter",
        "Unload a LoRA adapter at every worker of its model",
    )
    .answers(Answer::Plain),
    Operation::post(
        TOKENS,
        "/tokenize",
        "tokenize",
        "The tokens of a text or a conversation",
    )
    .takes(Body::OpenAi(RequestBody::Tokenize))
    .answers(Answer::Tokens),
    Operation::post(TOKENS, "/detokenize", "detokenize", "The text of tokens")
        .takes(Body::OpenAi(RequestBody::Detokenize))
        .answers(Answer::Text),
    Operation::post(
        TOKENS,
        "/v1/tokenize",
        "tokenize_as_sglang",
        "As `/tokenize`",
    )
    .takes(Body::OpenAi(RequestBody::Tokenize))
    .answers(Answer::Tokens),
    Operation::post(
        TOKENS,
        "/v1/detokenize",
        "detokenize_as_sglang",
        "As `/detokenize`",
    )
    .takes(Body::OpenAi(RequestBody::Detokenize))
    .answers(Answer::Text),
    Operation::get(
        TOKENS,
        "/tokenizer_info",
        "tokenizer_info",
        "The tokenizer's configuration and the chat template",
    )
    .answers(Answer::TokenizerInfo)
    .asks(&[("model", Type::Text)]),
    Operation::get(
        HEALTH,
        "/health/live",
        "live",
        "Whether the process answers",
    )
    .answers(Answer::Health),
    Operation::get(
        HEALTH,
        "/health/ready",
        "ready",
        "Whether some worker can take a request; else 503",
    )
    .answers(Answer::Health),
    Operation::get(
        HEALTH,
        "/health",
        "health",
        "Whether some worker can take a request; else 503",
    )
    .answers(Answer::Health),
    Operation::get(
        HEALTH,
        "/ping",
        "ping",
        "Whether some worker can take a request; else 503",
    )
    .answers(Answer::Health),
    Operation::post(HEALTH, "/ping", "ping_by_post", "As GET")
        .takes(Body::AnyOrNone)
        .answers(Answer::Health),
    Operation::get(
        HEALTH,
        "/health_generate",
        "health_generate",
        "Whether some worker can take a request; else 503. Generates nothing",
    )
    .answers(Answer::Health),
    Operation::get(
        HEALTH,
        "/health_check",
        "health_check",
        "Whether the process answers",
    )
    .answers(Answer::Health),
    Operation::get(ABOUT, "/version", "version", "The gateway's version").answers(Answer::Version),
    Operation::get(ABOUT, "/metrics", "metrics", "Metrics for Prometheus").answers(Answer::Plain),
    Operation::get(ABOUT, "/openapi.json", "openapi", "This document"),
    Operation::get(ABOUT, "/docs", "docs", "This document as a page").answers(Answer::Html),
    Operation::get(
        ABOUT,
        "/",
        "console",
        "The console, a page for people; 404 for clients that do not name HTML in `Accept`",
    )
    .answers(Answer::Html),
    Operation::get(
        ABOUT,
        "/console/{file}",
        "console_file",
        "A script or style of the console",
    )
    .answers(Answer::Plain),
    Operation::get(
        CONSOLE,
        "/console/status",
        "console_status",
        "Open requests of the client's key, workers, and what is left to the key",
    )
    .answers(Answer::Status),
    Operation::get(
        CONSOLE,
        "/console/requests",
        "console_requests",
        "How the latest requests of the client's key went, or those of one id",
    )
    .answers(Answer::EndedRequests)
    .asks(&[("id", Type::Text)]),
    Operation::get(KSERVE, "/v2", "server_metadata", "What the server is"),
    Operation::get(
        KSERVE_HEALTH,
        "/v2/health/live",
        "server_live",
        "Whether the server is alive",
    ),
    Operation::get(
        KSERVE_HEALTH,
        "/v2/health/ready",
        "server_ready",
        "Whether the server is ready",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/stats",
        "statistics",
        "Statistics of all models",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}",
        "model_metadata",
        "A model's tensors",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/ready",
        "model_ready",
        "Whether a model is ready",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/config",
        "model_config",
        "A model's configuration",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/stats",
        "model_statistics",
        "A model's statistics",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/infer",
        "infer",
        "Tensors in, tensors out",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/generate",
        "generate",
        "One JSON object in, one out",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/generate_stream",
        "generate_stream",
        "The same with an event for each answer",
    )
    .streams(),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/versions/{version}",
        "version_metadata",
        "A version's tensors",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/versions/{version}/ready",
        "version_ready",
        "Whether a version is ready",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/versions/{version}/config",
        "version_config",
        "A version's configuration",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/versions/{version}/stats",
        "version_statistics",
        "A version's statistics",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/versions/{version}/infer",
        "version_infer",
        "Tensors in, tensors out",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/versions/{version}/generate",
        "version_generate",
        "One JSON object in, one out",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/versions/{version}/generate_stream",
        "version_generate_stream",
        "The same with an event for each answer",
    )
    .streams(),
    Operation::post(
        KSERVE,
        "/v2/repository/index",
        "repository_index",
        "The models and their states",
    )
    .takes(Body::AnyOrNone)
    .answers(Answer::Array),
    Operation::post(
        KSERVE,
        "/v2/repository/models/{name}/load",
        "load_model",
        "Load a model, if the server supports it",
    )
    .takes(Body::AnyOrNone)
    .answers(Answer::Empty),
    Operation::post(
        KSERVE,
        "/v2/repository/models/{name}/unload",
        "unload_model",
        "Unload a model, if the server supports it",
    )
    .takes(Body::AnyOrNone)
    .answers(Answer::Empty),
    Operation::get(
        KSERVE,
        "/v2/trace/setting",
        "trace_settings",
        "What is traced",
    ),
    Operation::post(
        KSERVE,
        "/v2/trace/setting",
        "change_trace_settings",
        "Change what is traced",
    ),
    Operation::get(
        KSERVE,
        "/v2/models/{name}/trace/setting",
        "model_trace_settings",
        "What is traced of a model",
    ),
    Operation::post(
        KSERVE,
        "/v2/models/{name}/trace/setting",
        "change_model_trace_settings",
        "Change what is traced of a model",
    ),
    Operation::get(KSERVE, "/v2/logging", "log_settings", "What is logged"),
    Operation::post(
        KSERVE,
        "/v2/logging",
        "change_log_settings",
        "Change what is logged",
    ),
    // Shared memory is one server's own: a gateway refuses these.
    Operation::get(
        KSERVE,
        "/v2/systemsharedmemory/status",
        "system_memory_regions",
        "The registered regions of system shared memory",
    ),
    Operation::get(
        KSERVE,
        "/v2/systemsharedmemory/region/{name}/status",
        "system_memory_region",
        "A registered region of system shared memory",
    ),
    Operation::post(
        KSERVE,
        "/v2/systemsharedmemory/region/{name}/register",
        "register_system_memory",
        "Register a region of system shared memory",
    )
    .takes(Body::AnyOrNone),
    Operation::post(
        KSERVE,
        "/v2/systemsharedmemory/unregister",
        "unregister_all_system_memory",
        "Unregister all regions of system shared memory",
    )
    .takes(Body::AnyOrNone),
    Operation::post(
        KSERVE,
        "/v2/systemsharedmemory/region/{name}/unregister",
        "unregister_system_memory",
        "Unregister a region of system shared memory",
    )
    .takes(Body::AnyOrNone),
    Operation::get(
        KSERVE,
        "/v2/cudasharedmemory/status",
        "cuda_memory_regions",
        "The registered regions of CUDA shared memory",
    ),
    Operation::get(
        KSERVE,
        "/v2/cudasharedmemory/region/{name}/status",
        "cuda_memory_region",
        "A registered region of CUDA shared memory",
    ),
    Operation::post(
        KSERVE,
        "/v2/cudasharedmemory/region/{name}/register",
        "register_cuda_memory",
        "Register a region of CUDA shared memory",
    )
    .takes(Body::AnyOrNone),
    Operation::post(
        KSERVE,
        "/v2/cudasharedmemory/unregister",
        "unregister_all_cuda_memory",
        "Unregister all regions of CUDA shared memory",
    )
    .takes(Body::AnyOrNone),
    Operation::post(
        KSERVE,
        "/v2/cudasharedmemory/region/{name}/unregister",
        "unregister_cuda_memory",
        "Unregister a region of CUDA shared memory",
    )
    .takes(Body::AnyOrNone),
];
