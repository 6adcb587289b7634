//! Liquid's filters and its idea of truth, for the engine. Owns what each returns; which of them there are, and what
//! they are called in Liquid, is [`FILTERS`].

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Output, State, Value};

/// Liquid's names, the engine's, and how many arguments each takes at least and at most.
pub(super) const FILTERS: &[(&str, &str, usize, usize)] = &[
    ("append", "liquid_append", 1, 1),
    ("capitalize", "liquid_capitalize", 0, 0),
    ("default", "liquid_default", 1, 1),
    ("downcase", "lower", 0, 0),
    ("escape", "liquid_escape", 0, 0),
    ("first", "first", 0, 0),
    ("join", "join", 0, 1),
    ("last", "last", 0, 0),
    ("lstrip", "liquid_lstrip", 0, 0),
    ("minus", "liquid_minus", 1, 1),
    ("newline_to_br", "liquid_newline_to_br", 0, 0),
    ("plus", "liquid_plus", 1, 1),
    ("prepend", "liquid_prepend", 1, 1),
    ("remove", "liquid_remove", 1, 1),
    ("replace", "replace", 2, 2),
    ("reverse", "reverse", 0, 0),
    ("rstrip", "liquid_rstrip", 0, 0),
    ("size", "length", 0, 0),
    ("split", "liquid_split", 1, 1),
    ("strip", "trim", 0, 0),
    ("strip_newlines", "liquid_strip_newlines", 0, 0),
    ("upcase", "upper", 0, 0),
];

/// Makes a Liquid environment of the engine's.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_test("truthy", is_truthy);
    environment.add_test("containing", contains);
    environment.set_formatter(write);
    environment.add_filter("liquid_append", |a: String, b: String| a + &b);
    environment.add_filter("liquid_prepend", |a: String, b: String| b + &a);
    environment.add_filter("liquid_remove", |a: String, b: String| a.replace(&b, ""));
    environment.add_filter("liquid_capitalize", capitalize);
    environment.add_filter("liquid_default", default);
    environment.add_filter("liquid_escape", escape);
    environment.add_filter("liquid_lstrip", |a: String| a.trim_start().to_owned());
    environment.add_filter("liquid_rstrip", |a: String| a.trim_end().to_owned());
    environment.add_filter("liquid_minus", |a: i64, b: i64| a.saturating_sub(b));
    environment.add_filter("liquid_plus", |a: i64, b: i64| a.saturating_add(b));
    environment.add_filter("liquid_newline_to_br", |a: String| {
        a.replace('\n', "<br />\n")
    });
    environment.add_filter("liquid_split", split);
    environment.add_filter("liquid_strip_newlines", |a: String| {
        a.replace(['\r', '\n'], "")
    });
}

/// All but nil and false is true.
fn is_truthy(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => false,
        ValueKind::Bool => value.is_true(),
        _ => true,
    }
}

fn contains(whole: &Value, part: &Value) -> bool {
    match (whole.as_str(), whole.try_iter()) {
        (Some(text), _) => text.contains(&part.to_string()),
        (None, Ok(mut items)) => items.any(|item| item == *part),
        (None, Err(_)) => false,
    }
}

/// Nil is written as nothing.
fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.is_none() {
        true => Ok(()),
        false => minijinja::escape_formatter(out, state, value),
    }
}

/// Only the first letter changes.
fn capitalize(text: String) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase());
    first.into_iter().flatten().chain(letters).collect()
}

fn default(value: Value, other: Value) -> Value {
    match is_truthy(&value) && value.as_str() != Some("") {
        true => value,
        false => other,
    }
}

fn escape(text: String) -> String {
    let marks = [
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("\"", "&quot;"),
        ("'", "&#39;"),
    ];
    marks
        .iter()
        .fold(text, |text, (mark, name)| text.replace(mark, name))
}

fn split(text: String, by: String) -> Vec<String> {
    text.split(&by).map(str::to_owned).collect()
}
