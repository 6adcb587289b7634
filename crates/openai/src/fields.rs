//! What becomes of each field of a request: the one table. Owns the names and the decision; the parsers
//! own the values of applied fields, and a test holds the two together.
//!
//! A field is refused where leaving it out would change what the answer means, and ignored where it is
//! a hint about storage, caching, billing or effort. A name that is not here is ignored and reported:
//! a parser that refuses unknown names fails as soon as OpenAI's list grows.

/// Which request bodies a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Both,
}

impl Endpoint {
    fn covers(self, endpoint: Endpoint) -> bool {
        self == Endpoint::Both || self == endpoint
    }
}

/// What becomes of a field. `null`, `[]` and `{}` are neutral for every refused, ignored or unknown
/// field, and so are the values listed: neutral values count as applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Treatment {
    /// Read by the parser; any value that it does not accept is an error.
    Applied,
    /// 400 with the field's name, unless neutral; `unless` names a field and a value of it under
    /// which this one is ignored instead. `hint` says what to do.
    Refused {
        neutral: &'static [&'static str],
        unless: Option<(&'static str, &'static str)>,
        hint: &'static str,
    },
    /// Reported by name, unless neutral.
    Ignored { neutral: &'static [&'static str] },
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) endpoint: Endpoint,
    pub(crate) treatment: Treatment,
}

const fn applied(endpoint: Endpoint, name: &'static str) -> Field {
    Field {
        name,
        endpoint,
        treatment: Treatment::Applied,
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

use Endpoint::{Both, Chat, Completions};

const NO_TOOLS: &str = "Tool calls are not supported; a call would come back as plain text. \
     Leave it out, or set `tool_choice` to `none`.";
const NO_FUNCTIONS: &str = "Function calls are not supported; a call would come back as plain \
     text. Leave it out, or set `function_call` to `none`.";
const NO_GUIDANCE: &str =
    "Constrained output is not supported. Leave it out and validate the answer.";

/// Every field that current clients send, and the usual extensions.
pub(crate) const FIELDS: &[Field] = &[
    applied(Both, "model"),
    applied(Chat, "messages"),
    applied(Completions, "prompt"),
    applied(Both, "max_tokens"),
    applied(Chat, "max_completion_tokens"),
    applied(Both, "temperature"),
    applied(Both, "top_p"),
    applied(Both, "n"),
    applied(Both, "stop"),
    applied(Both, "seed"),
    applied(Both, "presence_penalty"),
    applied(Both, "frequency_penalty"),
    applied(Both, "logit_bias"),
    applied(Both, "logprobs"),
    applied(Chat, "top_logprobs"),
    applied(Completions, "echo"),
    // Honoured where it asks for nothing more than `n` does; see `completions`.
    applied(Completions, "best_of"),
    applied(Both, "stream"),
    applied(Both, "stream_options"),
    // Names the end user for the operator's records; it has no effect on the answer by definition.
    applied(Both, "user"),
    // Extensions that the usual open servers share.
    applied(Both, "top_k"),
    applied(Both, "min_p"),
    applied(Both, "repetition_penalty"),
    applied(Both, "min_tokens"),
    applied(Both, "ignore_eos"),
    applied(Both, "stop_token_ids"),
    applied(Both, "skip_special_tokens"),
    // The demo and most models know a call format, but without a parser the call would reach the
    // client as text with `finish_reason` stop, and an agent would treat it as the answer.
    refused_unless("tools", "tool_choice", "\"none\"", NO_TOOLS),
    refused(Chat, "tool_choice", &["\"none\"", "\"auto\""], NO_TOOLS),
    refused_unless("functions", "function_call", "\"none\"", NO_FUNCTIONS),
    refused(
        Chat,
        "function_call",
        &["\"none\"", "\"auto\""],
        NO_FUNCTIONS,
    ),
    refused(
        Chat,
        "response_format",
        &[r#"{"type":"text"}"#],
        "Only `{\"type\": \"text\"}` is supported. Leave it out and validate the answer.",
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
    refused(
        Both,
        "use_beam_search",
        &["false"],
        "Beam search is not supported. Leave it out.",
    ),
    refused(Both, "guided_json", &[], NO_GUIDANCE),
    refused(Both, "guided_regex", &[], NO_GUIDANCE),
    refused(Both, "guided_choice", &[], NO_GUIDANCE),
    refused(Both, "guided_grammar", &[], NO_GUIDANCE),
    refused(Both, "structured_outputs", &[], NO_GUIDANCE),
    ignored(Both, "metadata", &[]),
    ignored(Both, "store", &["false"]),
    ignored(Both, "service_tier", &["\"auto\"", "\"default\""]),
    ignored(Both, "prompt_cache_key", &[]),
    ignored(Both, "prompt_cache_options", &[]),
    ignored(Both, "prompt_cache_retention", &[]),
    ignored(Both, "safety_identifier", &[]),
    ignored(Chat, "reasoning_effort", &["\"none\""]),
    ignored(Chat, "verbosity", &["\"medium\""]),
    ignored(Chat, "prediction", &[]),
    // True is OpenAI's default; without tools it says nothing either way.
    ignored(Chat, "parallel_tool_calls", &["true"]),
    ignored(Chat, "chat_template_kwargs", &[]),
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
];

/// The row of `name`, if it belongs to `endpoint`.
pub(crate) fn find(endpoint: Endpoint, name: &str) -> Option<&'static Field> {
    FIELDS
        .iter()
        .find(|field| field.name == name && field.endpoint.covers(endpoint))
}

/// The label of a counter of ignored fields: the name itself where it is one of the table's, else
/// `other`, so that clients cannot make labels.
pub(crate) fn label(name: &str) -> &'static str {
    FIELDS
        .iter()
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

    #[test]
    fn every_field_of_the_contract_has_a_row() {
        for (endpoint, names) in [(Chat, CHAT), (Completions, COMPLETIONS)] {
            for name in names.split_whitespace() {
                assert!(find(endpoint, name).is_some(), "{endpoint:?} {name}");
            }
        }
    }

    #[test]
    fn no_name_has_two_rows_for_one_endpoint() {
        for endpoint in [Chat, Completions] {
            for field in FIELDS {
                let rows = FIELDS
                    .iter()
                    .filter(|other| other.name == field.name && other.endpoint.covers(endpoint));
                assert!(rows.count() <= 1, "{}", field.name);
            }
        }
    }

    #[test]
    fn neutral_values_are_json() {
        for field in FIELDS {
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
    fn labels_are_bounded() {
        assert_eq!(label("metadata"), "metadata");
        assert_eq!(label("x".repeat(1000).as_str()), "other");
    }
}
