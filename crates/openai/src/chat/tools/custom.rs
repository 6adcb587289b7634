//! Custom tools: the model writes a text instead of JSON. Owns their fields, and the function that the model is
//! shown in their place: one with a string as its only argument. Whether a text matches a grammar is not known here.

use serde_json::{Value, json};

use super::{Form, FunctionTool};
use crate::bounds::MAX_SCHEMA_BYTES;
use crate::error::{ApiError, code};
use crate::reader::{self, Fields};

/// The argument that a custom tool's text is in, for the model.
pub const CUSTOM_INPUT: &str = "input";

/// What a custom tool's text must be.
#[derive(Clone, Debug, PartialEq)]
pub enum InputFormat {
    Text,
    Grammar(InputGrammar),
}

/// A grammar that a text must match as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct InputGrammar {
    pub syntax: GrammarSyntax,
    pub definition: String,
    /// The request's field, for errors.
    pub param: String,
}

/// How a grammar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarSyntax {
    Lark,
    Regex,
}

impl InputGrammar {
    /// A regular expression without the anchors that it may have: it is to match as a whole in any case.
    pub fn unanchored(&self) -> &str {
        let text = self.definition.as_str();
        let text = text.strip_prefix('^').unwrap_or(text);
        let inner = text.strip_suffix('$').unwrap_or(text);
        let backslashes = inner.len() - inner.trim_end_matches('\\').len();
        match backslashes % 2 {
            0 => inner,
            // The dollar is a letter.
            _ => text,
        }
    }
}

/// Reads what belongs to a custom tool, from its name to its format.
pub(super) fn read(mut fields: Fields<'_>, form: Form) -> Result<FunctionTool, ApiError> {
    let path = fields.path().to_owned();
    let name = fields.required_string("name")?;
    let description = fields.string("description")?;
    let format = match fields.take("format") {
        None => InputFormat::Text,
        Some(raw) => read_format(Fields::of_value(&fields.param("format"), raw)?, form)?,
    };
    let schema = schema(&format);
    let tool = FunctionTool::checked((&path, "format"), name, description, Some(schema), true)?;
    Ok(FunctionTool {
        custom: Some(format),
        ..tool
    })
}

fn read_format(mut format: Fields<'_>, form: Form) -> Result<InputFormat, ApiError> {
    let kind = format.required_string("type")?;
    match kind.as_str() {
        "text" => Ok(InputFormat::Text),
        "grammar" => read_grammar(form.inner(format, "grammar")?).map(InputFormat::Grammar),
        other => Err(unknown(&format, "type", other, "`text` or `grammar`")),
    }
}

fn read_grammar(mut grammar: Fields<'_>) -> Result<InputGrammar, ApiError> {
    let syntax = grammar.required_string("syntax")?;
    let syntax = match syntax.as_str() {
        "lark" => GrammarSyntax::Lark,
        "regex" => GrammarSyntax::Regex,
        other => return Err(unknown(&grammar, "syntax", other, "`lark` or `regex`")),
    };
    let definition = grammar.required_string("definition")?;
    let param = grammar.param("definition");
    if definition.len() > MAX_SCHEMA_BYTES {
        let message = format!(
            "Invalid value for `{param}`: the grammar has `{}` bytes. Send at most {MAX_SCHEMA_BYTES}.",
            definition.len()
        );
        return Err(ApiError::invalid_request(param, message).with_code(code::STRING_ABOVE));
    }
    Ok(InputGrammar {
        syntax,
        definition,
        param,
    })
}

fn unknown(fields: &Fields<'_>, name: &str, value: &str, expected: &str) -> ApiError {
    let param = fields.param(name);
    let message = format!(
        "Invalid value for `{param}`: `{}`. Send {expected}.",
        reader::shortened(value)
    );
    ApiError::invalid_request(param, message).with_code(code::INVALID_VALUE)
}

/// The schema of the function that the model is shown. A regular expression is part of it, so that it can guide; a
/// grammar is described in words.
fn schema(format: &InputFormat) -> Value {
    let mut input = json!({"type": "string"});
    if let InputFormat::Grammar(grammar) = format {
        match grammar.syntax {
            GrammarSyntax::Regex => {
                input["pattern"] = format!("^(?:{})$", grammar.unanchored()).into();
            }
            GrammarSyntax::Lark => {
                let text = &grammar.definition;
                input["description"] =
                    format!("A text that matches this Lark grammar:\n{text}").into();
            }
        }
    }
    json!({
        "type": "object",
        "properties": {CUSTOM_INPUT: input},
        "required": [CUSTOM_INPUT],
        "additionalProperties": false,
    })
}
