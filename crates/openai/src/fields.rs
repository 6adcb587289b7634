//! What becomes of each field of a request: the one table. Owns the names, the decision, and the kind of value of
//! what is applied; the parsers say what else a value must be, and tests hold them to the table.
//!
//! A field is refused where leaving it out would change what the answer means, and ignored where it is
//! a hint about storage, caching, billing or effort. A name that is not here is ignored and reported, because
//! a parser that refuses unknown names fails as soon as OpenAI's list grows; but one that is nearly the name of
//! a field with an effect is a typing error, and refused.

mod body_schema;
mod embeddings;
mod kind;
mod others;
mod rerank;
mod responses;

pub use self::body_schema::RequestBody;

/// Which request bodies a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    /// Chat and completions, and `/v1/responses` where it has no separate row.
    Both,
    Responses,
    Embeddings,
    Rerank,
}

impl Endpoint {
    fn covers(self, endpoint: Endpoint) -> bool {
        let generates = !matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank);
        self == endpoint || (self == Endpoint::Both && generates)
    }
}

/// What becomes of a field. `null`, `[]` and `{}` are neutral for every refused, ignored or unknown
/// field, and so are the values listed: neutral values count as applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Treatment {
    /// Read by the parser; any value that it does not accept is an error.
    Applied(Kind),
    /// 400 with the field's name, unless neutral; `unless` names a field and a value of it under
    /// which this one is ignored instead. `hint` says what to do.
    Refused {
        neutral: &'static [&'static str],
        unless: Option<(&'static str, &'static str)>,
        hint: &'static str,
    },
    /// Reported by name, unless neutral.
    Ignored { neutral: &'static [&'static str] },
    /// Reported by name, unless it is a string, which servers accept and only record.
    IgnoredUnlessString,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) treatment: Treatment,
}

const fn applied(endpoint: Endpoint, name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        endpoint,
        treatment: Treatment::Applied(kind),
    }
}

const fn ignored(
    endpoint: Endpoint,
    name: &'static str,
    neutral: &'static [&'static str],
) -> Field {
    Field {
        name,
        endpoint,
        treatment: Treatment::Ignored { neutral },
    }
}

const fn ignored_unless_string(endpoint: Endpoint, name: &'static str) -> Field {
    Field {
        name,
        endpoint,
        treatment: Treatment::IgnoredUnlessString,
    }
}

const fn refused(
    endpoint: Endpoint,
    name: &'static str,
    neutral: &'static [&'static str],
    hint: &'static str,
) -> Field {
    Field {
        name,
        endpoint,
        treatment: Treatment::Refused {
            neutral,
            unless: None,
            hint,
        },
    }
}

const fn refused_unless(
    name: &'static str,
    other: &'static str,
    value: &'static str,
    hint: &'static str,
) -> Field {
    Field {
        name,
        endpoint: Endpoint::Chat,
        treatment: Treatment::Refused {
            neutral: &[],
            unless: Some((other, value)),
            hint,
        },
    }
}

use self::embeddings::EMBEDDINGS;
use self::kind::Kind::{self, *};
use self::others::OTHERS;
use self::rerank::RERANK;
use self::responses::RESPONSES;
use crate::bounds;
use Endpoint::{Both, Chat, Completions};

const MAX_TOKENS: i64 = bounds::MAX_MAX_TOKENS as i64;
const MAX_N: i64 = bounds::MAX_N as i64;
const MAX_TOP_LOGPROBS: i64 = bounds::MAX_TOP_LOGPROBS as i64;

const NO_FUNCTIONS: &str = "Send `tools` and `tool_choice` instead.";
const NO_WHITESPACE: &str =
    "White space in JSON cannot be chosen. Leave it out, or send a grammar.";

const NO_SAMPLER: &str = "The sampler has no such setting. Leave it out.";
const NO_TEMPLATE: &str = "The model's own chat template is used. Leave it out, or render the prompt yourself \
     and use `/v1/completions`.";
