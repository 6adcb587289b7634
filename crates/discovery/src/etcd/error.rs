//! Why etcd did not answer, or what was wrong with it.

use inflight_kserve::client::ConnectError;

use super::CALL;
use crate::roster::MAX_ADDRESSES;

#[derive(Debug, thiserror::Error)]
pub(super) enum EtcdError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("cannot connect to etcd at `{server}`")]
    Unreachable {
        server: String,
        source: tonic::transport::Error,
    },
    #[error("etcd did not answer within {} s", CALL.as_secs())]
    Late,
    #[error("etcd refused a call: {} ({:?})", .0.message(), .0.code())]
    Refused(tonic::Status),
    #[error("etcd ended it: {0}")]
    Ended(String),
    #[error("etcd answered without a revision")]
    NoRevision,
    #[error("there are more than {MAX_ADDRESSES} keys below the prefix")]
    TooMany,
}
