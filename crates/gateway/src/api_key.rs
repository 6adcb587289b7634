//! The key that clients must send. Owns that it never reaches a log and that comparing it takes constant
//! time.

/// A secret that no log shows.
#[derive(Clone)]
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
