//! History templates, as openai_trtllm has them: Liquid over `items`, each with `identity` (the role with a
//! capital letter), `content` and, where there is one, `name`. The operator writes them, never a model or a
//! client, so they run in this process, under the engine's limits.
//!
//! They are translated to Jinja once, so that one engine renders all templates; what of Liquid is not
//! translated is refused by name. The one library for Liquid brings 22 crates, some of which are abandoned.

mod expression;
mod filters;
mod liquid;

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value};
use serde_json::Value as Json;

use super::output::Bounded;
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
        let limits = self.sources.limits;
        let failed = |message: String| TemplateError::Failed {
            message: excerpt(message),
        };
        let template = self.environment.get_template(NAME);
        let template = template.map_err(|error| failed(describe(&error)))?;
        let messages = input.messages.as_array().into_iter().flatten();
        let items: Vec<Value> = messages.map(item).collect();
        let context = Value::from_pairs([("items", Value::from(items))]);
        let mut output = Bounded::new(limits.output_bytes);
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            let rendered = template.render_captured_to(context, &mut output);
            rendered.map(|_| ())
        }));
        match rendered {
            Ok(Ok(())) => output
                .into_text()
                .ok_or_else(|| failed("its output is not text".to_owned())),
            Ok(Err(_)) if output.is_over() => Err(TemplateError::OutputTooLarge {
                limit: limits.output_bytes,
            }),
            Ok(Err(error)) if error.kind() == ErrorKind::OutOfFuel => {
                Err(TemplateError::OutOfFuel { limit: limits.fuel })
            }
            Ok(Err(error)) => Err(failed(describe(&error))),
            Err(_) => Err(failed("the template engine failed".to_owned())),
        }
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

/// An engine error in one line. Lines are the same in Liquid and in its translation.
fn describe(error: &minijinja::Error) -> String {
    let text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{text} (line {line} of the template)"),
        None => text,
    }
}
