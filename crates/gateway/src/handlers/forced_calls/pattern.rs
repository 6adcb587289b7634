//! Calls of formats whose arguments are no JSON, as regular expressions, which every executor that guides can follow.
//! Owns how a schema becomes one, for the values of JSON, of Python and of XML; pure.
//!
//! A schema that says more than these expressions can is not guided: its calls are checked when they are there.

use inflight_openai::chat::FunctionTool;
use inflight_parsers::ToolFormat;
use serde_json::{Map, Value};

/// Bytes of an expression: its automaton is built for each worker.
const MAX_PATTERN: usize = 16 * 1024;
const MAX_DEPTH: u32 = 12;
/// Repetitions are counted in the automaton.
const MAX_COUNT: u64 = 1000;

/// What a schema may have besides what is read: it says nothing about a value, or allows more than is written.
const WORDS: [&str; 10] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
];

/// How a format writes a call; the name comes behind `begin`.
pub(super) struct Written {
    pub begin: &'static str,
    pub end: &'static str,
    style: Style,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// `name>\n<parameter=key>\nvalue\n</parameter>\n`
    Qwen,
    /// `name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n`
    Glm,
    /// `name(key=value, …)`
    Python,
}

/// How a format writes calls that a pattern can guide; `None`: there is no such pattern.
pub(super) fn written(format: ToolFormat) -> Option<Written> {
    let (begin, end, style) = match format {
        ToolFormat::Qwen3Coder => (
            "<tool_call>\n<function=",
            "</function>\n</tool_call>",
            Style::Qwen,
        ),
        ToolFormat::Glm45 => ("<tool_call>", "</tool_call>", Style::Glm),
        ToolFormat::Pythonic => ("[", "]", Style::Python),
        _ => return None,
    };
    Some(Written { begin, end, style })
}

impl Written {
    /// What is between `begin` and `end` in a call of one of these functions.
    pub(super) fn calls(&self, functions: &[FunctionTool]) -> Option<String> {
        let calls = functions.iter().map(|function| self.call(function));
        let pattern = either(calls.collect::<Option<_>>()?);
        (pattern.len() <= MAX_PATTERN).then_some(pattern)
    }

    fn call(&self, function: &FunctionTool) -> Option<String> {
        let schema = function.schema();
        let reader = Reader {
            root: &schema,
            is_python: self.style == Style::Python,
        };
        let members = reader.members(&schema, 0)?;
        let name = escaped(&function.name);
        if self.style == Style::Python {
            let list = list(members.map(|(key, value, required)| {
                is_identifier(key)
                    .then(|| Some((format!("{key}={}", reader.value(value, 1)?), required)))?
            }))?;
            return Some(format!("{name}\\({list}\\)"));
        }
        let mut pattern = name;
        pattern.push_str(if self.style == Style::Qwen {
            ">\n"
        } else {
            "\n"
        });
        for (key, value, required) in members {
            if !is_identifier(key) {
                return None;
            }
            let one = match self.style {
                Style::Qwen => {
                    let value = reader.text(value, "</parameter>")?;
                    format!("<parameter={key}>\n{value}\n</parameter>\n")
                }
                _ => {
                    let value = reader.text(value, "</arg_value>")?;
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
                }
            };
            match required {
                true => pattern.push_str(&one),
                false => pattern.push_str(&format!("(?:{one})?")),
            }
        }
        Some(pattern)
    }
}

/// Reads one schema.
struct Reader<'a> {
    root: &'a Value,
    /// Whether values are Python's literals, not JSON's.
    is_python: bool,
}

