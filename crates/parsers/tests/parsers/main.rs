//! Parsers from outside: the texts that models write, cut at every place.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

mod call_objects;
mod detection;
mod formats;
mod marks;
mod page;
mod properties;
mod support;
mod tagged_and_listed;
mod values;
mod written;
