//! Which server a request goes to. Pure: loads, caches and turns in, a choice out. Knows nothing of sockets, clocks or
//! what a server is.
//!
//! ## How to use it
//!
//! A caller keeps five things. All servers are small numbers that it assigns; all times are seconds since one moment.
//!
//! | what | lock | who changes it |
//! |---|---|---|
//! | [`index::Index`] | read-write | one writer, with batches of what servers report |
//! | [`expectation::Expectations`] | mutex | reports, and each request as it is sent, starts and ends |
//! | [`estimate::Estimates`] | the index's | as a request is sent to a server that reports no blocks |
//! | [`coming::Coming`] | mutex | as a request is sent to a server that reports blocks, and ends |
//! | [`index::Held`] | none: one a thread | each lookup |
//!
//! To place a request, look its blocks up, then choose and count it under one lock, so that the next choice sees it:
//!
//! ```
//! use inflight_routing::expectation::Expectations;
//! use inflight_routing::index::{Held, Index, Level};
//! use inflight_routing::{Eligible, Request, choose};
//!
//! let mut index = Index::new(1 << 20);
//! let mut expectations = Expectations::new(7);
//! for server in 0..2 {
//!     expectations.add(server);
//! }
//! index.stored(1, None, &[11, 12], Level::Device);
//!
//! let (mut held, now) = (Held::default(), 0.0);
//! index.find(&[11, 12, 13], &mut held);
//! let request = Request { tokens: 96, block_tokens: 32, is_urgent: false, spares_streams: false, transfer: None };
//! let eligible = (0..2).map(|server| Eligible { server, delay: 0.0 });
//! let choice = choose(&request, eligible, &held, &expectations, now).unwrap();
//! assert_eq!((choice.server, choice.cached_tokens), (1, 64));
//! let ticket = expectations.sent(choice.server, &request.work(held.of(choice.server)), now);
//! // With the first token, and at the end:
//! expectations.started(ticket, now + 0.1);
//! expectations.ended(ticket);
//! ```
//!
//! A server that accepts a prompt will hold its blocks: keep the prompt ([`coming::Coming::sent`]) until the request ends,
//! and add what is coming to each lookup, so that a burst of prompts that begin alike stays together.

pub mod choose;
pub mod coming;
pub mod estimate;
pub mod expectation;
pub mod index;
mod load;
pub mod split;
mod turn;

pub use choose::{Choice, Eligible, Request, choose};
pub use load::{Candidate, least_loaded};
pub use turn::{LastTurn, Turns};
