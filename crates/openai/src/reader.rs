//! Reads one JSON object field by field, without a tree of values: the object is split into raw fields
//! once, and each is parsed by what it should be. Owns the wording of type and range errors; which
//! fields there are is the parsers' and the table's. Other APIs' crates read their bodies with it.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::bounds::MAX_TOKEN_ID;
use crate::error::{ApiError, code};
use crate::fields::{self, Endpoint, Treatment};
use crate::ignored::IgnoredFields;

pub use crate::fields::nearest;
pub use crate::words::shortened;

/// Fields of one object, repeated names included. OpenAI has about 40; a body of millions of names
/// would take many times its size in memory, and time with the square of their number.
const MAX_FIELDS: usize = 128;
/// Entries of one map: `logit_bias` is the only one.
const MAX_ENTRIES: usize = 1_024;

/// The fields of one object that are not yet read.
/// ```
/// use inflight_openai::reader::Fields;
///
/// let mut fields = Fields::of_body(br#"{"top_k": 5}"#)?;
/// assert_eq!(fields.count("top_k", 0..=9)?, Some(5));
/// # Ok::<(), inflight_openai::ApiError>(())
/// ```
pub struct Fields<'a> {
    entries: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// What precedes a field's name in `param`: empty, or `messages[3].`.
    path: String,
}

/// An object's entries in their order; names may repeat.
struct Pairs<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Split;
        impl<'de> Visitor<'de> for Split {
            type Value = Pairs<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &RawValue>()? {
                    if pairs.len() == MAX_ENTRIES {
                        let most = format_args!("more than {MAX_ENTRIES} entries");
                        return Err(A::Error::custom(most));
                    }
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Split)
    }
}

/// Entries by name: of a repeated name the last value holds, as JSON parsers commonly have it.
fn distinct<'a>(
    path: &str,
    pairs: Pairs<'a>,
) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, ApiError> {
    if pairs.0.len() > MAX_FIELDS {
        let place = if path.is_empty() {
            "the request body"
        } else {
            path
        };
        let mut error = ApiError::invalid_body(format!(
            "Too many fields in `{place}`: `{}`. Send at most {MAX_FIELDS}.",
            pairs.0.len()
        ));
        error.param = (!path.is_empty()).then(|| path.to_owned());
        return Err(error);
    }
    let mut entries: Vec<(Cow<'a, str>, &'a RawValue)> = Vec::with_capacity(pairs.0.len());
    for (name, value) in pairs.0 {
        match entries.iter_mut().find(|(seen, _)| *seen == name) {
            Some(entry) => entry.1 = value,
            None => entries.push((name, value)),
        }
    }
    Ok(entries)
}

