//! Compiles schemas and regular expressions as the reference executor does, with llguidance and under the same
//! limits. What the compiler calls an error, or panics at, is a problem in words.

use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::ApproximateTokEnv;
use llguidance::{Logger, Matcher, ParserFactory};
use serde_json::Value;

/// Symbols of a compiled grammar: those of a thousand optional properties, which take a quarter of a second.
/// The reference executor has the same limit.
const MAX_GRAMMAR_SIZE: usize = 8_000;
/// Of a grammar that texts are matched with: 1 to 2 kB each, made as texts need them.
const MAX_LEXER_STATES: usize = 20_000;
/// Ways in which what was read of a text may continue, at each byte. Grammars for people need some ten; ambiguous
/// ones grow with the text, and so does the time that a byte takes.
const MAX_ITEMS_IN_ROW: usize = 200;
/// Bytes of a problem's words.
const MAX_WORDS: usize = 300;

/// Compiles a JSON schema.
///
/// # Errors
/// Why the schema cannot be followed, in one line without a final period.
pub(super) fn schema(schema: &Value) -> Result<(), String> {
    let mut schema = schema.clone();
    crate::close(&mut schema).map_err(|problem| problem.to_string())?;
    compile(TopLevelGrammar::from_json_schema(schema))
}

/// Compiles a regular expression.
///
/// # Errors
/// As for [`schema`].
pub(super) fn regex(text: &str) -> Result<(), String> {
    let grammar = catch_unwind(AssertUnwindSafe(|| Ok(TopLevelGrammar::from_regex(text))));
    compile(grammar.map_err(|error| words(&error.to_string()))?)
}

/// Compiles a Lark grammar that a text is held to, byte by byte.
///
/// # Errors
/// As for [`schema`].
pub(super) fn lark_matcher(grammar: &str) -> Result<Matcher, String> {
    crate::check_lark(grammar).map_err(|problem| problem.to_string())?;
    matcher(|| TopLevelGrammar::from_lark(grammar.to_owned()))
}

/// Compiles a grammar that a text is held to, byte by byte; one of Lark is [`lark_matcher`]'s.
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

/// The compiler's first line, bounded, and nothing of its internals.
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
