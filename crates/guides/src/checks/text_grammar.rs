//! Grammars of custom tools: Lark or a regular expression that a text must match as a whole. Owns their matching,
//! byte by byte as the text comes; what becomes of a text that does not match is the answer's.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use inflight_openai::ApiError;
use inflight_openai::chat::{GrammarSyntax, InputGrammar};
use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::compile;

/// The time that all texts of a request may take together. Most texts take some milliseconds.
const BUDGET: Duration = Duration::from_secs(1);
/// What the matcher says of a grammar with more ways to continue than it follows.
const TOO_MANY_WAYS: &str = "max is";

/// A grammar, which is compiled before its first text.
pub struct TextGrammar {
    grammar: InputGrammar,
    /// Each text is matched by a copy.
    compiled: OnceLock<Mutex<Matcher>>,
    /// Nanoseconds that its texts took so far.
    spent: Arc<AtomicU64>,
}

impl TextGrammar {
    pub fn new(grammar: &InputGrammar) -> Self {
        Self {
            grammar: grammar.clone(),
            compiled: OnceLock::new(),
            spent: Arc::default(),
        }
    }

    /// # Errors
    /// 400: it cannot be followed.
    pub(super) fn compile(&self) -> Result<(), ApiError> {
        let InputGrammar {
            syntax, definition, ..
        } = &self.grammar;
        let compiled = match syntax {
            GrammarSyntax::Lark => compile::lark_matcher(definition),
            GrammarSyntax::Regex => {
                compile::matcher(|| TopLevelGrammar::from_regex(self.grammar.unanchored()))
            }
        };
        let compiled =
            compiled.map_err(|problem| self.refused(&format!("cannot be followed: {problem}")))?;
        self.compiled.get_or_init(|| Mutex::new(compiled));
        Ok(())
    }

    /// 400: the compiler panicked.
    pub(super) fn unread(&self) -> ApiError {
        self.refused("cannot be read")
    }

    fn refused(&self, problem: &str) -> ApiError {
        let param = &self.grammar.param;
        let what = match self.grammar.syntax {
            GrammarSyntax::Lark => "grammar",
            GrammarSyntax::Regex => "regular expression",
        };
        ApiError::invalid_request(
            param.clone(),
            format!(
                "Invalid value for `{param}`. The {what} {problem}. Change it there and retry."
            ),
        )
    }

    /// A match of a new text; one that fails if the grammar was never compiled.
    pub fn begin(&self) -> TextMatch {
        let compiled = self.compiled.get();
        TextMatch {
            matcher: compiled.map(|compiled| compiled.lock().deep_clone()),
            spent: Arc::clone(&self.spent),
        }
    }
}

impl fmt::Debug for TextGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextGrammar")
            .field("grammar", &self.grammar)
            .field("is_compiled", &self.compiled.get().is_some())
            .finish()
    }
}

/// How a text matches so far.
pub struct TextMatch {
    /// `None`: it does not.
    matcher: Option<Matcher>,
    spent: Arc<AtomicU64>,
}

/// What is known of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It may match yet.
    May,
    Never,
    /// Nobody knows: the grammar is so ambiguous that checking it takes too long.
    Unknown,
}

impl TextMatch {
    /// Takes more of the text.
    pub fn push(&mut self, text: &str) -> Fit {
        let Some(matcher) = &mut self.matcher else {
            return Fit::Never;
        };
        let begun = Instant::now();
        // The tokens of this matcher are bytes.
        let mut bytes = text.bytes().map(u32::from);
        let fits = bytes.all(|byte| matcher.consume_token(byte).is_ok());
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let spent = self.spent.fetch_add(took, Ordering::Relaxed);
        let is_late = u128::from(spent) + u128::from(took) > BUDGET.as_nanos();
        let fit = match matcher.get_error() {
            _ if is_late => Fit::Unknown,
            _ if fits => Fit::May,
            Some(error) if error.contains(TOO_MANY_WAYS) => Fit::Unknown,
            _ => Fit::Never,
        };
        if fit != Fit::May {
            self.matcher = None;
        }
        fit
    }

    /// Whether the text matches as it is.
    pub fn is_whole(&mut self) -> bool {
        let matcher = self.matcher.as_mut();
        matcher.is_some_and(|matcher| matcher.is_accepting().unwrap_or(false))
    }
}

impl fmt::Debug for TextMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextMatch")
            .field("matches", &self.matcher.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(syntax: GrammarSyntax, definition: &str) -> TextGrammar {
        TextGrammar::new(&InputGrammar {
            syntax,
            definition: definition.to_owned(),
            param: "tools[0].format.definition".to_owned(),
        })
    }

    const SUM: &str =
        "start: term (\"+\" term)*\nterm: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]+/";

    #[test]
    fn texts_match_as_a_whole_or_not() {
        use GrammarSyntax::{Lark, Regex};
        for (syntax, definition, text, expected) in [
            (Lark, SUM, "1+(2+33)", true),
            (Lark, SUM, "1", true),
            (Lark, SUM, "1+", false),
            (Lark, SUM, "", false),
            (Lark, SUM, "1-2", false),
            (Lark, SUM, "(1)(2)", false),
            (Lark, "start: \"ä\\n\"", "ä\n", true),
            (Lark, "start: \"a\"", "ab", false),
            (Regex, "[a-c]{2}", "ab", true),
            (Regex, "[a-c]{2}", "abc", false),
            (Regex, "^a|b$", "b", true),
            (Regex, "a/b", "a/b", true),
            (Regex, "^a\\$", "a$", true),
            (Regex, "(?i)yes", "YES", true),
        ] {
            let grammar = grammar(syntax, definition);
            grammar.compile().unwrap();
            for pieces in [vec![text], text.split_inclusive(|_: char| true).collect()] {
                let mut found = grammar.begin();
                pieces.iter().all(|piece| found.push(piece) == Fit::May);
                assert_eq!(found.is_whole(), expected, "{definition}: {text}");
            }
        }
    }

    #[test]
    fn what_cannot_be_compiled_is_named() {
        for (syntax, definition) in [
            (GrammarSyntax::Lark, "start: nothing"),
            (GrammarSyntax::Lark, ""),
            (GrammarSyntax::Lark, "start: ("),
            (GrammarSyntax::Regex, "(a"),
            (GrammarSyntax::Regex, "a(?=b)"),
        ] {
            let grammar = grammar(syntax, definition);
            let error = grammar.compile().unwrap_err();
            let param = error.param.as_deref();
            assert_eq!(param, Some("tools[0].format.definition"), "{definition}");
            assert_eq!(grammar.begin().push("a"), Fit::Never);
        }
    }

    #[test]
    fn a_grammar_that_is_too_ambiguous_to_check_says_so() {
        let ambiguous = "start: a\na: a a a | a a | /(.|\\n)/ | \"\"";
        let grammar = grammar(GrammarSyntax::Lark, ambiguous);
        grammar.compile().unwrap();
        let mut found = grammar.begin();
        let fits: Vec<_> = (0..2000).map(|_| found.push("x")).collect();
        let first = fits.iter().position(|fit| *fit != Fit::May).unwrap();
        assert_eq!(fits[first], Fit::Unknown);
        assert!(!found.is_whole());
    }
}
