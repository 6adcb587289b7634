//! For tests only: servers that do what the test says, a network in memory, a proxy that holds bytes back, a reader of event
//! streams, an allocator that counts, and checks of sources and of pages that are made from code.
//!
//! Panics are wanted here: each is a failed test.

/// RPCs that no test needs, as methods of a service's implementation.
macro_rules! unimplemented_rpcs {
    ($($rpc:ident($request:ty) -> $response:ty;)*) => {$(
        // Spelled as async_trait expands it: the attribute does not see into this macro.
        fn $rpc<'life0, 'async_trait>(
            &'life0 self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$response>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($rpc))) })
        }
    )*};
}

use std::time::Duration;

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub mod allocations;
pub mod kubernetes;
pub mod layers;
pub mod memory;
pub mod model;
pub mod page;
pub mod proxy;
mod server;
pub mod sse;
pub mod triton;
pub mod triton_models;
pub mod worker;
