//! One file per resource; `generate` is what chat and completions share.

pub mod chat;
pub mod completions;
pub mod fallback;
pub mod generate;
pub mod health;
pub mod metrics;
pub mod models;
pub mod prompt;
