//! Why a request was refused, as an answer of a stream and as a status of a call.

use tonic::{Code, Status};

use crate::engine::NotAdmitted;

/// Bytes of a status' text, which is percent-encoded into a header: HTTP/2 libraries take 16 KiB of headers.
const MAX_STATUS_BYTES: usize = 4096;
/// Trailing metadata of gRPC's retry design (proposal A6): when a client should retry.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Why a request was refused.
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) text: String,
    /// 0: not known.
    pub(super) retry_after_ms: u32,
}

impl From<NotAdmitted> for Refusal {
    fn from(refused: NotAdmitted) -> Self {
        let retry = refused.retry_after().unwrap_or_default();
        Self {
            code: refused.code(),
            text: refused.to_string(),
            retry_after_ms: u32::try_from(retry.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            text: status.message().to_owned(),
            retry_after_ms: 0,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut status = Self::new(refusal.code, shortened(refusal.text));
        if refusal.retry_after_ms > 0 {
            status
                .metadata_mut()
                .insert(RETRY_PUSHBACK, refusal.retry_after_ms.into());
        }
        status
    }
}

/// The beginning of a text that is too long for a status.
pub(super) fn shortened(mut text: String) -> String {
    if text.len() > MAX_STATUS_BYTES {
        let end = (0..=MAX_STATUS_BYTES)
            .rev()
            .find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}
