//! From the worker's rows to what a client reads: inbox, choices, response bodies.

pub mod body;
pub mod choice;
pub mod collect;
pub mod generation;
pub mod inbox;
pub mod logprobs;
