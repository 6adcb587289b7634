//! Compiles schemas and regular expressions as the reference executor does, with llguidance and under the same
//! limits. What the compiler calls an error, or panics at, is a problem in words.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::Value;

/// Symbols of a compiled grammar: those of a thousand optional properties, which take a quarter of a second.
/// The reference executor has the same limit.
const MAX_GRAMMAR_SIZE: usize = 8_000;
/// Levels of JSON, references followed: the compiler follows them on its stack, and a worker's overflows at a
/// few thousand.
const MAX_DEPTH: usize = 200;
/// Of a grammar that texts are matched with: 1 to 2 kB each, made as texts need them.
const MAX_LEXER_STATES: usize = 20_000;
/// Ways in which what was read of a text may go on, at each byte. Grammars for people need some ten; ambiguous ones
/// grow with the text, and so does the time that a byte takes.
const MAX_ITEMS_IN_ROW: usize = 200;
/// Bytes of a problem's words.
const MAX_WORDS: usize = 300;

/// Compiles a JSON schema.
///
/// # Errors
/// Why the schema cannot be followed, in one line without a final period.
pub(super) fn schema(schema: &Value) -> Result<(), String> {
    if !is_shallow(schema) {
        return Err(format!("it is more than {MAX_DEPTH} levels deep"));
    }
    compile(TopLevelGrammar::from_json_schema(schema.clone()))
}

/// Compiles a regular expression.
///
/// # Errors
/// As for [`schema`].
pub(super) fn regex(text: &str) -> Result<(), String> {
    let grammar = catch_unwind(AssertUnwindSafe(|| Ok(TopLevelGrammar::from_regex(text))));
    compile(grammar.map_err(|error| words(&error.to_string()))?)
}

/// Compiles a grammar that a text is held to, byte by byte.
///
/// # Errors
/// As for [`schema`].
pub(super) fn matcher(grammar: impl FnOnce() -> TopLevelGrammar) -> Result<Matcher, String> {
    let made = catch_unwind(AssertUnwindSafe(|| {
        let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env())?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_grammar_size: MAX_GRAMMAR_SIZE,
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ITEMS_IN_ROW,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        factory.create_parser(grammar())
    }));
    made.map(|parser| Matcher::new(Ok(parser)))
        .map_err(|error| words(&error.to_string()))
}

fn compile(grammar: TopLevelGrammar) -> Result<(), String> {
    let limits = ParserLimits {
        max_grammar_size: MAX_GRAMMAR_SIZE,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    let compiled = catch_unwind(AssertUnwindSafe(|| {
        let grammar = GrammarInit::Serialized(grammar);
        grammar.to_cgrammar(None, &mut Logger::new(0, 0), limits, Vec::new())
    }));
    match compiled {
        Ok(_) => Ok(()),
        Err(error) => Err(words(&error.to_string())),
    }
}

/// Whether the compiler's stack holds the schema: what is nested in it, references followed.
fn is_shallow(schema: &Value) -> bool {
    let mut walk = Walk {
        root: schema,
        seen: HashMap::new(),
    };
    walk.depth(schema, 0).is_some()
}

struct Walk<'a> {
    root: &'a Value,
    /// How deep what a reference names is; 0 while it is being looked at.
    seen: HashMap<&'a str, usize>,
}

impl<'a> Walk<'a> {
    /// How deep `value` is, which itself is `level` deep; `None`: too deep.
    fn depth(&mut self, value: &'a Value, level: usize) -> Option<usize> {
        if level > MAX_DEPTH {
            return None;
        }
        let mut deepest = 0;
        match value {
            Value::Array(items) => {
                for item in items {
                    deepest = deepest.max(self.depth(item, level + 1)?);
                }
            }
            Value::Object(items) => {
                for (key, item) in items {
                    let depth = match item {
                        Value::String(name) if key == "$ref" => self.reference(name, level + 1)?,
                        item => self.depth(item, level + 1)?,
                    };
                    deepest = deepest.max(depth);
                }
            }
            _ => return Some(0),
        }
        Some(deepest + 1)
    }

    fn reference(&mut self, name: &'a str, level: usize) -> Option<usize> {
        if let Some(depth) = self.seen.get(name) {
            return (level + depth <= MAX_DEPTH).then_some(*depth);
        }
        let target = name
            .strip_prefix('#')
            .and_then(|path| self.root.pointer(path));
        let Some(target) = target else {
            return Some(0);
        };
        self.seen.insert(name, 0);
        let depth = self.depth(target, level)?;
        self.seen.insert(name, depth);
        Some(depth)
    }
}

/// The compiler's first line, bounded, and nothing of its own insides.
fn words(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    if line.starts_with("panic:") {
        return "the compiler cannot read it".to_owned();
    }
    let line = line.trim_end_matches('.');
    match line.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}
