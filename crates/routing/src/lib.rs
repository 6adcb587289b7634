//! Which server a request goes to. Pure: loads and turns in, a choice out. Knows nothing of sockets, clocks or what a
//! server is.

mod load;
mod turn;

pub use load::{Candidate, least_loaded};
pub use turn::{LastTurn, Turns};
