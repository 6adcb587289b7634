//! How a plain Triton server's model is spoken to, read off its configuration. Pure: owns the tensor
//! names of the dialects and which model speaks which; knows nothing of requests or sockets.
//!
//! Source of the names: the models of Triton's TensorRT-LLM backend (`tensorrt_llm`, `ensemble`,
//! `tensorrt_llm_bls`) and TensorRT-LLM's `llmapi` model. Where releases renamed a tensor, the newest
//! name comes first.

use std::collections::BTreeMap;

use inflight_kserve::inference::{DataType, ModelConfig};
use inflight_kserve::names;

use crate::upstream::served::{Ability, ServedModel};

/// A family of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `tensorrt_llm`: token ids in and out.
    TokenIds,
    /// `ensemble` and `tensorrt_llm_bls`: text in and out.
    Text,
    /// TensorRT-LLM's `llmapi` model: text in and out, under the names of its SamplingParams.
    LlmApi,
}

/// What a request can set, whatever the tensor is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    MaxTokens,
    Streaming,
    ExcludeInput,
    Temperature,
    TopK,
    TopP,
    Seed,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    MinTokens,
    MinP,
    EndId,
    PadId,
    StopIds,
    StopWords,
    BadWords,
    EmbeddingBias,
    ReturnLogProbs,
    ReturnFinishReason,
    ReturnInputTokens,
    ReturnOutputTokens,
}

type Names = &'static [&'static str];

/// Setting, element type, and the tensor's names in the three dialects; no name: not in that dialect.
const SETTINGS: [(Setting, DataType, Names, Names, Names); 22] = {
    use DataType::*;
    use Setting::*;
    [
        (
            MaxTokens,
            TypeInt32,
            &["request_output_len"],
            &["max_tokens"],
            &["sampling_param_max_tokens"],
        ),
        (
            Streaming,
            TypeBool,
            &["streaming"],
            &["stream"],
            &["streaming"],
        ),
        (
            ExcludeInput,
            TypeBool,
            &["exclude_input_in_output"],
            &["exclude_input_in_output"],
            &["sampling_param_exclude_input_from_output"],
        ),
        (
            Temperature,
            TypeFp32,
            &["temperature"],
            &["temperature"],
            &["sampling_param_temperature"],
        ),
        (
            TopK,
            TypeInt32,
            &["runtime_top_k"],
            &["top_k"],
            &["sampling_param_top_k"],
        ),
        (
            TopP,
            TypeFp32,
            &["runtime_top_p"],
            &["top_p"],
            &["sampling_param_top_p"],
        ),
        (
            Seed,
            TypeUint64,
            &["seed", "random_seed"],
            &["seed", "random_seed"],
            &["sampling_param_seed"],
        ),
        (
            RepetitionPenalty,
            TypeFp32,
            &["repetition_penalty"],
            &["repetition_penalty"],
            &[],
        ),
        (
            PresencePenalty,
            TypeFp32,
            &["presence_penalty"],
            &["presence_penalty"],
            &["sampling_param_presence_penalty"],
        ),
        (
            FrequencyPenalty,
            TypeFp32,
            &["frequency_penalty"],
            &["frequency_penalty"],
            &["sampling_param_frequency_penalty"],
        ),
        (
            MinTokens,
            TypeInt32,
            &["min_tokens", "min_length"],
            &["min_tokens", "min_length"],
            &[],
        ),
        // Of repositories that host Inflight's executors.
        (MinP, TypeFp32, &[names::MIN_P], &[], &[]),
        (EndId, TypeInt32, &["end_id"], &[], &[]),
        (PadId, TypeInt32, &["pad_id"], &[], &[]),
        (StopIds, TypeInt32, &["stop_words_list"], &[], &[]),
        (StopWords, TypeString, &[], &["stop_words"], &[]),
        (BadWords, TypeString, &[], &["bad_words"], &[]),
        (EmbeddingBias, TypeFp32, &["embedding_bias"], &[], &[]),
        (ReturnLogProbs, TypeBool, &["return_log_probs"], &[], &[]),
        (
            ReturnFinishReason,
            TypeBool,
            &[],
            &[],
            &["return_finish_reason"],
        ),
        (
            ReturnInputTokens,
            TypeBool,
            &[],
            &["return_num_input_tokens"],
            &[],
        ),
        (
            ReturnOutputTokens,
            TypeBool,
            &[],
            &["return_num_output_tokens"],
            &[],
        ),
    ]
};

/// Output tensors that are read.
pub mod output {
    pub const IDS: &str = "output_ids";
    pub const LENGTH: &str = "sequence_length";
    pub const LOG_PROBS: &str = "output_log_probs";
    /// A number; of repositories that host Inflight's executors.
    pub const REASON: &str = inflight_kserve::names::FINISH_REASON;
    pub const TEXT: &str = "text_output";
    pub const FINISH_REASON: &str = "finish_reason";
    pub const INPUT_TOKENS: &str = "num_input_tokens";
    pub const OUTPUT_TOKENS: &str = "num_output_tokens";
}

