//! Traces of requests, in JSON lines as Mooncake and AIPerf have them. Owns their form and the token ids of their
//! prompts: equal hashes give equal tokens, so that a replay finds the prefixes that the trace shared. Sends
//! nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Tokens of a block of a trace, which has a hash for each.
const BLOCK_TOKENS: f64 = 512.0;
const MAX_REQUESTS: usize = 100_000;
const MAX_TOKENS: u32 = 10_000_000;
/// A trace of more time is not replayed.
const MAX_MILLISECONDS: f64 = 1e9;
/// The group of a row that names none.
const DEFAULT_GROUP: &str = "requests";

/// How a trace becomes requests.
#[derive(Clone, Debug)]
pub(crate) struct TraceOptions {
    /// Lengths are multiplied by this.
    pub(crate) length_scale: f64,
    /// The trace's time passes so many times as fast.
    pub(crate) speed: f64,
    /// Token ids are below this.
    pub(crate) vocab_size: u32,
    /// Another seed, other tokens.
    pub(crate) seed: u64,
    /// Only so many, the first ones.
    pub(crate) requests: Option<usize>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// After the start of the run.
    pub(crate) due: Duration,
    pub(crate) prompt: Vec<u32>,
    /// Tokens that it asks for.
    pub(crate) tokens: u32,
    /// Requests of a group are reported together.
    pub(crate) group: String,
    /// Instead of the run's.
    pub(crate) model: Option<String>,
}

/// Why a file is not a trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("the trace `{path}` cannot be read")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("line {line} of `{path}` is not a request of a trace")]
    Row {
        path: PathBuf,
        line: usize,
        source: serde_json::Error,
    },
    #[error("line {line} of `{path}`: `{field}` is `{value}`, but must be from {least} to {most}")]
    Range {
        path: PathBuf,
        line: usize,
        field: &'static str,
        value: f64,
        least: f64,
        most: f64,
    },
    #[error("the trace `{path}` has no requests")]
    Empty { path: PathBuf },
    #[error(
        "the trace `{path}` has more than {MAX_REQUESTS} requests; limit them with `--requests`"
    )]
    TooLong { path: PathBuf },
}

#[derive(Debug, Deserialize)]
struct Row {
    /// Milliseconds.
    #[serde(default)]
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    group: Option<String>,
    model: Option<String>,
}

/// The requests of a file, by the time when they are due.
pub(crate) fn read(path: &Path, options: &TraceOptions) -> Result<Vec<Planned>, TraceError> {
    let text = std::fs::read_to_string(path).map_err(|source| TraceError::Read {
        path: path.to_owned(),
        source,
    })?;
    let most = options.requests.unwrap_or(MAX_REQUESTS + 1);
    let lines = text.lines().enumerate();
    let rows = lines.filter(|(_, line)| !line.trim().is_empty()).take(most);
    let mut found = Vec::new();
    for (index, line) in rows {
        if found.len() == MAX_REQUESTS {
            return Err(TraceError::TooLong {
                path: path.to_owned(),
            });
        }
        let number = index + 1;
        let row: Row = serde_json::from_str(line).map_err(|source| TraceError::Row {
            path: path.to_owned(),
            line: number,
            source,
        })?;
        let tokens = (1.0, f64::from(MAX_TOKENS));
        for (field, value, (least, most)) in [
            ("timestamp", row.timestamp, (0.0, MAX_MILLISECONDS)),
            ("input_length", f64::from(row.input_length), tokens),
            ("output_length", f64::from(row.output_length), tokens),
        ] {
            if !(least..=most).contains(&value) {
                return Err(TraceError::Range {
                    path: path.to_owned(),
                    line: number,
                    field,
                    value,
                    least,
                    most,
                });
            }
        }
        found.push(planned(row, index as u64, options));
    }
    if found.is_empty() {
        return Err(TraceError::Empty {
            path: path.to_owned(),
        });
    }
    found.sort_by_key(|one| one.due);
    Ok(found)
}

