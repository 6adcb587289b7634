//! The fields that chat and completions share: how to generate and how to answer. Owns their ranges,
//! which are OpenAI's where OpenAI has the field, and their parsing; knows nothing of endpoints and defaults:
//! an absent field stays absent.

use serde::Deserialize;

use crate::bounds::{
    self, MAX_MAX_TOKENS, MAX_MODEL_BYTES, MAX_N, MAX_STOP_BYTES, MAX_STOP_TOKEN_IDS, MAX_STOPS,
    MAX_TOKEN_ID,
};
use crate::error::{ApiError, code};
use crate::extensions::Extensions;
use crate::fields::Endpoint;
use crate::ignored::IgnoredFields;
use crate::reader::{self, Fields, token_id, too_many, wrong_type};

/// How to generate and how to answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Empty: the only one that is served.
    pub model: String,
    /// `None`: the endpoint's default (chat: the rest of the context, completions: 16). 0 only for completions
    /// that echo their prompt.
    pub max_tokens: Option<u32>,
    /// Whether `max_tokens` is only a limit: where the context has less room, that room is used.
    pub fits_context: bool,
    /// Choices for each prompt, 1..=128.
    pub n: u32,
    /// Texts that end a choice; none is empty.
    pub stop: Vec<String>,
    pub stream: bool,
    /// `stream_options.include_usage`.
    pub include_usage: bool,
    /// `stream_options.continuous_usage_stats`, where `include_usage` asks for usage at all.
    pub continuous_usage: bool,
    /// Absent: true.
    pub skip_special_tokens: Option<bool>,
    /// Absent: true for completions, false for chat, whose templates write them.
    pub add_special_tokens: Option<bool>,
    pub sampling: Sampling,
    /// `None` for most requests.
    pub extensions: Option<Box<Extensions>>,
}

/// The sampling fields, each absent unless the client sent it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0..=2; 0 is greedy.
    pub temperature: Option<f32>,
    /// Above 0, to 1.
    pub top_p: Option<f32>,
    /// `Some(0)`: no limit (the client sent 0 or -1).
    pub top_k: Option<u32>,
    /// 0..=1
    pub min_p: Option<f32>,
    /// Above 0; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// -2..=2
    pub presence_penalty: Option<f32>,
    /// -2..=2
    pub frequency_penalty: Option<f32>,
    pub seed: Option<i64>,
    /// Token id and what is added to its logit, -100..=100; ids are distinct and ascending.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens before an end token may come; at most `max_tokens`.
    pub min_tokens: Option<u32>,
    pub ignore_eos: bool,
    /// Token ids that end a choice, in addition to the model's own.
    pub stop_token_ids: Vec<u32>,
}

impl Generation {
    /// Takes the shared fields out of `fields`.
    pub(crate) fn take(
        fields: &mut Fields<'_>,
        endpoint: Endpoint,
        ignored: &mut IgnoredFields,
    ) -> Result<Self, ApiError> {
        let model = take_model(fields)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let usage = take_stream_options(fields, stream, endpoint, ignored)?;
        let max_tokens = take_max_tokens(fields, endpoint, ignored)?;
        Ok(Self {
            model,
            max_tokens,
            fits_context: false,
            n: fields.count("n", 1..=MAX_N)?.unwrap_or(1),
            stop: take_stop(fields)?,
            stream,
            include_usage: usage.include,
            continuous_usage: usage.include && usage.continuous,
            skip_special_tokens: fields.boolean("skip_special_tokens")?,
            add_special_tokens: fields.boolean("add_special_tokens")?,
            sampling: Sampling::take(fields, max_tokens)?,
            extensions: None,
        })
    }

    /// Takes the fields that few requests have; once all others are taken, so that most requests end here.
    pub(crate) fn take_extensions(
        &mut self,
        fields: &mut Fields<'_>,
        endpoint: Endpoint,
        ignored: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        self.extensions = Extensions::take(fields, endpoint, self.n, self.stream, ignored)?;
        Ok(())
    }
}

impl Sampling {
    fn take(fields: &mut Fields<'_>, max_tokens: Option<u32>) -> Result<Self, ApiError> {
        let top_p = fields.decimal("top_p", bounds::TOP_P)?;
        if top_p == Some(0.0) {
            return Err(ApiError::invalid_request(
                "top_p",
                "Invalid value for `top_p`: `0`. Send a value above 0 and at most 1; to always take \
                 the likeliest token, set `temperature` to 0.",
            ));
        }
        let min_tokens = fields.count("min_tokens", 0..=MAX_MAX_TOKENS)?;
        if let (Some(least), Some(most)) = (min_tokens, max_tokens)
            && least > most
        {
            return Err(ApiError::invalid_request(
                "min_tokens",
                format!(
                    "Invalid value for `min_tokens`: `{least}` is above `max_tokens` (`{most}`). \
                     Send at most that many."
                ),
            ));
        }
        Ok(Self {
            temperature: fields.decimal("temperature", bounds::TEMPERATURE)?,
            top_p,
            top_k: fields
                .integer("top_k", -1..=i64::from(i32::MAX))?
                .map(|value| u32::try_from(value).unwrap_or(0)),
            min_p: fields.decimal("min_p", bounds::MIN_P)?,
            repetition_penalty: fields.decimal("repetition_penalty", bounds::REPETITION_PENALTY)?,
            presence_penalty: fields.decimal("presence_penalty", bounds::PENALTY)?,
            frequency_penalty: fields.decimal("frequency_penalty", bounds::PENALTY)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?,
            logit_bias: take_logit_bias(fields)?,
            min_tokens,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            stop_token_ids: take_stop_token_ids(fields)?,
        })
    }
}