impl Dialect {
    fn names(self, row: &(Setting, DataType, Names, Names, Names)) -> Names {
        match self {
            Self::TokenIds => row.2,
            Self::Text => row.3,
            Self::LlmApi => row.4,
        }
    }

    /// The prompt's tensors.
    fn prompt(self) -> &'static [(&'static str, DataType)] {
        match self {
            Self::TokenIds => &[
                ("input_ids", DataType::TypeInt32),
                ("input_lengths", DataType::TypeInt32),
            ],
            Self::Text | Self::LlmApi => &[("text_input", DataType::TypeString)],
        }
    }

    /// The one output that must be there.
    fn answer(self) -> (&'static str, DataType) {
        match self {
            Self::TokenIds => (output::IDS, DataType::TypeInt32),
            Self::Text | Self::LlmApi => (output::TEXT, DataType::TypeString),
        }
    }

    /// The dialect whose prompt and limit the configuration has.
    fn of(config: &ModelConfig) -> Option<Self> {
        let has = |name: &str| config.input.iter().any(|input| input.name == name);
        [Self::TokenIds, Self::Text, Self::LlmApi]
            .into_iter()
            .find(|dialect| {
                let limit = dialect.names(&SETTINGS[0]).iter().any(|name| has(name));
                limit && dialect.prompt().iter().all(|(name, _)| has(name))
            })
    }
}

/// One model of a plain Triton server.
#[derive(Clone, Debug, PartialEq)]
pub struct TritonModel {
    pub name: String,
    pub dialect: Dialect,
    /// Whether a request may have many responses; otherwise it has one.
    pub decoupled: bool,
    /// Whether tensors have a batch dimension before their own.
    pub batched: bool,
    /// Each streamed text repeats what came before it.
    pub accumulates: bool,
    /// Whether the server's tokenizer puts special tokens before a text.
    pub adds_special_tokens: bool,
    /// The names of the settings that the model takes, and whether they must be sent.
    settings: BTreeMap<Setting, (&'static str, bool)>,
    outputs: Vec<&'static str>,
}

/// What the server says about a model beside its own configuration.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Whether the model, or for an ensemble any of its steps, is decoupled.
    pub decoupled: bool,
    /// The `add_special_tokens` of the model that tokenizes for it.
    pub adds_special_tokens: bool,
}

/// Whether a text parameter says yes; absent or unreadable: `default`.
pub fn flag(config: &ModelConfig, name: &str, default: bool) -> bool {
    let value = config.parameters.get(name);
    let value = value.map(|value| value.string_value.to_ascii_lowercase());
    match value.as_deref() {
        Some("true" | "t" | "1" | "yes" | "y") => true,
        Some("false" | "f" | "0" | "no" | "n") => false,
        _ => default,
    }
}

/// Reads a model's configuration. `None`: it generates nothing by itself, e.g. `preprocessing`.
///
/// # Errors
/// It does, but not in a way that can be used; says why, naming the tensor.
pub fn describe(
    config: &ModelConfig,
    surroundings: Surroundings,
) -> Option<Result<TritonModel, String>> {
    let dialect = Dialect::of(config)?;
    Some(read(config, dialect, surroundings))
}

fn read(
    config: &ModelConfig,
    dialect: Dialect,
    surroundings: Surroundings,
) -> Result<TritonModel, String> {
    let mut settings = BTreeMap::new();
    for input in &config.input {
        let prompt = dialect
            .prompt()
            .iter()
            .find(|(name, _)| *name == input.name);
        let setting = SETTINGS.iter().find_map(|row| {
            let names = dialect.names(row).iter();
            let name = names.copied().find(|name| *name == input.name)?;
            Some((row, name))
        });
        let expected = prompt
            .map(|(_, kind)| *kind)
            .or(setting.map(|(row, _)| row.1));
        let Some(expected) = expected else {
            if input.optional {
                continue;
            }
            return Err(format!(
                "its input `{}` must be sent, and the gateway does not know it",
                input.name
            ));
        };
        if input.data_type() != expected {
            return Err(format!(
                "its input `{}` is {} and not {}",
                input.name,
                input.data_type().as_str_name(),
                expected.as_str_name()
            ));
        }
        if let Some((row, name)) = setting {
            // A table row's first name wins where a model has both.
            let newer = dialect.names(row).first() == Some(&name);
            if newer || !settings.contains_key(&row.0) {
                settings.insert(row.0, (name, !input.optional));
            }
        }
    }
    let (answer, kind) = dialect.answer();
    match config.output.iter().find(|output| output.name == answer) {
        Some(output) if output.data_type() == kind => {}
        _ => {
            return Err(format!(
                "it has no output `{answer}` of type {}",
                kind.as_str_name()
            ));
        }
    }
    let streams = surroundings.decoupled && settings.contains_key(&Setting::Streaming);
    if !streams && !settings.contains_key(&Setting::ExcludeInput) {
        let name = dialect
            .names(&SETTINGS[2])
            .first()
            .copied()
            .unwrap_or_default();
        return Err(format!(
            "its answers repeat the prompt: it does not stream and has no input `{name}`"
        ));
    }
    let known = [
        output::IDS,
        output::LENGTH,
        output::LOG_PROBS,
        output::REASON,
        output::TEXT,
        output::FINISH_REASON,
        output::INPUT_TOKENS,
        output::OUTPUT_TOKENS,
    ];
    let outputs = known
        .into_iter()
        .filter(|name| config.output.iter().any(|output| output.name == *name));
    Ok(TritonModel {
        name: config.name.clone(),
        dialect,
        decoupled: streams,
        batched: config.max_batch_size > 0,
        // The llmapi model sends the text so far with every step, BLS when told to.
        accumulates: dialect == Dialect::LlmApi || flag(config, "accumulate_tokens", false),
        adds_special_tokens: surroundings.adds_special_tokens,
        settings,
        outputs: outputs.collect(),
    })
}

