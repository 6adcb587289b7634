//! How a proxy asks where an HTTP request goes: Envoy's external processing protocol, as the endpoint-picker protocol of
//! Kubernetes' Gateway API Inference Extension (proposal 004) uses it. Pure: messages in, messages out.
//!
//! Deliberately knows nothing of models, of workers, or of sockets. The messages are in `generated/`, made of `proto/`
//! by `tests/generated.rs`.

/// Messages and the service of Envoy's protocol.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod messages {
    include!("../generated/ext_proc.rs");
}

/// The file that describes the service, encoded, for a server's reflection service.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!("../generated/ext_proc.bin");

mod exchange;
mod heard;
mod names;
mod replies;
mod request;

pub use exchange::{Exchange, ExchangeError, Step};
pub use heard::Heard;
pub use names::{DESTINATION, SERVICE};
pub use replies::refusal;
pub use request::HttpRequest;
