//! Names of files and batches, and whose they are. Owns how they are written.

use std::fmt;

/// Whose a file or a batch is: a digest of an API key, or everybody's where none is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub [u8; 16]);

/// The name of a file: `file-` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(pub(crate) u128);

/// The name of a batch: 32 hexadecimal digits after `batch_`, or after `msgbatch_` for Anthropic's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchId(pub(crate) u128);

const FILE: &str = "file-";
const BATCH: &str = "batch_";
const MESSAGE_BATCH: &str = "msgbatch_";

impl FileId {
    /// A name that no other file has.
    pub(crate) fn new() -> Self {
        Self(rand::random())
    }

    /// Reads a name; `None`: no file has it.
    pub fn parse(text: &str) -> Option<Self> {
        digits(text.strip_prefix(FILE)?).map(Self)
    }
}

impl BatchId {
    /// A name that no other batch has.
    pub(crate) fn new() -> Self {
        Self(rand::random())
    }

    /// Reads a name of OpenAI's API; `None`: no batch has it.
    pub fn parse(text: &str) -> Option<Self> {
        digits(text.strip_prefix(BATCH)?).map(Self)
    }

    /// Reads a name of Anthropic's API; `None`: no batch has it.
    pub fn parse_anthropics(text: &str) -> Option<Self> {
        digits(text.strip_prefix(MESSAGE_BATCH)?).map(Self)
    }

    /// As Anthropic's API has it.
    pub fn anthropics(self) -> String {
        format!("{MESSAGE_BATCH}{:032x}", self.0)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{FILE}{:032x}", self.0)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{BATCH}{:032x}", self.0)
    }
}

/// One spelling for each number.
fn digits(text: &str) -> Option<u128> {
    let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_whole = text.len() == 32 && text.bytes().all(is_lower);
    u128::from_str_radix(text, 16).ok().filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for number in [0, 1, u128::MAX] {
            assert_eq!(
                FileId::parse(&FileId(number).to_string()),
                Some(FileId(number))
            );
            let batch = BatchId(number);
            assert_eq!(BatchId::parse(&batch.to_string()), Some(batch));
            assert_eq!(BatchId::parse_anthropics(&batch.anthropics()), Some(batch));
        }
        let digits = "0".repeat(32);
        for bad in ["", "file-", "file-1", &digits, &format!("file-{digits}0")] {
            assert_eq!(FileId::parse(bad), None, "{bad}");
        }
        assert_eq!(
            FileId::parse(&format!("file-{}", "F".repeat(32))),
            None,
            "one spelling"
        );
        assert_eq!(BatchId::parse(&format!("msgbatch_{digits}")), None);
    }
}
