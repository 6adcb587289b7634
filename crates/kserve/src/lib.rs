//! The KServe v2 wire: generated messages, tensor codec, step batching.
//!
//! Knows the wire. Deliberately knows nothing of OpenAI, of text, or of executors.

/// Messages and services of the KServe v2 protocol with Triton's extensions.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod inference {
    tonic::include_proto!("inference");
}

/// The read-only service by which a gateway learns a worker's model.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod assets {
    tonic::include_proto!("inflight.v1");
}

pub mod capability;
pub mod client;
mod error_chain;
pub mod names;
pub mod step;
pub mod tensor;

pub use error_chain::error_chain;

/// The compiled descriptors of `proto/kserve`, a serialized `FileDescriptorSet`: what conformance
/// tests compare and gRPC reflection would serve.
pub const KSERVE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/kserve_descriptor.bin"));
