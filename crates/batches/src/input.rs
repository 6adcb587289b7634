//! The lines of a batch's file: where each begins, and what it must say. A file whose lines are not all requests for the
//! batch's path is refused as a whole, before anything is run.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longer ones are no names but contents.
const MAX_CUSTOM_ID: usize = 512;
/// Errors that a refused batch lists; more say nothing new.
const MAX_ERRORS: usize = 20;
/// Of a value that an error quotes, in characters.
const QUOTED: usize = 64;

/// One line: a request.
#[derive(Debug)]
pub struct Entry<'a> {
    pub custom_id: Cow<'a, str>,
    /// What is sent, as its client wrote it.
    pub body: &'a RawValue,
}

/// Why a line is not a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InputError {
    pub code: String,
    /// From 1; `None`: it is about the file.
    pub line: Option<i64>,
    pub message: String,
    pub param: Option<String>,
}

impl InputError {
    pub(crate) fn new(code: &str, param: Option<&str>, message: String) -> Self {
        Self {
            code: code.to_owned(),
            line: None,
            message,
            param: param.map(str::to_owned),
        }
    }

    pub(crate) fn at(mut self, line: i64) -> Self {
        self.line = Some(line);
        self
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InputErrors {
    /// Always `list`.
    object: Cow<'static, str>,
    pub data: Vec<InputError>,
}

impl Default for InputErrors {
    fn default() -> Self {
        Self {
            object: "list".into(),
            data: Vec::new(),
        }
    }
}

impl InputErrors {
    /// Adds one, unless there are enough.
    pub(crate) fn push(&mut self, error: InputError) {
        if self.data.len() < MAX_ERRORS {
            self.data.push(error);
        }
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    custom_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    url: Option<Cow<'a, str>>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Body {
    stream: Option<bool>,
}

/// What a client calls the body of a request in a file.
pub(crate) const BODY: &str = "body";

/// Reads a line of a batch for the path `endpoint`. `body_name`: what the client calls its body, for errors.
///
/// # Errors
/// [`InputError`], without its line.
pub fn read_entry<'a>(
    line: &'a [u8],
    endpoint: &str,
    body_name: &str,
) -> Result<Entry<'a>, InputError> {
    let line: Line<'_> = object(line).map_err(|error| {
        let message = format!("The line is not a JSON object of a request: {error}.");
        InputError::new("invalid_json_line", None, message)
    })?;
    let custom_id = line.custom_id.ok_or_else(|| missing("custom_id"))?;
    if custom_id.is_empty() || custom_id.len() > MAX_CUSTOM_ID {
        let length = custom_id.len();
        let message = format!(
            "`custom_id` has {length} bytes. Send 1 to {MAX_CUSTOM_ID}: it names the line's result."
        );
        return Err(InputError::new(
            "invalid_custom_id",
            Some("custom_id"),
            message,
        ));
    }
    let method = line.method.ok_or_else(|| missing("method"))?;
    if method != "POST" {
        let message = format!("`method` is `{}`. Send `POST`.", quoted(&method));
        return Err(InputError::new("invalid_method", Some("method"), message));
    }
    let url = line.url.ok_or_else(|| missing("url"))?;
    if url != endpoint {
        let message = format!(
            "`url` is `{}`, but the batch's `endpoint` is `{endpoint}`. All lines of a batch have the same.",
            quoted(&url)
        );
        return Err(InputError::new("mismatched_url", Some("url"), message));
    }
    let body = line.body.ok_or_else(|| missing(body_name))?;
    let request: Body = object(body.get().as_bytes()).map_err(|error| {
        let message = format!("`{body_name}` is not a request: {error}.");
        InputError::new("invalid_request", Some(body_name), message)
    })?;
    if request.stream == Some(true) {
        let param = format!("{body_name}.stream");
        let message = format!("`{param}` is `true`. A batch has no streams: leave it out.");
        return Err(InputError::new("invalid_request", Some(&param), message));
    }
    Ok(Entry { custom_id, body })
}