impl<'a> Fields<'a> {
    /// Splits a request body.
    pub fn of_body(body: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::invalid_body(format!(
                "The request body is not valid UTF-8 at byte `{}`. Send JSON in UTF-8.",
                error.valid_up_to()
            ))
        })?;
        if text.trim_ascii().is_empty() {
            return Err(ApiError::invalid_body(
                "The request body is empty. Send a JSON object.",
            ));
        }
        let pairs = serde_json::from_str(text).map_err(|error| {
            ApiError::invalid_body(if error.is_data() {
                format!("The request body must be a JSON object: {error}.")
            } else {
                format!("The request body is not valid JSON: {error}. Fix it there and retry.")
            })
        })?;
        Ok(Self {
            entries: distinct("", pairs)?,
            path: String::new(),
        })
    }

    /// Splits a value inside the body; `path` names it in errors.
    pub fn of_value(path: &str, raw: &'a RawValue) -> Result<Self, ApiError> {
        let pairs =
            serde_json::from_str(raw.get()).map_err(|_| wrong_type(path, "an object", raw))?;
        Ok(Self {
            entries: distinct(path, pairs)?,
            path: [path, "."].concat(),
        })
    }

    /// The field's `param`.
    pub fn param(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The path of the object itself: `messages[3]`, or nothing for the body.
    pub(crate) fn path(&self) -> &str {
        self.path.strip_suffix('.').unwrap_or_default()
    }

    /// Whether every field has been taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the field is there, null or not.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(seen, _)| seen == name)
    }

    /// A field that stays to be decided on; `None` if it is absent or null.
    pub(crate) fn peek(&self, name: &str) -> Option<&'a RawValue> {
        let (_, raw) = self.entries.iter().find(|(seen, _)| seen == name)?;
        (raw.get() != "null").then_some(*raw)
    }

    /// Refuses what the rows of this endpoint alone refuse, before a parser of shared fields takes it.
    pub(crate) fn refuse_own(&mut self, endpoint: Endpoint) -> Result<(), ApiError> {
        let mut refused = Ok(());
        let path = &self.path;
        self.entries.retain(|(name, raw)| {
            let Some(Treatment::Refused { neutral, hint, .. }) = fields::find(endpoint, name)
                .filter(|field| field.endpoint == endpoint)
                .map(|field| field.treatment)
            else {
                return true;
            };
            if !is_neutral(raw, neutral) && refused.is_ok() {
                refused = Err(unsupported(&format!("{path}{name}"), raw, hint));
            }
            false
        });
        refused
    }

    /// Takes a field; `None` if it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        let position = self.entries.iter().position(|(seen, _)| seen == name)?;
        let (_, raw) = self.entries.remove(position);
        (raw.get() != "null").then_some(raw)
    }

    /// Takes a field that must be there.
    pub fn require(&mut self, name: &str) -> Result<&'a RawValue, ApiError> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    /// The error of an absent field.
    pub fn missing(&self, name: &str) -> ApiError {
        let param = self.param(name);
        let message = format!("Missing required parameter: `{param}`. Add it to the request.");
        ApiError::invalid_request(param, message).with_code(code::MISSING)
    }

    /// Takes a field of a plain type.
    fn typed<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.take(name) else {
            return Ok(None);
        };
        match serde_json::from_str(raw.get()) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(wrong_type(&self.param(name), expected, raw)),
        }
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean")
    }

    /// Takes an object of any values.
    pub fn object(
        &mut self,
        name: &str,
    ) -> Result<Option<serde_json::Map<String, serde_json::Value>>, ApiError> {
        self.typed(name, "an object")
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string")
    }

    /// Takes a string that must be there.
    pub fn required_string(&mut self, name: &str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    /// Takes an integer in `range`.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.take(name) else {
            return Ok(None);
        };
        integer(&self.param(name), raw, range).map(Some)
    }

    /// Takes an integer in `range` that fits 32 bits without sign.
    pub fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, ApiError> {
        let wide = i64::from(*range.start())..=i64::from(*range.end());
        let value = self.integer(name, wide)?;
        Ok(value.and_then(|value| u32::try_from(value).ok()))
    }

    /// Takes a number in `range`.
    pub fn decimal(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(raw) = self.take(name) else {
            return Ok(None);
        };
        decimal(&self.param(name), raw, range).map(Some)
    }

    /// Takes a list, each element still raw.
    pub fn list(&mut self, name: &str, most: usize) -> Result<Option<Vec<&'a RawValue>>, ApiError> {
        let Some(raw) = self.take(name) else {
            return Ok(None);
        };
        list(&self.param(name), raw, most).map(Some)
    }

    /// Refuses what is left, where every field is known.
    ///
    /// # Errors
    /// 400: a field that no parser took.
    pub fn refuse_rest(self) -> Result<(), ApiError> {
        match self.rest().next() {
            None => Ok(()),
            Some((name, _)) => {
                let name = shortened(&name);
                let message = format!("Unknown parameter: `{name}`.");
                Err(ApiError::unsupported(name, message))
            }
        }
    }

    /// What is left: the fields that no parser took, with their values.
    pub fn rest(self) -> impl Iterator<Item = (Cow<'a, str>, &'a RawValue)> {
        self.entries.into_iter()
    }

    /// Reports the fields that are applied elsewhere and have no effect here.
    pub(crate) fn ignore_applied(&mut self, endpoint: Endpoint, ignored: &mut IgnoredFields) {
        self.entries.retain(|(name, raw)| {
            let field = fields::find(endpoint, name);
            let applied = field.is_some_and(|it| matches!(it.treatment, Treatment::Applied(_)));
            if applied && !is_neutral(raw, &[]) {
                ignored.push(name);
            }
            !applied
        });
    }

    /// Decides on every field that no parser took. `table_path` is what the table has before a name.
    pub(crate) fn finish(
        mut self,
        endpoint: Endpoint,
        table_path: &str,
        ignored: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let entries = std::mem::take(&mut self.entries);
        for (name, raw) in &entries {
            let full = format!("{table_path}{name}");
            match fields::find(endpoint, &full).map(|field| field.treatment) {
                // Applied but not taken: it was null.
                Some(Treatment::Applied(_)) => {}
                Some(Treatment::Ignored { neutral }) => {
                    if !is_neutral(raw, neutral) {
                        ignored.push(&full);
                    }
                }
                Some(Treatment::Refused {
                    neutral,
                    unless,
                    hint,
                }) => {
                    if is_neutral(raw, neutral) {
                        continue;
                    }
                    let excused = unless.is_some_and(|(other, value)| {
                        entries
                            .iter()
                            .any(|(seen, raw)| seen == other && raw.get() == value)
                    });
                    if excused {
                        ignored.push(&full);
                        continue;
                    }
                    return Err(unsupported(&self.param(name), raw, hint));
                }
                Some(Treatment::IgnoredUnlessString) => {
                    if !raw.get().starts_with('"') && !is_neutral(raw, &[]) {
                        ignored.push(&full);
                    }
                }
                None if is_neutral(raw, &[]) => {}
                None => match fields::meant(endpoint, &full).filter(|_| table_path.is_empty()) {
                    Some(meant) => return Err(unknown(&self.param(name), meant)),
                    None => ignored.push(&full),
                },
            }
        }
        Ok(())
    }
}