fn planned(row: Row, index: u64, options: &TraceOptions) -> Planned {
    let scaled = |length: f64| ((length * options.length_scale).round() as usize).max(1);
    let (length, block) = (scaled(f64::from(row.input_length)), scaled(BLOCK_TOKENS));
    let mut prompt = Vec::with_capacity(length);
    // What the hashes do not cover is this request's alone.
    let hashes = row.hash_ids.iter().map(|hash| (*hash, 0));
    for (hash, kind) in hashes.chain(std::iter::repeat((index, 1))) {
        let first = if kind == 0 { 0 } else { prompt.len() };
        let room = length - prompt.len();
        let count = if kind == 0 { block.min(room) } else { room };
        let places = first..first + count;
        prompt.extend(places.map(|place| token(options, [kind, hash, place as u64])));
        if prompt.len() == length {
            break;
        }
    }
    Planned {
        due: Duration::from_secs_f64(row.timestamp / 1000.0 / options.speed),
        prompt,
        tokens: u32::try_from(scaled(f64::from(row.output_length))).unwrap_or(u32::MAX),
        group: row.group.unwrap_or_else(|| DEFAULT_GROUP.to_owned()),
        model: row.model,
    }
}

/// A token id that depends on the seed and these numbers only.
fn token(options: &TraceOptions, of: [u64; 3]) -> u32 {
    let mixed = of.iter().fold(options.seed, |state, number| {
        // SplitMix64's step.
        let mut z = (state ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    let id = mixed % u64::from(options.vocab_size.max(1));
    u32::try_from(id).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: TraceOptions = TraceOptions {
        length_scale: 1.0,
        speed: 1.0,
        vocab_size: 32_000,
        seed: 7,
        requests: None,
    };

    fn file(text: &str) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("inflight-trace-{}-{number}.jsonl", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    const TRACE: &str = r#"{"timestamp": 2000, "input_length": 1030, "output_length": 9, "hash_ids": [5, 6, 7]}
{"timestamp": 1000, "input_length": 700, "output_length": 8, "hash_ids": [5, 9], "group": "long"}

{"input_length": 20, "output_length": 7, "model": "adapter"}
"#;

    #[test]
    fn equal_hashes_give_equal_tokens() {
        let path = file(TRACE);
        let found = read(&path, &OPTIONS).unwrap();
        let lengths: Vec<_> = found.iter().map(|one| one.prompt.len()).collect();
        assert_eq!(lengths, [20, 700, 1030]);
        let due: Vec<_> = found.iter().map(|one| one.due.as_millis()).collect();
        assert_eq!(due, [0, 1000, 2000]);
        let groups: Vec<_> = found.iter().map(|one| one.group.as_str()).collect();
        assert_eq!(groups, [DEFAULT_GROUP, "long", DEFAULT_GROUP]);
        assert_eq!(found[0].model.as_deref(), Some("adapter"));
        assert_eq!(found[1].prompt[..512], found[2].prompt[..512]);
        assert_ne!(found[1].prompt[512..], found[2].prompt[512..700]);
        assert!(found[2].prompt.iter().all(|id| *id < 32_000));
        let other = TraceOptions { seed: 8, ..OPTIONS };
        assert_ne!(read(&path, &other).unwrap()[2].prompt, found[2].prompt);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn lengths_times_and_counts_are_scaled() {
        let path = file(TRACE);
        let options = TraceOptions {
            length_scale: 0.25,
            speed: 4.0,
            requests: Some(2),
            ..OPTIONS
        };
        let found = read(&path, &options).unwrap();
        let shapes: Vec<_> = found
            .iter()
            .map(|one| (one.due.as_millis(), one.prompt.len(), one.tokens))
            .collect();
        assert_eq!(shapes, [(250, 175, 2), (500, 258, 2)]);
        // A block has fewer tokens then.
        assert_eq!(found[0].prompt[..128], found[1].prompt[..128]);
        assert_ne!(found[0].prompt[128..175], found[1].prompt[128..175]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_said() {
        for (text, said) in [
            ("\n", "has no requests"),
            ("{}", "line 1"),
            (
                "{\"input_length\": 0, \"output_length\": 1}",
                "`input_length` is `0`",
            ),
            (
                "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
                "`timestamp` is `-1`",
            ),
        ] {
            let path = file(text);
            let error = read(&path, &OPTIONS).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            std::fs::remove_file(path).unwrap();
        }
        assert!(read(Path::new("/no/such/trace"), &OPTIONS).is_err());
    }
}