/// Takes the model's name; empty: the only one that is served.
pub(crate) fn take_model(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let Some(model) = fields.string("model")? else {
        return Ok(String::new());
    };
    if model.is_empty() {
        return Err(ApiError::invalid_request(
            "model",
            "Invalid value for `model`: the name is empty. Send a name from `/v1/models`.",
        ));
    }
    bounded("model", &model, MAX_MODEL_BYTES)?;
    Ok(model)
}

pub(crate) fn bounded(param: &str, value: &str, most: usize) -> Result<(), ApiError> {
    if value.len() <= most {
        return Ok(());
    }
    Err(ApiError::invalid_request(
        param,
        format!(
            "Invalid value for `{param}`: it has `{}` bytes. Send at most {most}.",
            value.len()
        ),
    )
    .with_code(code::STRING_ABOVE))
}

/// `max_completion_tokens` is the newer name and wins over the other, as in vLLM and Triton's front end.
fn take_max_tokens(
    fields: &mut Fields<'_>,
    endpoint: Endpoint,
    ignored: &mut IgnoredFields,
) -> Result<Option<u32>, ApiError> {
    // Completions that echo may generate nothing; see `completions`.
    let least = if endpoint == Endpoint::Completions {
        0
    } else {
        1
    };
    if endpoint == Endpoint::Responses {
        return fields.count("max_output_tokens", 1..=MAX_MAX_TOKENS);
    }
    let old = fields.count("max_tokens", least..=MAX_MAX_TOKENS)?;
    // Completions never had it; the table refuses it there.
    let new = match endpoint {
        Endpoint::Chat => fields.count("max_completion_tokens", 1..=MAX_MAX_TOKENS)?,
        _ => None,
    };
    if new.is_some() && old.is_some() && old != new {
        ignored.push("max_tokens");
    }
    Ok(new.or(old))
}

/// What `stream_options` asks for.
#[derive(Clone, Copy, Default)]
struct StreamUsage {
    include: bool,
    continuous: bool,
}

fn take_stream_options(
    fields: &mut Fields<'_>,
    stream: bool,
    endpoint: Endpoint,
    ignored: &mut IgnoredFields,
) -> Result<StreamUsage, ApiError> {
    let Some(raw) = fields.take("stream_options") else {
        return Ok(StreamUsage::default());
    };
    let mut options = Fields::of_value("stream_options", raw)?;
    let usage = StreamUsage {
        include: options.boolean("include_usage")?.unwrap_or(false),
        continuous: options.boolean("continuous_usage_stats")?.unwrap_or(false),
    };
    options.finish(endpoint, "stream_options.", ignored)?;
    if !stream {
        return Err(ApiError::invalid_request(
            "stream_options",
            "`stream_options` is only allowed when `stream` is true. Leave it out or set `stream`.",
        ));
    }
    Ok(usage)
}

fn take_stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stop {
        One(String),
        Many(Vec<String>),
    }
    let Some(raw) = fields.take("stop") else {
        return Ok(Vec::new());
    };
    let mut stops = match serde_json::from_str(raw.get()) {
        Ok(Stop::One(stop)) => vec![stop],
        Ok(Stop::Many(stops)) => stops,
        Err(_) => return Err(wrong_type("stop", "a string or an array of strings", raw)),
    };
    if stops.len() > MAX_STOPS {
        return Err(too_many("stop", stops.len(), MAX_STOPS));
    }
    for stop in &stops {
        if stop.is_empty() {
            return Err(ApiError::invalid_request(
                "stop",
                "Invalid value for `stop`: a stop text is empty. Leave it out.",
            ));
        }
        bounded("stop", stop, MAX_STOP_BYTES)?;
    }
    stops.dedup();
    Ok(stops)
}

fn take_stop_token_ids(fields: &mut Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let ids = fields
        .list("stop_token_ids", MAX_STOP_TOKEN_IDS)?
        .unwrap_or_default();
    ids.into_iter()
        .enumerate()
        .map(|(index, raw)| token_id(&format!("stop_token_ids[{index}]"), raw))
        .collect()
}

/// An object from token id, as a string, to a number.
fn take_logit_bias(fields: &mut Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(raw) = fields.take("logit_bias") else {
        return Ok(Vec::new());
    };
    let entries = reader::entries("logit_bias", raw)?;
    let mut bias = Vec::with_capacity(entries.len());
    for (name, raw) in entries {
        let id = name
            .parse::<u32>()
            .ok()
            .filter(|id| *id <= MAX_TOKEN_ID)
            .ok_or_else(|| {
                ApiError::invalid_request(
                    "logit_bias",
                    format!(
                        "Invalid value for `logit_bias`: the key `{}` is not a token id. Send \
                         token ids as strings.",
                        reader::shortened(&name)
                    ),
                )
            })?;
        let param = format!("logit_bias.{id}");
        bias.push((id, reader::decimal(&param, raw, -100.0..=100.0)?));
    }
    bias.sort_by_key(|(id, _)| *id);
    // Two spellings of one id (`7` and `07`): the later holds, as for a repeated name.
    bias.reverse();
    bias.dedup_by_key(|(id, _)| *id);
    bias.reverse();
    Ok(bias)
}
