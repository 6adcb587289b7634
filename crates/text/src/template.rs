//! Chat templates: messages in, the prompt's text out. Owns the rendering of Hugging Face's Jinja
//! dialect within limits: a template is input, and so are the messages. Knows nothing of tokens.
//!
//! Rendering follows `transformers`' `apply_chat_template`: its environment (trim_blocks,
//! lstrip_blocks, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, its `tojson`),
//! and the special tokens as variables. As vLLM does, and unlike plain transformers, the arguments of a
//! tool call that come as OpenAI's JSON text are handed to the template as the object they spell.
//!
//! Templates come with the model's own files, never from clients, and the limits are made for honest
//! ones: loops that run away, conversations that are too large, values that are nested too deeply. They
//! do not make a hostile template safe: one that doubles a string in a loop takes memory, and one that
//! stores a namespace in itself takes the stack, and either ends the process. No message can do that.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

mod clock;
mod json;
mod output;
mod python;
mod source;
mod values;

use output::Bounded;
use python::Raised;

/// The name of the template that renders when no other is asked for.
const DEFAULT: &str = "default";
/// The name of the template that renders when the request has tools.
const TOOL_USE: &str = "tool_use";

/// Bytes of a template's source; the largest known ones have some tens of thousands.
const SOURCE_LIMIT: usize = 1 << 20;

/// A model's chat template, compiled once.
///
/// ```
/// use inflight_text::{ChatTemplate, TemplateInput};
/// use serde_json::{Map, json};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
/// let template = ChatTemplate::new(vec![("default".to_owned(), source.to_owned())], Map::new());
/// let input = TemplateInput {
///     messages: json!([{"role": "user", "content": "Hi"}]),
///     ..TemplateInput::default()
/// };
/// assert_eq!(template.render(&input)?, "<user>Hi");
/// # Ok::<(), inflight_text::TemplateError>(())
/// ```
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Names in the model's order; those that do not parse with why.
    templates: Vec<(String, Result<(), String>)>,
    special_tokens: Map<String, Value>,
    limits: TemplateLimits,
}

/// How much one rendering may cost.
#[derive(Clone, Copy, Debug)]
pub struct TemplateLimits {
    /// Template instructions. Real templates take some hundreds per message.
    pub fuel: u64,
    /// Bytes of rendered text.
    pub output_bytes: usize,
    /// Nesting of blocks, macros and calls, in the engine's units (a macro call costs several).
    pub recursion: usize,
}

impl Default for TemplateLimits {
    /// Fuel for conversations of thousands of messages, in well under a second; output of twice the
    /// gateway's largest body; the deepest recursion that the engine holds safe for a 2 MiB stack.
    fn default() -> Self {
        Self {
            fuel: 10_000_000,
            output_bytes: 64 << 20,
            recursion: 500,
        }
    }
}

/// What a template renders.
#[derive(Clone, Debug, Default)]
pub struct TemplateInput {
    /// The messages as the client sent them: a list of objects with `role` and `content`.
    pub messages: Value,
    /// The request's tools, as OpenAI's list; absent, null or empty is the same as none.
    pub tools: Option<Value>,
    /// Whether to end with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables (`chat_template_kwargs`); they win over special tokens, and over
    /// `documents`, but not over the fields above.
    pub extra: Map<String, Value>,
}

/// Why a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template called `raise_exception`: the conversation is not one that the model takes.
    #[error("the model's chat template refuses this conversation: {message}")]
    Raised { message: String },
    /// The template does not parse. Completions still work.
    #[error("the model's chat template does not parse: {message}")]
    Syntax { message: String },
    /// Several templates, none of them the default.
    #[error("the model has no chat template named `default`, only {names}")]
    NoDefault { names: String },
    /// The rendering took more instructions than allowed.
    #[error(
        "the model's chat template needs more than `{limit}` steps for this conversation; send fewer messages"
    )]
    OutOfFuel { limit: u64 },
    /// The rendered text is larger than allowed.
    #[error("the conversation renders to more than `{limit}` bytes; send less text")]
    OutputTooLarge { limit: usize },
    /// Messages or tools nested more deeply than templates are given.
    #[error("the messages or tools are nested more than `{limit}` levels deep")]
    TooDeep { limit: usize },
    /// The template failed on these values, e.g. it needs a field that a message lacks.
    #[error("the model's chat template failed on this conversation: {message}")]
    Failed { message: String },
}

