//! Which chat template a model gets that the operator gave. Owns the choice; the templates are read by then.

use inflight_text::TemplateSource;

use crate::model::for_model::{ForModel, for_model};
use crate::options::GatewayOptions;

/// The templates of `--chat-template` and `--history-template`, by model.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatTemplates(Vec<ForModel<TemplateSource>>);

impl ChatTemplates {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        let given = options.chat_templates.iter().map(|one| ForModel {
            model: one.model.clone(),
            value: one.value.0.clone(),
        });
        let history = options.history_template.iter();
        let history = history.chain(&options.history_template_file);
        let history = history.map(|one| ForModel {
            model: None,
            value: one.0.clone(),
        });
        Self(given.chain(history).collect())
    }

    /// The models that are named.
    pub(crate) fn models(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|one| one.model.as_deref())
    }

    /// In place of the model's own.
    pub(crate) fn given(&self, model: &str) -> Option<&TemplateSource> {
        for_model(&self.0, model)
    }
}
