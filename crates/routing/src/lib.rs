//! Which server a request goes to. Pure: loads, caches and turns in, a choice out. Knows nothing of sockets, clocks or
//! what a server is.

pub mod choose;
pub mod estimate;
pub mod expectation;
pub mod index;
mod load;
mod turn;

pub use choose::{Choice, Eligible, Request, choose};
pub use load::{Candidate, least_loaded};
pub use turn::{LastTurn, Turns};
