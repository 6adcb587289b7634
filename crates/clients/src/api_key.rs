//! The keys that clients may send. Owns that they never reach a log, that comparing takes constant time, and
//! that the keys of a file are those that it holds now.

mod file;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use sha2::{Digest, Sha256};

pub use self::file::KeyFile;
use crate::client::Held;
use crate::quota::{Limits, Quota};

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

    /// What divides the KV cache between keys. The same in every gateway that has the key; nobody
    /// finds a long random key from it.
    fn cache_salt(&self) -> String {
        let mut salt = String::with_capacity(33);
        for byte in self.digest("inflight cache salt\0") {
            let _ = write!(salt, "{byte:02x}");
        }
        salt.push(':');
        salt
    }

    /// Whose files and batches are the key's. The same wherever the key is, and as little to be read from.
    fn files(&self) -> inflight_batches::Owner {
        inflight_batches::Owner(self.digest("inflight files\0"))
    }

    fn digest(&self, purpose: &str) -> [u8; 16] {
        let digest = Sha256::new().chain_update(purpose).chain_update(&self.0);
        let mut half = [0; 16];
        half.copy_from_slice(&digest.finalize()[..16]);
        half
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("****")
    }
}

/// A key and what its clients have open.
#[derive(Clone, Debug)]
pub struct Key {
    secret: ApiKey,
    pub held: Arc<Held>,
    /// What they may use; `None`: as much as there is.
    pub quota: Option<Arc<Quota>>,
}

/// A key with its own limits, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredKey {
    secret: ApiKey,
    limits: Option<Limits>,
}

/// All keys, as they are now.
#[derive(Debug)]
pub struct ApiKeys {
    keys: ArcSwap<Vec<Key>>,
    /// The key that comes from no file.
    fixed: Option<ApiKey>,
    file: Option<KeyFile>,
    /// Of each key without its own limits.
    limits: Limits,
    /// Whether prompts of all keys share the KV cache.
    shares_cache: bool,
}

impl ApiKeys {
    /// The key of the command line or the environment, and those of a file; `None` without any.
    /// `limits` are those of each key that declares none.
    pub fn new(
        fixed: Option<&ApiKey>,
        file: Option<&KeyFile>,
        limits: Option<Limits>,
        shares_cache: bool,
    ) -> Option<Self> {
        if fixed.is_none() && file.is_none() {
            return None;
        }
        let keys = Self {
            keys: ArcSwap::default(),
            fixed: fixed.cloned(),
            file: file.cloned(),
            limits: limits.unwrap_or_default(),
            shares_cache,
        };
        keys.set(file.map(|file| file.keys.as_slice()).unwrap_or_default());
        Some(keys)
    }

    /// The key that a client sent. Compares with all, so that the time says nothing of which it was.
    pub fn find(&self, given: &[u8]) -> Option<Key> {
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
    pub async fn follow_file(self: Arc<Self>) {
        let Some(mut known) = self.file.clone() else {
            return;
        };
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let before = known.clone();
            let read = inflight_base::blocking::run(move || before.changed()).await;
            match read {
                Ok(None) | Err(_) => {}
                Ok(Some((file, result))) => {
                    match result {
                        Ok(()) => {
                            self.set(&file.keys);
                            tracing::info!(keys = file.keys.len(), "API keys reloaded");
                        }
                        Err(reason) => {
                            tracing::error!(%reason, "cannot use the API key file; the keys stay as they were");
                        }
                    }
                    known = file;
                }
            }
        }
    }

    fn held(&self, secret: &ApiKey) -> Held {
        let salt = (!self.shares_cache).then(|| secret.cache_salt());
        Held::of_key(secret.files(), salt.as_deref())
    }

    /// The key whose files are those of `owner`, if it is valid now.
    pub fn of_files(&self, owner: inflight_batches::Owner) -> Option<Key> {
        let keys = self.keys.load();
        let found = keys.iter().find(|key| key.held.files() == owner);
        found.cloned()
    }

