//! What the five models over one executor are called. A process with several executors has several sets of them, and
//! every set but the first has a prefix, as the sets of a Triton repository have: `llama_tensorrt_llm`,
//! `llama_ensemble`. Knows nothing of what the models do.

use std::sync::Arc;

use crate::model::CORE_MODEL;
use crate::text_models::TextModelKind;

/// The names of one set.
#[derive(Clone, Debug)]
pub(crate) struct ModelNames {
    core: Arc<str>,
    /// With its underscore; empty for the first set.
    prefix: String,
    /// In the order of [`TextModelKind::ALL`].
    text: [String; 4],
}

impl ModelNames {
    /// The first set: Triton's names, and the operator's for the core model.
    pub(crate) fn first(core: &str) -> Self {
        Self::new(core.into(), String::new())
    }

    /// A set behind `name`.
    pub(crate) fn behind(name: &str) -> Self {
        Self::new(format!("{name}_{CORE_MODEL}").into(), format!("{name}_"))
    }

    fn new(core: Arc<str>, prefix: String) -> Self {
        Self {
            text: TextModelKind::ALL.map(|kind| format!("{prefix}{}", kind.name())),
            core,
            prefix,
        }
    }

    pub(crate) fn core(&self) -> &Arc<str> {
        &self.core
    }

    pub(crate) fn text(&self, kind: TextModelKind) -> &str {
        let place = TextModelKind::ALL.iter().position(|one| *one == kind);
        place
            .and_then(|place| self.text.get(place))
            .map_or(kind.name(), String::as_str)
    }

    /// The text model of this name.
    pub(crate) fn text_named(&self, name: &str) -> Option<TextModelKind> {
        TextModelKind::named(name.strip_prefix(self.prefix.as_str())?)
    }

    /// Whether one of the set is called so. The core model's name comes first where it is a text model's, too.
    pub(crate) fn has(&self, name: &str) -> bool {
        *name == *self.core || self.text_named(name).is_some()
    }

    /// All five.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        let text = self.text.iter().map(String::as_str);
        std::iter::once(&*self.core).chain(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_called_as_in_a_repository_with_a_prefix() {
        let first = ModelNames::first("core");
        assert_eq!(
            first.all().collect::<Vec<_>>(),
            [
                "core",
                "preprocessing",
                "postprocessing",
                "ensemble",
                "tensorrt_llm_bls"
            ]
        );
        let llama = ModelNames::behind("llama");
        assert_eq!(
            llama.all().collect::<Vec<_>>(),
            [
                "llama_tensorrt_llm",
                "llama_preprocessing",
                "llama_postprocessing",
                "llama_ensemble",
                "llama_tensorrt_llm_bls"
            ]
        );
        for (names, other) in [(&first, &llama), (&llama, &first)] {
            for kind in TextModelKind::ALL {
                assert_eq!(names.text_named(names.text(kind)), Some(kind));
                assert_eq!(names.text_named(other.text(kind)), None);
            }
            assert!(names.all().all(|name| names.has(name) && !other.has(name)));
        }
        assert!(!first.has("tensorrt_llm") && !llama.has("llama_") && !llama.has("llama"));
    }
}