impl<'a> Reader<'a> {
    /// The properties of an object: names, schemas, and whether they are required.
    fn members(
        &self,
        schema: &'a Value,
        depth: u32,
    ) -> Option<impl Iterator<Item = (&'a str, &'a Value, bool)> + use<'a>> {
        let schema = self.resolved(schema, depth)?;
        says_only(schema, &["type", "properties", "required"])?;
        if schema.get("type").is_some_and(|name| name != "object") {
            return None;
        }
        let no_names = &[][..];
        let required = match schema.get("required") {
            Some(names) => names.as_array()?.as_slice(),
            None => no_names,
        };
        let properties = schema.get("properties").and_then(Value::as_object);
        let is_known = |name: &Value| {
            let name = name.as_str();
            name.zip(properties)
                .is_some_and(|(name, all)| all.contains_key(name))
        };
        if !required.iter().all(is_known) {
            return None;
        }
        let properties = properties.into_iter().flatten();
        Some(properties.map(move |(name, schema)| {
            let is_required = required.iter().any(|required| required == name.as_str());
            (name.as_str(), schema, is_required)
        }))
    }

    /// The schema that references lead to.
    fn resolved(&self, mut schema: &'a Value, depth: u32) -> Option<&'a Map<String, Value>> {
        for _ in depth..MAX_DEPTH {
            let object = schema.as_object()?;
            let Some(pointer) = object.get("$ref") else {
                return Some(object);
            };
            says_only(object, &["$ref"])?;
            schema = self.root.pointer(pointer.as_str()?.strip_prefix('#')?)?;
        }
        None
    }

    /// A value as XML has it: a string as it is, anything else as JSON. `end` is what may not be in it.
    fn text(&self, schema: &'a Value, end: &str) -> Option<String> {
        let object = self.resolved(schema, 0)?;
        if let Some(alternatives) = object.get("anyOf") {
            says_only(object, &["anyOf"])?;
            let alternatives = alternatives.as_array()?;
            let kinds = alternatives.iter().map(|one| {
                let kind = self.resolved(one, 1)?.get("type")?.as_str()?;
                // A text that reads as one of these is one; all others must differ in their first character.
                matches!(kind, "string" | "null" | "boolean").then_some(())
            });
            kinds.collect::<Option<()>>()?;
            let texts = alternatives.iter().map(|one| self.text(one, end));
            return Some(either(texts.collect::<Option<_>>()?));
        }
        if let Some(values) = constants(object) {
            says_only(object, &["type", "enum", "const"])?;
            let texts = values.iter().map(|value| match value.as_str() {
                Some(text) => is_plain(text).then(|| escaped(text)),
                None => self.literal(value),
            });
            // What reads as another type would become one.
            let is_mixed =
                values.iter().any(Value::is_string) && !values.iter().all(Value::is_string);
            return match is_mixed {
                true => None,
                false => Some(either(texts.collect::<Option<_>>()?)),
            };
        }
        match object.get("type")?.as_str()? {
            "string" => {
                says_only(object, &["type", "maxLength"])?;
                match object.get("maxLength") {
                    Some(most) => Some(format!("[^<]{{0,{}}}", count(most)?)),
                    None => Some(without(end)),
                }
            }
            _ => self.value(schema, 1),
        }
    }

    /// A value as a literal of JSON or Python.
    fn value(&self, schema: &'a Value, depth: u32) -> Option<String> {
        let object = self.resolved(schema, depth)?;
        if let Some(alternatives) = object.get("anyOf") {
            says_only(object, &["anyOf"])?;
            let each = alternatives.as_array()?.iter();
            let each = each.map(|one| self.value(one, depth + 1));
            return Some(either(each.collect::<Option<_>>()?));
        }
        if let Some(values) = constants(object) {
            says_only(object, &["type", "enum", "const"])?;
            let texts = values.iter().map(|value| self.literal(value));
            return Some(either(texts.collect::<Option<_>>()?));
        }
        let pattern = match object.get("type")?.as_str()? {
            "string" => {
                says_only(object, &["type", "maxLength"])?;
                let count = match object.get("maxLength") {
                    Some(most) => format!("{{0,{}}}", count(most)?),
                    None => "*".to_owned(),
                };
                format!(r#""(?:[^"\\\x00-\x1f\x7f]|\\["\\nrt]){count}""#)
            }
            "integer" => {
                says_only(object, &["type"])?;
                "-?(?:0|[1-9][0-9]{0,14})".to_owned()
            }
            "number" => {
                says_only(object, &["type"])?;
                r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?".to_owned()
            }
            "boolean" => {
                says_only(object, &["type"])?;
                let words = [Value::Bool(true), Value::Bool(false)];
                either(
                    words
                        .iter()
                        .map(|word| self.literal(word))
                        .collect::<Option<_>>()?,
                )
            }
            "null" => {
                says_only(object, &["type"])?;
                self.literal(&Value::Null)?
            }
            "array" => {
                says_only(object, &["type", "items", "minItems", "maxItems"])?;
                let item = self.value(object.get("items")?, depth + 1)?;
                let least = object.get("minItems").map_or(Some(0), count)?;
                let most = object.get("maxItems").map_or(Some(MAX_COUNT), count)?;
                if least > most {
                    return None;
                }
                items(&item, least, object.get("maxItems").map(|_| most))
            }
            "object" => {
                let members = self.members(schema, depth)?;
                let list = list(members.map(|(key, value, required)| {
                    let key = escaped(&Value::from(key).to_string());
                    Some((
                        format!("{key}: {}", self.value(value, depth + 1)?),
                        required,
                    ))
                }))?;
                format!("\\{{{list}\\}}")
            }
            _ => return None,
        };
        (pattern.len() <= MAX_PATTERN).then_some(pattern)
    }

    /// A value that is known.
    fn literal(&self, value: &Value) -> Option<String> {
        Some(match value {
            Value::Bool(true) if self.is_python => "True".to_owned(),
            Value::Bool(false) if self.is_python => "False".to_owned(),
            Value::Null if self.is_python => "None".to_owned(),
            Value::Array(_) | Value::Object(_) => return None,
            // Escapes that only JSON has.
            Value::String(text) if self.is_python && text.chars().any(char::is_control) => {
                return None;
            }
            value => escaped(&value.to_string()),
        })
    }
}

/// The values of `enum` or `const`.
fn constants(schema: &Map<String, Value>) -> Option<&[Value]> {
    match schema.get("const") {
        Some(value) => Some(std::slice::from_ref(value)),
        None => Some(schema.get("enum")?.as_array()?.as_slice()),
    }
}

/// Whether a schema has no keyword but these that would matter.
fn says_only(schema: &Map<String, Value>, known: &[&str]) -> Option<()> {
    let mut names = schema.keys().map(String::as_str);
    names
        .all(|name| known.contains(&name) || WORDS.contains(&name))
        .then_some(())
}

fn count(value: &Value) -> Option<u64> {
    value.as_u64().filter(|count| *count <= MAX_COUNT)
}

/// `least` to `most` items within brackets.
fn items(item: &str, least: u64, most: Option<u64>) -> String {
    let more = match most {
        Some(0) => return "\\[\\]".to_owned(),
        Some(most) => format!("(?:, {item}){{{},{}}}", least.saturating_sub(1), most - 1),
        None => format!("(?:, {item}){{{},}}", least.saturating_sub(1)),
    };
    match least {
        0 => format!("\\[(?:{item}{more})?\\]"),
        _ => format!("\\[{item}{more}\\]"),
    }
}

/// Members in their order with commas between them; those that are not required may be left out.
fn list(members: impl Iterator<Item = Option<(String, bool)>>) -> Option<String> {
    let members: Vec<(String, bool)> = members.collect::<Option<_>>()?;
    let behind = |members: &[(String, bool)]| -> String {
        let each = members.iter().map(|(member, required)| match required {
            true => format!(", {member}"),
            false => format!("(?:, {member})?"),
        });
        each.collect()
    };
    if let Some(first) = members.iter().position(|(_, required)| *required) {
        let (before, rest) = members.split_at_checked(first)?;
        let (first, rest) = rest.split_first()?;
        let before = before.iter().map(|(member, _)| format!("(?:{member}, )?"));
        let before: String = before.collect();
        return Some(format!("{before}{}{}", first.0, behind(rest)));
    }
    let starts = members.iter().enumerate().map(|(index, (member, _))| {
        let rest = members.get(index + 1..).unwrap_or_default();
        format!("{member}{}", behind(rest))
    });
    let starts: Vec<String> = starts.collect();
    let length: usize = starts.iter().map(String::len).sum();
    match starts.is_empty() {
        true => Some(String::new()),
        false => (length <= MAX_PATTERN).then(|| format!("(?:{})?", either(starts))),
    }
}

fn either(patterns: Vec<String>) -> String {
    format!("(?:{})", patterns.join("|"))
}

/// Any text in which `end` does not occur. `end` starts with `<` and has no other.
fn without(end: &str) -> String {
    let mut behind = String::new();
    for character in end.chars().skip(1).collect::<Vec<_>>().into_iter().rev() {
        let goes_on = match behind.as_str() {
            "" => String::new(),
            behind => format!("|{character}{behind}"),
        };
        behind = format!("(?:[^<{character}][^<]*{goes_on})?");
    }
    format!("[^<]*(?:<{behind})*")
}

/// Whether a text can be in XML as it is, and keeps its edges.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.contains('<') && text.trim() == text
}

/// Whether a key can be written in every format.
fn is_identifier(key: &str) -> bool {
    let mut bytes = key.bytes();
    let first = bytes.next();
    first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A text as an expression that matches nothing else.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\.+*?()|[]{}^$".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests;
