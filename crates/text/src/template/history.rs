//! History templates, as openai_trtllm has them: Liquid over `items`, each with `identity` (the role with a
//! capital letter), `content` and, where there is one, `name`. The operator writes them, never a model or a
//! client, so they run in this process, under the engine's limits.
//!
//! They are translated to Jinja once, so that one engine renders all templates; what of Liquid is not
//! translated is refused by name. Lines are the same in both. The one library for Liquid brings 22 crates, some of which are abandoned.

mod expression;
mod filters;
mod liquid;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde_json::Value as Json;

use super::engine::{describe, render_within};
use super::{Sources, TemplateError, TemplateInput, TemplateLimits, excerpt};

/// The name of the one template.
const NAME: &str = "history";

pub(super) struct History {
    environment: Environment<'static>,
    /// For the debug output, and the limits.
    sources: Sources,
}

impl History {
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub(super) fn new(source: &str, limits: TemplateLimits) -> Result<Self, TemplateError> {
        let syntax = |message: String| TemplateError::Syntax {
            message: excerpt(message),
        };
        let translated = liquid::to_jinja(source).map_err(|error| syntax(error.to_string()))?;
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // Only fails for delimiters, and those are the defaults.
        let syntax_kept = SyntaxConfig::builder().keep_trailing_newline(true).build();
        environment.set_syntax(syntax_kept.unwrap_or_default());
        environment.set_fuel(Some(limits.fuel));
        environment.set_recursion_limit(limits.recursion);
        // Debug information clones the template's source into each error.
        environment.set_debug(false);
        filters::install(&mut environment);
        environment
            .add_template_owned(NAME, translated)
            .map_err(|error| syntax(describe(&error)))?;
        Ok(Self {
            environment,
            sources: Sources {
                templates: vec![(NAME.to_owned(), source.to_owned())],
                special_tokens: serde_json::Map::new(),
                limits,
            },
        })
    }

    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    pub(super) fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME);
        let template = template.map_err(|error| TemplateError::Failed {
            message: describe(&error),
        })?;
        let messages = input.messages.as_array().into_iter().flatten();
        let items: Vec<Value> = messages.map(item).collect();
        let context = Value::from_pairs([("items", Value::from(items))]);
        render_within(&template, context, self.sources.limits)
    }
}

fn item(message: &Json) -> Value {
    let text = |name: &str| message.get(name).and_then(Json::as_str);
    let role = text("role").unwrap_or_default();
    let (first, rest) = role.split_at_checked(1).unwrap_or((role, ""));
    let identity = first.to_ascii_uppercase() + rest;
    Value::from_pairs([
        ("identity", Value::from(identity)),
        ("content", Value::from(text("content").unwrap_or_default())),
        ("name", text("name").map_or(Value::from(()), Value::from)),
    ])
}
