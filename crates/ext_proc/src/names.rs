//! Names of the endpoint-picker protocol (proposal 004 of the Gateway API Inference Extension, 1.0).

/// The service, as health checks call it.
pub const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// The header, and the key of metadata, that names the endpoint: `ip:port`, or several with commas between them, of which
/// the later ones are for retries.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The namespace of the metadata that repeats [`DESTINATION`].
pub(crate) const DESTINATION_NAMESPACE: &str = "envoy.lb";
/// The metadata's key for the endpoint that answered.
pub(crate) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The namespace of the metadata with the endpoints that may be picked.
pub(crate) const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Their key: a list of `ip:port`.
pub(crate) const SUBSET: &str = "x-gateway-destination-endpoint-subset";
