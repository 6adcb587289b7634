//! Splits a model's generated text, while it arrives, into reasoning, content and tool calls.
//!
//! Owns the ways in which models write these: one state machine per format. Knows nothing of OpenAI, tokens or
//! servers: text in, deltas out. Nothing here waits, locks or fails.
//!
//! # How to use it
//!
//! 1. Find the [`Format`] of a model once: [`detect()`] reads its chat template; [`ToolFormat`] and
//!    [`ReasoningFormat`] parse from the names that vLLM uses.
//! 2. Once per request, compile the request's tools into [`Tools`]; all choices share it. A request without tools
//!    leaves `format.tools` out, so that its text is never searched for calls.
//! 3. Make the detokenizer show the format's [`special_markers`](Format::special_markers): they are special tokens,
//!    which `skip_special_tokens` would drop before the parser could see them. All other special tokens stay dropped.
//!    A marker that the tokenizer does not have as a special token needs nothing.
//! 4. One [`AnswerParser`] per choice: [`push`](AnswerParser::push) each piece of text,
//!    [`finish`](AnswerParser::finish) at the end. [`Deltas`] is a buffer to be cleared and reused: after the first
//!    few tokens nothing is allocated. Stop strings come before the parser.
//!
//! ```
//! use inflight_parsers::{AnswerParser, Delta, Deltas, Format, ParserOptions, ReasoningFormat, ToolFormat};
//!
//! let format = Format {
//!     tools: Some(ToolFormat::Hermes),
//!     reasoning: Some(ReasoningFormat::Think),
//! };
//! let mut parser = AnswerParser::new(format, ParserOptions::default());
//! let mut deltas = Deltas::default();
//! parser.push("<think>Paris, then.</think>\n\n<tool_call>\n{\"name\": \"weather\", \"argum", &mut deltas);
//! parser.push("ents\": {\"city\": \"Paris\"}}\n</tool_call>", &mut deltas);
//! parser.finish(&mut deltas);
//! assert_eq!(
//!     deltas.iter().collect::<Vec<_>>(),
//!     [
//!         Delta::Reasoning("Paris, then."),
//!         Delta::CallBegin { index: 0, id: None, name: "weather" },
//!         Delta::CallArguments { index: 0, json: "{\"city\": \"Paris\"}" },
//!         Delta::CallEnd { index: 0, is_complete: true },
//!     ]
//! );
//! ```
//!
//! # What is promised
//!
//! - The deltas, put together, do not depend on where the text was cut. Time is linear in the text, and memory is
//!   bounded.
//! - Held back is only what could still become a marker, a call whose name is not known yet, and white space at an
//!   edge (below). A delta never ends within a JSON escape or between the two halves of a surrogate pair.
//! - The arguments of a call that ended with `is_complete` are one JSON object. White space and key order are the
//!   model's own; a raw control character in a string, which JSON forbids, is escaped, and half of a surrogate pair
//!   is U+FFFD. Otherwise (`is_complete` is false: the model was cut, or wrote what is not valid) the deltas hold
//!   what was valid up to there.
//! - A call that turns out malformed **before** its [`Delta::CallBegin`] is content, every character of it. That
//!   includes a name that is not among the request's tools, a call past [`ParserOptions::max_calls`], and a call that
//!   the end of the answer cut. A call that turns out malformed **after** its `CallBegin` ends there with
//!   `is_complete: false`, and what follows is content.
//! - With [`ParserOptions::holds_calls`] a call goes out only when it is whole, and any other is content, every
//!   character of it. Only [`AnswerParser::cut`] lets out a part of one.
//! - Calls are numbered from 0 without gaps. Calls do not overlap: each ends before anything else comes.
//! - White space is formatting, and dropped: around reasoning; before the first call where no content came; between
//!   calls; and behind the last one. Every other character outside reasoning and calls is content.

mod arguments;
mod call_object;
mod deltas;
mod detect;
mod format;
mod formats;
mod json;
mod machine;
mod marker;
mod parser;
mod reasoning;
mod sink;
mod tools;
mod values;

pub use deltas::{Delta, Deltas};
pub use detect::detect;
pub use format::{CallIdForm, Format, ReasoningFormat, ToolFormat, UnknownFormat};
pub use parser::{AnswerParser, ParserOptions};
pub use tools::Tools;

/// The longest name of a function, key or id in bytes; a longer one makes the call malformed.
const MAX_NAME: usize = 256;

/// Bytes of a call that may be held back until its name is known.
const MAX_UNDECIDED: usize = 64 * 1024;

/// White space that is held at an edge; a longer run is not formatting.
const MAX_SPACE: usize = 1024;

/// Nesting of arguments; deeper ones are malformed, and common parsers refuse them too. At most 128: the scanners
/// keep one bit per level.
const MAX_DEPTH: u32 = 100;

/// JSON's white space, which is what models format with.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\n' | '\r' | '\t')
}

/// Splits a text; a position that is not within it, or within a character, takes all.
fn split(text: &str, at: usize) -> (&str, &str) {
    text.split_at_checked(at).unwrap_or((text, ""))
}

/// Splits a text at this position, or at the start of the character that is there.
fn split_near(text: &str, at: usize) -> (&str, &str) {
    let near = (0..4).filter_map(|back| text.split_at_checked(at.checked_sub(back)?));
    near.into_iter().next().unwrap_or((text, ""))
}

/// The text without its leading white space.
fn skip_space(text: &str) -> &str {
    text.trim_start_matches(is_space)
}