    fn set(&self, of_file: &[DeclaredKey]) {
        let before = self.keys.load();
        let fixed = self.fixed.iter().map(|secret| (secret, None));
        let of_file = of_file.iter().map(|key| (&key.secret, key.limits));
        let keys = fixed.chain(of_file).map(|(secret, limits)| {
            let same = before.iter().find(|key| key.secret == *secret);
            let quota = same.and_then(|key| key.quota.clone());
            let limits = limits.unwrap_or(self.limits);
            Key {
                secret: secret.clone(),
                held: same.map_or_else(|| Arc::new(self.held(secret)), |key| Arc::clone(&key.held)),
                quota: limits.is_any().then(|| limited(quota, limits)),
            }
        });
        self.keys.store(Arc::new(keys.collect()));
    }
}

/// The quota with these limits; what is used of an earlier one stays used.
fn limited(earlier: Option<Arc<Quota>>, limits: Limits) -> Arc<Quota> {
    match earlier {
        Some(quota) => {
            quota.set(limits);
            quota
        }
        None => Arc::new(Quota::new(limits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_counts_when_others_change() {
        let keys = ApiKeys::new(Some(&ApiKey::new("fixed".to_owned())), None, None, false).unwrap();
        let new = |key: &str| DeclaredKey {
            secret: ApiKey::new(key.to_owned()),
            limits: None,
        };
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

    #[test]
    fn a_key_has_its_own_limits_or_those_of_all() {
        let fixed = ApiKey::new("fixed".to_owned());
        let all = "requests=2".parse().unwrap();
        let keys = ApiKeys::new(Some(&fixed), None, Some(all), false).unwrap();
        let new = |limits: &str| DeclaredKey {
            secret: ApiKey::new("one".to_owned()),
            limits: limits.parse().ok(),
        };
        let left = |key: &[u8]| {
            let quota = keys.find(key).unwrap().quota.unwrap();
            quota.left().requests.map(|rate| rate.limit)
        };
        keys.set(&[new("")]);
        assert_eq!((left(b"fixed"), left(b"one")), (Some(2), Some(2)));
        let before = keys.find(b"one").unwrap().quota.unwrap();
        keys.set(&[new("requests=3")]);
        assert_eq!((left(b"fixed"), left(b"one")), (Some(2), Some(3)));
        assert!(Arc::ptr_eq(
            &before,
            &keys.find(b"one").unwrap().quota.unwrap()
        ));
        keys.set(&[new("tokens=3")]);
        assert_eq!(left(b"one"), None, "its own limits are all that it has");
    }

    #[test]
    fn what_divides_keys_is_the_same_wherever_the_key_is() {
        let key = |secret: &str, shares_cache| {
            let fixed = ApiKey::new(secret.to_owned());
            let keys = ApiKeys::new(Some(&fixed), None, None, shares_cache).unwrap();
            let key = keys.find(secret.as_bytes()).unwrap();
            let files = key.held.files();
            assert!(Arc::ptr_eq(&keys.of_files(files).unwrap().held, &key.held));
            assert!(keys.of_files(inflight_batches::Owner([9; 16])).is_none());
            (key.held.cache_salt(), files)
        };
        let (one, other) = (key("one", false), key("other", false));
        assert_eq!(one, key("one", false));
        assert_ne!(one.1, other.1);
        let salts = [one.0.unwrap(), other.0.unwrap()];
        assert_ne!(salts[0], salts[1]);
        for salt in salts {
            let digits = salt.strip_suffix(':').unwrap();
            assert_eq!(digits.len(), 32);
            assert!(digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        assert_eq!(key("one", true), (None, one.1));
        assert_eq!(format!("{:?}", ApiKey::new("one".to_owned())), "****");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_those_that_the_file_holds_now() {
        let path = std::env::temp_dir().join(format!("inflight-keys-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        let file = KeyFile::read(path.to_str().unwrap()).unwrap();
        let keys = Arc::new(ApiKeys::new(None, Some(&file), None, false).unwrap());
        let following = tokio::spawn(Arc::clone(&keys).follow_file());
        let has = |key: &[u8]| keys.find(key).is_some();
        for (text, one, two) in [
            ("one\ntwo\n", true, true),
            ("a key is not two words", true, true),
            ("two\n", false, true),
        ] {
            std::fs::write(&path, text).unwrap();
            tokio::time::sleep(3 * LOOK_EVERY).await;
            assert_eq!((has(b"one"), has(b"two")), (one, two), "{text}");
        }
        following.abort();
        std::fs::remove_file(&path).unwrap();
    }
}
