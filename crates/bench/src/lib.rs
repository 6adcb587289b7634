//! The load generator behind `inflight bench`: measures a gateway or a worker from the outside.
//!
//! Knows the two wires and how to count on them. Deliberately knows nothing of how a gateway, a
//! worker or an executor works inside: what is measured is a process id and an address.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod cli;
mod floor;
mod load;
mod measure;
mod process;
mod sse;
mod suite;

pub use cli::bench_main;
pub use sse::check_reader;

#[cfg(test)]
mod tests;
