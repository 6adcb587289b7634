//! Files of text that the operator of the gateway gives: read within a bound, and looked at again when they change.

use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

/// When a file was written, its length and which file it is: two that are equal have the same content.
pub type Stamp = (SystemTime, u64, u64);

/// The file's stamp; `None` where there is no file.
pub fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), data.ino()))
}

/// Reads a file of at most `max_bytes`.
///
/// # Errors
/// What is wrong, without the file's name.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot read the file: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(max_bytes + 1).read_to_string(&mut text);
    read.map_err(unreadable)?;
    if text.len() as u64 > max_bytes {
        return Err(format!("the file has more than {max_bytes} bytes"));
    }
    Ok(text)
}
