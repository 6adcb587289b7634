//! The names of the formats. Owns what a format is called and which markers must stay visible; how one is read is in
//! `machine`, `formats` and `reasoning`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::formats;

/// How a model writes reasoning and tool calls; each is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// How calls are written; `None`: the text is not searched for calls.
    pub tools: Option<ToolFormat>,
    /// How reasoning is written; `None`: the text is not searched for reasoning.
    pub reasoning: Option<ReasoningFormat>,
}

/// How a model writes tool calls. The names are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, the embedded model.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…`: Qwen3-Coder, Qwen 3.5, Nemotron 3, Seed-OSS.
    Qwen3Coder,
    /// `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>`: Llama 3.1 to 3.3.
    Llama3Json,
    /// `[name(key=value)]`: Llama 3.2 and 4, LFM2, Olmo 3.
    Pythonic,
    /// `[TOOL_CALLS]`: Mistral, in both of its forms.
    Mistral,
    /// `<｜tool▁calls▁begin｜>` with fenced arguments: DeepSeek V3 and R1. The same parser as [`Self::DeepseekV31`].
    DeepseekV3,
    /// `<｜tool▁calls▁begin｜>` with bare arguments: DeepSeek V3.1.
    DeepseekV31,
    /// `<tool_call>name<arg_key>…`: GLM 4.5 to 4.7.
    Glm45,
    /// `<|tool_calls_section_begin|>`: Kimi K2.
    KimiK2,
    /// Messages to functions: gpt-oss. This format reads reasoning too.
    Harmony,
    /// `<｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">…`: DeepSeek V3.2 and V4.
    DeepseekV32,
    /// `<minimax:tool_call><invoke name="…"><parameter name="…">…`: MiniMax M2.
    MinimaxM2,
    /// `<|tool_call>call:name{key:<|"|>…<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
    /// `functools[{"name": …, "arguments": {…}}]`: Phi-4-mini.
    Phi4MiniJson,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}]`: Granite 3.
    Granite,
    /// `<tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>`: Jamba, Hunyuan A13B, Apriel, MiniMax M1.
    Jamba,
    /// `[{"name": …, "arguments": {…}}]`, bare or in a fence: xLAM.
    Xlam,
    /// `<|action_start|><|plugin|>{"name": …, "parameters": {…}}<|action_end|>`: InternLM 2.
    Internlm,
}

/// What the id of a call has to look like, for the model's chat template to take it in a later turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIdForm {
    /// Any text.
    Any,
    /// Nine ASCII letters and digits: Mistral's templates refuse any other id.
    NineAlphanumerics,
}

impl CallIdForm {
    /// Whether an id has this form.
    pub fn accepts(self, id: &str) -> bool {
        match self {
            Self::Any => true,
            Self::NineAlphanumerics => {
                id.len() == NINE && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
            }
        }
    }

    /// The id in this form: as it is if it fits, and otherwise one that is the same for the same id, so that a call
    /// and its result still go together.
    pub fn fit(self, id: &str) -> Cow<'_, str> {
        if self.accepts(id) {
            return Cow::Borrowed(id);
        }
        // FNV-1a. Nine of 62 characters keep some 53 of its 64 bits.
        let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Cow::Owned(Self::nine(hash))
    }

    /// A new id in this form from random bits; `None`: any id will do.
    pub fn random(self, bits: u64) -> Option<String> {
        match self {
            Self::Any => None,
            Self::NineAlphanumerics => Some(Self::nine(bits)),
        }
    }

    fn nine(mut bits: u64) -> String {
        let mut id = String::with_capacity(NINE);
        for _ in 0..NINE {
            let digit = u8::try_from(bits % 62).unwrap_or_default();
            id.push(char::from(match digit {
                0..=9 => b'0' + digit,
                10..=35 => b'A' + (digit - 10),
                _ => b'a' + (digit - 36),
            }));
            bits /= 62;
        }
        id
    }
}

/// Characters of Mistral's ids.
const NINE: usize = 9;

/// How a model writes reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// `<think>…</think>`: DeepSeek R1, Qwen 3, GLM 4.5, Kimi K2, and most others.
    Think,
    /// `[THINK]…[/THINK]`: Magistral.
    Mistral,
    /// "Here is my thought process:" and "Here is my response:": Granite 3.2.
    Granite,
    /// `<seed:think>…</seed:think>`: Seed-OSS.
    SeedOss,
    /// `<|START_THINKING|>…<|END_THINKING|>`: Command A Reasoning.
    Cohere,
    /// `<|channel>thought…<channel|>`: Gemma 4.
    Gemma4,
    /// `<think>…</think><answer>…</answer>`: Hunyuan A13B; with `<response>`: ERNIE 4.5.
    ThinkAnswer,
    /// The channel `analysis`: gpt-oss.
    Harmony,
}

/// What marks reasoning. All tags of a format must start with at most two different bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    pub(crate) open: &'static [&'static str],
    pub(crate) close: &'static [&'static str],
    /// What may be around the answer behind the reasoning, and is not part of it.
    pub(crate) answer: &'static [Wrapper],
}

/// A tag that opens the answer, and what closes it.
pub(crate) type Wrapper = (&'static str, &'static [&'static str]);

/// A name that is not a format's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {what} parser `{name}`; use one of {known}")]
pub struct UnknownFormat {
    what: &'static str,
    name: String,
    known: String,
}

impl UnknownFormat {
    fn new(what: &'static str, name: &str, known: impl Iterator<Item = &'static str>) -> Self {
        const LONGEST: usize = 64;
        let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
        Self {
            what,
            name: name
                .chars()
                .take(LONGEST)
                .flat_map(char::escape_debug)
                .collect(),
            known: known.join(", "),
        }
    }
}

impl ToolFormat {
    /// Every format, each with its names; the first one is its own, the others are vLLM's aliases.
    const NAMES: [(Self, &'static [&'static str]); 18] = [
        (Self::Hermes, &["hermes", "granite4", "ernie45"]),
        (Self::Qwen3Coder, &["qwen3_coder", "qwen3_xml", "seed_oss"]),
        (Self::Llama3Json, &["llama3_json", "llama4_json"]),
        (
            Self::Pythonic,
            &["pythonic", "llama4_pythonic", "lfm2", "olmo3"],
        ),
        (Self::Mistral, &["mistral"]),
        (Self::DeepseekV3, &["deepseek_v3"]),
        (Self::DeepseekV31, &["deepseek_v31"]),
        (Self::Glm45, &["glm45", "glm47"]),
        (Self::KimiK2, &["kimi_k2"]),
        (Self::Harmony, &["openai", "harmony"]),
        (Self::DeepseekV32, &["deepseek_v32", "deepseek_v4"]),
        (Self::MinimaxM2, &["minimax_m2"]),
        (Self::Gemma4, &["gemma4"]),
        (Self::Phi4MiniJson, &["phi4_mini_json"]),
        (Self::Granite, &["granite"]),
        (Self::Jamba, &["jamba", "hunyuan_a13b", "minimax"]),
        (Self::Xlam, &["xlam"]),
        (Self::Internlm, &["internlm"]),
    ];

    /// Every format.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(format, _)| *format)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        first_name(&Self::NAMES, self)
    }

    /// The markers that are special tokens in the tokenizers of the models that write this format. The detokenizer
    /// must show them even where `skip_special_tokens` drops the others.
    pub const fn special_markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => formats::hermes::SPECIAL,
            Self::Qwen3Coder => formats::qwen_coder::SPECIAL,
            Self::Llama3Json => formats::llama_json::SPECIAL,
            Self::Pythonic => formats::pythonic::SPECIAL,
            Self::Mistral => formats::mistral::SPECIAL,
            Self::DeepseekV3 | Self::DeepseekV31 => formats::sections::DEEPSEEK_SPECIAL,
            Self::Glm45 => formats::glm::SPECIAL,
            Self::KimiK2 => formats::sections::KIMI_SPECIAL,
            Self::Harmony => formats::harmony::SPECIAL,
            Self::DeepseekV32 => formats::invoke::DEEPSEEK_SPECIAL,
            Self::MinimaxM2 => formats::invoke::MINIMAX_SPECIAL,
            Self::Gemma4 => formats::gemma::SPECIAL,
            Self::Phi4MiniJson => formats::objects::PHI4_MINI_SPECIAL,
            Self::Granite => formats::objects::GRANITE_SPECIAL,
            Self::Jamba => formats::objects::JAMBA_SPECIAL,
            Self::Xlam => formats::objects::XLAM_SPECIAL,
            Self::Internlm => formats::objects::INTERNLM_SPECIAL,
        }
    }

    /// What the ids of calls have to look like.
    pub const fn call_id_form(self) -> CallIdForm {
        match self {
            Self::Mistral => CallIdForm::NineAlphanumerics,
            _ => CallIdForm::Any,
        }
    }

    /// The special tokens that start a call. No text holds them, so they end reasoning that was not closed, whatever
    /// follows.
    pub(crate) const fn call_tokens(self) -> &'static [&'static str] {
        match self {
            Self::DeepseekV3 | Self::DeepseekV31 => formats::sections::DEEPSEEK_STARTS,
            Self::KimiK2 => formats::sections::KIMI_STARTS,
            Self::Mistral => formats::mistral::STARTS,
            _ => &[],
        }
    }

    /// The marks that announce a call, but that text about calls may hold too: they end reasoning if a call follows.
    pub(crate) const fn call_marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => formats::hermes::STARTS,
            Self::Qwen3Coder => formats::qwen_coder::STARTS,
            Self::Glm45 => formats::glm::STARTS,
            Self::Llama3Json => formats::llama_json::STARTS,
            Self::Pythonic => formats::pythonic::STARTS,
            Self::DeepseekV32 => formats::invoke::DEEPSEEK_STARTS,
            Self::MinimaxM2 => formats::invoke::MINIMAX_STARTS,
            Self::Gemma4 => formats::gemma::STARTS,
            Self::Phi4MiniJson => formats::objects::PHI4_MINI_STARTS,
            Self::Granite => formats::objects::GRANITE_STARTS,
            Self::Jamba => formats::objects::JAMBA_STARTS,
            Self::Xlam => formats::objects::XLAM_STARTS,
            Self::Internlm => formats::objects::INTERNLM_STARTS,
            _ => &[],
        }
    }
}

impl ReasoningFormat {
    /// Every format, each with its names; the first one is its own, the others are vLLM's names of the same format.
    const NAMES: [(Self, &'static [&'static str]); 8] = [
        (
            Self::Think,
            &[
                "think",
                "deepseek_r1",
                "deepseek_v3",
                "qwen3",
                "deepseek_v4",
                "glm45",
                "glm47",
                "kimi_k2",
                "mimo",
                "olmo3",
                "nemotron_v3",
                "step3",
                "minimax_m2",
            ],
        ),
        (Self::Mistral, &["mistral"]),
        (Self::Granite, &["granite"]),
        (Self::SeedOss, &["seed_oss"]),
        (Self::Cohere, &["cohere"]),
        (Self::Gemma4, &["gemma4"]),
        (Self::ThinkAnswer, &["hunyuan_a13b", "ernie45"]),
        (Self::Harmony, &["openai_gptoss", "harmony"]),
    ];

    /// Every format.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(format, _)| *format)
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        first_name(&Self::NAMES, self)
    }

    /// The markers that are special tokens in some tokenizers: see [`ToolFormat::special_markers`].
    pub const fn special_markers(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>", "</think>"],
            Self::ThinkAnswer => &[
                "<think>",
                "</think>",
                "<answer>",
                "</answer>",
                "<response>",
                "</response>",
            ],
            Self::Mistral => &["[THINK]", "[/THINK]"],
            Self::Granite => &[],
            Self::SeedOss => &["<seed:think>", "</seed:think>"],
            Self::Cohere => &["<|START_THINKING|>", "<|END_THINKING|>"],
            Self::Gemma4 => &["<|channel>", "<channel|>"],
            Self::Harmony => formats::harmony::SPECIAL,
        }
    }

    /// What begins and what ends the reasoning, where each is one tag.
    pub fn marks(self) -> Option<(&'static str, &'static str)> {
        match self.tags()? {
            Tags {
                open: [open],
                close: [close],
                ..
            } => Some((open, close)),
            _ => None,
        }
    }

    pub(crate) fn tags(self) -> Option<Tags> {
        let (open, close): (&[&str], &[&str]) = match self {
            Self::Think | Self::ThinkAnswer => (&["<think>"], &["</think>"]),
            Self::Mistral => (&["[THINK]"], &["[/THINK]"]),
            Self::Granite => (
                &["Here is my thought process:", "Here's my thought process:"],
                &["Here is my response:", "Here's my response:"],
            ),
            Self::SeedOss => (&["<seed:think>"], &["</seed:think>"]),
            Self::Cohere => (&["<|START_THINKING|>"], &["<|END_THINKING|>"]),
            Self::Gemma4 => (&["<|channel>thought"], &["<channel|>"]),
            Self::Harmony => return None,
        };
        let answer: &[Wrapper] = match self {
            Self::ThinkAnswer => &[
                ("<answer>", &["\n</answer>", "</answer>"]),
                ("<response>", &["\n</response>", "</response>"]),
            ],
            _ => &[],
        };
        Some(Tags {
            open,
            close,
            answer,
        })
    }
}

impl Format {
    /// Whether the answer is made of harmony's messages.
    pub(crate) fn is_harmony(self) -> bool {
        self.tools == Some(ToolFormat::Harmony) || self.reasoning == Some(ReasoningFormat::Harmony)
    }

    /// The markers that must be visible in the text that the parser gets, of tools and of reasoning.
    pub fn special_markers(self) -> impl Iterator<Item = &'static str> {
        let tools = self.tools.map_or(&[][..], ToolFormat::special_markers);
        let reasoning = self
            .reasoning
            .map_or(&[][..], ReasoningFormat::special_markers);
        tools.iter().chain(reasoning).copied()
    }

    /// Whether this prompt, as rendered, leaves the reasoning open, so that the answer starts within it.
    pub fn opens_reasoning(self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        if self.is_harmony() {
            return prompt.ends_with(formats::harmony::OPEN);
        }
        self.reasoning
            .and_then(ReasoningFormat::tags)
            .is_some_and(|tags| tags.open.iter().any(|open| prompt.ends_with(open)))
    }
}

impl FromStr for ToolFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(&Self::NAMES, name).ok_or_else(|| {
            let known = Self::NAMES.iter().flat_map(|(_, names)| *names);
            UnknownFormat::new("tool", name, known.copied())
        })
    }
}

impl FromStr for ReasoningFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        find(&Self::NAMES, name).ok_or_else(|| {
            let known = Self::NAMES.iter().flat_map(|(_, names)| *names);
            UnknownFormat::new("reasoning", name, known.copied())
        })
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

fn find<T: Copy>(names: &[(T, &[&str])], name: &str) -> Option<T> {
    let entry = names.iter().find(|(_, names)| names.contains(&name));
    entry.map(|(format, _)| *format)
}

fn first_name<T: PartialEq>(names: &[(T, &'static [&'static str])], format: T) -> &'static str {
    let entry = names.iter().find(|(of, _)| *of == format);
    entry
        .and_then(|(_, names)| names.first().copied())
        .unwrap_or_default()
}
