//! Files of the repository that are made from code: a test fails where one is not what the code makes.

use std::path::{Path, PathBuf};

/// Checks a file, given by its path from the repository's root. With `UPDATE_SNAPSHOTS` set, writes it instead.
///
/// # Panics
/// The file differs, or cannot be written.
pub fn check(file: &str, made: impl AsRef<[u8]>) {
    let found = std::fs::read(path(file)).unwrap_or_default();
    compare(file, &found, made.as_ref());
}

/// Checks what is between two texts of a file, as [`check`] does.
///
/// # Panics
/// As [`check`], and the texts are not in the file in this order.
pub fn check_part(file: &str, before: &str, after: &str, made: &str) {
    let found = std::fs::read_to_string(path(file)).expect("the file can be read");
    let (start, rest) = found.split_once(before).expect("the part begins");
    let (_, end) = rest.split_once(after).expect("the part ends");
    let whole = [start, before, made, after, end].concat();
    compare(file, found.as_bytes(), whole.as_bytes());
}

fn path(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(file)
}

fn compare(file: &str, found: &[u8], made: &[u8]) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return std::fs::write(path(file), made).expect("the file can be written");
    }
    let thread = std::thread::current();
    let (package, test) = (std::env::var("CARGO_PKG_NAME"), thread.name());
    assert!(
        found == made,
        "`{file}` is not what the code makes: run `UPDATE_SNAPSHOTS=1 cargo test -p {} {}` and review the difference",
        package.unwrap_or_default(),
        test.unwrap_or_default()
    );
}
