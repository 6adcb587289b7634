//! The route table. Owns which path goes where; knows nothing of what handlers do.

use std::sync::Arc;

use axum::Router;
use axum::routing::{any, get, post};

use crate::handlers::{
    chat, completions, embeddings, fallback, health, kserve, messages, metrics, models, responses,
    tokenize,
};
use crate::middleware;
use crate::state::AppState;

/// All routes over the shared state.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    let cors = state.access.cors();
    let router = Router::new()
        .route("/v1/chat/completions", post(chat::create_chat_completion))
        .route("/v1/completions", post(completions::create_completion))
        .route("/v1/embeddings", post(embeddings::create_embedding))
        // Anthropic's.
        .route("/v1/messages", post(messages::create_message))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/responses", post(responses::create_response))
        .route(
            "/v1/responses/{id}",
            get(responses::retrieve_response).delete(responses::delete_response),
        )
        .route(
            "/v1/responses/{id}/cancel",
            post(responses::cancel_response),
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(responses::list_input_items),
        )
        // vLLM's, and where it has them.
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::tokenizer_info))
        .route("/v1/models", get(models::list_models))
        .route("/v1/models/{*model}", get(models::retrieve_model))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        // The names that load balancers, SageMaker and other servers' clients use.
        .route("/health", get(health::ready))
        .route("/ping", get(health::ready).post(health::ready))
        .route("/version", get(health::version))
        .route("/v2", any(kserve::call))
        .route("/v2/{*rest}", any(kserve::call))
        .route("/metrics", get(metrics::metrics))
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
