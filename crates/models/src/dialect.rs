//! How to address a model of a plain Triton server, read from its configuration. Pure: owns which dialect a
//! model has and which settings it takes; knows nothing of requests or sockets.

mod names;

use std::collections::BTreeMap;

use inflight_kserve::inference::{ModelConfig, ModelInput};

use self::names::SETTINGS;
pub use self::names::{Dialect, Setting, output};

/// One model of a plain Triton server.
#[derive(Clone, Debug, PartialEq)]
pub struct TritonModel {
    pub name: String,
    pub dialect: Dialect,
    /// Whether a request may have many responses; otherwise it has one.
    pub decoupled: bool,
    /// Whether tensors have a batch dimension before their own.
    pub batched: bool,
    /// An answer in one piece begins with the prompt, and no request can change that.
    pub repeats_prompt: bool,
    /// Each streamed text repeats what came before it.
    pub accumulates: bool,
    /// Whether the server's tokenizer puts special tokens before a text.
    pub adds_special_tokens: bool,
    /// The names of the settings that the model takes, and whether they must be sent.
    settings: BTreeMap<Setting, (&'static str, bool)>,
    outputs: Vec<&'static str>,
}

/// What other models of the server say about a model.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Whether the model, or for an ensemble any of its steps, is decoupled.
    pub decoupled: bool,
    /// Whether the model that generates for it leaves the prompt out by its parameter
    /// `exclude_input_in_output`.
    pub excludes_prompt: bool,
    /// The `add_special_tokens` of the model that tokenizes for it.
    pub adds_special_tokens: bool,
}

/// Whether a text parameter is true; `default` if it is absent or not a boolean.
pub fn flag(config: &ModelConfig, name: &str, default: bool) -> bool {
    let value = config.parameters.get(name);
    let value = value.map(|value| value.string_value.to_ascii_lowercase());
    match value.as_deref() {
        Some("true" | "t" | "1" | "yes" | "y") => true,
        Some("false" | "f" | "0" | "no" | "n") => false,
        _ => default,
    }
}

/// Whether the model takes and gives token ids.
pub fn generates_tokens(config: &ModelConfig) -> bool {
    Dialect::of(config) == Some(Dialect::TokenIds)
}

/// The name of the model that a BLS model calls.
pub fn called_core_model(config: &ModelConfig) -> String {
    let named = config.parameters.get("tensorrt_llm_model_name");
    let named = named.map(|value| value.string_value.clone());
    let named = named.filter(|name| !name.is_empty() && !name.starts_with("${"));
    named.unwrap_or_else(|| "tensorrt_llm".to_owned())
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
                "its required input `{}` is unknown to the gateway",
                input.name
            ));
        };
        if input.data_type() != expected {
            return Err(format!(
                "its input `{}` must be {}, got {}",
                input.name,
                expected.as_str_name(),
                input.data_type().as_str_name()
            ));
        }
        let list = prompt.is_some_and(|(name, _)| *name == "input_ids");
        if !fits(input, setting.map(|(row, _)| row.0), list) {
            if input.optional && prompt.is_none() {
                continue;
            }
            return Err(format!(
                "its input `{}` has unsupported dimensions {:?}",
                input.name, input.dims
            ));
        }
        if let Some((row, name)) = setting {
            if !input.optional && !row.0.has_neutral() {
                return Err(format!(
                    "its input `{name}` is required, and most requests have nothing to send in it; make it \
                     optional in the model's configuration"
                ));
            }
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
    let outputs = output::TYPES.into_iter().filter_map(|(name, kinds)| {
        let found = config.output.iter().find(|output| output.name == name)?;
        kinds.contains(&found.data_type()).then_some(name)
    });
    Ok(TritonModel {
        name: config.name.clone(),
        dialect,
        decoupled: streams,
        batched: config.max_batch_size > 0,
        repeats_prompt: !surroundings.excludes_prompt
            && !settings.contains_key(&Setting::ExcludeInput),
        // The llmapi model sends the text so far with every step, BLS when asked to.
        accumulates: dialect == Dialect::LlmApi || flag(config, "accumulate_tokens", false),
        adds_special_tokens: surroundings.adds_special_tokens,
        settings,
        outputs: outputs.collect(),
    })
}

/// Whether the input takes the shape it would be sent in, behind the batch: all but lists are `[1]`.
fn fits(input: &ModelInput, setting: Option<Setting>, list: bool) -> bool {
    use Setting::{BadIds, BadWords, EmbeddingBias, StopIds, StopWords};
    let dims: &[i64] = match setting {
        Some(StopIds | BadIds) => &[2, 0],
        Some(StopWords | BadWords | EmbeddingBias) => &[0],
        _ if list => &[0],
        _ => &[1],
    };
    // 0: any length, so that only -1 takes it.
    let takes = |(has, sent): (&i64, &i64)| *has == -1 || (has == sent && *sent > 0);
    input.dims.len() == dims.len() && input.dims.iter().zip(dims).all(takes)
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
    /// looks for stop strings and nothing else ends the answer, where counting the steps is the only
    /// way to detect a cut answer, and where an answer in one piece would begin with the prompt. A text in
    /// one piece is decoded better than its pieces are.
    pub fn streams(&self, asked: bool, has_stops: bool, has_tokenizer: bool) -> bool {
        let stops = has_stops && self.setting(Setting::StopWords).is_none();
        let counts = has_tokenizer || self.counts_tokens() || self.reports_reason();
        self.decoupled && (asked || stops || self.repeats_prompt || (self.takes_text() && !counts))
    }

    /// Whether the server reports how many tokens prompt and answer have.
    pub fn counts_tokens(&self) -> bool {
        let told = [Setting::ReturnInputTokens, Setting::ReturnOutputTokens];
        told.iter()
            .all(|setting| self.settings.contains_key(setting))
            && self.has_output(output::INPUT_TOKENS)
            && self.has_output(output::OUTPUT_TOKENS)
    }

    /// Whether the server reports why an answer ended.
    pub fn reports_reason(&self) -> bool {
        self.settings.contains_key(&Setting::ReturnFinishReason)
            && self.has_output(output::FINISH_REASON)
    }

    /// The name that a setting has in the newest releases of this model's dialect, if there is one.
    pub fn newest_name(&self, setting: Setting) -> Option<&'static str> {
        self.dialect.newest(setting)
    }
}

#[cfg(test)]
mod tests;
