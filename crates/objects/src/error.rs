//! What an object store does not do, and why. No text has a key, a signature or a URL that was signed.

use std::io;

use inflight_tls::HandshakeError;

/// Why an object was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("the bucket `{bucket}` does not exist at `{endpoint}`")]
    NoBucket { bucket: String, endpoint: String },
    #[error(
        "`{endpoint}` does not allow this in the bucket `{bucket}` (`{code}`). The key needs to list the bucket and its \
         multipart uploads, and to read, write and delete objects"
    )]
    Denied {
        bucket: String,
        endpoint: String,
        code: String,
    },
    #[error(
        "`{endpoint}` does not accept the credentials (`{code}`). Check `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` \
         and `AWS_SESSION_TOKEN`"
    )]
    Credentials { endpoint: String, code: String },
    #[error("the bucket `{bucket}` is in another region; set `AWS_REGION` to `{region}`")]
    Region { bucket: String, region: String },
    #[error("the clock of this machine is `{seconds}` seconds off the one of `{endpoint}`; set it")]
    Clock { endpoint: String, seconds: i64 },
    #[error("cannot connect to `{endpoint}`")]
    Unreachable {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error("the TLS handshake with `{endpoint}` failed")]
    Handshake {
        endpoint: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot set up TLS")]
    Tls(#[source] HandshakeError),
    #[error("`{endpoint}` did not answer for `{seconds}` seconds")]
    Late { endpoint: String, seconds: u64 },
    #[error("the connection to `{endpoint}` was lost")]
    Lost {
        endpoint: String,
        #[source]
        source: hyper::Error,
    },
    #[error("`{endpoint}` answered with the status `{status}` (`{code}`)")]
    Refused {
        endpoint: String,
        status: u16,
        code: String,
    },
    #[error("the object `{0}` is missing in the bucket")]
    Missing(String),
    /// An upload that was given up, or that is at its end already.
    #[error("the multipart upload of `{0}` no longer exists")]
    NoUpload(String),
    #[error("an answer of `{0}` cannot be read")]
    Form(String),
}

impl ObjectError {
    /// Whether the same may succeed a moment later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Late { .. } | Self::Lost { .. } => true,
            Self::Refused { status, code, .. } => {
                matches!(status, 429 | 500 | 502 | 503 | 504)
                    || matches!(
                        code.as_str(),
                        "SlowDown" | "InternalError" | "RequestTimeout" | "ServiceUnavailable"
                    )
            }
            _ => false,
        }
    }
}
