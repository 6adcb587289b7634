//! A real server on ephemeral ports, tonic's client before it, and the simulated or a scripted executor
//! behind it.
#![allow(
    clippy::unwrap_used,
    reason = "a test that meets the unexpected should fail there"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "clients are real, and a scripted executor waits on its thread"
)]

#[path = "worker/adapters.rs"]
mod adapters;
#[path = "worker/cache.rs"]
mod cache;
#[path = "worker/events.rs"]
mod events;
#[path = "worker/harness.rs"]
mod harness;
#[path = "worker/life.rs"]
mod life;
#[path = "worker/overload.rs"]
mod overload;
#[path = "worker/plain.rs"]
mod plain;
#[path = "worker/refusals.rs"]
mod refusals;
#[path = "worker/several.rs"]
mod several;
#[path = "worker/step.rs"]
mod step;
