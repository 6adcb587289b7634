//! Triton's trace and log settings as JSON. Pure; what they do is the service's.

use std::collections::HashMap;

use inflight_kserve::inference as wire;
use inflight_kserve::inference::log_settings_request::setting_value::ParameterChoice as Asked;
use inflight_kserve::inference::log_settings_response::setting_value::ParameterChoice as SettingValue;
use serde_json::{Map, Value};

use crate::error::RestError;
use crate::json::not_json;

/// Of an empty body, the request that changes nothing.
fn object(body: &[u8]) -> Result<Map<String, Value>, RestError> {
    match body.is_empty() {
        true => Ok(Map::new()),
        false => serde_json::from_slice(body).map_err(not_json),
    }
}

/// Settings are strings or lists of strings; numbers pass as Triton's clients write them. `null` sets the default.
///
/// # Errors
/// A value that is none of these.
pub(crate) fn trace_request(
    model: &str,
    body: &[u8],
) -> Result<wire::TraceSettingRequest, RestError> {
    let settings = object(body)?.into_iter().map(|(name, value)| {
        let value = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => values
                .into_iter()
                .map(|value| text(&name, value))
                .collect::<Result<_, _>>()?,
            value => vec![text(&name, value)?],
        };
        let setting = wire::trace_setting_request::SettingValue { value };
        Ok((name, setting))
    });
    Ok(wire::TraceSettingRequest {
        settings: settings.collect::<Result<HashMap<_, _>, RestError>>()?,
        model_name: model.to_owned(),
    })
}

fn text(name: &str, value: Value) -> Result<String, RestError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(RestError::invalid(format!(
            "`{name}` must be a string, or a list of strings"
        ))),
    }
}

/// `trace_level` is a list; what else there is, is one string each.
pub(crate) fn trace_json(answer: wire::TraceSettingResponse) -> Value {
    let mut settings: Vec<_> = answer.settings.into_iter().collect();
    settings.sort_by(|(one, _), (other, _)| one.cmp(other));
    let settings = settings.into_iter().map(|(name, setting)| {
        let mut values = setting.value;
        let value = match (&*name, values.len()) {
            ("trace_level", _) | (_, 2..) => values.into(),
            _ => values.pop().unwrap_or_default().into(),
        };
        (name, value)
    });
    Value::Object(settings.collect())
}

/// Settings are booleans, whole numbers and strings.
///
/// # Errors
/// A value that is none of these.
pub(crate) fn log_request(body: &[u8]) -> Result<wire::LogSettingsRequest, RestError> {
    let settings = object(body)?.into_iter().map(|(name, value)| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let choice = match (value, number) {
            (Value::Bool(on), _) => Asked::BoolParam(on),
            (Value::String(text), _) => Asked::StringParam(text),
            (_, Some(number)) => Asked::Uint32Param(number),
            _ => {
                return Err(RestError::invalid(format!(
                    "`{name}` must be true, false, a whole number or a string"
                )));
            }
        };
        let setting = wire::log_settings_request::SettingValue {
            parameter_choice: Some(choice),
        };
        Ok((name, setting))
    });
    let settings = settings.collect::<Result<HashMap<_, _>, RestError>>()?;
    Ok(wire::LogSettingsRequest { settings })
}

/// Each setting as what it is.
pub(crate) fn log_json(answer: wire::LogSettingsResponse) -> Value {
    let mut settings: Vec<_> = answer.settings.into_iter().collect();
    settings.sort_by(|(one, _), (other, _)| one.cmp(other));
    let settings = settings.into_iter().map(|(name, setting)| {
        let value = match setting.parameter_choice {
            Some(SettingValue::BoolParam(on)) => on.into(),
            Some(SettingValue::Uint32Param(number)) => number.into(),
            Some(SettingValue::StringParam(text)) => text.into(),
            None => Value::Null,
        };
        (name, value)
    });
    Value::Object(settings.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn trace_settings_are_read_as_triton_reads_them() {
        let body = json!({"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": 5, "trace_mode": null});
        let request = trace_request("m", body.to_string().as_bytes()).unwrap();
        assert_eq!(request.model_name, "m");
        let value = |name: &str| request.settings[name].value.clone();
        assert_eq!(value("trace_level"), ["TIMESTAMPS"]);
        assert_eq!(
            (value("trace_rate"), value("trace_count")),
            (vec!["2".to_owned()], vec!["5".to_owned()])
        );
        assert!(value("trace_mode").is_empty());
        assert!(trace_request("", b"").unwrap().settings.is_empty());
        for bad in [
            "[1]",
            "{",
            r#"{"trace_rate": {}}"#,
            r#"{"trace_level": [[]]}"#,
        ] {
            assert_eq!(
                trace_request("", bad.as_bytes()).unwrap_err().status,
                400,
                "{bad}"
            );
        }
    }

    #[test]
    fn settings_are_written_as_triton_writes_them() {
        let setting = |text: &str| wire::trace_setting_response::SettingValue {
            value: vec![text.to_owned()],
        };
        let settings = [
            ("trace_rate".to_owned(), setting("1")),
            ("trace_level".to_owned(), setting("OFF")),
        ];
        let answer = wire::TraceSettingResponse {
            settings: settings.into(),
        };
        assert_eq!(
            trace_json(answer),
            json!({"trace_level": ["OFF"], "trace_rate": "1"})
        );
        let body = br#"{"log_info": false, "log_verbose_level": 1, "log_format": "ISO8601"}"#;
        let request = log_request(body).unwrap();
        assert_eq!(
            request.settings["log_verbose_level"].parameter_choice,
            Some(Asked::Uint32Param(1))
        );
        assert_eq!(log_request(br#"{"log_info": -1}"#).unwrap_err().status, 400);
    }
}
