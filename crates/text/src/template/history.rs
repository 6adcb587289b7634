//! History templates, as openai_trtllm has them: Liquid over `items`, each with `identity` (the role with a
//! capital letter), `content` and, where there is one, `name`. The operator writes them, never a model or a
//! client, so they run in this process.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use liquid::model::{Array, Value as LiquidValue};
use liquid::{Object, ParserBuilder, Template};
use serde_json::Value;

use super::output::Bounded;
use super::{Sources, TemplateError, TemplateInput, TemplateLimits, excerpt};

pub(super) struct History {
    template: Template,
    /// For the debug output, and the limits.
    sources: Sources,
}

impl History {
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub(super) fn new(source: &str, limits: TemplateLimits) -> Result<Self, TemplateError> {
        let syntax = |error: liquid::Error| TemplateError::Syntax {
            message: in_one_line(&error),
        };
        let parser = ParserBuilder::with_stdlib().build().map_err(syntax)?;
        Ok(Self {
            template: parser.parse(source).map_err(syntax)?,
            sources: Sources {
                templates: vec![("history".to_owned(), source.to_owned())],
                special_tokens: serde_json::Map::new(),
                limits,
            },
        })
    }

    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    pub(super) fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        let limit = self.sources.limits.output_bytes;
        let mut context = Object::new();
        let messages = input.messages.as_array().into_iter().flatten();
        let items: Array = messages.map(item).collect();
        context.insert("items".into(), LiquidValue::Array(items));
        let mut output = Bounded::new(limit);
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            self.template.render_to(&mut output, &context)
        }));
        match rendered {
            Ok(Ok(())) => output.into_text().ok_or_else(|| TemplateError::Failed {
                message: "its output is not text".to_owned(),
            }),
            Ok(Err(_)) if output.is_over() => Err(TemplateError::OutputTooLarge { limit }),
            Ok(Err(error)) => Err(TemplateError::Failed {
                message: in_one_line(&error),
            }),
            Err(_) => Err(TemplateError::Failed {
                message: "the template engine failed".to_owned(),
            }),
        }
    }
}

fn item(message: &Value) -> LiquidValue {
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let role = text("role").unwrap_or_default();
    let (first, rest) = role.split_at_checked(1).unwrap_or((role, ""));
    let mut item = Object::new();
    let identity = first.to_ascii_uppercase() + rest;
    item.insert("identity".into(), LiquidValue::scalar(identity));
    let content = text("content").unwrap_or_default().to_owned();
    item.insert("content".into(), LiquidValue::scalar(content));
    let name = text("name").map(|name| LiquidValue::scalar(name.to_owned()));
    item.insert("name".into(), name.unwrap_or(LiquidValue::Nil));
    LiquidValue::Object(item)
}

/// Liquid's errors have a drawing of the place below them.
fn in_one_line(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    excerpt(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