fn unsupported(param: &str, raw: &RawValue, hint: &str) -> ApiError {
    let message = format!(
        "Unsupported parameter: `{param}` is {}. {hint}",
        described(raw)
    );
    ApiError::unsupported(param, message)
}

/// The error of a field whose name is a typing error.
pub fn unknown(param: &str, meant: &str) -> ApiError {
    ApiError::unsupported(
        param,
        format!("Unknown parameter: `{param}`. Did you mean `{meant}`?"),
    )
}

/// Whether the value asks for nothing: null, empty, or one of `neutral` (as JSON).
pub fn is_neutral(raw: &RawValue, neutral: &[&str]) -> bool {
    let text = raw.get();
    // No neutral value is longer, spaces included, unless someone pads it on purpose.
    if text.len() > 256 {
        return false;
    }
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else {
        return false;
    };
    match &value {
        serde_json::Value::Null => return true,
        serde_json::Value::Array(items) if items.is_empty() => return true,
        serde_json::Value::Object(items) if items.is_empty() => return true,
        _ => {}
    }
    neutral
        .iter()
        .any(|text| serde_json::from_str::<serde_json::Value>(text).is_ok_and(|v| v == value))
}

/// Reads an integer in `range`; `2.0` counts as one, as JSON has no separate integers.
pub fn integer(param: &str, raw: &RawValue, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let text = raw.get();
    let (low, high) = (*range.start(), *range.end());
    let below = |shown| out_of_range(param, shown, low, high, code::INTEGER_BELOW);
    let above = |shown| out_of_range(param, shown, low, high, code::INTEGER_ABOVE);
    let value = match serde_json::from_str::<i64>(text) {
        Ok(value) => value,
        Err(_) => {
            let wide = any_number(raw).ok_or_else(|| wrong_type(param, "an integer", raw))?;
            if wide >= i64::MAX as f64 {
                return Err(above(shortened(text)));
            }
            // The smallest itself was read above; what rounds to it is below.
            if wide <= i64::MIN as f64 {
                return Err(below(shortened(text)));
            }
            if wide.fract() != 0.0 {
                return Err(wrong_type(param, "an integer", raw));
            }
            wide as i64
        }
    };
    if value < low {
        Err(below(shortened(text)))
    } else if value > high {
        Err(above(shortened(text)))
    } else {
        Ok(value)
    }
}

