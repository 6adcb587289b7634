//! Which server a request goes to. Pure: loads, caches and turns in, a choice out. Knows nothing of sockets, clocks or
//! what a server is.

pub mod index;
mod load;
mod turn;

pub use load::{Candidate, least_loaded};
pub use turn::{LastTurn, Turns};
