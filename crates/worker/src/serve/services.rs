//! The gRPC services of a worker, with their limits, as one router.

use inflight_kserve::FILE_DESCRIPTORS;
use inflight_kserve::assets::model_assets_server::{ModelAssets, ModelAssetsServer};
use inflight_kserve::cache_state::cache_state_server::CacheStateServer;
use inflight_kserve::client::{TransportOptions, server};
use inflight_kserve::streamed::StreamServer;
use tonic::transport::server::Router;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::options::WorkerOptions;
use crate::service::{ArrivalBudget, Budgeted, CacheStateService, Service};

/// Bytes of requests that one stream may send ahead of being read; a connection may send twice that. Much less
/// than a gateway allows for step messages, because what is unread counts in no budget.
const RECEIVE_WINDOW: u32 = 1 << 20;

/// KServe, the model's files, the state of its cache, health and reflection.
pub(super) fn router(
    service: &Service,
    assets: impl ModelAssets,
    health: HealthServer<impl Health>,
    options: &WorkerOptions,
) -> Router {
    let budget = ArrivalBudget::new(options.max_message_bytes);
    let router = server(&TransportOptions {
        max_message_bytes: options.max_message_bytes,
        stream_window_bytes: RECEIVE_WINDOW,
        connection_window_bytes: 2 * RECEIVE_WINDOW,
        ..TransportOptions::default()
    })
    .max_concurrent_streams(options.max_concurrent_streams)
    .add_service(Budgeted::new(
        StreamServer::new(service.clone(), options.max_message_bytes),
        budget.clone(),
    ))
    .add_service(Budgeted::new(
        ModelAssetsServer::new(assets),
        budget.clone(),
    ))
    .add_service(Budgeted::new(
        CacheStateServer::new(CacheStateService::new(service.models())),
        budget.clone(),
    ))
    .add_service(Budgeted::new(health, budget.clone()));
    with_reflection(router, budget)
}

/// Describes all services to tools such as grpcurl, in both versions of the reflection protocol.
fn with_reflection(router: Router, budget: ArrivalBudget) -> Router {
    let builder = || {
        FILE_DESCRIPTORS
            .into_iter()
            .chain([tonic_health::pb::FILE_DESCRIPTOR_SET])
            .fold(
                tonic_reflection::server::Builder::configure(),
                |builder, files| builder.register_encoded_file_descriptor_set(files),
            )
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(newer), Ok(older)) => router
            .add_service(Budgeted::new(newer, budget.clone()))
            .add_service(Budgeted::new(older, budget)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "the reflection service is not available");
            router
        }
    }
}
