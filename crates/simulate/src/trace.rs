//! A recorded hour of requests. Owns Mooncake's form, its bounds, and which request continues which; knows nothing of
//! workers.
//!
//! Each line is a JSON object: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and `hash_ids`,
//! which name the prompt's blocks of 512 tokens. Equal names mean equal blocks after equal blocks.

use std::collections::HashMap;
use std::io::BufRead;
use std::ops::Range;

use serde::Deserialize;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u32 = 512;
/// Lines of a trace: 40 times the longest public one.
const MOST_LINES: usize = 1_000_000;
/// Names of blocks in all; a name takes 4 bytes.
const MOST_NAMES: usize = 100_000_000;
/// Bytes of a line: a prompt of 10 million tokens needs a third of it.
const LONGEST_LINE: u64 = 1 << 20;
/// Tokens of a prompt or an answer.
const MOST_TOKENS: u32 = 100_000_000;
/// Blocks that a request must have in common with an earlier one to continue it. The first ones are what an
/// application puts before every prompt.
const LEAST_COMMON: usize = 2;

#[derive(Debug, Deserialize)]
struct Line {
    /// Some tools write it with a fraction.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// A request of a trace.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Milliseconds since the first request.
    pub at_ms: f64,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// The earlier request whose prompt this one begins with: the turn before, in a conversation.
    pub continues: Option<u32>,
    /// The first request of the conversation.
    pub session: u32,
    blocks: Range<usize>,
}

/// Requests by time.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub requests: Vec<Recorded>,
    blocks: Vec<u32>,
    /// Different blocks.
    pub different: u32,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
    #[error("it has more than `{MOST_LINES}` lines")]
    Lines,
    #[error("it names more than `{MOST_NAMES}` blocks")]
    Names,
    #[error("it contains no request")]
    Empty,
    #[error(transparent)]
    Read(#[from] std::io::Error),
}

impl Trace {
    /// Reads a trace. A request's full blocks are kept; engines cache no others.
    ///
    /// # Errors
    /// The first line that is not a request, with its number, or a bound that was exceeded.
    pub fn read(mut from: impl BufRead) -> Result<Self, TraceError> {
        let mut lines = Vec::new();
        let mut text = Vec::new();
        let mut names = 0;
        for number in 1.. {
            text.clear();
            let mut bounded = std::io::Read::take(&mut from, LONGEST_LINE + 1);
            if bounded.read_until(b'\n', &mut text)? == 0 {
                break;
            }
            let refuse = |problem: String| TraceError::Line {
                line: number,
                problem,
            };
            if text.len() as u64 > LONGEST_LINE {
                return Err(refuse(format!("it is longer than `{LONGEST_LINE}` bytes")));
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let line: Line =
                serde_json::from_slice(&text).map_err(|error| refuse(words(&error)))?;
            check(&line).map_err(refuse)?;
            names += line.hash_ids.len();
            lines.push(line);
            if lines.len() > MOST_LINES {
                return Err(TraceError::Lines);
            }
            if names > MOST_NAMES {
                return Err(TraceError::Names);
            }
        }
        if lines.is_empty() {
            return Err(TraceError::Empty);
        }
        // Stable: requests of one moment stay in their order.
        lines.sort_by(|one, other| one.timestamp.total_cmp(&other.timestamp));
        Ok(Self::of(&lines))
    }

    /// The full blocks of a request, from the first.
    pub fn blocks(&self, request: u32) -> &[u32] {
        &self.blocks[self.requests[request as usize].blocks.clone()]
    }

    /// Blocks that a request needs, for its prompt and its answer.
    pub(crate) fn needed(&self, request: u32) -> usize {
        let Recorded {
            input_tokens,
            output_tokens,
            ..
        } = self.requests[request as usize];
        let blocks = [input_tokens, output_tokens].map(|tokens| tokens.div_ceil(BLOCK_TOKENS));
        blocks.iter().sum::<u32>() as usize
    }

    fn of(lines: &[Line]) -> Self {
        let mut trace = Self::default();
        let mut numbers: HashMap<u64, u32> = HashMap::new();
        // The last block of each earlier prompt, and whose it was last.
        let mut ends: HashMap<u32, u32> = HashMap::new();
        let start = lines.first().map_or(0.0, |line| line.timestamp);
        for (place, line) in lines.iter().enumerate() {
            let full = (line.input_length / BLOCK_TOKENS) as usize;
            let first = trace.blocks.len();
            for name in line.hash_ids.iter().take(full) {
                let next = numbers.len() as u32;
                trace.blocks.push(*numbers.entry(*name).or_insert(next));
            }
            let blocks = first..trace.blocks.len();
            let own = &trace.blocks[blocks.clone()];
            let earlier = own.iter().skip(LEAST_COMMON - 1).rev();
            let continues = earlier.filter_map(|block| ends.get(block)).next().copied();
            let session = continues.map_or(place as u32, |earlier| {
                trace.requests[earlier as usize].session
            });
            if let Some(end) = own.last() {
                ends.insert(*end, place as u32);
            }
            trace.requests.push(Recorded {
                at_ms: line.timestamp - start,
                input_tokens: line.input_length,
                output_tokens: line.output_length.max(1),
                continues,
                session,
                blocks,
            });
        }
        trace.different = numbers.len() as u32;
        trace
    }
}

fn check(line: &Line) -> Result<(), String> {
    if !(0.0..=1e13).contains(&line.timestamp) {
        return Err(format!(
            "`timestamp` must be from 0 to 1e13 milliseconds, got `{}`",
            line.timestamp
        ));
    }
    for (name, value, least) in [
        ("input_length", line.input_length, 1),
        ("output_length", line.output_length, 0),
    ] {
        if !(least..=MOST_TOKENS).contains(&value) {
            return Err(format!(
                "`{name}` must be from {least} to {MOST_TOKENS}, got `{value}`"
            ));
        }
    }
    let full = (line.input_length / BLOCK_TOKENS) as usize;
    if line.hash_ids.len() < full {
        return Err(format!(
            "`hash_ids` has `{}` blocks, and `input_length` {} needs at least {full}",
            line.hash_ids.len(),
            line.input_length
        ));
    }
    Ok(())
}

/// What serde says, without its place in what is only one line of the file.
fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}
