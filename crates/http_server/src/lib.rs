//! How the gateway listens: sockets, HTTP/1.1 and HTTP/2, limits of a connection, draining. Owns everything
//! below a request; knows nothing of routes, and of gRPC only that a port of it ends in time.

// Tests may listen on sockets and wait in real time.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod connection;
mod connections;
mod listeners;
mod port;
mod serve;
mod socket;
mod unread_bodies;

pub use self::listeners::Listeners;
pub use self::port::{ConnectionLimits, Port};
pub use self::serve::{serve, within_grace};
