//! The router: made of the list of routes. Owns what is around all of them; knows nothing of what handlers do.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::routing::{any, on};

use crate::console;
use crate::handlers::{fallback, kserve};
use crate::middleware::{self, Around, Known};
use crate::openapi::Access;
use crate::routes::{KSERVE_PATHS, ROUTES};
use crate::state::AppState;

/// All routes over the shared state.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    let cors = state.access.cors();
    let serves_console = state.requests.is_some();
    let mut router = Router::new();
    for operation in ROUTES {
        if let Some(handler) = operation.handler
            && (serves_console || !console::owns(operation.path))
        {
            router = router.route(operation.routed, on(operation.method.filter(), handler()));
        }
    }
    for path in KSERVE_PATHS {
        router = router.route(path, any(kserve::call));
    }
    let around = Around {
        state: Arc::clone(&state),
        known: Arc::new(known()),
    };
    let router = router
        .fallback(fallback::unknown_route)
        .method_not_allowed_fallback(fallback::wrong_method)
        .layer(axum::middleware::from_fn_with_state(
            around,
            middleware::around,
        ))
        .with_state(state);
    match cors {
        // Around everything: pages may read errors, and a preflight carries no key.
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// What is known of each path, as the router has it.
fn known() -> HashMap<&'static str, Known> {
    let known = ROUTES.iter().map(|operation| {
        let access = operation.area.access;
        let known = Known {
            label: operation.label,
            is_api: access == Access::Api,
            needs_key: access != Access::Everybody,
        };
        (operation.routed, known)
    });
    known.collect()
}