impl TritonModel {
    /// The tensor's name, where the model takes the setting.
    pub fn setting(&self, setting: Setting) -> Option<&'static str> {
        self.settings.get(&setting).map(|(name, _)| *name)
    }

    /// Whether a request without the setting is refused by the server.
    pub fn must_send(&self, setting: Setting) -> bool {
        self.settings.get(&setting).is_some_and(|(_, must)| *must)
    }

    /// Whether the model has this output.
    pub fn has_output(&self, name: &str) -> bool {
        self.outputs.contains(&name)
    }

    /// Whether prompts are texts.
    pub fn takes_text(&self) -> bool {
        self.dialect != Dialect::TokenIds
    }

    /// Whether to have responses as tokens are made: where the client wants them, where the gateway
    /// looks for stop strings and nothing else ends the answer, and where counting the steps is the only
    /// way to tell a cut answer. A text in one piece is decoded better than its pieces are.
    pub fn streams(&self, asked: bool, has_stops: bool, has_tokenizer: bool) -> bool {
        let stops = has_stops && self.setting(Setting::StopWords).is_none();
        let counts = has_tokenizer || self.counts_tokens() || self.tells_reason();
        self.decoupled && (asked || stops || (self.takes_text() && !counts))
    }

    /// Whether the server tells how many tokens prompt and answer have.
    pub fn counts_tokens(&self) -> bool {
        let told = [Setting::ReturnInputTokens, Setting::ReturnOutputTokens];
        told.iter()
            .all(|setting| self.settings.contains_key(setting))
            && self.has_output(output::INPUT_TOKENS)
            && self.has_output(output::OUTPUT_TOKENS)
    }

    /// Whether the server says why an answer ended.
    pub fn tells_reason(&self) -> bool {
        self.settings.contains_key(&Setting::ReturnFinishReason)
            && self.has_output(output::FINISH_REASON)
    }

    /// Why the model cannot do this, as what follows a field's name; `None`: it can. `served` is the
    /// model with what the gateway knows of its text.
    pub fn lacks(&self, ability: Ability, served: &ServedModel) -> Option<String> {
        let input = |setting: Setting| {
            if self.settings.contains_key(&setting) {
                return None;
            }
            let row = SETTINGS.iter().find(|row| row.0 == setting);
            let name = row.and_then(|row| self.dialect.names(row).first());
            Some(match name {
                Some(name) => format!(
                    "needs the input `{name}`, which the Triton model `{}` does not have",
                    self.name
                ),
                None => self.not_possible(),
            })
        };
        let tokens_only = || self.takes_text().then(|| self.not_possible());
        match ability {
            // One request of the server's for each.
            Ability::Sequences => None,
            Ability::TokenPrompt | Ability::IgnoreEos | Ability::ShowSpecialTokens => tokens_only(),
            Ability::TopK => input(Setting::TopK),
            Ability::TopP => input(Setting::TopP),
            Ability::Temperature => input(Setting::Temperature),
            Ability::Seed => input(Setting::Seed),
            Ability::RepetitionPenalty => input(Setting::RepetitionPenalty),
            Ability::PresencePenalty => input(Setting::PresencePenalty),
            Ability::FrequencyPenalty => input(Setting::FrequencyPenalty),
            Ability::MinTokens => input(Setting::MinTokens),
            Ability::MinP => input(Setting::MinP),
            Ability::StopTokenIds => input(Setting::StopIds),
            Ability::LogProbs if self.has_output(output::LOG_PROBS) => input(Setting::ReturnLogProbs),
            Ability::LogitBias if served.vocabulary().is_some() => input(Setting::EmbeddingBias),
            Ability::LogitBias if !self.takes_text() => Some(
                "needs the size of the vocabulary, which a `config.json` beside the tokenizer would \
                 tell"
                    .to_owned(),
            ),
            Ability::LogProbs
            | Ability::LogitBias
            | Ability::TopLogProbs
            | Ability::PromptLogProbs => Some(self.not_possible()),
            Ability::Usage => (served.text.is_none() && !self.counts_tokens()).then(|| {
                format!(
                    "needs a count of tokens, which the Triton model `{}` does not tell; start the \
                     gateway with `--tokenizer`",
                    self.name
                )
            }),
        }
    }

    fn not_possible(&self) -> String {
        format!("cannot be asked of the Triton model `{}`", self.name)
    }
}

#[cfg(test)]
mod tests;
