//! Where the addresses of workers come from: given, files, DNS names, the Pods of a
//! Kubernetes Service, keys of etcd. Each source runs separately and says what it
//! lists; [`Roster`] decides, without sockets and clocks, which addresses count. Knows nothing of connections to workers,
//! or of what they serve.
//!
//! The contract of every source: while it cannot be reached, is slow or makes no sense, it says nothing, and everything
//! stays as it was. What it says may still be wrong: see [`roster`].

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod address;
pub mod etcd;
pub mod file;
pub mod kubernetes;
pub mod listing;
pub mod names;
pub mod reports;
mod retry;
pub mod roster;
pub mod source;

pub use self::listing::{Listing, Missing};
pub use self::reports::Reports;
pub use self::roster::Roster;
pub use self::source::Source;
