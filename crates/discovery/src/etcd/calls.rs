//! The calls of etcd's API v3 (`etcdserverpb.KV`, `Watch` and `Lease`) that are made, with the fields of their messages that matter here; others are
//! skipped when they are read. Numbers of fields are those of etcd's `rpc.proto` and `kv.proto`.

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// An answer with all keys that there may be.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(bool, tag = "7")]
    pub(super) serializable: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchRequest {
    /// The first of a `oneof`.
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct WatchResponse {
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(enumeration = "EventKind", tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventKind {
    Put = 0,
    Delete = 1,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GrantRequest {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// Of a grant and of a renewal.
#[derive(Clone, PartialEq, prost::Message)]
struct LeaseResponse {
    #[prost(int64, tag = "2")]
    id: i64,
    /// What is left of it; none of one that has run out.
    #[prost(int64, tag = "3")]
    seconds: i64,
}

/// An answer of which nothing matters but that it came.
#[derive(Clone, PartialEq, prost::Message)]
struct Done {}

/// The first key after all that begin with `prefix`.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
    match last {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        // Etcd's word for all keys after the first.
        None => vec![0],
    }
}

/// `KV.Range`.
pub(super) async fn range(
    channel: Channel,
    request: RangeRequest,
) -> Result<RangeResponse, Status> {
    unary(channel, "/etcdserverpb.KV/Range", request).await
}

/// `KV.Put`.
pub(super) async fn put(channel: Channel, request: PutRequest) -> Result<(), Status> {
    let put = unary::<_, Done>(channel, "/etcdserverpb.KV/Put", request);
    put.await.map(drop)
}

/// `Lease.LeaseGrant`. Returns the lease's id.
pub(super) async fn grant(channel: Channel, seconds: i64) -> Result<i64, Status> {
    let request = GrantRequest { seconds };
    let granted: LeaseResponse = unary(channel, "/etcdserverpb.Lease/LeaseGrant", request).await?;
    Ok(granted.id)
}

/// `Lease.LeaseRevoke`: deletes its keys.
pub(super) async fn revoke(channel: Channel, id: i64) -> Result<(), Status> {
    let request = LeaseRequest { id };
    let revoke = unary::<_, Done>(channel, "/etcdserverpb.Lease/LeaseRevoke", request);
    revoke.await.map(drop)
}

/// `Lease.LeaseKeepAlive`, once: a stream of one request. Returns whether the lease was still there.
pub(super) async fn renew(channel: Channel, id: i64) -> Result<bool, Status> {
    let mut client = Grpc::new(channel);
    ready(&mut client).await?;
    let request = Request::new(tokio_stream::once(LeaseRequest { id }));
    let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
    let codec = ProstCodec::<LeaseRequest, LeaseResponse>::default();
    let mut answer = client.streaming(request, path, codec).await?.into_inner();
    Ok(answer.message().await?.is_some_and(|left| left.seconds > 0))
}

/// `Watch.Watch` of one range from a revision on.
pub(super) async fn watch(
    channel: Channel,
    prefix: &[u8],
    start_revision: i64,
) -> Result<Streaming<WatchResponse>, Status> {
    let create = WatchCreate {
        key: prefix.to_vec(),
        range_end: end_of(prefix),
        start_revision,
    };
    let create = WatchRequest {
        create: Some(create),
    };
    // Etcd ends a watch whose requests have ended, so they never do.
    let requests =
        tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut request = Request::new(requests);
    // A server that has lost the others then ends the watch, where it would be silent.
    let yes = MetadataValue::from_static("true");
    request.metadata_mut().insert("hasleader", yes);
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    ready(&mut client).await?;
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
    let answer = client.streaming(request, path, codec).await?;
    Ok(answer.into_inner())
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    ready(&mut client).await?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Q, A>::default();
    let answer = client.unary(Request::new(request), path, codec).await?;
    Ok(answer.into_inner())
}

async fn ready(client: &mut Grpc<Channel>) -> Result<(), Status> {
    let failed = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    client.ready().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        for (prefix, end) in [
            (&b"a"[..], &b"b"[..]),
            (b"workers/", b"workers0"),
            (b"a\xff", b"b"),
            (b"\xff\xff", b"\0"),
        ] {
            assert_eq!(end_of(prefix), end);
        }
    }
}
