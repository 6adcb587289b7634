//! Which phases of a request a server runs. Prefill and decode can be apart: a server for contexts computes the prompt and
//! the first token, and another one continues from its KV cache.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use inflight_kserve::assets;
use inflight_models::capability::{Capability, has};
use inflight_models::served::ServedModel;

/// Which requests are computed by two servers, where there are servers for contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disaggregate {
    /// Those of which that is expected to cost less.
    #[default]
    Auto,
    Always,
    Never,
}

impl Disaggregate {
    const ALL: [(Self, &str); 3] = [
        (Self::Auto, "auto"),
        (Self::Always, "always"),
        (Self::Never, "never"),
    ];

    /// As an option names them.
    pub const NAMES: [&str; 3] = [Self::ALL[0].1, Self::ALL[1].1, Self::ALL[2].1];
}

impl fmt::Display for Disaggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Self::ALL.into_iter();
        let name = all.find_map(|(one, name)| (one == *self).then_some(name));
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Disaggregate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        let found = all.find_map(|(one, name)| (name == text).then_some(one));
        found.ok_or_else(|| "expected `auto`, `always` or `never`".to_owned())
    }
}

/// What a server is to do of a request.
#[derive(Clone, Copy, Debug, Default)]
pub enum Phases<'a> {
    /// All of it.
    #[default]
    Both,
    /// The prompt and the first token.
    Context,
    /// What follows, from what the context phase left.
    Generation(&'a Bytes),
}

impl Phases<'_> {
    /// Whether a server that serves `model` so can take that.
    pub(crate) fn suit(self, model: &ServedModel) -> bool {
        let can = || has(model, Capability::ContextPhase);
        match self {
            Self::Both => true,
            Self::Context => is_for_contexts(model) && can(),
            Self::Generation(_) => !is_for_contexts(model) && can(),
        }
    }
}

/// Whether a server is for contexts. It can still do all of a request, and does where there is no other.
pub(crate) fn is_for_contexts(model: &ServedModel) -> bool {
    model.description.phases() == assets::Phases::Context
}
