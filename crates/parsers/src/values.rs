//! Arguments that are written as plain text, one parameter at a time: XML and GLM. Owns how a text becomes a JSON
//! value of a type that the tool's schema allows.
//!
//! A parameter that must be a string passes through as it arrives. One that may be something else is held until it
//! ends: it is JSON if the text is JSON or a Python literal of a type that the schema allows, and otherwise a string.
//! Where no schema is known every type is allowed, and what starts like no other value is a string at once.

use std::collections::HashSet;

use crate::formats::python;
use crate::json::{whole, write_escaped};
use crate::sink::Sink;
use crate::tools::Types;

/// The longest text of a value that is not known to be a string; a longer one is a string.
const MAX_VALUE: usize = 1024 * 1024;

/// Writes the object of a call's arguments.
#[derive(Clone, Debug)]
pub(crate) struct ObjectWriter {
    tool: String,
    keys: HashSet<String>,
}

impl ObjectWriter {
    /// Begins the call of this tool.
    pub(crate) fn begin(name: &str, sink: &mut Sink<'_>) -> Self {
        sink.begin(None, name);
        sink.arguments("{");
        Self {
            tool: name.to_owned(),
            keys: HashSet::new(),
        }
    }

    /// Writes a key; its value comes next.
    pub(crate) fn key(&mut self, key: &str, sink: &mut Sink<'_>) -> ValueWriter {
        if !self.keys.is_empty() {
            sink.arguments(", ");
        }
        self.keys.insert(key.to_owned());
        sink.arguments("\"");
        write_escaped(key, &mut |piece| sink.arguments(piece));
        sink.arguments("\": ");
        let types = sink
            .tools()
            .map_or(Types::ANY, |tools| tools.types(&self.tool, key));
        ValueWriter::new(types)
    }

    /// Whether a key within a value starts another parameter: the tool has it, and it was not written
    /// yet. Where the schema does not say, `is_likely` decides.
    pub(crate) fn may_follow(&self, key: &str, is_likely: bool, sink: &Sink<'_>) -> bool {
        let known = sink
            .tools()
            .and_then(|tools| tools.has_parameter(&self.tool, key));
        !self.keys.contains(key) && known.unwrap_or(is_likely)
    }

    /// Ends the call.
    pub(crate) fn end(&self, sink: &mut Sink<'_>) {
        sink.arguments("}");
        sink.end(true);
    }
}

/// Writes one value.
#[derive(Clone, Debug)]
pub(crate) struct ValueWriter {
    types: Types,
    /// What was read of a value that may not be a string; `None`: it is one, and its opening quote is written.
    held: Option<String>,
}

impl ValueWriter {
    fn new(types: Types) -> Self {
        Self {
            types,
            held: Some(String::new()),
        }
    }

    /// Follows what the model says of the value, a string or not, as far as the schema allows it.
    pub(crate) fn prefer_string(mut self, is_string: bool) -> Self {
        if is_string && self.types.contains(Types::STRING) {
            self.types = Types::STRING;
        } else if !is_string && self.types != Types::STRING {
            self.types = self.types.without(Types::STRING);
        }
        self
    }

    /// Takes the next piece of the value's text.
    pub(crate) fn push(&mut self, text: &str, sink: &mut Sink<'_>) {
        let Some(held) = &mut self.held else {
            return write_escaped(text, &mut |piece| sink.arguments(piece));
        };
        held.push_str(text);
        if self.is_string() {
            self.write_string(sink);
        }
    }

    /// Ends the value.
    pub(crate) fn end(mut self, sink: &mut Sink<'_>) {
        match self
            .held
            .as_deref()
            .and_then(|text| literal(text, self.types))
        {
            Some(json) => sink.arguments(&json),
            None => {
                self.write_string(sink);
                sink.arguments("\"");
            }
        }
    }

    /// Starts the string, if it has not been started.
    fn write_string(&mut self, sink: &mut Sink<'_>) {
        if let Some(held) = self.held.take() {
            sink.arguments("\"");
            write_escaped(&held, &mut |piece| sink.arguments(piece));
        }
    }

    /// Whether what is held can only be a string.
    fn is_string(&self) -> bool {
        let Some(held) = &self.held else {
            return true;
        };
        if self.types == Types::STRING || held.len() > MAX_VALUE {
            return true;
        }
        let first = crate::skip_space(held).bytes().next();
        self.types.contains(Types::STRING)
            && first.is_some_and(|byte| types_of(byte) == Types::STRING)
    }
}

/// The JSON of a text that is a value of one of these types, but not a plain string.
fn literal(text: &str, types: Types) -> Option<String> {
    let text = text.trim_matches(crate::is_space);
    if types == Types::STRING {
        return None;
    }
    let json = whole(text).or_else(|| python::to_json(text))?;
    let found = types_of(json.bytes().next()?);
    // Quotes around a string are its own where a string was asked for.
    let is_allowed = if found == Types::STRING {
        !types.contains(Types::STRING)
    } else {
        types.contains(found)
    };
    is_allowed.then_some(json)
}

/// The type of the value that starts with this byte, in JSON or Python: a string, if it can be no other.
fn types_of(first: u8) -> Types {
    match first {
        b'{' => Types::OBJECT,
        b'[' => Types::ARRAY,
        b't' | b'f' | b'T' | b'F' => Types::BOOLEAN,
        b'n' | b'N' => Types::NULL,
        b'0'..=b'9' | b'-' | b'+' | b'.' => Types::NUMBER,
        _ => Types::STRING,
    }
}
