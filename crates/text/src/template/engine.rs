//! The template engine: Hugging Face's Jinja dialect by minijinja. Owns the environment and the engine's own
//! limits: instructions, recursion, output. Knows nothing of processes.
//!
//! Rendering follows `transformers`' `apply_chat_template`: its environment (trim_blocks,
//! lstrip_blocks, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, its `tojson`),
//! and the special tokens as variables. As vLLM does, and unlike plain transformers, the arguments of a
//! tool call that come as OpenAI's JSON text are handed to the template as the object they spell.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Template};

use super::output::Bounded;
use super::python::{self, Raised};
use super::{Sources, TemplateError, TemplateInput, TemplateLimits, excerpt, source, values};

/// The name of the template that renders when no other is asked for.
const DEFAULT: &str = "default";
/// The name of the template that renders when the request has tools.
const TOOL_USE: &str = "tool_use";

/// Bytes of a template's source; the largest known ones have some tens of thousands.
const SOURCE_LIMIT: usize = 1 << 20;

/// Templates that render in this process.
pub(super) struct Engine {
    sources: Sources,
    /// Parsed when first used: most processes that load a model render nothing.
    compiled: OnceLock<Compiled>,
}

struct Compiled {
    environment: Environment<'static>,
    /// Names in the model's order; those that do not parse with why.
    templates: Vec<(String, Result<(), String>)>,
}

impl Engine {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            sources,
            compiled: OnceLock::new(),
        }
    }

    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Parses the templates, unless that is done.
    pub(super) fn compile(&self) {
        self.compiled();
    }

    /// Whether all templates parse, and one of them can be chosen.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`], [`TemplateError::NoDefault`].
    pub(super) fn check(&self) -> Result<(), TemplateError> {
        let compiled = self.compiled();
        let faults = compiled.templates.iter();
        let mut faults = faults.filter_map(|(_, state)| state.as_ref().err());
        match faults.next() {
            Some(message) => Err(TemplateError::Syntax {
                message: message.clone(),
            }),
            None => compiled.choose(false).map(|_| ()),
        }
    }

    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| {
            let mut environment = environment(self.sources.limits);
            let mut templates: Vec<(String, Result<(), String>)> = Vec::new();
            for (name, source) in &self.sources.templates {
                let state = compile(&mut environment, name, source);
                templates.retain(|(known, _)| known != name);
                templates.push((name.clone(), state));
            }
            Compiled {
                environment,
                templates,
            }
        })
    }

    pub(super) fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        let compiled = self.compiled();
        let limits = self.sources.limits;
        let tools = input.tools.as_ref().filter(|tools| {
            !tools.is_null() && !tools.as_array().is_some_and(|list| list.is_empty())
        });
        let name = compiled.choose(tools.is_some())?;
        let template =
            compiled
                .environment
                .get_template(name)
                .map_err(|error| TemplateError::Syntax {
                    message: describe(&error),
                })?;
        let context = values::context(&self.sources.special_tokens, input, tools)?;

        render_within(&template, context, limits)
    }
}

/// Renders a template under the limits of its output and of its environment.
pub(super) fn render_within(
    template: &Template<'_, '_>,
    context: minijinja::Value,
    limits: TemplateLimits,
) -> Result<String, TemplateError> {
    let mut output = Bounded::new(limits.output_bytes);
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        template
            .render_captured_to(context, &mut output)
            .map(|_| ())
    }));
    match rendered {
        Ok(Ok(())) => output.into_text().ok_or_else(|| TemplateError::Failed {
            message: "its output is not text".to_owned(),
        }),
        Ok(Err(_)) if output.is_over() => Err(TemplateError::OutputTooLarge {
            limit: limits.output_bytes,
        }),
        Ok(Err(error)) => Err(failure(&error, limits)),
        Err(_) => Err(TemplateError::Failed {
            message: "the template engine failed".to_owned(),
        }),
    }
}

impl Compiled {
    /// The name of the template for this request.
    fn choose(&self, has_tools: bool) -> Result<&str, TemplateError> {
        let find = |wanted: &str| self.templates.iter().find(|(name, _)| name == wanted);
        let chosen = has_tools
            .then(|| find(TOOL_USE))
            .flatten()
            .or_else(|| find(DEFAULT))
            .or(match self.templates.as_slice() {
                [only] => Some(only),
                _ => None,
            });
        match chosen {
            Some((name, Ok(()))) => Ok(name),
            Some((_, Err(message))) => Err(TemplateError::Syntax {
                message: message.clone(),
            }),
            None => Err(TemplateError::NoDefault {
                names: excerpt(
                    self.templates
                        .iter()
                        .map(|(name, _)| format!("`{name}`"))
                        .collect::<Vec<_>>()
                        .join(", "),
                ),
            }),
        }
    }
}

fn failure(error: &minijinja::Error, limits: TemplateLimits) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return TemplateError::Raised {
                message: excerpt(raised.message().to_owned()),
            };
        }
        if let Some(error) = current.downcast_ref::<minijinja::Error>()
            && error.kind() == ErrorKind::OutOfFuel
        {
            return TemplateError::OutOfFuel { limit: limits.fuel };
        }
        cause = current.source();
    }
    TemplateError::Failed {
        message: describe(error),
    }
}

/// The environment that transformers gives its templates.
fn environment(limits: TemplateLimits) -> Environment<'static> {
    let mut environment = Environment::new();
    // Only fails for delimiters, and those are the defaults.
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.recursion);
    // Debug information clones the template's source into each error.
    environment.set_debug(false);
    python::install(&mut environment);
    environment
}

/// How transformers reads templates.
pub(super) fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    syntax.unwrap_or_default()
}

/// Adds one template, or says why it cannot be used.
fn compile(environment: &mut Environment<'static>, name: &str, source: &str) -> Result<(), String> {
    if source.len() > SOURCE_LIMIT {
        return Err(format!(
            "it has `{}` bytes, more than the limit of `{SOURCE_LIMIT}`",
            source.len()
        ));
    }
    let source = source::adapt(source);
    catch_unwind(AssertUnwindSafe(|| {
        environment.add_template_owned(name.to_owned(), source)
    }))
    .map_err(|_| "the template engine failed".to_owned())?
    .map_err(|error| describe(&error))
}

/// An engine error in one line: what, and where in the template.
pub(super) fn describe(error: &minijinja::Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line} of the template)"));
    }
    excerpt(text)
}
