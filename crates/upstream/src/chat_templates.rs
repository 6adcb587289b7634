//! Which chat template a model gets that the operator gave. Owns the choice; the templates are read by then.

use inflight_models::for_model::{ForModel, for_model};
use inflight_text::TemplateSource;

/// The templates of `--chat-template` and `--history-template`, by model.
#[derive(Clone, Debug, Default)]
pub struct ChatTemplates(Vec<ForModel<TemplateSource>>);

impl ChatTemplates {
    /// These, the first that fits a model before the others.
    pub fn new(given: Vec<ForModel<TemplateSource>>) -> Self {
        Self(given)
    }

    /// The models that are named.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|one| one.model.as_deref())
    }

    /// In place of the model's own.
    pub fn given(&self, model: &str) -> Option<&TemplateSource> {
        for_model(&self.0, model)
    }
}
