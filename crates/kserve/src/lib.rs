//! The wire between gateway and worker: KServe v2 messages, tensor codec, step batching, connections.
//!
//! Deliberately knows nothing of OpenAI, of text, or of executors. The messages are in `generated/`, made of `proto/` by
//! `tests/generated.rs`, so that nobody who builds this compiles a compiler.
//!
//! ```
//! use inflight_kserve::tensor::{RequestBuilder, Tensors};
//!
//! let request = RequestBuilder::new("tensorrt_llm", "request-1", 0)
//!     .vector("input_ids", &[1, 15043, 3186])
//!     .scalar("input_lengths", 3)
//!     .scalar("request_output_len", 16)
//!     .build();
//!
//! // The other end reads the same values, with their types and shapes checked.
//! let inputs = Tensors::inputs(&request)?;
//! assert_eq!(inputs.scalar::<i32>("request_output_len")?, Some(16));
//! assert_eq!(inputs.require("input_ids")?.shape, [1, 3]);
//! # Ok::<(), inflight_kserve::tensor::TensorError>(())
//! ```

/// Messages and services of the KServe v2 protocol with Triton's extensions.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod inference {
    include!("../generated/inference.rs");
}

/// The read-only service by which a gateway learns a worker's model.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod assets {
    include!("../generated/assets.rs");
}

/// The read-only service by which a gateway learns what a worker's KV cache holds, and how loaded the worker is.
#[allow(clippy::all, missing_docs, unreachable_pub, clippy::unwrap_used)]
pub mod cache_state {
    include!("../generated/cache_state.rs");
}

/// The files that describe the services, encoded, for a server's reflection service and for code that writes the
/// messages in another form: KServe's, then ours.
pub const FILE_DESCRIPTORS: [&[u8]; 3] = [
    include_bytes!("../generated/inference.bin"),
    include_bytes!("../generated/assets.bin"),
    include_bytes!("../generated/cache_state.bin"),
];

pub mod capability;
pub mod client;
pub mod encoded;
mod fields;
pub mod names;
pub mod step;
pub mod stop;
pub mod streamed;
pub mod tensor;