/// Reads an object. A list would be read as well, its values in the fields' order.
fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, String> {
    match json.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(json).map_err(|error| error.to_string()),
        _ => Err("it does not begin with `{`".to_owned()),
    }
}

fn missing(name: &str) -> InputError {
    let message = format!("The line has no `{name}`.");
    InputError::new("missing_required_parameter", Some(name), message)
}

fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}

/// Cuts a file into lines, whatever pieces it comes in.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The beginning of the line that is not yet whole.
    rest: Vec<u8>,
    /// Bytes before it.
    start: u64,
}

impl Lines {
    /// Calls `line` with where each line that ends in `piece` begins, and with the line.
    pub(crate) fn feed(&mut self, piece: &[u8], mut line: impl FnMut(u64, &[u8])) {
        let mut piece = piece;
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            let (before, after) = (&piece[..end], &piece[end + 1..]);
            let whole = match self.rest.is_empty() {
                true => before,
                false => {
                    self.rest.extend_from_slice(before);
                    &self.rest
                }
            };
            if !is_blank(whole) {
                line(self.start, whole);
            }
            self.start += whole.len() as u64 + 1;
            self.rest.clear();
            piece = after;
        }
        self.rest.extend_from_slice(piece);
    }

    /// Bytes of the line that is not yet whole.
    pub(crate) fn pending(&self) -> usize {
        self.rest.len()
    }

    /// The last line, where no newline ends it.
    pub(crate) fn end(self, line: impl FnOnce(u64, &[u8])) {
        if !is_blank(&self.rest) {
            line(self.start, &self.rest);
        }
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_a_request_or_says_why_not() {
        let good = r#"{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"k": [1, 2]}}"#;
        let entry = read_entry(good.as_bytes(), "/v1/x", BODY).unwrap();
        assert_eq!(
            (&*entry.custom_id, entry.body.get()),
            ("a", r#"{"k": [1, 2]}"#)
        );
        let long = format!(
            r#"{{"custom_id": "{}", "method": "POST", "url": "/v1/x", "body": {{}}}}"#,
            "x".repeat(513)
        );
        for (line, code, param) in [
            ("", "invalid_json_line", None),
            ("[1]", "invalid_json_line", None),
            (r#"["a", "POST", "/v1/x", {}]"#, "invalid_json_line", None),
            (r#"{"custom_id": 1}"#, "invalid_json_line", None),
            (
                r#"{"method": "POST"}"#,
                "missing_required_parameter",
                Some("custom_id"),
            ),
            (
                r#"{"custom_id": ""}"#,
                "invalid_custom_id",
                Some("custom_id"),
            ),
            (&long, "invalid_custom_id", Some("custom_id")),
            (
                r#"{"custom_id": "a"}"#,
                "missing_required_parameter",
                Some("method"),
            ),
            (
                r#"{"custom_id": "a", "method": "GET"}"#,
                "invalid_method",
                Some("method"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST"}"#,
                "missing_required_parameter",
                Some("url"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/y"}"#,
                "mismatched_url",
                Some("url"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/x"}"#,
                "missing_required_parameter",
                Some("body"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": 1}"#,
                "invalid_request",
                Some("body"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"stream": true}}"#,
                "invalid_request",
                Some("body.stream"),
            ),
        ] {
            let error = read_entry(line.as_bytes(), "/v1/x", BODY).unwrap_err();
            assert_eq!(
                (error.code.as_str(), error.param.as_deref()),
                (code, param),
                "{line}"
            );
        }
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_are_cut(
            text in "[a\n \u{e9}]{0,40}",
            cuts in proptest::collection::vec(0_usize..41, 0..5),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for pair in cuts.windows(2) {
                lines.feed(&bytes[pair[0]..pair[1]], |start, line| found.push((start, line.to_vec())));
            }
            lines.end(|start, line| found.push((start, line.to_vec())));
            let mut expected = Vec::new();
            let mut start = 0;
            for line in bytes.split(|byte| *byte == b'\n') {
                if !is_blank(line) {
                    expected.push((start, line.to_vec()));
                }
                start += line.len() as u64 + 1;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
