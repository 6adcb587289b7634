//! What a request may ask of a model beyond plain generation, and why a model cannot do it. Owns the
//! wording of what is missing; knows nothing of the API's fields.

use inflight_kserve::capability as names;

use super::dialect::{Setting, TritonModel, output};
use super::served::{Protocol, ServedModel};

/// What a request may ask beyond plain generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Sequences,
    TokenPrompt,
    TopK,
    TopP,
    Temperature,
    Seed,
    MinP,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    MinTokens,
    LogitBias,
    LogProbs,
    TopLogProbs,
    LogProbIds,
    ThinkingBudget,
    PromptLogProbs,
    StopTokenIds,
    IgnoreEos,
    ShowSpecialTokens,
    AddSpecialTokens,
    Usage,
    Guide,
    StructuralFormats,
    Beams,
    BadWords,
    AllowedTokens,
    NoRepeatNgram,
    CacheSalt,
    Priority,
    Lora,
    ShowStops,
    Truncation,
    Embeddings,
    Images,
    Transcription,
    Resume,
    ContextPhase,
}

impl Capability {
    /// The name that a worker's executor announces it by; `None`: every executor has it.
    fn announced_name(self) -> Option<&'static str> {
        match self {
            Self::Sequences => Some(names::NUM_RETURN_SEQUENCES),
            Self::MinP => Some(names::MIN_P),
            Self::RepetitionPenalty | Self::PresencePenalty | Self::FrequencyPenalty => {
                Some(names::PENALTIES)
            }
            Self::MinTokens => Some(names::MIN_TOKENS),
            Self::LogitBias => Some(names::EMBEDDING_BIAS),
            Self::LogProbs => Some(names::LOG_PROBS),
            Self::TopLogProbs => Some(names::TOP_LOG_PROBS),
            Self::LogProbIds => Some(names::LOG_PROB_IDS),
            Self::ThinkingBudget => Some(names::THINKING_BUDGET),
            Self::PromptLogProbs => Some(names::PROMPT_LOG_PROBS),
            Self::Guide => Some(names::GUIDED_DECODING),
            Self::StructuralFormats => Some(names::STRUCTURAL_FORMATS),
            Self::Beams => Some(names::BEAM_SEARCH),
            Self::BadWords => Some(names::BAD_WORDS),
            Self::AllowedTokens => Some(names::EMBEDDING_BIAS),
            Self::NoRepeatNgram => Some(names::NO_REPEAT_NGRAM),
            Self::CacheSalt => Some(names::CACHE_SALT),
            Self::Priority => Some(names::PRIORITY),
            Self::Lora => Some(names::LORA),
            Self::Embeddings => Some(names::EMBEDDINGS),
            Self::Images => Some(names::IMAGES),
            Self::Transcription => Some(names::TRANSCRIPTION),
            Self::Resume => Some(names::RESUME),
            Self::ContextPhase => Some(names::CONTEXT_PHASE),
            Self::TokenPrompt
            | Self::TopK
            | Self::TopP
            | Self::Temperature
            | Self::Seed
            | Self::StopTokenIds
            | Self::IgnoreEos
            | Self::ShowSpecialTokens
            | Self::AddSpecialTokens
            | Self::ShowStops
            | Self::Truncation
            | Self::Usage => None,
        }
    }
}

/// The executor whose guides need a package that may be missing.
const REFERENCE: &str = "reference";

/// Whether `model` has `capability`. Use [`lacks`] where the reason is shown.
pub fn has(model: &ServedModel, capability: Capability) -> bool {
    match &model.protocol {
        Protocol::StepBatching => missing(model, capability).is_none(),
        Protocol::Triton(_) | Protocol::Watched => lacks(model, capability).is_none(),
    }
}

/// Why `model` lacks `capability`, worded to follow a field's name; `None`: it has it.
pub fn lacks(model: &ServedModel, capability: Capability) -> Option<String> {
    match &model.protocol {
        Protocol::StepBatching => executor_lacks(model, capability),
        Protocol::Triton(triton) => triton_lacks(model, triton, capability),
        Protocol::Watched => {
            Some("is not supported by servers that this gateway only watches".to_owned())
        }
    }
}

/// What a worker would announce if its executor had it.
fn missing(model: &ServedModel, capability: Capability) -> Option<&'static str> {
    let needed = capability.announced_name()?;
    let announced = &model.description.capabilities;
    (!announced.iter().any(|name| name == needed)).then_some(needed)
}

fn executor_lacks(model: &ServedModel, capability: Capability) -> Option<String> {
    let needed = missing(model, capability)?;
    let executor = &model.description.executor;
    let by_package = matches!(
        capability,
        Capability::Guide | Capability::StructuralFormats
    );
    Some(match by_package && executor == REFERENCE {
        true => format!(
            "needs `{needed}`, which this model's executor (`{executor}`) has once `inflight-llm[guided]` is \
             installed on its server"
        ),
        false => {
            format!("needs `{needed}`, which this model's executor (`{executor}`) does not support")
        }
    })
}

