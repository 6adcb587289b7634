//! What templates expect of Python: string methods, tests with Python's meaning, and the functions
//! that transformers adds. Owns the bridge to the template engine; knows nothing of conversations.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::clock::strftime_now;
use super::json::tojson;

/// The template's own refusal, found again in the chain of causes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(String);

impl Raised {
    pub(super) fn message(&self) -> &str {
        &self.0
    }
}

/// Adds everything to an environment.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", tojson);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    // Jinja counts strings and mappings as sequences and iterables; templates are written for that.
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            // A slice of a list is lazy here, and a list in Python.
            ValueKind::Seq | ValueKind::Iterable | ValueKind::String | ValueKind::Map
        )
    });
    environment.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq
                | ValueKind::Iterable
                | ValueKind::String
                | ValueKind::Map
                | ValueKind::Undefined
        )
    });
}

/// Jinja's `length`: what is undefined is empty.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    minijinja::filters::length(value)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Methods that the compatibility layer lacks; the rest is its own.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(match text.split_once(separator) {
                Some((before, after)) => triple(before, separator, after),
                None => triple(text, "", ""),
            })
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(match text.rsplit_once(separator) {
                Some((before, after)) => triple(before, separator, after),
                None => triple("", "", text),
            })
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            Ok(rsplit(text, separator, limit))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from((before, separator, after))
}

fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Value {
    let pieces = match limit.filter(|limit| *limit >= 0) {
        Some(limit) => usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_add(1),
        None => usize::MAX,
    };
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(pieces, separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while parts.len() + 1 < pieces
                && let Some((before, word)) = rest.rsplit_once(char::is_whitespace)
            {
                parts.push(word);
                rest = before.trim_end();
            }
            if !rest.is_empty() {
                parts.push(rest.trim_start());
            }
            parts.retain(|part| !part.is_empty());
            parts
        }
    };
    parts.reverse();
    parts.into_iter().map(Value::from).collect()
}
