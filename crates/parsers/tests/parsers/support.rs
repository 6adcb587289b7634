//! Runs parsers over texts that are cut in many ways, and puts the deltas together again.

use std::sync::Arc;

use inflight_parsers::{AnswerParser, Delta, Deltas, Format, ParserOptions, Tools};

/// An answer, put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

/// A call, put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    pub(crate) arguments: String,
    pub(crate) is_complete: Option<bool>,
}

impl Answer {
    /// Adds deltas and checks their order.
    pub(crate) fn add(&mut self, deltas: &Deltas) {
        for delta in deltas.iter() {
            match delta {
                Delta::Reasoning(text) => {
                    assert!(!text.is_empty() && self.is_between_calls());
                    self.reasoning.push_str(text);
                }
                Delta::Content(text) => {
                    assert!(!text.is_empty() && self.is_between_calls());
                    self.content.push_str(text);
                }
                Delta::CallBegin { index, id, name } => {
                    assert!(self.is_between_calls(), "calls must not overlap");
                    assert_eq!(index, self.calls.len());
                    self.calls.push(Call {
                        id: id.map(str::to_owned),
                        name: name.to_owned(),
                        arguments: String::new(),
                        is_complete: None,
                    });
                }
                Delta::CallArguments { index, json } => {
                    assert!(!json.is_empty() && !self.is_between_calls());
                    assert!(is_cut_well(json), "{json:?}");
                    assert_eq!(index + 1, self.calls.len());
                    self.calls[index].arguments.push_str(json);
                }
                Delta::CallEnd { index, is_complete } => {
                    assert_eq!(index + 1, self.calls.len());
                    let before = self.calls[index].is_complete.replace(is_complete);
                    assert_eq!(before, None, "a call ends once");
                }
            }
        }
    }

    fn is_between_calls(&self) -> bool {
        self.calls
            .last()
            .is_none_or(|call| call.is_complete.is_some())
    }

    /// What must be true of every answer.
    pub(crate) fn check(&self) {
        for call in &self.calls {
            let arguments: Result<serde_json::Value, _> = serde_json::from_str(&call.arguments);
            match call.is_complete {
                None => panic!("the call does not end: {call:?}"),
                Some(true) => assert!(arguments.is_ok_and(|value| value.is_object()), "{call:?}"),
                Some(false) => {}
            }
        }
    }
}

/// Whether a delta ends between escapes: behind an even number of backslashes, and not within `\uXXXX`.
fn is_cut_well(json: &str) -> bool {
    let mut characters = json.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            match characters.next() {
                None => return false,
                Some('u') if characters.by_ref().take(4).count() < 4 => return false,
                Some(_) => {}
            }
        }
    }
    true
}

/// The tools of a request: names with their schemas.
pub(crate) fn tools(tools: &serde_json::Value) -> Arc<Tools> {
    let tools = tools.as_object().unwrap();
    Arc::new(Tools::new(tools.iter().map(|(name, schema)| {
        (
            name.as_str(),
            Some(schema).filter(|schema| !schema.is_null()),
        )
    })))
}

/// Parses these pieces.
pub(crate) fn parse<'a>(
    format: Format,
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let mut parser = AnswerParser::new(format, options.clone());
    let mut answer = Answer::default();
    let mut deltas = Deltas::default();
    for piece in pieces {
        deltas.clear();
        parser.push(piece, &mut deltas);
        answer.add(&deltas);
    }
    deltas.clear();
    parser.finish(&mut deltas);
    answer.add(&deltas);
    answer.check();
    answer
}

/// Pieces of `size` characters.
pub(crate) fn pieces(text: &str, size: usize) -> Vec<&str> {
    let starts: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .step_by(size)
        .collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &text[*start..end])
        .collect()
}

/// Parses a text whole, in pieces of every size, and cut once at every character; all must be the same.
pub(crate) fn parse_every_way(format: Format, options: &ParserOptions, text: &str) -> Answer {
    let whole = parse(format, options, [text]);
    let length = text.chars().count();
    for size in 1..=length.min(40) {
        assert_eq!(
            parse(format, options, pieces(text, size)),
            whole,
            "{text:?} by {size}"
        );
    }
    for (at, _) in text.char_indices() {
        let (before, behind) = text.split_at(at);
        assert_eq!(
            parse(format, options, [before, behind]),
            whole,
            "{before:?} | {behind:?}"
        );
    }
    whole
}
