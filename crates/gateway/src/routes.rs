//! Every path that the gateway serves, those of one kind together: what answers it, what it is called, and what the
//! document says of it. The router, the labels of metrics and log lines, who needs a key, `/openapi.json` and the table
//! of `docs/reference/api.md` are made of this list. KServe's are in `kserve`.

mod kserve;

use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use inflight_openai::RequestBody;

pub(crate) use self::kserve::PATHS as KSERVE_PATHS;
use crate::console;
use crate::handled::handled;
use crate::handlers::{
    adapters, batches, chat, completions, console as console_data, count, embeddings, files,
    health, message_batches, messages, metrics, models, rerank, responses, tokenize,
    transcriptions,
};
use crate::openapi::{self, Access, Area, Body, Error, Operation, ResponseBody, Type};
use crate::state::AppState;

const OPENAI: Area = Area::new("OpenAI", Error::OpenAi, Access::Api);
const ANTHROPIC: Area = Area::new("Anthropic", Error::Anthropic, Access::Api);
const ADAPTERS: Area = Area::new("Adapters", Error::OpenAi, Access::Api);
const TOKENS: Area = Area::new("Tokens", Error::OpenAi, Access::Api);
const HEALTH: Area = Area::new("Health", Error::None, Access::Everybody);
const ABOUT: Area = Area::new("About", Error::None, Access::Everybody);
const CONSOLE: Area = Area::new("About", Error::OpenAi, Access::Key);

