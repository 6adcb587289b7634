//! The real gateway and real workers with the simulated executor, in one thread, with virtual time and a simulated
//! network. A seed decides what clients ask, when, and which faults there are; the same seed is the same history.
//! Nothing of the product depends on this crate.
//!
//! | module | owns |
//! |---|---|
//! | `determinism` | the clock and the randomness of the thread |
//! | `network` | the simulated network, as the product sees it |
//! | `plan` | what a seed decides |
//! | `question` | a request and its answer, known beforehand |
//! | `client` | asking, and what was read |
//! | `worker` | workers, and what their executors were given |
//! | `fleet` | a run: hosts, and clients one request after another |
//! | `shared` | what the parts of a run have in common |
//! | `faults` | how what goes wrong begins and ends |
//! | `audit` | looks at workers during a run, and at what is held at its end |
//! | `oracle` | the invariants |
//! | `history` | the hash over all events |
//! | `report`, `process` | what came of a seed; a process for each |

#![allow(
    clippy::disallowed_methods,
    reason = "it decides itself what time it is"
)]

mod answer;
mod audit;
mod client;
mod determinism;
mod executor;
mod faults;
mod fleet;
mod history;
mod network;
mod oracle;
mod placements;
mod plan;
mod process;
mod question;
mod report;
mod shared;
mod worker;

pub use fleet::run;
pub use process::run_in_process;
pub use report::Report;
