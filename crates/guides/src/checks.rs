//! Checks guides before a worker sees them: a schema or a regular expression that cannot be followed is the
//! client's error, with the place in the schema. Owns the bounds of the work, which has separate threads, and a
//! memory of what was checked. Grammars are compiled by the worker alone: their notation is its own.

mod compile;
mod locate;
mod text_grammar;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_openai::{ApiError, Guide, GuideKind};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

pub use self::text_grammar::{Fit, TextGrammar, TextMatch};

/// Verdicts in each of the two generations that are remembered.
const REMEMBERED: usize = 1024;
/// Guides that are compiled at once. Most take milliseconds and some many seconds, so they have separate places,
/// and nothing but other guides waits for them.
const COMPILING: usize = 2;
/// How long a guide waits for such a place.
const PATIENCE: Duration = Duration::from_secs(5);

/// Many times what the deepest schema takes; only what is touched is memory.
const STACK: usize = 64 << 20;

type Key = [u8; 32];
/// `None`: it can be followed.
type Verdict = Option<ApiError>;

/// What was checked lately.
#[derive(Debug)]
pub struct Guides {
    memory: Mutex<Memory>,
    compiling: Arc<Semaphore>,
}

impl Default for Guides {
    fn default() -> Self {
        Self {
            memory: Mutex::default(),
            compiling: Arc::new(Semaphore::new(COMPILING)),
        }
    }
}

#[derive(Debug, Default)]
struct Memory {
    recent: HashMap<Key, Verdict>,
    older: HashMap<Key, Verdict>,
}

impl Memory {
    fn get(&mut self, key: &Key) -> Option<Verdict> {
        if let Some(verdict) = self.recent.get(key) {
            return Some(verdict.clone());
        }
        let verdict = self.older.remove(key)?;
        self.insert(*key, verdict.clone());
        Some(verdict)
    }

    fn insert(&mut self, key: Key, verdict: Verdict) {
        if self.recent.len() >= REMEMBERED {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, verdict);
    }
}

impl Guides {
    /// Checks a guide, on a separate thread unless its verdict is remembered.
    ///
    /// # Errors
    /// 400: it cannot be followed; 503 when other guides take too long.
    pub async fn check(&self, guide: &Guide) -> Result<(), ApiError> {
        let key = key(guide);
        let known = self.memory.lock().get(&key);
        let verdict = match known {
            Some(verdict) => verdict,
            None => {
                let guide = guide.clone();
                let work = move || Ok(verdict(&guide).err());
                let verdict = self.in_turn(work).await?;
                // What failed for want of a thread may pass next time.
                if verdict.as_ref().is_none_or(|error| error.status() == 400) {
                    self.memory.lock().insert(key, verdict.clone());
                }
                verdict
            }
        };
        verdict.map_or(Ok(()), Err)
    }

    /// Compiles the grammar of a custom tool, on a separate thread.
    ///
    /// # Errors
    /// 400: it cannot be followed; 503 when other guides take too long.
    pub async fn compile(&self, grammar: &Arc<TextGrammar>) -> Result<(), ApiError> {
        let grammar = Arc::clone(grammar);
        let work = move || {
            on_a_deep_stack(|| grammar.compile()).unwrap_or_else(|Panicked| Err(grammar.unread()))
        };
        self.in_turn(work).await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.compiling).acquire_owned();
        let turn = tokio::time::timeout(PATIENCE, turn).await;
        let turn = turn.ok().and_then(Result::ok).ok_or_else(|| {
            let text =
                "The server is checking other schemas and grammars, which take long. Retry later.";
            ApiError::unavailable(text)
        })?;
        let done = inflight_base::blocking::run(move || {
            // Held until the work is done, also when the client has left meanwhile.
            let _turn = turn;
            work()
        });
        done.await.unwrap_or_else(|error| {
            tracing::error!(%error, "checking a guide failed");
            Err(ApiError::internal())
        })
    }
}

fn key(guide: &Guide) -> Key {
    let mut hash = Sha256::new();
    // The field is part of the verdict's words.
    for part in [guide.param, guide.kind.name(), &guide.text] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// The verdict, found on a thread that has a stack for it.
fn verdict(guide: &Guide) -> Result<(), ApiError> {
    on_a_deep_stack(|| judged(guide))
        .unwrap_or_else(|Panicked| Err(refused(guide, "The compiler cannot read it")))
}

/// The compiler ended in a panic.
struct Panicked;

/// What `work` gives, which runs on a separate thread.
#[allow(
    clippy::disallowed_methods,
    reason = "its caller waits for it: nothing else runs meanwhile"
)]
fn on_a_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, ApiError> + Send,
) -> Result<Result<T, ApiError>, Panicked> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().map_err(|_| Panicked),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread to check a guide");
                Ok(Err(ApiError::unavailable(
                    "The server cannot check the request now. Retry later.",
                )))
            }
        }
    })
}

fn judged(guide: &Guide) -> Result<(), ApiError> {
    match guide.kind {
        GuideKind::Grammar => Ok(()),
        GuideKind::Regex => compile::regex(&guide.text).map_err(|problem| {
            refused(
                guide,
                &format!("The regular expression cannot be followed: {problem}"),
            )
        }),
        GuideKind::JsonSchema => {
            let schema = parsed(guide)?;
            check_schema(guide, "", &schema)
        }
        GuideKind::StructuralTag => {
            let tags = parsed(guide)?;
            let structures = tags.get("structures").and_then(Value::as_array);
            for (index, structure) in structures.into_iter().flatten().enumerate() {
                if let Some(schema) = structure.get("schema") {
                    check_schema(guide, &format!("/structures/{index}/schema"), schema)?;
                }
            }
            if let Some(format) = tags.get("format") {
                check_format(guide, "/format", format)?;
            }
            Ok(())
        }
    }
}

/// Checks the schemas within a format of structural tags, whose depth parsing has bounded.
fn check_format(guide: &Guide, place: &str, format: &Value) -> Result<(), ApiError> {
    match format {
        Value::Object(parts) => {
            for (name, part) in parts {
                let place = format!("{place}/{name}");
                match name.as_str() {
                    "json_schema" => check_schema(guide, &place, part)?,
                    _ => check_format(guide, &place, part)?,
                }
            }
            Ok(())
        }
        Value::Array(parts) => {
            let mut parts = parts.iter().enumerate();
            parts.try_for_each(|(index, part)| {
                check_format(guide, &format!("{place}/{index}"), part)
            })
        }
        _ => Ok(()),
    }
}

fn parsed(guide: &Guide) -> Result<Value, ApiError> {
    serde_json::from_str(&guide.text)
        .map_err(|error| refused(guide, &format!("It is not JSON: {error}")))
}

/// `place`: where `schema` is in the field's value.
fn check_schema(guide: &Guide, place: &str, schema: &Value) -> Result<(), ApiError> {
    let Err(problem) = compile::schema(schema) else {
        return Ok(());
    };
    let pointer = format!("{place}{}", locate::find(schema, &problem));
    let text = match pointer.as_str() {
        "" => format!("The schema cannot be followed: {problem}"),
        pointer => format!("The schema cannot be followed at `{pointer}`: {problem}"),
    };
    Err(refused(guide, &text))
}

fn refused(guide: &Guide, text: &str) -> ApiError {
    ApiError::invalid_request(
        guide.param,
        format!(
            "Invalid value for `{}`. {text}. Change it there and retry.",
            guide.param
        ),
    )
}

#[cfg(test)]
mod tests;
