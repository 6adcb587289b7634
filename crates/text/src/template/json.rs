//! The `tojson` filter as transformers defines it: Python's `json.dumps` with `ensure_ascii` off and
//! no HTML escaping. Owns that text format, byte for byte; prompts depend on it.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Nesting that is written; a namespace can hold itself, so there must be an end.
const DEPTH_LIMIT: usize = 192;

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`; `sort_keys` by
/// name only.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    separators: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let option = |given: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let value = match given {
            Some(value) => Some(value),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = option(ensure_ascii, "ensure_ascii")?.is_some_and(|flag| flag.is_true());
    let indent = option(indent, "indent")?
        .map(|width| indentation(&width))
        .transpose()?;
    let separators = option(separators, "separators")?;
    let sort_keys = option(None, "sort_keys")?.is_some_and(|flag| flag.is_true());
    named.assert_all_used()?;

    let (item, key) = match separators {
        Some(pair) => (part(&pair, 0)?, part(&pair, 1)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        text: String::new(),
        ensure_ascii,
        indent,
        item,
        key,
        sort_keys,
    };
    writer.value(value, 0)?;
    Ok(writer.text)
}

/// An indent is a number of spaces or the text itself.
fn indentation(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let width = i64::try_from(value.clone())?.clamp(0, 64);
            Ok(" ".repeat(usize::try_from(width).unwrap_or(0)))
        }
    }
}

fn part(pair: &Value, index: usize) -> Result<String, Error> {
    pair.get_item_by_index(index)?
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                "separators must be two strings",
            )
        })
}

struct Writer {
    text: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_LIMIT {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                "the value given to tojson is nested too deeply",
            ));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self
                .text
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.block('[', ']', items.len(), depth, |writer, index| {
                    match items.get(index) {
                        Some(item) => writer.value(item, depth + 1),
                        None => Ok(()),
                    }
                })?;
            }
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("a value of type {kind} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            entries.push((key_text(&key)?, value.get_item(&key)?));
        }
        if self.sort_keys {
            entries.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.block('{', '}', entries.len(), depth, |writer, index| {
            let Some((key, value)) = entries.get(index) else {
                return Ok(());
            };
            writer.string(key);
            let separator = std::mem::take(&mut writer.key);
            writer.text.push_str(&separator);
            writer.key = separator;
            writer.value(value, depth + 1)
        })
    }

    /// Writes `count` entries between brackets, with separators and line breaks.
    fn block(
        &mut self,
        open: char,
        close: char,
        count: usize,
        depth: usize,
        mut entry: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(open);
        for index in 0..count {
            if index > 0 {
                self.text.push_str(&self.item);
            }
            self.line(depth + 1);
            entry(self, index)?;
        }
        if count > 0 {
            self.line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            for _ in 0..depth {
                self.text.push_str(indent);
            }
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.text.push_str(&value.to_string());
        } else {
            self.text
                .push_str(&float_text(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(character),
                '\u{7f}'.. if self.ensure_ascii => self.escape(character),
                other => self.text.push(other),
            }
        }
        self.text.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.text.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

/// Python's text of a key that is not a string.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(float_text(f64::try_from(key.clone())?)),
        kind => Err(Error::new(
            ErrorKind::BadSerialization,
            format!("a key of type {kind} is not JSON"),
        )),
    }
}

/// Python's `repr` of a float: the shortest digits, an exponent below 1e-4 and from 1e16.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        return match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        };
    }
    let text = value.to_string();
    if text.contains('.') {
        text
    } else {
        format!("{text}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::float_text;

    #[test]
    fn floats_are_written_as_python_does() {
        // What json.dumps prints for each.
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.5, "1.5"),
            (100.0, "100.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e-7, "1.25e-07"),
            (1e100, "1e+100"),
        ];
        for (value, expected) in cases {
            assert_eq!(float_text(value), expected);
        }
    }
}
