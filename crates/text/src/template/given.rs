//! A chat template that is given for a model, in place of the model's own. Owns what a file may contain; reads
//! none.

use serde_json::{Map, Value};

use super::builtin::BuiltInTemplate;
use super::engine::Engine;
use super::history::History;
use super::{Sources, TemplateError, TemplateLimits};

/// What a chat template is made of, whichever model it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateSource {
    /// One of the built-in ones.
    BuiltIn(BuiltInTemplate),
    /// Jinja templates by name, as models bring them.
    Jinja(Vec<(String, String)>),
    /// Liquid over `items`: a history template of openai_trtllm.
    History(String),
}

impl TemplateSource {
    /// Reads a file's content: Jinja, or JSON with `chat_template` as in `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`]: neither, or one that does not parse.
    pub fn from_file_content(text: &str) -> Result<Self, TemplateError> {
        // A template of Jinja may start with a brace as well, but then it is not JSON.
        let json = match text.trim_start().starts_with(['{', '[', '"']) {
            true => serde_json::from_str::<Value>(text).ok(),
            false => None,
        };
        let templates = match &json {
            None => vec![("default".to_owned(), text.to_owned())],
            Some(json) => named_templates(Some(json.get("chat_template").unwrap_or(json))),
        };
        if templates.is_empty() {
            return Err(TemplateError::Syntax {
                message: "the file is JSON and has no `chat_template`".to_owned(),
            });
        }
        let source = Self::Jinja(templates);
        source.check()?;
        Ok(source)
    }

    /// A history template of openai_trtllm.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`]: it does not parse.
    pub fn from_history(text: &str) -> Result<Self, TemplateError> {
        let source = Self::History(text.to_owned());
        source.check()?;
        Ok(source)
    }

    fn check(&self) -> Result<(), TemplateError> {
        match self {
            Self::BuiltIn(_) => Ok(()),
            Self::Jinja(templates) => Engine::new(Sources {
                templates: templates.clone(),
                special_tokens: Map::new(),
                limits: TemplateLimits::default(),
            })
            .check(),
            Self::History(text) => History::new(text, TemplateLimits::default()).map(|_| ()),
        }
    }
}

/// Templates by name from a `chat_template` of JSON: a string, or a list of `{name, template}`.
pub(crate) fn named_templates(value: Option<&Value>) -> Vec<(String, String)> {
    match value {
        Some(Value::String(source)) => vec![("default".to_owned(), source.clone())],
        Some(Value::Array(entries)) => entries
            .iter()
            .filter_map(|entry| {
                let name = entry.get("name")?.as_str()?;
                let source = entry.get("template")?.as_str()?;
                Some((name.to_owned(), source.to_owned()))
            })
            .collect(),
        _ => Vec::new(),
    }
}
