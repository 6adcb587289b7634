//! The hash that names a set of model files. Owns how it is computed, once for the worker that claims it and
//! the gateway that verifies it; knows nothing of what the files contain.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// SHA-256 in hex over name, length and content of every file, which must come in the order of their
/// names. A newline ends name and length, so that different sets of files never hash the same bytes.
pub fn content_hash<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (name, content) in files {
        hash.update(format!("{name}\n{}\n", content.len()));
        hash.update(content);
    }
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_names_lengths_and_bytes() {
        let sets: [&[(&str, &[u8])]; 5] = [
            &[],
            &[("a", b"b")],
            &[("a", b""), ("b", b"")],
            &[("ab", b"")],
            &[("a", b"bc")],
        ];
        let hashes = sets.map(|files| content_hash(files.iter().copied()));
        for (place, hash) in hashes.iter().enumerate() {
            assert_eq!(hash.len(), 64);
            assert!(!hashes[..place].contains(hash));
        }
    }
}
