//! The route table. Owns which path goes where; knows nothing of what handlers do.

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, any, get, post};

use crate::console;
use crate::handlers::{
    adapters, chat, completions, console as console_data, count, embeddings, fallback, health,
    kserve, messages, metrics, models, responses, tokenize,
};
use crate::middleware;
use crate::openapi;
use crate::state::AppState;

/// All routes over the shared state.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    let cors = state.access.cors();
    let serves_console = state.requests.is_some();
    let routes = routes().into_iter();
    let routes = routes.filter(|(path, _)| serves_console || !console::owns(path));
    let router = routes
        .fold(Router::new(), |router, (path, methods)| {
            router.route(path, methods)
        })
        .fallback(fallback::unknown_route)
        .method_not_allowed_fallback(fallback::wrong_method)
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&state),
            middleware::around,
        ))
        .with_state(state);
    match cors {
        // Around everything: pages may read errors, and a preflight carries no key.
        Some(cors) => router.layer(cors),
        None => router,
    }
}

type Methods = MethodRouter<Arc<AppState>>;

/// Every path and what answers it. The document of `openapi` has them all.
pub(crate) fn routes() -> Vec<(&'static str, Methods)> {
    vec![
        ("/v1/chat/completions", post(chat::create_chat_completion)),
        ("/v1/chat/completions/input_tokens", post(count::count_chat)),
        ("/v1/completions", post(completions::create_completion)),
        ("/v1/embeddings", post(embeddings::create_embedding)),
        // Anthropic's.
        ("/v1/messages", post(messages::create_message)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/responses", post(responses::create_response)),
        (
            "/v1/responses/{id}",
            get(responses::retrieve_response).delete(responses::delete_response),
        ),
        ("/v1/responses/input_tokens", post(count::count_response)),
        ("/v1/responses/compact", post(responses::compact_response)),
        (
            "/v1/responses/{id}/cancel",
            post(responses::cancel_response),
        ),
        (
            "/v1/responses/{id}/input_items",
            get(responses::list_input_items),
        ),
        // vLLM's, and where it has them.
        ("/v1/load_lora_adapter", post(adapters::load_adapter)),
        ("/v1/unload_lora_adapter", post(adapters::unload_adapter)),
        ("/tokenize", post(tokenize::tokenize)),
        ("/detokenize", post(tokenize::detokenize)),
        // SGLang's names of them.
        ("/v1/tokenize", post(tokenize::tokenize)),
        ("/v1/detokenize", post(tokenize::detokenize)),
        ("/tokenizer_info", get(tokenize::tokenizer_info)),
        ("/v1/models", get(models::list_models)),
        ("/v1/models/{*model}", get(models::retrieve_model)),
        ("/health/live", get(health::live)),
        ("/health/ready", get(health::ready)),
        // The names that load balancers, SageMaker and other servers' clients use.
        ("/health", get(health::ready)),
        ("/ping", get(health::ready).post(health::ready)),
        ("/health_generate", get(health::ready)),
        // openai_trtllm's, which asks no server.
        ("/health_check", get(health::live)),
        ("/version", get(health::version)),
        ("/v2", any(kserve::call)),
        ("/v2/", any(kserve::call)),
        ("/v2/{*rest}", any(kserve::call)),
        ("/metrics", get(metrics::metrics)),
        ("/", get(console::get_page)),
        ("/console/{file}", get(console::get_file)),
        ("/console/status", get(console_data::status)),
        ("/console/requests", get(console_data::requests)),
        ("/openapi.json", get(openapi::get_document)),
        ("/docs", get(openapi::get_page)),
    ]
}
