//! Files of the repository that are made from code: a test fails where one is not what the code makes.

use std::path::Path;

/// Checks a file, given by its path from the repository's root. With `UPDATE_SNAPSHOTS` set, writes it first.
///
/// # Panics
/// The file differs, or cannot be written.
pub fn check(file: &str, made: impl AsRef<[u8]>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(file);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &made).expect("the file can be written");
    }
    let found = std::fs::read(&path).unwrap_or_default();
    let thread = std::thread::current();
    let (package, test) = (std::env::var("CARGO_PKG_NAME"), thread.name());
    assert!(
        found == made.as_ref(),
        "`{file}` is not what the code makes: run `UPDATE_SNAPSHOTS=1 cargo test -p {} {}` and review the difference",
        package.unwrap_or_default(),
        test.unwrap_or_default()
    );
}