/// Reads the id of a token, of any vocabulary.
pub(crate) fn token_id(param: &str, raw: &RawValue) -> Result<u32, ApiError> {
    let value = integer(param, raw, 0..=i64::from(MAX_TOKEN_ID))?;
    Ok(u32::try_from(value).unwrap_or(MAX_TOKEN_ID))
}

/// Any JSON number; one beyond every float (`1e999`) is infinite.
fn any_number(raw: &RawValue) -> Option<f64> {
    match raw.get().as_bytes().first()? {
        b'-' | b'0'..=b'9' => raw.get().parse().ok(),
        _ => None,
    }
}

/// Reads a number in `range`.
pub fn decimal(param: &str, raw: &RawValue, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
    let text = raw.get();
    let value = any_number(raw).ok_or_else(|| wrong_type(param, "a number", raw))?;
    let (low, high) = (*range.start(), *range.end());
    if value < low {
        Err(out_of_range(
            param,
            shortened(text),
            low,
            high,
            code::DECIMAL_BELOW,
        ))
    } else if value > high {
        Err(out_of_range(
            param,
            shortened(text),
            low,
            high,
            code::DECIMAL_ABOVE,
        ))
    } else {
        Ok(value as f32)
    }
}

/// Reads a list of at most `most` raw elements.
pub fn list<'a>(
    param: &str,
    raw: &'a RawValue,
    most: usize,
) -> Result<Vec<&'a RawValue>, ApiError> {
    let items: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| wrong_type(param, "an array", raw))?;
    if items.len() > most {
        return Err(too_many(param, items.len(), most));
    }
    Ok(items)
}

/// Reads an object as its entries, each value still raw.
pub(crate) fn entries<'a>(
    param: &str,
    raw: &'a RawValue,
) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, ApiError> {
    let expected = format!("an object of at most {MAX_ENTRIES} entries");
    let Pairs(pairs) =
        serde_json::from_str(raw.get()).map_err(|_| wrong_type(param, &expected, raw))?;
    Ok(pairs)
}

/// The error of a value of the wrong type. `expected` has its article.
pub fn wrong_type(param: &str, expected: &str, raw: &RawValue) -> ApiError {
    if raw.get().starts_with('"') && expected.starts_with("a string") {
        return ApiError::invalid_request(
            param,
            format!(
                "Invalid value for `{param}`: {} contains an escape sequence that is not a valid character, such as \
                 half a surrogate pair. Send valid Unicode.",
                described(raw)
            ),
        );
    }
    ApiError::invalid_request(
        param,
        format!(
            "Invalid type for `{param}`: expected {expected}, but got {} instead.",
            described(raw)
        ),
    )
    .with_code(code::INVALID_TYPE)
}

fn out_of_range<T: fmt::Display>(
    param: &str,
    shown: Cow<'_, str>,
    low: T,
    high: T,
    word: &'static str,
) -> ApiError {
    ApiError::invalid_request(
        param,
        format!("Invalid value for `{param}`: `{shown}`. Send a value from {low} to {high}."),
    )
    .with_code(word)
}

/// The error of a list that is too long.
pub fn too_many(param: &str, given: usize, most: usize) -> ApiError {
    ApiError::invalid_request(
        param,
        format!("Too many values for `{param}`: `{given}`. Send at most {most}."),
    )
    .with_code(code::ARRAY_ABOVE)
}

/// What a value is, with a bounded look at it: ``the string `"hot"` ``.
pub fn described(raw: &RawValue) -> String {
    let text = raw.get();
    let kind = match text.as_bytes().first() {
        Some(b'"') => "the string",
        Some(b't' | b'f') => "the boolean",
        Some(b'{') => "the object",
        Some(b'[') => "the array",
        Some(b'n') => return "null".to_owned(),
        _ => "the number",
    };
    format!("{kind} `{}`", shortened(text))
}
