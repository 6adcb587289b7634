//! The gateway with a scripted worker or Triton behind it and a plain HTTP client in front, over sockets in memory and on a
//! paused clock, except where a test needs real ones.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests count as tests: a panic is a failed test"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "a few clients have real sockets and a real clock"
)]

mod access;
mod adapters;
mod background;
mod batches;
mod chat;
mod completions;
mod console;
mod custom_tools;
mod deadlines;
mod discovery;
mod errors;
mod failover;
mod images;
mod kserve;
mod lifecycle;
mod messages;
mod messages_tools;
mod models;
mod openapi;
mod phases;
mod preparing;
mod rate_limits;
mod responses;
mod resuming;
mod resuming_kserve;
mod sharing;
mod silent_kserve;
mod support;
mod templates;
mod tokenize;
mod tools;
mod triton;
mod unread;
mod unread_log;
mod workers;
