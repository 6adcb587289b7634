//! Triton's trace settings as clients read and change them. Owns names, words and what is refused; what the settings
//! do is `trace::settings`'.

use std::collections::HashMap;

use inflight_kserve::inference::TraceSettingResponse;
use inflight_kserve::inference::trace_setting_response::SettingValue;
use tonic::Status;

use crate::trace::settings::{Effective, TraceSettings};
use crate::trace::{Tracing, share_as_rate};

/// The only mode; Triton's own writes files.
const MODE: &str = "opentelemetry";

/// Changes what `settings` name, for `model` or for all; answers all settings. No value, or an empty one, sets the
/// default again.
pub(super) fn update(
    tracing: Option<&Tracing>,
    model: &str,
    settings: &HashMap<String, Vec<String>>,
) -> Result<TraceSettingResponse, Status> {
    let Some(tracing) = tracing else {
        let mut asked = TraceSettings::default();
        for (name, values) in settings {
            change(&mut asked, name, values)?;
        }
        if asked.is_on == Some(true) {
            return Err(Status::unimplemented(
                "this worker does not export traces; start it with `--otlp-endpoint`",
            ));
        }
        let off = Effective {
            is_on: false,
            rate: None,
            count: None,
        };
        return Ok(response(off, 1.0, None));
    };
    let effective = tracing.change(model, |asked| {
        let mut wanted = asked;
        for (name, values) in settings {
            change(&mut wanted, name, values)?;
        }
        Ok::<_, Status>(wanted)
    })?;
    Ok(response(
        effective,
        tracing.ratio(),
        Some(tracing.endpoint()),
    ))
}

fn change(asked: &mut TraceSettings, name: &str, values: &[String]) -> Result<(), Status> {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let is_cleared = matches!(*values, [] | [""]);
    match name {
        "trace_level" => {
            asked.is_on = match *values {
                _ if is_cleared => None,
                ["OFF"] => Some(false),
                ["TIMESTAMPS"] => Some(true),
                _ => {
                    return Err(Status::invalid_argument(format!(
                        "`trace_level` is `{}`; it must be `OFF` or `TIMESTAMPS`, because traces hold no tensors",
                        shown(&values)
                    )));
                }
            }
        }
        "trace_rate" => asked.rate = one(name, &values, is_cleared, 1, i64::from(u32::MAX))?,
        "trace_count" => {
            let count: Option<i64> = one(name, &values, is_cleared, -1, i64::from(u32::MAX))?;
            asked.count = count.map(|count| u32::try_from(count).ok());
        }
        "trace_mode" if is_cleared || *values == [MODE] => {}
        "trace_mode" => {
            return Err(Status::invalid_argument(format!(
                "`trace_mode` is `{}`; it must be `{MODE}`: a worker writes no trace files",
                shown(&values)
            )));
        }
        "log_frequency" if is_cleared || *values == ["0"] => {}
        // Clients look for these words of Triton's.
        "trace_file" => {
            return Err(Status::unimplemented(
                "trace file location can not be updated through network protocol",
            ));
        }
        "log_frequency" => {
            return Err(Status::unimplemented(
                "`log_frequency` is about trace files, which a worker does not write; leave it out",
            ));
        }
        _ => {
            let name: String = name.chars().take(64).collect();
            return Err(Status::invalid_argument(format!(
                "unknown trace setting `{name}`"
            )));
        }
    }
    Ok(())
}

/// A whole number from `least` to `most`; `None` where it is cleared.
fn one<T: TryFrom<i64>>(
    name: &str,
    values: &[&str],
    is_cleared: bool,
    least: i64,
    most: i64,
) -> Result<Option<T>, Status> {
    if is_cleared {
        return Ok(None);
    }
    let value = match values {
        [value] => value.parse::<i64>().ok(),
        _ => None,
    };
    let value = value.filter(|value| (least..=most).contains(value));
    let value = value.and_then(|value| T::try_from(value).ok());
    value.map(Some).ok_or_else(|| {
        Status::invalid_argument(format!(
            "`{name}` is `{}`; it must be a whole number, {least} or more",
            shown(values)
        ))
    })
}

fn shown(values: &[&str]) -> String {
    values.join("`, `").chars().take(64).collect()
}

fn response(settings: Effective, ratio: f64, endpoint: Option<&str>) -> TraceSettingResponse {
    let Effective { is_on, rate, count } = settings;
    let level = if is_on { "TIMESTAMPS" } else { "OFF" };
    let rate = rate.unwrap_or_else(|| share_as_rate(ratio));
    let count = count.map_or(-1, i64::from);
    let endpoint = endpoint.map(|endpoint| ("url", endpoint.to_owned()));
    let settings = [
        ("trace_level", level.to_owned()),
        ("trace_rate", rate.to_string()),
        ("trace_count", count.to_string()),
        ("trace_mode", MODE.to_owned()),
    ];
    let settings = settings.into_iter().chain(endpoint).map(|(name, value)| {
        let value = SettingValue { value: vec![value] };
        (name.to_owned(), value)
    });
    TraceSettingResponse {
        settings: settings.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &str, values: &[&str]) -> Result<TraceSettings, String> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        let mut asked = TraceSettings {
            is_on: Some(true),
            rate: Some(7),
            count: Some(Some(7)),
        };
        let changed = change(&mut asked, name, &values);
        changed.map_err(|status| status.message().to_owned())?;
        Ok(asked)
    }

    #[test]
    fn what_can_act_is_taken_and_the_rest_refused_by_name() {
        assert_eq!(asked("trace_level", &["OFF"]).unwrap().is_on, Some(false));
        assert_eq!(asked("trace_level", &[]).unwrap().is_on, None);
        assert_eq!(asked("trace_rate", &["3"]).unwrap().rate, Some(3));
        assert_eq!(asked("trace_rate", &[""]).unwrap().rate, None);
        assert_eq!(asked("trace_count", &["-1"]).unwrap().count, Some(None));
        assert_eq!(asked("trace_count", &["0"]).unwrap().count, Some(Some(0)));
        assert_eq!(asked("trace_count", &[]).unwrap().count, None);
        for (name, values) in [("trace_mode", "opentelemetry"), ("log_frequency", "0")] {
            assert!(asked(name, &[values]).is_ok());
        }
        for (name, values) in [
            ("trace_level", &["TENSORS"][..]),
            ("trace_level", &["OFF", "TIMESTAMPS"]),
            ("trace_rate", &["0"]),
            ("trace_rate", &["x"]),
            ("trace_rate", &["1", "2"]),
            ("trace_count", &["-2"]),
            ("trace_mode", &["triton"]),
            ("log_frequency", &["50"]),
            ("trace_depth", &["1"]),
        ] {
            let error = asked(name, values).unwrap_err();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        let error = asked("trace_file", &["/tmp/x"]).unwrap_err();
        assert!(error.contains("can not be updated"), "{error}");
    }
}
