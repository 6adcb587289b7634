//! Chat templates: messages in, the prompt's text out. Owns the limits of one rendering, the choice of the
//! template and the errors. Knows nothing of tokens.
//!
//! A template comes with a model, from a worker or a model directory, so it is untrusted code to a gateway
//! that serves other models as well. The template engine itself can be made to exhaust the stack or the
//! memory of its process, and no check in the same process covers every way. So a server calls
//! [`use_template_helper`] once: from then on templates are rendered in helper processes, one template each, under
//! the operating system's limits. Templates whose syntax tree proves that they cannot do such things, most of those
//! that loop over messages, render small conversations in this process (`plain`, `inline`). Without a helper, e.g. in
//! a test, all run in this process, under the engine's limits alone.

use std::collections::HashSet;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod builtin;
mod clock;
mod confine;
mod content;
mod engine;
mod given;
mod helper;
mod history;
mod inline;
mod json;
mod large_stack;
mod output;
mod plain;
mod pool;
mod python;
mod source;
mod values;
mod wire;

pub use builtin::BuiltInTemplate;
pub use confine::run_template_helper;
pub use content::ContentForm;
pub use given::TemplateSource;
pub(crate) use given::named_templates;
pub use helper::{HelperCommand, use_template_helper};

use engine::Engine;
use history::History;
use inline::Inline;
use pool::Pool;

/// Conversations of up to this many bytes are rendered in this process by templates that are proven plain.
const INLINE_BYTES: usize = 16 << 10;
/// Bytes of an error's text that came from the template.
const MESSAGE_LIMIT: usize = 1000;

/// A model's chat template.
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
    renderer: Renderer,
    /// Every word of the sources.
    words: OnceLock<HashSet<Box<str>>>,
    content: ContentForm,
    /// Whether the rendered text lacks the special tokens that a tokenizer adds to a text.
    lacks_special_tokens: bool,
}

enum Renderer {
    /// In this process.
    Engine(Box<Engine>),
    /// In helper processes, but for small conversations where the template is proven plain.
    Pool(Box<Pool>, Option<Box<Inline>>),
    /// In this process: the operator's own.
    History(Box<History>),
}

/// What a model brings: templates by name, and the special tokens that they see as variables.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sources {
    templates: Vec<(String, String)>,
    special_tokens: Map<String, Value>,
    limits: TemplateLimits,
}

/// How much one rendering may cost.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct TemplateLimits {
    /// Template instructions. Real templates take some hundreds per message.
    pub fuel: u64,
    /// Bytes of rendered text.
    pub output_bytes: usize,
    /// Nesting of blocks, macros and calls, in the engine's units (a macro call costs several).
    pub recursion: usize,
    /// Bytes of memory that a helper process may use for a rendering, input and output included.
    pub memory_bytes: u64,
    /// CPU time of a rendering in a helper process; every MiB of input adds a second.
    pub cpu_time: Duration,
}

impl Default for TemplateLimits {
    /// Fuel for conversations of thousands of messages, in well under a second; output of twice the
    /// gateway's largest body; the deepest recursion that the engine holds safe for a 2 MiB stack; memory
    /// for a body of 32 MiB whose values are all small; time for the fuel on a slow machine.
    fn default() -> Self {
        Self {
            fuel: 10_000_000,
            output_bytes: 64 << 20,
            recursion: 500,
            memory_bytes: 1 << 30,
            cpu_time: Duration::from_secs(2),
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
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
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
    /// The rendering took more CPU time than allowed; its process was stopped.
    #[error(
        "the model's chat template takes more than `{seconds}` s for this conversation; send fewer messages"
    )]
    TooSlow { seconds: f64 },
    /// The rendering ran out of memory or stack; its process ended.
    #[error(
        "the model's chat template needs more than `{limit}` bytes of memory for this conversation; send less text"
    )]
    OutOfMemory { limit: u64 },
    /// The rendered text is larger than allowed.
    #[error("the conversation renders to more than `{limit}` bytes; send less text")]
    OutputTooLarge { limit: usize },
    /// Messages or tools nested more deeply than templates are given.
    #[error("the messages or tools are nested more than `{limit}` levels deep")]
    TooDeep { limit: usize },
    /// The template failed on these values, e.g. it needs a field that a message lacks.
    #[error("the model's chat template failed on this conversation: {message}")]
    Failed { message: String },
    /// The template exceeded its limits on small conversations several times, and is not tried for a while.
    #[error(
        "the model's chat template exceeded its limits `{times}` times in a row; retry in `{seconds}` s"
    )]
    Suspended { times: usize, seconds: u64 },
    /// All helper processes of this template are rendering other conversations.
    #[error("the model's chat template is rendering too many conversations; retry later")]
    Busy,
    /// The helper process cannot be started or does not answer; the reason goes to the log.
    #[error("the chat template's helper process failed: {reason}")]
    Helper { reason: String },
}

impl TemplateError {
    /// Whether the model's files are at fault, and no change of the request would help.
    pub fn is_models_fault(&self) -> bool {
        matches!(
            self,
            Self::Syntax { .. } | Self::NoDefault { .. } | Self::Suspended { .. }
        )
    }

    /// Whether the same request may succeed later: neither the client nor the model is at fault.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Suspended { .. } | Self::Busy | Self::Helper { .. }
        )
    }

    /// Whether the rendering was stopped by a limit.
    fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::OutOfFuel { .. }
                | Self::TooSlow { .. }
                | Self::OutOfMemory { .. }
                | Self::OutputTooLarge { .. }
        )
    }
}