const NO_DOCUMENTS: &str = "Put the documents' text into a message.";
const NO_REASONING: &str = "Send `reasoning_effort` instead.";
const NO_SUCH: &str = "It is not supported. Leave it out.";
const NO_LORA: &str = "Name the adapter in `model`, such as `base:adapter`.";

/// Every field that current clients send, and the usual extensions.
pub(crate) const FIELDS: &[Field] = &[
    applied(Both, "model", Text),
    applied(Chat, "messages", Objects),
    applied(Completions, "prompt", TextsOrTokens),
    applied(Both, "max_tokens", Integer(0, MAX_TOKENS)),
    applied(Chat, "max_completion_tokens", Integer(1, MAX_TOKENS)),
    applied(Both, "temperature", Number(&bounds::TEMPERATURE)),
    applied(Both, "top_p", Number(&bounds::TOP_P)),
    applied(Both, "n", Integer(1, MAX_N)),
    applied(Both, "stop", TextOrTexts),
    applied(Both, "seed", Integer(i64::MIN, i64::MAX)),
    applied(Both, "presence_penalty", Number(&bounds::PENALTY)),
    applied(Both, "frequency_penalty", Number(&bounds::PENALTY)),
    applied(Both, "logit_bias", Object),
    applied(Chat, "logprobs", Boolean),
    applied(Completions, "logprobs", Integer(0, MAX_TOP_LOGPROBS)),
    applied(Chat, "top_logprobs", Integer(0, MAX_TOP_LOGPROBS)),
    applied(Completions, "echo", Boolean),
    // With beams; without, where it asks for nothing more than `n` does.
    applied(Both, "best_of", Integer(1, MAX_N)),
    applied(Both, "stream", Boolean),
    applied(Both, "stream_options", Object),
    // Names the end user for the operator's records; it has no effect on the answer by definition.
    ignored_unless_string(Both, "user"),
    // Extensions that the usual open servers share.
    applied(Both, "top_k", Integer(-1, MAX_TOKENS)),
    applied(Both, "min_p", Number(&bounds::MIN_P)),
    applied(
        Both,
        "repetition_penalty",
        Number(&bounds::REPETITION_PENALTY),
    ),
    applied(Both, "min_tokens", Integer(0, MAX_TOKENS)),
    applied(Both, "ignore_eos", Boolean),
    applied(Both, "stop_token_ids", Tokens),
    applied(Both, "skip_special_tokens", Boolean),
    applied(Both, "add_special_tokens", Boolean),
    applied(Both, "bad_words", Texts),
    applied(Both, "allowed_token_ids", Tokens),
    applied(Both, "logprob_token_ids", Tokens),
    applied(Both, "thinking_token_budget", Integer(0, MAX_TOKENS)),
    applied(Both, "no_repeat_ngram_size", Integer(0, MAX_TOKENS)),
    applied(Both, "use_beam_search", Boolean),
    applied(Both, "num_beams", Integer(1, MAX_N)),
    applied(Both, "beam_width", Integer(1, MAX_N)),
    applied(Both, "length_penalty", Number(&bounds::LENGTH_PENALTY)),
    applied(Both, "early_stopping", Boolean),
    applied(Both, "cache_salt", Text),
    applied(
        Both,
        "priority",
        Integer(-bounds::MAX_PRIORITY, bounds::MAX_PRIORITY),
    ),
    applied(Both, "include_stop_str_in_output", Boolean),
    applied(Both, "truncate_prompt_tokens", Integer(-1, MAX_TOKENS)),
    applied(Both, "truncation_side", OneOf(&["left", "right"])),
    applied(Both, "prompt_logprobs", Integer(0, MAX_TOP_LOGPROBS)),
    applied(Both, "return_token_ids", Boolean),
    applied(Both, "return_tokens_as_token_ids", Boolean),
    applied(Both, "response_format", Object),
    applied(Both, "structured_outputs", Object),
    applied(Both, "guided_json", ObjectOrText),
    applied(Both, "guided_regex", Text),
    applied(Both, "guided_choice", Texts),
    applied(Both, "guided_grammar", Text),
    applied(Both, "structural_tag", ObjectOrText),
    applied(Both, "json_schema", ObjectOrText),
    applied(Both, "regex", Text),
    applied(Both, "ebnf", Text),
    applied(Chat, "chat_template_kwargs", Object),
    applied(Chat, "add_generation_prompt", Boolean),
    applied(Chat, "continue_final_message", Boolean),
    applied(Chat, "tools", Objects),
    applied(Chat, "tool_choice", ToolChoice),
    applied(Chat, "parallel_tool_calls", Boolean),
    applied(Chat, "reasoning_effort", OneOf(&bounds::EFFORTS)),
    applied(Chat, "thinking", BooleanOrObject),
    applied(Chat, "enable_thinking", Boolean),
    applied(Chat, "include_reasoning", Boolean),
    // OpenAI's first form of tools, long deprecated.
    refused_unless("functions", "function_call", "\"none\"", NO_FUNCTIONS),
    refused(
        Chat,
        "function_call",
        &["\"none\"", "\"auto\""],
        NO_FUNCTIONS,
    ),
    refused(
        Chat,
        "modalities",
        &[r#"["text"]"#],
        "Only text is generated. Send `[\"text\"]` or leave it out.",
    ),
    refused(Chat, "audio", &[], "Only text is generated. Leave it out."),
    refused(
        Chat,
        "web_search_options",
        &[],
        "Web search is not supported. Leave it out.",
    ),
    refused(
        Chat,
        "moderation",
        &[],
        "Moderation is not supported. Leave it out and moderate the answer yourself.",
    ),
    refused(
        Completions,
        "suffix",
        &["\"\""],
        "Inserting text before a suffix is not supported. Leave it out.",
    ),
    // What other servers accept and would answer differently.
    refused(Both, "guided_whitespace_pattern", &[], NO_WHITESPACE),
    refused(
        Both,
        "structured_outputs.whitespace_pattern",
        &[],
        NO_WHITESPACE,
    ),
    refused(
        Both,
        "structured_outputs.disable_any_whitespace",
        &["false"],
        NO_WHITESPACE,
    ),
    refused(
        Both,
        "structured_outputs.disable_additional_properties",
        &["false"],
        "Set `additionalProperties` to false in the schema instead.",
    ),
    refused(
        Both,
        "bad_words_ids",
        &[],
        "Send the words as text in `bad_words`.",
    ),
    refused(Both, "logits_processors", &[], NO_SAMPLER),
    refused(Both, "logit_processors", &[], NO_SAMPLER),
    refused(Both, "embedding_bias", &[], NO_SAMPLER),
    refused(Both, "typical_p", &["1", "1.0"], NO_SAMPLER),
    refused(Both, "mirostat", &["0"], NO_SAMPLER),
    refused(Both, "do_sample", &["true"], NO_SAMPLER),
    refused(Chat, "chat_template", &[], NO_TEMPLATE),
    refused(Chat, "documents", &[], NO_DOCUMENTS),
    refused(Chat, "reasoning", &[], NO_REASONING),
    refused(Both, "repetition_detection", &[], NO_SUCH),
    refused(Both, "prompt_embeds", &[], NO_SUCH),
    refused(Both, "detokenize", &["true"], NO_SUCH),
    refused(Both, "spaces_between_special_tokens", &["true"], NO_SUCH),
    refused(Both, "return_context_logits", &["false"], NO_SUCH),
    refused(Both, "return_generation_logits", &["false"], NO_SUCH),
    refused(Both, "return_encoder_output", &["false"], NO_SUCH),
    refused(Both, "return_perf_metrics", &["false"], NO_SUCH),
    refused(Both, "lora_request", &[], NO_LORA),
    refused(Both, "lora_path", &[], NO_LORA),
    refused(Both, "disaggregated_params", &[], NO_SUCH),
    refused(Both, "kv_transfer_params", &[], NO_SUCH),
    refused(Both, "extra_args", &[], NO_SUCH),
    refused(Both, "vllm_xargs", &[], NO_SUCH),
    refused(Both, "mm_processor_kwargs", &[], NO_SUCH),
    refused(Chat, "echo", &["false"], NO_SUCH),
    // Other names of fields that are supported.
    refused(Both, "stop_words", &[], "Send `stop` instead."),
    refused(Both, "stop_sequences", &[], "Send `stop` instead."),
    refused(Both, "max_new_tokens", &[], "Send `max_tokens` instead."),
    refused(Both, "max_length", &[], "Send `max_tokens` instead."),
    refused(Both, "max_output_tokens", &[], "Send `max_tokens` instead."),
    refused(
        Completions,
        "max_completion_tokens",
        &[],
        "Send `max_tokens` instead.",
    ),
    refused(Both, "min_new_tokens", &[], "Send `min_tokens` instead."),
    refused(Both, "num_return_sequences", &[], "Send `n` instead."),
    refused(
        Both,
        "repeat_penalty",
        &["1", "1.0"],
        "Send `repetition_penalty` instead.",
    ),
    refused(Both, "random_seed", &[], "Send `seed` instead."),
    refused(Completions, "top_logprobs", &[], "Send `logprobs` instead."),
    refused(Both, "eos_token_id", &[], "Send `stop_token_ids` instead."),
    ignored(Both, "metadata", &[]),
    ignored(Both, "store", &["false"]),
    ignored(Both, "service_tier", &["\"auto\"", "\"default\""]),
    ignored(Both, "prompt_cache_key", &[]),
    ignored(Both, "prompt_cache_options", &[]),
    ignored(Both, "prompt_cache_retention", &[]),
    ignored(Both, "safety_identifier", &[]),
    ignored(Chat, "verbosity", &["\"medium\""]),
    ignored(Chat, "prediction", &[]),
    ignored(Both, "request_id", &[]),
    // Which library guides is the executor's choice, and there is nothing to fall back to.
    ignored(Both, "guided_decoding_backend", &[]),
    ignored(Both, "structured_outputs.disable_fallback", &["false"]),
    // Padding against traffic analysis; we add none.
    ignored(Both, "stream_options.include_obfuscation", &["false"]),
    // Fields of a message, as `messages.NAME`. An audio answer of an earlier turn cannot be heard.
    refused(
        Chat,
        "messages.audio",
        &[],
        "Send that turn's transcript as `content`.",
    ),
    ignored(Chat, "messages.annotations", &[]),
    // How closely a model looks is its processor's choice.
    ignored(Chat, "messages.content.image_url.detail", &["\"auto\""]),
];

/// The row of `name`, if it belongs to `endpoint`.
pub(crate) fn find(endpoint: Endpoint, name: &str) -> Option<&'static Field> {
    rows(endpoint).find(|field| field.name == name)
}