/// The gateway's own, methods of one path together.
#[rustfmt::skip]
pub(crate) const ROUTES: &[Operation] = &[
    Operation::post(OPENAI, "/v1/chat/completions", "create_chat_completion", "Answer a conversation")
        .by(|| handled(chat::create_chat_completion))
        .takes(Body::OpenAi(RequestBody::Chat)).answers(ResponseBody::ChatCompletion).streams(),
    Operation::post(OPENAI, "/v1/chat/completions/input_tokens", "count_chat_tokens",
        "Count the tokens of a conversation")
        .by(|| handled(count::count_chat)).takes(Body::OpenAi(RequestBody::Chat)).answers(ResponseBody::InputTokens),
    Operation::post(OPENAI, "/v1/completions", "create_completion", "Continue a text")
        .by(|| handled(completions::create_completion))
        .takes(Body::OpenAi(RequestBody::Completions)).answers(ResponseBody::Completion).streams(),
    Operation::post(OPENAI, "/v1/embeddings", "create_embedding", "Compute embeddings of texts")
        .by(|| handled(embeddings::create_embedding))
        .takes(Body::OpenAi(RequestBody::Embeddings)).answers(ResponseBody::Embeddings),
    Operation::post(OPENAI, "/v1/rerank", "create_ranking", "Order documents by how well they fit a query")
        .by(|| handled(rerank::create_ranking))
        .takes(Body::OpenAi(RequestBody::Rerank)).answers(ResponseBody::Ranking),
    Operation::post(OPENAI, "/rerank", "create_ranking_as_vllm", "As `/v1/rerank`")
        .by(|| handled(rerank::create_ranking)).label("/v1/rerank")
        .takes(Body::OpenAi(RequestBody::Rerank)).answers(ResponseBody::Ranking),
    Operation::post(OPENAI, "/v2/rerank", "create_ranking_as_cohere", "As `/v1/rerank`")
        .by(|| handled(rerank::create_ranking)).label("/v1/rerank")
        .takes(Body::OpenAi(RequestBody::Rerank)).answers(ResponseBody::Ranking),
    Operation::post(OPENAI, "/v1/audio/transcriptions", "create_transcription", "Write down what a clip says")
        .by(|| handled(transcriptions::create_transcription))
        .takes(Body::Clip { translates: false }).answers(ResponseBody::Transcript).streams(),
    Operation::post(OPENAI, "/v1/audio/translations", "create_translation", "The same, in English")
        .by(|| handled(transcriptions::create_translation))
        .takes(Body::Clip { translates: true }).answers(ResponseBody::Transcript).streams(),
    Operation::post(OPENAI, "/v1/responses", "create_response", "Answer a conversation, which may be kept")
        .by(|| handled(responses::create_response))
        .takes(Body::OpenAi(RequestBody::Responses)).answers(ResponseBody::Response).streams(),
    Operation::post(OPENAI, "/v1/responses/input_tokens", "count_response_tokens",
        "Count the tokens of a conversation")
        .by(|| handled(count::count_response))
        .takes(Body::OpenAi(RequestBody::Responses)).answers(ResponseBody::InputTokens),
    Operation::post(OPENAI, "/v1/responses/compact", "compact_response",
        "Always a 400: conversations are not compacted")
        .by(|| handled(responses::compact_response)).takes(Body::AnyOrNone),
    Operation::get(OPENAI, "/v1/responses/{id}", "retrieve_response", "A response that was kept, or its events")
        .by(|| handled(responses::retrieve_response)).answers(ResponseBody::Response).streams()
        .asks(&[("stream", Type::Text), ("starting_after", Type::Integer)]),
    Operation::delete(OPENAI, "/v1/responses/{id}", "delete_response", "Forget a response")
        .by(|| handled(responses::delete_response)),
    Operation::post(OPENAI, "/v1/responses/{id}/cancel", "cancel_response",
        "Stop a response in the background")
        .by(|| handled(responses::cancel_response)).takes(Body::AnyOrNone).answers(ResponseBody::Response),
    Operation::get(OPENAI, "/v1/responses/{id}/input_items", "list_input_items",
        "What a response was asked with")
        .by(|| handled(responses::list_input_items))
        .answers(ResponseBody::Items).asks(&[("limit", Type::Integer), ("after", Type::Text), ("order", Type::Text)]),
    Operation::post(OPENAI, "/v1/files", "create_file", "Upload a file, such as the requests of a batch")
        .by(|| handled(files::upload_file)).takes(Body::Upload).answers(ResponseBody::File),
    Operation::get(OPENAI, "/v1/files", "list_files", "The files of the client's key")
        .by(|| handled(files::list_files)).answers(ResponseBody::Files)
        .asks(&[("purpose", Type::Text), ("limit", Type::Integer), ("after", Type::Text), ("order", Type::Text)]),
    Operation::get(OPENAI, "/v1/files/{id}", "retrieve_file", "What is known of a file")
        .by(|| handled(files::retrieve_file)).answers(ResponseBody::File),
    Operation::delete(OPENAI, "/v1/files/{id}", "delete_file", "Delete a file")
        .by(|| handled(files::delete_file)),
    Operation::get(OPENAI, "/v1/files/{id}/content", "download_file", "The content of a file")
        .by(|| handled(files::file_content)).answers(ResponseBody::Plain),
    Operation::post(OPENAI, "/v1/batches", "create_batch", "Run the requests of a file")
        .by(|| handled(batches::create_batch)).answers(ResponseBody::Batch),
    Operation::get(OPENAI, "/v1/batches", "list_batches", "The batches of the client's key")
        .by(|| handled(batches::list_batches)).answers(ResponseBody::Batches)
        .asks(&[("limit", Type::Integer), ("after", Type::Text)]),
    Operation::get(OPENAI, "/v1/batches/{id}", "retrieve_batch", "How far a batch is")
        .by(|| handled(batches::retrieve_batch)).answers(ResponseBody::Batch),
    Operation::post(OPENAI, "/v1/batches/{id}/cancel", "cancel_batch", "Stop a batch; results so far are kept")
        .by(|| handled(batches::cancel_batch)).takes(Body::AnyOrNone).answers(ResponseBody::Batch),
    Operation::get(OPENAI, "/v1/models", "list_models",
        "The models; in Anthropic's form with the header anthropic-version")
        .by(|| handled(models::list_models))
        .answers(ResponseBody::Models)
        .asks(&[("limit", Type::Integer), ("after_id", Type::Text), ("before_id", Type::Text)]),
    Operation::get(OPENAI, "/v1/models/{model}", "retrieve_model", "One model; its name may have slashes")
        .by(|| handled(models::retrieve_model)).routed("/v1/models/{*model}").answers(ResponseBody::Model),
    Operation::post(ANTHROPIC, "/v1/messages", "create_message", "Answer a conversation")
        .by(|| handled(messages::create_message))
        .takes(Body::Messages { counts: false }).answers(ResponseBody::Message).streams(),
    Operation::post(ANTHROPIC, "/v1/messages/count_tokens", "count_message_tokens",
        "Count the tokens of a conversation")
        .by(|| handled(messages::count_tokens)).takes(Body::Messages { counts: true }).answers(ResponseBody::TokenCount),
    Operation::post(ANTHROPIC, "/v1/messages/batches", "create_message_batch", "Run many requests")
        .by(|| handled(message_batches::create_message_batch)).answers(ResponseBody::MessageBatch),
    Operation::get(ANTHROPIC, "/v1/messages/batches", "list_message_batches", "The batches of the client's key")
        .by(|| handled(message_batches::list_message_batches)).answers(ResponseBody::MessageBatches)
        .asks(&[("limit", Type::Integer), ("after_id", Type::Text), ("before_id", Type::Text)]),
    Operation::get(ANTHROPIC, "/v1/messages/batches/{id}", "retrieve_message_batch", "How far a batch is")
        .by(|| handled(message_batches::retrieve_message_batch)).answers(ResponseBody::MessageBatch),
    Operation::delete(ANTHROPIC, "/v1/messages/batches/{id}", "delete_message_batch", "Delete a batch that has ended")
        .by(|| handled(message_batches::delete_message_batch)),
    Operation::post(ANTHROPIC, "/v1/messages/batches/{id}/cancel", "cancel_message_batch",
        "Stop a batch; results so far are kept")
        .by(|| handled(message_batches::cancel_message_batch)).takes(Body::AnyOrNone).answers(ResponseBody::MessageBatch),
    Operation::get(ANTHROPIC, "/v1/messages/batches/{id}/results", "message_batch_results",
        "The results of a batch that has ended, one JSON object a line")
        .by(|| handled(message_batches::message_batch_results)).answers(ResponseBody::Plain),
    Operation::post(ADAPTERS, "/v1/load_lora_adapter", "load_lora_adapter",
        "Load a LoRA adapter at every worker of its model")
        .by(|| handled(adapters::load_adapter)).answers(ResponseBody::Plain),
    Operation::post(ADAPTERS, "/v1/unload_lora_adapter", "unload_lora_adapter",
        "Unload a LoRA adapter at every worker of its model")
        .by(|| handled(adapters::unload_adapter)).answers(ResponseBody::Plain),
    Operation::post(TOKENS, "/tokenize", "tokenize", "The tokens of a text or a conversation")
        .by(|| handled(tokenize::tokenize)).takes(Body::OpenAi(RequestBody::Tokenize)).answers(ResponseBody::Tokens),
    Operation::post(TOKENS, "/detokenize", "detokenize", "The text of tokens")
        .by(|| handled(tokenize::detokenize)).takes(Body::OpenAi(RequestBody::Detokenize)).answers(ResponseBody::Text),
    Operation::post(TOKENS, "/v1/tokenize", "tokenize_as_sglang", "As `/tokenize`")
        .by(|| handled(tokenize::tokenize)).label("/tokenize")
        .takes(Body::OpenAi(RequestBody::Tokenize)).answers(ResponseBody::Tokens),
    Operation::post(TOKENS, "/v1/detokenize", "detokenize_as_sglang", "As `/detokenize`")
        .by(|| handled(tokenize::detokenize)).label("/detokenize")
        .takes(Body::OpenAi(RequestBody::Detokenize)).answers(ResponseBody::Text),
    Operation::get(TOKENS, "/tokenizer_info", "tokenizer_info",
        "The tokenizer's configuration and the chat template")
        .by(|| handled(tokenize::tokenizer_info)).answers(ResponseBody::TokenizerInfo).asks(&[("model", Type::Text)]),
    Operation::get(HEALTH, "/health/live", "live", "Whether the process answers")
        .by(|| handled(health::live)).answers(ResponseBody::Health),
    Operation::get(HEALTH, "/health/ready", "ready", "Whether some worker can take a request; else 503")
        .by(|| handled(health::ready)).answers(ResponseBody::Health),
    Operation::get(HEALTH, "/health", "health", "Whether some worker can take a request; else 503")
        .by(|| handled(health::ready)).answers(ResponseBody::Health),
    Operation::get(HEALTH, "/ping", "ping", "Whether some worker can take a request; else 503")
        .by(|| handled(health::ready)).answers(ResponseBody::Health),
    Operation::post(HEALTH, "/ping", "ping_by_post", "As GET")
        .by(|| handled(health::ready)).takes(Body::AnyOrNone).answers(ResponseBody::Health),
    Operation::get(HEALTH, "/health_generate", "health_generate",
        "Whether some worker can take a request; else 503. Generates nothing")
        .by(|| handled(health::ready)).answers(ResponseBody::Health),
    Operation::get(HEALTH, "/health_check", "health_check", "Whether the process answers")
        .by(|| handled(health::live)).answers(ResponseBody::Health),
    Operation::get(ABOUT, "/version", "version", "The gateway's version")
        .by(|| handled(health::version)).answers(ResponseBody::Version),
    Operation::get(ABOUT, "/metrics", "metrics", "Metrics for Prometheus")
        .by(|| handled(metrics::metrics)).answers(ResponseBody::Plain),
    Operation::get(ABOUT, "/openapi.json", "openapi", "This document")
        .by(|| handled(get_document)),
    Operation::get(ABOUT, "/docs", "docs", "This document as a page")
        .by(|| handled(get_page)).answers(ResponseBody::Html),
    Operation::get(ABOUT, "/", "console",
        "The console, a page for people; 404 for clients that do not name HTML in `Accept`")
        .by(|| handled(console::get_page)).answers(ResponseBody::Html),
    Operation::get(ABOUT, "/console/{file}", "console_file", "A script or style of the console")
        .by(|| handled(console::get_file)).answers(ResponseBody::Plain),
    Operation::get(CONSOLE, "/console/status", "console_status",
        "Open requests of the client's key, workers, and what is left to the key")
        .by(|| handled(console_data::status)).answers(ResponseBody::Status),
    Operation::get(CONSOLE, "/console/requests", "console_requests",
        "How the latest requests of the client's key went, or those of one id")
        .by(|| handled(console_data::requests)).answers(ResponseBody::EndedRequests).asks(&[("id", Type::Text)]),
];

/// All of them.
pub(crate) fn operations() -> impl Iterator<Item = &'static Operation> {
    ROUTES.iter().chain(kserve::CALLS)
}

/// `GET /openapi.json`. The document is made once.
async fn get_document() -> Response {
    static JSON: OnceLock<Bytes> = OnceLock::new();
    let made = JSON.get_or_init(|| Bytes::from(openapi::document(operations()).to_string()));
    openapi::json(made.clone())
}

/// `GET /docs`. The page is made once.
async fn get_page(State(state): State<Arc<AppState>>) -> Response {
    static PAGES: [OnceLock<Bytes>; 2] = [OnceLock::new(), OnceLock::new()];
    let has_console = state.requests.is_some();
    let page = &PAGES[usize::from(has_console)];
    let made = page.get_or_init(|| {
        let document = openapi::document(operations());
        Bytes::from(openapi::html(&document, has_console))
    });
    openapi::page(made.clone())
}

#[cfg(test)]
mod tests;
