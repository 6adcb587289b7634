//! How the gateway listens: sockets, HTTP/1.1 and HTTP/2, limits of a connection, draining. Owns everything
//! below a request; knows nothing of routes, and of gRPC only how long a port may take to end.

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
