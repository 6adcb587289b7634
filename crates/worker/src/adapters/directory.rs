//! The directory that adapters may be loaded from. Owns that nothing outside it is read for a client: neither by
//! `..`, nor by an absolute path, nor through links.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Files and links of an adapter's directory; PEFT writes a handful.
const MAX_ENTRIES: usize = 1000;

/// The operator's directory, without links in its own path.
#[derive(Debug)]
pub(super) struct Directory {
    /// As it was given.
    given: PathBuf,
    root: PathBuf,
}

/// Why an adapter's path is not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error(
        "`{0}` is not in the worker's `--adapter-dir`; pass a path inside it, without `..`, such as `support`"
    )]
    Outside(String),
    #[error("`{0}` is a link out of the worker's `--adapter-dir`; copy the files there")]
    Leaving(String),
    #[error(
        "there is no directory `{0}` in the worker's `--adapter-dir`; pass one that contains an adapter"
    )]
    Missing(String),
    #[error("`{0}` has more than {MAX_ENTRIES} files; pass a directory with a single adapter")]
    TooMany(String),
}

impl Directory {
    /// # Errors
    /// It does not exist, or is not a directory.
    pub(super) fn open(given: &Path) -> io::Result<Self> {
        let root = given.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(Self {
            given: given.to_owned(),
            root,
        })
    }

    /// The directory of an adapter, without links.
    ///
    /// # Errors
    /// [`DirectoryError`]. Whether there is anything at a path outside is not revealed.
    pub(super) fn resolve(&self, asked: &str) -> Result<PathBuf, DirectoryError> {
        let named = || asked.escape_default().to_string();
        let path = Path::new(asked);
        let below = match path.is_absolute() {
            true => path
                .strip_prefix(&self.root)
                .or_else(|_| path.strip_prefix(&self.given))
                .map_err(|_| DirectoryError::Outside(named()))?,
            false => path,
        };
        let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if !below.components().all(is_plain) {
            return Err(DirectoryError::Outside(named()));
        }
        let missing = |_: io::Error| DirectoryError::Missing(named());
        let found = self.root.join(below).canonicalize().map_err(missing)?;
        if !found.starts_with(&self.root) {
            return Err(DirectoryError::Leaving(named()));
        }
        for (count, entry) in fs::read_dir(&found).map_err(missing)?.enumerate() {
            if count == MAX_ENTRIES {
                return Err(DirectoryError::TooMany(named()));
            }
            // What leads nowhere is read by nobody.
            let target = entry.map_err(missing)?.path().canonicalize();
            if target.is_ok_and(|target| !target.starts_with(&self.root)) {
                return Err(DirectoryError::Leaving(named()));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory that is gone after the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("inflight-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("adapters/support/deeper")).unwrap();
            fs::create_dir_all(path.join("secret")).unwrap();
            fs::write(path.join("secret/key"), "k").unwrap();
            fs::write(path.join("adapters/file"), "").unwrap();
            Self(path.canonicalize().unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_what_is_in_the_directory_is_found() {
        let scratch = Scratch::new("directory");
        let base = &scratch.0;
        let root = base.join("adapters");
        symlink(base.join("secret"), root.join("out")).unwrap();
        symlink(root.join("support"), root.join("latest")).unwrap();
        fs::create_dir(root.join("linked")).unwrap();
        symlink(base.join("secret/key"), root.join("linked/weights")).unwrap();
        fs::create_dir(root.join("dangling")).unwrap();
        symlink(base.join("nowhere"), root.join("dangling/weights")).unwrap();
        // By another name, as where a volume is mounted.
        symlink(&root, base.join("mounted")).unwrap();
        let directory = Directory::open(&base.join("mounted")).unwrap();
        let support = root.join("support");
        for (asked, expected) in [
            ("support".to_owned(), Ok(&support)),
            ("./support/".to_owned(), Ok(&support)),
            ("latest".to_owned(), Ok(&support)),
            (support.display().to_string(), Ok(&support)),
            (
                base.join("mounted/support").display().to_string(),
                Ok(&support),
            ),
            ("dangling".to_owned(), Ok(&root.join("dangling"))),
            (
                "../secret".to_owned(),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            (
                "support/../../secret".to_owned(),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            (
                "support/../support".to_owned(),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            (
                base.join("secret").display().to_string(),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            (
                "/etc".to_owned(),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            (
                format!("{}/../secret", root.display()),
                Err("is not in the worker's `--adapter-dir`"),
            ),
            ("out".to_owned(), Err("is a link out of")),
            ("linked".to_owned(), Err("is a link out of")),
            ("missing".to_owned(), Err("there is no directory")),
            ("file".to_owned(), Err("there is no directory")),
            ("a\0b".to_owned(), Err("there is no directory")),
        ] {
            match (directory.resolve(&asked), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(&found, expected, "{asked}"),
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{asked}: {error}");
                }
                (found, _) => panic!("{asked}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_directory_with_very_many_files_is_no_adapter() {
        let scratch = Scratch::new("many");
        for number in 0..=MAX_ENTRIES {
            fs::write(scratch.0.join(format!("adapters/support/{number}")), "").unwrap();
        }
        let directory = Directory::open(&scratch.0.join("adapters")).unwrap();
        let error = directory.resolve("support").unwrap_err().to_string();
        assert!(error.contains("more than 1000"), "{error}");
    }

    #[test]
    fn a_file_is_no_directory_of_adapters() {
        let scratch = Scratch::new("file");
        assert!(Directory::open(&scratch.0.join("adapters/file")).is_err());
        assert!(Directory::open(&scratch.0.join("nothing")).is_err());
    }
}
