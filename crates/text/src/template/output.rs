//! A bounded sink for rendered text. Knows only bytes.

use std::io::{Error, ErrorKind, Write};

/// Collects at most so many bytes and fails the write that would go past them.
pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    over: bool,
}

impl Bounded {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            over: false,
        }
    }

    /// Whether a write went past the limit.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn into_text(self) -> Option<String> {
        String::from_utf8(self.bytes).ok()
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.over = true;
            return Err(Error::new(ErrorKind::FileTooLarge, "too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
