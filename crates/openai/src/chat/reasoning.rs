//! How much a model is asked to reason: OpenAI's `reasoning_effort`, and the switches of other servers. Owns
//! their shapes; what they mean to a model is its chat template's.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::bounds::EFFORTS;
use crate::error::ApiError;
use crate::reader::{self, Fields};

/// What a request asks of the model's reasoning; absent fields leave it to the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reasoning {
    /// One of OpenAI's levels.
    pub effort: Option<String>,
    /// Whether to reason at all.
    pub thinking: Option<bool>,
}

impl Reasoning {
    /// Takes `reasoning_effort`, `thinking` and `enable_thinking`.
    pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let effort = take_effort(fields, "reasoning_effort")?;
        let thinking = match fields.take("thinking") {
            Some(raw) => Some(read_thinking(raw)?),
            None => None,
        };
        let enabled = fields.boolean("enable_thinking")?;
        if let (Some(one), Some(other)) = (thinking, enabled)
            && one != other
        {
            return Err(ApiError::invalid_request(
                "enable_thinking",
                "`thinking` and `enable_thinking` contradict each other. Send only one.",
            ));
        }
        Ok(Self {
            effort,
            thinking: thinking.or(enabled),
        })
    }

    /// Sets the variables that templates read, except those that `kwargs` has already. `reads` says whether the
    /// model's template reads a variable; gives the fields that set none of those.
    pub fn apply(
        &self,
        kwargs: &mut Map<String, Value>,
        reads: impl Fn(&str) -> bool,
    ) -> Vec<&'static str> {
        let mut without_effect = Vec::new();
        let mut set = |name: &str, value: Value| {
            if !kwargs.contains_key(name) {
                kwargs.insert(name.to_owned(), value);
            }
        };
        // Some models reason or not, and their templates have no levels.
        let thinks = self
            .thinking
            .or((self.effort.as_deref() == Some("none")).then_some(false));
        if let Some(effort) = &self.effort {
            set("reasoning_effort", effort.clone().into());
        }
        if let Some(thinks) = thinks {
            // Qwen's and GLM's name, and DeepSeek's.
            set("enable_thinking", thinks.into());
            set("thinking", thinks.into());
        }
        let switches = reads("enable_thinking") || reads("thinking");
        let is_off = self.effort.as_deref() == Some("none");
        if self.effort.is_some() && !reads("reasoning_effort") && !(is_off && switches) {
            // A model that does not reason does what `none` asks for.
            if !is_off {
                without_effect.push("reasoning_effort");
            }
        }
        if self.thinking == Some(true) && !switches {
            without_effect.push("thinking");
        }
        without_effect
    }
}

/// Takes one of OpenAI's levels.
pub(crate) fn take_effort(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let effort = fields.string(name)?;
    if let Some(effort) = &effort
        && !EFFORTS.contains(&effort.as_str())
    {
        let param = fields.param(name);
        let message = format!(
            "Invalid value for `{param}`: `{}`. Send one of `{}`.",
            reader::shortened(effort),
            EFFORTS.join("`, `")
        );
        return Err(ApiError::invalid_request(param, message));
    }
    Ok(effort)
}

/// `true`, `false`, or Anthropic's object.
fn read_thinking(raw: &RawValue) -> Result<bool, ApiError> {
    if let Ok(thinks) = serde_json::from_str(raw.get()) {
        return Ok(thinks);
    }
    if !raw.get().starts_with('{') {
        return Err(reader::wrong_type(
            "thinking",
            "a boolean or an object with a `type`",
            raw,
        ));
    }
    let mut thinking = Fields::of_value("thinking", raw)?;
    let kind = thinking.required_string("type")?;
    match kind.as_str() {
        "enabled" | "adaptive" => Ok(true),
        "disabled" => Ok(false),
        other => Err(ApiError::invalid_request(
            "thinking.type",
            format!(
                "Invalid value for `thinking.type`: `{}`. Send `enabled` or `disabled`.",
                reader::shortened(other)
            ),
        )),
    }
}
