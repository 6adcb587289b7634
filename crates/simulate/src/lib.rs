//! A fleet in virtual time: the routing crate over a recorded trace, next to formulas of the field.
//!
//! Owns the models of workers, gateways' knowledge and arrivals, and the command `inflight simulate`. Knows nothing of
//! sockets, clocks and real workers. The same input gives the same output.

mod cache;
mod ceiling;
mod cli;
mod events;
mod figures;
mod fleet;
mod gateway;
mod goal;
mod plot;
mod policy;
mod run;
mod streams;
mod table;
mod trace;
mod worker;

pub use ceiling::ceiling;
pub use cli::simulate_main;
pub use figures::{Answered, Figures};
pub use fleet::{Apart, Arrivals, Disaggregate, Fleet};
pub use policy::Policy;
pub use run::{run, run_apart};
pub use streams::Gaps;
pub use trace::{Trace, TraceError};
pub use worker::Machine;
