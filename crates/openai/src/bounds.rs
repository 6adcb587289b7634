//! How large what a request says may be, each bound once: what reads a request, what describes its schema and other
//! APIs use these.

use std::ops::RangeInclusive;

/// OpenAI's limit on choices, and of beams.
pub const MAX_N: u32 = 128;
/// OpenAI allows 4; open servers have no limit and agents send more. Each costs the matcher a little.
pub const MAX_STOPS: usize = 16;
pub const MAX_STOP_BYTES: usize = 1024;
pub const MAX_STOP_TOKEN_IDS: usize = 128;
pub const MAX_MODEL_BYTES: usize = 256;
/// Token ids are INT32 on the wire.
pub const MAX_TOKEN_ID: u32 = i32::MAX as u32;
/// Above every real context; larger is a mistake, not a wish.
pub const MAX_MAX_TOKENS: u32 = i32::MAX as u32;
/// Alternatives of a token whose log probabilities are reported.
pub const MAX_TOP_LOGPROBS: u32 = 20;
/// On both sides of 0.
pub const MAX_PRIORITY: i64 = 49;
pub const MAX_DIMENSIONS: u32 = 1 << 20;
/// OpenAI's limit on prompts and inputs of one request; as many documents are ranked.
pub const MAX_PROMPTS: usize = 2_048;
/// Documents that are returned, and tokens of a text: more than there are is all of them.
pub const MAX_TOP_N: u32 = i32::MAX as u32;
pub const MAX_TEXT_TOKENS: u32 = i32::MAX as u32;

pub const MAX_MESSAGES: usize = 16_384;
/// Parts of a message's content.
pub const MAX_PARTS: usize = 4_096;
/// Calls of a message.
pub const MAX_TOOL_CALLS: usize = 128;
/// OpenAI allows 128; agents with many tool servers send more.
pub const MAX_TOOLS: usize = 512;
/// Of the parameters' schema of one tool, and of all descriptions and schemas together.
pub const MAX_SCHEMA_BYTES: usize = 64 * 1024;
pub const MAX_TOOLS_BYTES: usize = 1 << 20;

pub const TEMPERATURE: RangeInclusive<f64> = 0.0..=2.0;
pub const TOP_P: RangeInclusive<f64> = 0.0..=1.0;
pub const MIN_P: RangeInclusive<f64> = 0.0..=1.0;
/// Presence and frequency.
pub const PENALTY: RangeInclusive<f64> = -2.0..=2.0;
/// Below, float32 has no exact reciprocal, and nobody means it.
pub const REPETITION_PENALTY: RangeInclusive<f64> = 0.001..=10.0;
pub const LENGTH_PENALTY: RangeInclusive<f64> = -10.0..=10.0;

/// OpenAI's levels of reasoning; which of them a model knows is its template's.
pub const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