impl ChatTemplate {
    /// Takes templates by name, with the special tokens they see as variables, and default limits. One that
    /// does not parse is an error of [`Self::render`].
    pub fn new(sources: Vec<(String, String)>, special_tokens: Map<String, Value>) -> Self {
        Self::with_limits(sources, special_tokens, TemplateLimits::default())
    }

    /// As [`Self::new`], with other limits.
    pub fn with_limits(
        sources: Vec<(String, String)>,
        special_tokens: Map<String, Value>,
        limits: TemplateLimits,
    ) -> Self {
        let sources = Sources {
            templates: sources,
            special_tokens,
            limits,
        };
        let content = ContentForm::of(&sources.templates);
        let renderer = match helper::configured() {
            Some(command) => {
                let inline = Inline::new(&sources).map(Box::new);
                let pool = Pool::new(command, sources);
                if inline.is_none() {
                    pool.start_first();
                }
                Renderer::Pool(Box::new(pool), inline)
            }
            None => Renderer::Engine(Box::new(Engine::new(sources))),
        };
        Self {
            renderer,
            words: OnceLock::new(),
            content,
            lacks_special_tokens: false,
        }
    }

    /// The template that is given for a model with these special tokens.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] for a history template that does not parse.
    pub fn from_source(
        source: &TemplateSource,
        special_tokens: Map<String, Value>,
    ) -> Result<Self, TemplateError> {
        let limits = TemplateLimits::default();
        Ok(match source {
            TemplateSource::Jinja(templates) => Self::new(templates.clone(), special_tokens),
            TemplateSource::BuiltIn(template) => {
                let text = template.source().to_owned();
                let sources = Sources {
                    templates: vec![(template.name().to_owned(), text)],
                    special_tokens,
                    limits,
                };
                // Our own needs no process around it.
                Self {
                    renderer: Renderer::Engine(Box::new(Engine::new(sources))),
                    words: OnceLock::new(),
                    content: ContentForm::Text,
                    lacks_special_tokens: true,
                }
            }
            TemplateSource::History(text) => Self {
                renderer: Renderer::History(Box::new(History::new(text, limits)?)),
                words: OnceLock::new(),
                content: ContentForm::Text,
                lacks_special_tokens: true,
            },
        })
    }

    /// Whether the rendered text lacks the special tokens that the tokenizer adds to a text: built-in and history
    /// templates leave them to it, and models' own templates write them.
    pub fn lacks_special_tokens(&self) -> bool {
        self.lacks_special_tokens
    }

    /// Renders a conversation. Takes time in proportion to it, within the limits, and blocks meanwhile.
    ///
    /// With tools the template named `tool_use` renders where the model has one, else `default`, else
    /// the only one.
    ///
    /// # Errors
    ///
    /// [`TemplateError`]; [`TemplateError::is_models_fault`] says whether the client can do anything about it.
    pub fn render(&self, input: &TemplateInput) -> Result<String, TemplateError> {
        match &self.renderer {
            Renderer::Engine(engine) => engine.render(input),
            Renderer::Pool(pool, inline) => {
                let here = inline.as_ref().and_then(|inline| inline.render(input));
                here.unwrap_or_else(|| pool.render(input))
            }
            Renderer::History(history) => history.render(input),
        }
    }
}

impl ChatTemplate {
    /// Whether a small conversation is rendered at once, so that nothing needs to wait for another process.
    pub fn renders_at_once(&self) -> bool {
        match &self.renderer {
            // Only the built-in ones and the operator's are harmless without a proof.
            Renderer::Engine(_) | Renderer::History(_) => self.lacks_special_tokens,
            Renderer::Pool(_, inline) => inline.as_ref().is_some_and(|inline| inline.is_used()),
        }
    }

    /// How it takes the `content` of messages.
    pub fn content_form(&self) -> ContentForm {
        self.content
    }

    /// Its templates by name, in Jinja; `None` for a history template, which is Liquid.
    pub fn jinja(&self) -> Option<&[(String, String)]> {
        match &self.renderer {
            Renderer::History(_) => None,
            Renderer::Engine(_) | Renderer::Pool(..) => Some(&self.sources().templates),
        }
    }

    fn sources(&self) -> &Sources {
        match &self.renderer {
            Renderer::Engine(engine) => engine.sources(),
            Renderer::Pool(pool, _) => pool.sources(),
            Renderer::History(history) => history.sources(),
        }
    }

    /// Whether any of the model's templates names this variable. A template that does not cannot show it.
    pub fn names(&self, variable: &str) -> bool {
        let words = self.words.get_or_init(|| {
            let sources = self.sources().templates.iter();
            let is_apart = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
            let words = sources.flat_map(|(_, source)| source.split(is_apart));
            words
                .filter(|word| !word.is_empty())
                .map(Box::from)
                .collect()
        });
        words.contains(variable)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.sources();
        let names: Vec<&String> = sources.templates.iter().map(|(name, _)| name).collect();
        f.debug_struct("ChatTemplate")
            .field("templates", &names)
            .field("limits", &sources.limits)
            .finish_non_exhaustive()
    }
}

/// A text from the template as it may appear in an error.
fn excerpt(mut text: String) -> String {
    if text.len() > MESSAGE_LIMIT {
        let fits = |end: &usize| text.is_char_boundary(*end);
        text.truncate((0..=MESSAGE_LIMIT).rev().find(fits).unwrap_or(0));
        text.push('…');
    }
    text
}
