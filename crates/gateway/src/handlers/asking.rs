//! The gateway's state as the work on one request sees it: with what divides its client's prompts from those of
//! others. Owns that division for what is remembered here; [`Prepared`](super::prepared::Prepared) has that of a
//! worker's cache.

use std::ops::Deref;
use std::sync::Arc;

use inflight_clients::client::Client;
use inflight_openai::Generation;
use inflight_text::Scope;

use crate::state::AppState;

/// See the module.
pub(crate) struct Asking<'a> {
    state: &'a AppState,
    salt: Option<Arc<str>>,
}

impl<'a> Asking<'a> {
    /// For a key's `salt`; `None`: nothing divides it from others.
    pub(crate) fn new(state: &'a AppState, salt: Option<Arc<str>>) -> Self {
        Self { state, salt }
    }

    /// For a client.
    pub(super) fn of(state: &'a AppState, client: Option<&Arc<Client>>) -> Self {
        Self::new(state, client.and_then(|client| client.cache_salt()))
    }

    /// Its key's salt.
    pub(super) fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// Whose texts may be known by how long this client's take: its key's.
    pub(super) fn scope(&self) -> Scope {
        scope(self.salt(), None)
    }

    /// The same for a request.
    pub(super) fn scope_of(&self, generation: &Generation) -> Scope {
        let extensions = generation.extensions.as_ref();
        let own = extensions.and_then(|extensions| extensions.cache_salt.as_deref());
        scope(self.salt(), own)
    }
}

/// A request's own salt divides its key's part further, and reaches no other.
fn scope(of_key: Option<&str>, own: Option<&str>) -> Scope {
    let of_key = of_key.unwrap_or_default();
    match own {
        Some(own) => Scope::of(&format!("{of_key}{own}")),
        None => Scope::of(of_key),
    }
}

impl Deref for Asking<'_> {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_salts_divide_scopes() {
        assert_eq!(scope(None, None), Scope::default());
        let scopes = [
            scope(None, None),
            scope(None, Some("a")),
            scope(Some("key:"), None),
            scope(Some("key:"), Some("a")),
            scope(Some("key:"), Some("b")),
            scope(Some("other:"), Some("a")),
        ];
        for (index, one) in scopes.iter().enumerate() {
            assert_eq!(scopes.iter().position(|other| other == one), Some(index));
        }
    }
}
