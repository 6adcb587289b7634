//! What kind of value a field takes, as a JSON schema says it. Whatever else a value must be, its parser says.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

/// A kind of value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Boolean,
    /// Its least and greatest value.
    Integer(i64, i64),
    Number(&'static RangeInclusive<f64>),
    Text,
    OneOf(&'static [&'static str]),
    Object,
    Texts,
    Tokens,
    Objects,
    BooleanOrObject,
    ObjectOrText,
    TextOrTexts,
    TextOrObjects,
    TextsOrObjects,
    /// One text or several, or the same as tokens.
    TextsOrTokens,
    /// A word, or the function that is to be called.
    ToolChoice,
}

impl Kind {
    /// Its values, null aside.
    pub(super) fn schema(self) -> Value {
        let text = || json!({"type": "string"});
        let object = || json!({"type": "object"});
        let token = || json!({"type": "integer", "minimum": 0});
        let list = |items: Value| json!({"type": "array", "items": items});
        match self {
            Self::Boolean => json!({"type": "boolean"}),
            Self::Integer(least, greatest) => {
                json!({"type": "integer", "minimum": least, "maximum": greatest})
            }
            Self::Number(range) => {
                json!({"type": "number", "minimum": range.start(), "maximum": range.end()})
            }
            Self::Text => text(),
            Self::OneOf(words) => json!({"enum": words}),
            Self::Object => object(),
            Self::Texts => list(text()),
            Self::Tokens => list(token()),
            Self::Objects => list(object()),
            Self::BooleanOrObject => json!({"anyOf": [{"type": "boolean"}, object()]}),
            Self::ObjectOrText => json!({"anyOf": [object(), text()]}),
            Self::TextOrTexts => json!({"anyOf": [text(), list(text())]}),
            Self::TextOrObjects => json!({"anyOf": [
                text(), {"type": "array", "items": object(), "minItems": 1},
            ]}),
            Self::TextsOrObjects => list(json!({"anyOf": [text(), object()]})),
            Self::TextsOrTokens => json!({"anyOf": [
                text(), list(text()), list(token()), list(list(token())),
            ]}),
            Self::ToolChoice => {
                json!({"anyOf": [{"enum": ["none", "auto", "required"]}, object()]})
            }
        }
    }
}