fn triton_lacks(
    model: &ServedModel,
    triton: &TritonModel,
    capability: Capability,
) -> Option<String> {
    let name = &triton.name;
    let unsupported = || format!("is not supported by the Triton model `{name}`");
    let input = |setting: Setting| {
        if triton.setting(setting).is_some() {
            return None;
        }
        Some(match triton.newest_name(setting) {
            Some(input) => {
                format!("needs the input `{input}`, which the Triton model `{name}` does not have")
            }
            None => unsupported(),
        })
    };
    let tokens_only = || triton.takes_text().then(unsupported);
    match capability {
        // Each sequence is a separate request; without a seed all would be the same.
        Capability::Sequences => input(Setting::Seed),
        Capability::TokenPrompt
        | Capability::IgnoreEos
        | Capability::ShowSpecialTokens
        | Capability::AddSpecialTokens
        | Capability::ShowStops
        | Capability::Truncation => tokens_only(),
        Capability::TopK => input(Setting::TopK),
        Capability::TopP => input(Setting::TopP),
        Capability::Temperature => input(Setting::Temperature),
        Capability::Seed => input(Setting::Seed),
        Capability::RepetitionPenalty => input(Setting::RepetitionPenalty),
        Capability::PresencePenalty => input(Setting::PresencePenalty),
        Capability::FrequencyPenalty => input(Setting::FrequencyPenalty),
        Capability::MinTokens => input(Setting::MinTokens),
        Capability::MinP => input(Setting::MinP),
        Capability::StopTokenIds => input(Setting::StopIds),
        Capability::LogProbs if triton.has_output(output::LOG_PROBS) => input(Setting::ReturnLogProbs),
        Capability::Guide => input(Setting::GuideType).or_else(|| input(Setting::Guide)),
        Capability::BadWords if triton.takes_text() => input(Setting::BadWords),
        Capability::BadWords => input(Setting::BadIds),
        Capability::NoRepeatNgram => input(Setting::NoRepeatNgram),
        Capability::CacheSalt => input(Setting::CacheSalt),
        Capability::Lora => input(Setting::LoraTask),
        Capability::LogitBias | Capability::AllowedTokens if model.vocabulary().is_some() => {
            input(Setting::EmbeddingBias)
        }
        Capability::LogitBias | Capability::AllowedTokens if !triton.takes_text() => Some(
            "needs the size of the vocabulary, which the gateway reads from a `config.json` next to \
             the tokenizer"
                .to_owned(),
        ),
        Capability::LogProbs
        | Capability::LogitBias
        | Capability::AllowedTokens
        // A separate request for each sequence has no beams, and Triton's models read no priority.
        | Capability::Beams
        | Capability::Priority
        | Capability::StructuralFormats
        | Capability::TopLogProbs
        | Capability::LogProbIds
        | Capability::ThinkingBudget
        | Capability::Resume
        | Capability::PromptLogProbs
        | Capability::Embeddings
        | Capability::Images
        | Capability::Transcription
        | Capability::ContextPhase => Some(unsupported()),
        Capability::Usage => (model.text.is_none() && !triton.counts_tokens()).then(|| {
            format!(
                "needs a token count, which the Triton model `{name}` does not report; start the \
                 gateway with `--tokenizer`"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inflight_kserve::assets::ModelDescription;
    use inflight_kserve::inference::ModelConfig;
    use inflight_testkit::triton_models::{remove_input, text_model, token_model};

    use super::super::dialect::{Surroundings, describe};
    use super::*;

    fn served(config: &ModelConfig, vocab_size: u32) -> ServedModel {
        let surroundings = Surroundings {
            decoupled: true,
            excludes_prompt: false,
            adds_special_tokens: true,
        };
        let triton = describe(config, surroundings).unwrap().unwrap();
        ServedModel {
            description: ModelDescription {
                vocab_size,
                ..ModelDescription::default()
            },
            text: None,
            template: None,
            protocol: Protocol::Triton(Arc::new(triton)),
        }
    }

    #[test]
    fn a_guide_that_lacks_a_package_says_which() {
        let mut model = served(&token_model("tensorrt_llm"), 9);
        model.protocol = Protocol::StepBatching;
        for (executor, capability, part) in [
            ("reference", Capability::Guide, "`inflight-llm[guided]`"),
            (
                "reference",
                Capability::StructuralFormats,
                "`inflight-llm[guided]`",
            ),
            ("reference", Capability::Images, "does not support"),
            ("tensorrt_llm", Capability::Guide, "does not support"),
        ] {
            executor.clone_into(&mut model.description.executor);
            let reason = lacks(&model, capability).unwrap();
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn what_a_model_lacks_names_the_tensor_or_the_way_out() {
        let mut tokens = token_model("tensorrt_llm");
        remove_input(&mut tokens, "runtime_top_k");
        tokens
            .output
            .retain(|output| output.name != "output_log_probs");
        let mut text = text_model("ensemble");
        remove_input(&mut text, "temperature");
        let mut seedless = text_model("ensemble");
        remove_input(&mut seedless, "seed");
        let cases = [
            (&tokens, 9, Capability::Seed, None),
            (&tokens, 9, Capability::LogitBias, None),
            (&tokens, 0, Capability::LogitBias, Some("config.json")),
            (&tokens, 9, Capability::TopK, Some("`runtime_top_k`")),
            (&tokens, 9, Capability::TokenPrompt, None),
            (&tokens, 9, Capability::LogProbs, Some("`tensorrt_llm`")),
            (&tokens, 9, Capability::MinP, Some("`inflight_min_p`")),
            (&text, 0, Capability::TokenPrompt, Some("`ensemble`")),
            (&text, 0, Capability::Temperature, Some("`temperature`")),
            (&text, 0, Capability::Sequences, None),
            (&seedless, 0, Capability::Sequences, Some("`seed`")),
            (&text, 9, Capability::LogitBias, Some("`ensemble`")),
            (&text, 0, Capability::StopTokenIds, Some("`ensemble`")),
            (&text, 0, Capability::Usage, Some("`--tokenizer`")),
        ];
        for (config, vocabulary, capability, part) in cases {
            let reason = lacks(&served(config, vocabulary), capability);
            match (reason, part) {
                (None, None) => {}
                (Some(reason), Some(part)) => {
                    assert!(reason.contains(part), "{capability:?}: {reason}");
                }
                (reason, _) => panic!("{capability:?} of {}: {reason:?}", config.name),
            }
        }
    }
}
