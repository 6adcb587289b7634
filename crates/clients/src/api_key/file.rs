//! A file of API keys: one a line, and after it the limits of the key, if it has its own; empty lines and lines that
//! start with `#` say nothing. Owns its form and how a change is noticed.

use std::path::PathBuf;

use inflight_base::text_file::{Stamp, read_text, stamp};

use super::{ApiKey, DeclaredKey};
use crate::quota::Limits;

/// Larger files are a mistake.
const MAX_BYTES: u64 = 1 << 20;
/// Each request is compared with all.
const MAX_KEYS: usize = 1000;

/// A file and the keys that it held when it was read.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
    pub(super) keys: Vec<DeclaredKey>,
    seen: Option<Stamp>,
}

impl KeyFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// A sentence for the user: it cannot be read, holds no key, or a malformed line.
    pub fn read(path: &str) -> Result<Self, String> {
        let mut file = Self {
            path: path.into(),
            keys: Vec::new(),
            seen: None,
        };
        file.seen = stamp(&file.path);
        file.keys = file.read_keys()?;
        Ok(file)
    }

    /// The file as it is now, if it is another than before; with an error the keys are the old ones.
    pub(super) fn changed(mut self) -> Option<(Self, Result<(), String>)> {
        let seen = stamp(&self.path);
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        let result = self.read_keys().map(|keys| self.keys = keys);
        Some((self, result))
    }

    fn read_keys(&self) -> Result<Vec<DeclaredKey>, String> {
        parse(&read_text(&self.path, MAX_BYTES)?)
    }
}

fn parse(text: &str) -> Result<Vec<DeclaredKey>, String> {
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = number + 1;
        let (key, limits) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        // Anything else cannot be sent in a header. The key itself is never shown.
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "line {number} is not a key: a key has no spaces and only ASCII characters"
            ));
        }
        let limits = (!limits.is_empty()).then(|| limits.parse::<Limits>());
        let limits = limits.transpose();
        keys.push(DeclaredKey {
            secret: ApiKey::new(key.to_owned()),
            limits: limits.map_err(|error| format!("line {number}, after the key: {error}"))?,
        });
    }
    match keys.len() {
        0 => Err("the file has no key; write one on each line".to_owned()),
        count if count > MAX_KEYS => Err(format!("the file has more than {MAX_KEYS} keys")),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_a_line_with_comments() {
        let keys = parse("# team a\nsk-one\r\n\n  sk-two  \n#sk-three\n").unwrap();
        let declared = |key: &str, limits: &str| DeclaredKey {
            secret: ApiKey::new(key.to_owned()),
            limits: limits.parse().ok(),
        };
        assert_eq!(keys, ["sk-one", "sk-two"].map(|key| declared(key, "")));
        let keys = parse("sk-one  requests=5\tconcurrent=1 \nsk-two tokens=7\n").unwrap();
        let expected = [
            ("sk-one", "requests=5 concurrent=1"),
            ("sk-two", "tokens=7"),
        ];
        assert_eq!(keys, expected.map(|(key, limits)| declared(key, limits)));
        assert_eq!(parse(&"k\n".repeat(MAX_KEYS)).unwrap().len(), MAX_KEYS);
        let second = parse("one\n\nschl\u{fc}ssel\n").unwrap_err();
        assert!(second.starts_with("line 3 "), "{second}");
        let many = "k\n".repeat(MAX_KEYS + 1);
        for bad in ["", "# only\n", "two words\n", "schl\u{fc}ssel\n", &many] {
            let error = parse(bad).unwrap_err();
            assert!(!error.contains("words"), "{error}");
        }
    }
}
