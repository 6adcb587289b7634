//! Any handler as one type. Owns that the compiler makes what axum puts around a handler once, and not for each of more
//! than fifty. Knows nothing of what handlers do.

use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::response::Response;
use futures_util::future::BoxFuture;

use crate::state::AppState;

/// A handler, whatever its type is.
#[derive(Clone)]
pub(crate) struct Handled(
    Arc<dyn Fn(Request, Arc<AppState>) -> BoxFuture<'static, Response> + Send + Sync>,
);

/// A function that axum takes as a handler. Its future is in a box already, so nothing is added to a request.
pub(crate) fn handled<T, H>(handler: H) -> Handled
where
    H: Handler<T, Arc<AppState>, Future = BoxFuture<'static, Response>> + Sync,
{
    Handled(Arc::new(move |request, state| {
        handler.clone().call(request, state)
    }))
}

impl Handler<(), Arc<AppState>> for Handled {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request, state: Arc<AppState>) -> Self::Future {
        (self.0)(request, state)
    }
}
