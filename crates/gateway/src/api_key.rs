//! The keys that clients may send. Owns that they never reach a log, that comparing takes constant time, and
//! that the keys of a file are those that it holds now.

mod file;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

pub(crate) use self::file::KeyFile;
use crate::client::Held;

/// How often the file is looked at: a key that was taken out must soon be worth nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Wraps the key.
    pub fn new(key: String) -> Self {
        Self(key)
    }

    /// Whether `given` is the key, in time that does not depend on where they differ.
    pub fn matches(&self, given: &[u8]) -> bool {
        subtle::ConstantTimeEq::ct_eq(self.0.as_bytes(), given).into()
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("****")
    }
}

/// A key and what its clients have open.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    secret: ApiKey,
    pub(crate) held: Arc<Held>,
}

/// All keys, as they are now.
#[derive(Debug)]
pub(crate) struct ApiKeys {
    keys: ArcSwap<Vec<Key>>,
    /// The key that comes from no file.
    fixed: Option<ApiKey>,
    file: Option<KeyFile>,
}

impl ApiKeys {
    /// The key of the command line or the environment, and those of a file; `None` without any.
    pub(crate) fn new(fixed: Option<&ApiKey>, file: Option<&KeyFile>) -> Option<Self> {
        if fixed.is_none() && file.is_none() {
            return None;
        }
        let keys = Self {
            keys: ArcSwap::default(),
            fixed: fixed.cloned(),
            file: file.cloned(),
        };
        keys.set(file.map(|file| file.keys.as_slice()).unwrap_or_default());
        Some(keys)
    }

    /// The key that a client sent. Compares with all, so that the time says nothing of which it was.
    pub(crate) fn find(&self, given: &[u8]) -> Option<Key> {
        let keys = self.keys.load();
        let mut found = None;
        for key in keys.iter() {
            if key.secret.matches(given) {
                found = Some(key);
            }
        }
        found.cloned()
    }

    /// Reads the file again whenever it has changed. A file that cannot be used leaves the keys as they are.
    pub(crate) async fn follow_file(self: Arc<Self>) {
        let Some(mut known) = self.file.clone() else {
            return;
        };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let before = known.clone();
            let read = tokio::task::spawn_blocking(move || before.changed()).await;
            match read {
                Ok(None) | Err(_) => {}
                Ok(Some((file, result))) => {
                    match result {
                        Ok(()) => {
                            self.set(&file.keys);
                            tracing::info!(keys = file.keys.len(), "API keys reloaded");
                        }
                        Err(reason) => {
                            tracing::error!(%reason, "API key file not usable; the keys stay as they were");
                        }
                    }
                    known = file;
                }
            }
        }
    }

    fn set(&self, of_file: &[ApiKey]) {
        let before = self.keys.load();
        let keys = self.fixed.iter().chain(of_file).map(|secret| {
            let same = before.iter().find(|key| key.secret == *secret);
            same.cloned().unwrap_or_else(|| Key {
                secret: secret.clone(),
                held: Arc::default(),
            })
        });
        self.keys.store(Arc::new(keys.collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_counts_when_others_change() {
        let keys = ApiKeys::new(Some(&ApiKey::new("fixed".to_owned())), None).unwrap();
        let new = |key: &str| ApiKey::new(key.to_owned());
        keys.set(&[new("one"), new("two")]);
        let one = keys.find(b"one").unwrap();
        keys.set(&[new("three"), new("one")]);
        assert!(Arc::ptr_eq(&keys.find(b"one").unwrap().held, &one.held));
        assert!(keys.find(b"fixed").is_some() && keys.find(b"three").is_some());
        for wrong in [&b"two"[..], b"", b"on", b"onee"] {
            assert!(keys.find(wrong).is_none());
        }
        assert!(!format!("{keys:?}").contains("three"));
    }
}