impl TemplateError {
    /// Whether the model's files are at fault, and no change of the request would help.
    pub fn is_models_fault(&self) -> bool {
        matches!(self, Self::Syntax { .. } | Self::NoDefault { .. })
    }
}

impl ChatTemplate {
    /// Compiles templates by name, with the special tokens they see as variables, and default limits.
    /// One that does not parse is kept as its error, for [`Self::render`] to return.
    pub fn new(sources: Vec<(String, String)>, special_tokens: Map<String, Value>) -> Self {
        Self::with_limits(sources, special_tokens, TemplateLimits::default())
    }

    /// As [`Self::new`], with other limits.
    pub fn with_limits(
        sources: Vec<(String, String)>,
        special_tokens: Map<String, Value>,
        limits: TemplateLimits,
    ) -> Self {
        let mut environment = environment(limits);
        let mut templates: Vec<(String, Result<(), String>)> = Vec::with_capacity(sources.len());
        for (name, source) in sources {
            let state = compile(&mut environment, &name, &source);
            templates.retain(|(known, _)| *known != name);
            templates.push((name, state));
        }
        Self {
            environment,
            templates,
            special_tokens,
            limits,
        }
    }

    /// Renders a conversation. Takes time in proportion to it, within the limits.
    ///
    /// With tools the template named `tool_use` renders where the model has one, else `default`, else
    /// the only one.
    ///
    /// # Errors
    ///
    /// [`TemplateError`]; [`TemplateError::is_models_fault`] says whether the client can do anything about it.
    pub fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        let tools = input.tools.as_ref().filter(|tools| {
            !tools.is_null() && !tools.as_array().is_some_and(|list| list.is_empty())
        });
        let name = self.choose(tools.is_some())?;
        let template =
            self.environment
                .get_template(name)
                .map_err(|error| TemplateError::Syntax {
                    message: describe(&error),
                })?;
        let context = values::context(&self.special_tokens, input, tools)?;

        let mut output = Bounded::new(self.limits.output_bytes);
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
                limit: self.limits.output_bytes,
            }),
            Ok(Err(error)) => Err(self.failure(&error)),
            Err(_) => Err(TemplateError::Failed {
                message: "the template engine failed".to_owned(),
            }),
        }
    }

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
                names: self
                    .templates
                    .iter()
                    .map(|(name, _)| format!("`{name}`"))
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    fn failure(&self, error: &minijinja::Error) -> TemplateError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(raised) = current.downcast_ref::<Raised>() {
                return TemplateError::Raised {
                    message: raised.message().to_owned(),
                };
            }
            if let Some(error) = current.downcast_ref::<minijinja::Error>()
                && error.kind() == ErrorKind::OutOfFuel
            {
                return TemplateError::OutOfFuel {
                    limit: self.limits.fuel,
                };
            }
            cause = current.source();
        }
        TemplateError::Failed {
            message: describe(error),
        }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("templates", &self.templates)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The environment that transformers gives its templates.
fn environment(limits: TemplateLimits) -> Environment<'static> {
    let mut environment = Environment::new();
    // Only fails for delimiters, and those are the defaults.
    if let Ok(syntax) = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
    {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(limits.recursion);
    // Debug information clones the template's source into each error.
    environment.set_debug(false);
    python::install(&mut environment);
    environment
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
fn describe(error: &minijinja::Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line} of the template)"));
    }
    text
}