/// The rows of `endpoint`; the first of a name holds.
fn rows(endpoint: Endpoint) -> impl Iterator<Item = &'static Field> {
    let own = match endpoint {
        Endpoint::Responses => RESPONSES,
        Endpoint::Embeddings => EMBEDDINGS,
        Endpoint::Rerank => RERANK,
        _ => &[],
    };
    let shared = FIELDS
        .iter()
        .chain(OTHERS)
        .filter(move |field| field.endpoint.covers(endpoint));
    own.iter().chain(shared)
}

/// The field that `name` is most likely meant to be, where it is nearly its name: `max_token`, `maxTokens`.
/// Fields that are ignored anyway are no suggestion.
pub(crate) fn meant(endpoint: Endpoint, name: &str) -> Option<&'static str> {
    let candidates = rows(endpoint).filter(|field| {
        !field.name.contains('.')
            && matches!(
                field.treatment,
                Treatment::Applied(_) | Treatment::Refused { .. }
            )
    });
    nearest(name, candidates.map(|field| field.name))
}

/// The name that `typed` is most likely meant to be, if it is nearly one of `names`.
pub fn nearest(typed: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    if typed.len() > MAX_TYPED {
        return None;
    }
    let typed = letters(typed);
    let near = names.filter_map(|name| {
        let known = letters(name);
        let distance = strsim::osa_distance(&typed, &known);
        // In a short name one letter makes another word: `top_a` is not `top_p`.
        let allowed = match known.len() {
            0..6 => 0,
            6..12 => 1,
            _ => 2,
        };
        (distance <= allowed).then_some((distance, name))
    });
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// No name is longer that could be meant as one of the table's.
const MAX_TYPED: usize = 64;

/// The letters and digits alone, in lower case.
fn letters(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The label of a counter of ignored fields: the name itself where it is one of the table's, else
/// `other`, so that clients cannot make labels.
pub(crate) fn label(name: &str) -> &'static str {
    FIELDS
        .iter()
        .chain(RESPONSES)
        .chain(EMBEDDINGS)
        .chain(RERANK)
        .chain(OTHERS)
        .find(|field| field.name == name)
        .map_or("other", |field| field.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the OpenAI client's request types; a new one needs a decision here.
    const CHAT: &str = "model messages audio frequency_penalty function_call functions logit_bias \
        logprobs max_completion_tokens max_tokens metadata modalities moderation n \
        parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options \
        prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier \
        stop store stream stream_options temperature tool_choice tools top_logprobs top_p user \
        verbosity web_search_options top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids";
    const COMPLETIONS: &str = "model prompt best_of echo frequency_penalty logit_bias logprobs \
        max_tokens n presence_penalty seed stop stream stream_options suffix temperature top_p user \
        top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids";

    const RESPONSES_NAMES: &str = "access_programs background background_options context_management \
        conversation image include input instructions max_output_tokens max_tool_calls metadata model \
        moderation parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options \
        prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options \
        temperature text tool_choice tools top_logprobs top_p truncation user top_k seed";

    #[test]
    fn every_field_of_the_contract_has_a_row() {
        for (endpoint, names) in [
            (Chat, CHAT),
            (Completions, COMPLETIONS),
            (Endpoint::Responses, RESPONSES_NAMES),
        ] {
            for name in names.split_whitespace() {
                assert!(find(endpoint, name).is_some(), "{endpoint:?} {name}");
            }
        }
    }

    #[test]
    fn no_name_has_two_rows_for_one_endpoint() {
        for endpoint in [Chat, Completions] {
            for field in FIELDS.iter().chain(OTHERS) {
                let rows = FIELDS
                    .iter()
                    .chain(OTHERS)
                    .filter(|other| other.name == field.name && other.endpoint.covers(endpoint));
                assert!(rows.count() <= 1, "{}", field.name);
            }
        }
    }

    #[test]
    fn neutral_values_are_json() {
        for field in FIELDS
            .iter()
            .chain(RESPONSES)
            .chain(EMBEDDINGS)
            .chain(RERANK)
            .chain(OTHERS)
        {
            if let Treatment::Refused { neutral, .. } | Treatment::Ignored { neutral } =
                field.treatment
            {
                for text in neutral {
                    serde_json::from_str::<serde_json::Value>(text).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_typing_error_is_told_from_a_field_of_tomorrow() {
        for (endpoint, name, expected) in [
            (Chat, "max_token", Some("max_tokens")),
            (Chat, "maxTokens", Some("max_tokens")),
            (Chat, "max-tokens", Some("max_tokens")),
            (Chat, "temprature", Some("temperature")),
            (Chat, "tempearture", Some("temperature")),
            (Chat, "frequency_penality", Some("frequency_penalty")),
            (Chat, "responseFormat", Some("response_format")),
            (Completions, "log_probs", Some("logprobs")),
            (Chat, "top_a", None),
            (Chat, "stops", None),
            (Chat, "metadatas", None),
            (Chat, "web_fetch_options", None),
            (Completions, "messages", None),
            (Chat, "", None),
        ] {
            assert_eq!(meant(endpoint, name), expected, "{name}");
        }
        assert_eq!(meant(Chat, &"max_tokens".repeat(100)), None);
    }

    /// `docs/reference/fields.md` is this table; `UPDATE_SNAPSHOTS=1` rewrites it.
    #[test]
    fn the_reference_page_shows_the_table() {
        inflight_testkit::page::check("docs/reference/fields.md", reference_page());
    }

    fn reference_page() -> String {
        let mut page = String::from(
            "# Request fields\n\nEvery field of `/v1/chat/completions` (chat), `/v1/completions` \
             (completions), `/v1/responses`\n(responses), `/v1/embeddings` (embeddings) and `/v1/rerank` (rerank) that the gateway \
             knows, from `crates/openai/src/fields.rs`. Those of \"both\" chat and completions hold for\nresponses too, \
             unless there is a row for it. `null`, `[]`, `{}` and the listed values ask for nothing and \
             are\nalways accepted. An unknown field is ignored and \
             reported in `x-inflight-ignored-fields`, unless it is nearly\nthe name of a supported or refused \
             one: then it is refused, with the name that was probably meant.\n",
        );
        let values = |neutral: &[&str]| match neutral {
            [] => "–".to_owned(),
            some => {
                let quoted: Vec<String> = some.iter().map(|value| format!("`{value}`")).collect();
                quoted.join(", ")
            }
        };
        let place = |endpoint| match endpoint {
            Both => "both",
            Chat => "chat",
            Completions => "completions",
            Endpoint::Responses => "responses",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Rerank => "rerank",
        };
        let mut section = |title: &str, head: &str, row: &dyn Fn(&Field) -> Option<String>| {
            page.push_str(&format!("\n## {title}\n\n{head}\n"));
            for line in FIELDS
                .iter()
                .chain(RESPONSES)
                .chain(EMBEDDINGS)
                .chain(RERANK)
                .chain(OTHERS)
                .filter_map(row)
            {
                page.push_str(&line);
                page.push('\n');
            }
        };
        section("Supported", "| field | endpoint |\n|---|---|", &|field| {
            let supported = matches!(field.treatment, Treatment::Applied(_));
            supported.then(|| format!("| `{}` | {} |", field.name, place(field.endpoint)))
        });
        let head = "Leaving these out would change what the answer means: 400 with the field in `param`.\n\n\
             | field | endpoint | accepted values | instead |\n|---|---|---|---|";
        section("Refused", head, &|field| match field.treatment {
            Treatment::Refused {
                neutral,
                unless,
                hint,
            } => {
                let mut accepted = values(neutral);
                if let Some((other, value)) = unless {
                    accepted = format!("any if `{other}` is `{value}`");
                }
                let (name, place) = (field.name, place(field.endpoint));
                Some(format!("| `{name}` | {place} | {accepted} | {hint} |"))
            }
            _ => None,
        });
        let head = "Hints about storage, caching, billing and effort: named in `x-inflight-ignored-fields`.\n\n\
             | field | endpoint | not reported |\n|---|---|---|";
        section("Ignored", head, &|field| {
            let neutral = match field.treatment {
                Treatment::Ignored { neutral } => values(neutral),
                Treatment::IgnoredUnlessString => "any string".to_owned(),
                _ => return None,
            };
            let place = place(field.endpoint);
            Some(format!("| `{}` | {place} | {neutral} |", field.name))
        });
        page
    }

    #[test]
    fn labels_are_bounded() {
        assert_eq!(label("metadata"), "metadata");
        assert_eq!(label("x".repeat(1000).as_str()), "other");
    }
}
