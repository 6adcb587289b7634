//! Types of other crates that the pieces carry.

use std::pin::Pin;
use std::task::{Context, Poll};

/// Of `bytes`.
pub type Bytes = Vec<u8>;

/// Of `tokio_stream`.
pub trait Stream {
    type Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>>;
}

/// Of `futures_util`.
pub mod task {
    pub use loom::future::AtomicWaker as Inner;

    /// Also where nobody has registered.
    #[derive(Debug, Default)]
    pub struct AtomicWaker(Inner);

    impl AtomicWaker {
        pub fn register(&self, waker: &std::task::Waker) {
            self.0.register_by_ref(waker);
        }

        pub fn wake(&self) {
            self.0.wake();
        }
    }
}

mod notify;
mod rows;

pub use notify::Notify;

/// Of `tokio`.
pub mod time {
    pub use std::time::Instant;
}

/// Of `tonic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Unavailable,
    Internal,
}

/// Of `tonic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status(pub String);

impl Status {
    pub fn code(&self) -> Code {
        Code::Unavailable
    }

    pub fn message(&self) -> &str {
        &self.0
    }

    pub fn internal(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn unavailable(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn resource_exhausted(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn deadline_exceeded(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Of `inflight_kserve`.
pub mod step {
    pub use super::rows::{FinishReason, Handle, PromptLogProbs, Row, RowError, StepBatch};
}

/// Of `inflight_kserve`.
pub mod streamed {
    /// A reply of a number.
    #[derive(Debug, Default, PartialEq, Eq)]
    pub struct SentResponse(pub u32);

    /// A response of a number.
    #[derive(Debug, Default, PartialEq, Eq)]
    pub struct EncodedResponse(pub u32);

    impl EncodedResponse {
        pub fn size(&self) -> usize {
            100
        }

        pub fn detached(self) -> Self {
            self
        }
    }
}
