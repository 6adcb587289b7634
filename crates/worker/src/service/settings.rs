//! What clients may ask of the server itself: its log. Triton's names and words.

use std::collections::HashMap;

use inflight_kserve::inference::log_settings_request::setting_value::ParameterChoice as Choice;
use inflight_kserve::inference::log_settings_response::SettingValue;
use inflight_kserve::inference::log_settings_response::setting_value::ParameterChoice as Value;
use inflight_kserve::inference::{LogSettingsRequest, LogSettingsResponse};
use parking_lot::Mutex;
use tonic::Status;
use tracing::level_filters::LevelFilter;

use crate::options::LogLevel;

const FORMAT: &str = "ISO8601";

/// Triton's log settings. The levels are a threshold: what is less severe than the last one that is on is off.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Levels {
    error: bool,
    warning: bool,
    info: bool,
    /// 1: also what helps to understand a problem; 2 and more: everything.
    verbose: u32,
}

impl Levels {
    fn of(filter: LevelFilter) -> Self {
        Self {
            error: filter >= LevelFilter::ERROR,
            warning: filter >= LevelFilter::WARN,
            info: filter >= LevelFilter::INFO,
            verbose: match filter {
                LevelFilter::TRACE => 2,
                LevelFilter::DEBUG => 1,
                _ => 0,
            },
        }
    }

    fn filter(&self) -> LevelFilter {
        match self.verbose {
            0 if self.info => LevelFilter::INFO,
            0 if self.warning => LevelFilter::WARN,
            0 if self.error => LevelFilter::ERROR,
            0 => LevelFilter::OFF,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// The log of the process.
#[derive(Debug)]
pub(super) struct LogSettings {
    control: Option<LogLevel>,
    levels: Mutex<Levels>,
}

impl LogSettings {
    pub(super) fn new(control: Option<LogLevel>) -> Self {
        Self {
            control,
            levels: Mutex::new(Levels::of(LevelFilter::current())),
        }
    }

    /// Changes what the request names; answers all settings.
    pub(super) fn update(&self, asked: LogSettingsRequest) -> Result<LogSettingsResponse, Status> {
        let mut levels = self.levels.lock();
        let mut wanted = levels.clone();
        for (name, value) in asked.settings {
            let Some(value) = value.parameter_choice else {
                continue;
            };
            change(&mut wanted, &name, value)?;
        }
        if wanted != *levels {
            let Some(control) = &self.control else {
                return Err(Status::unimplemented(
                    "the log of this process cannot be changed while it runs; set INFLIGHT_LOG when you start it",
                ));
            };
            control.set(wanted.filter());
            *levels = wanted;
        }
        Ok(response(&levels))
    }
}

fn change(levels: &mut Levels, name: &str, value: Choice) -> Result<(), Status> {
    match (name, value) {
        ("log_error", Choice::BoolParam(on)) => levels.error = on,
        ("log_warning", Choice::BoolParam(on)) => levels.warning = on,
        ("log_info", Choice::BoolParam(on)) => levels.info = on,
        ("log_verbose_level", Choice::Uint32Param(level)) => levels.verbose = level,
        ("log_file", Choice::StringParam(file)) if file.is_empty() => {}
        ("log_file", _) => {
            return Err(Status::invalid_argument(
                "log file location can not be updated through network protocol",
            ));
        }
        ("log_format", Choice::StringParam(format)) if format == FORMAT => {}
        ("log_format", _) => {
            return Err(Status::invalid_argument(format!(
                "the log's format is `{FORMAT}`; start the worker with INFLIGHT_LOG_FORMAT for another"
            )));
        }
        (
            "log_error" | "log_warning" | "log_info",
            Choice::Uint32Param(_) | Choice::StringParam(_),
        ) => {
            return Err(Status::invalid_argument(format!(
                "`{name}` must be true or false"
            )));
        }
        ("log_verbose_level", _) => {
            return Err(Status::invalid_argument(format!(
                "`{name}` must be a whole number"
            )));
        }
        _ => {
            return Err(Status::invalid_argument(format!(
                "unknown log setting `{name}`"
            )));
        }
    }
    Ok(())
}

fn response(levels: &Levels) -> LogSettingsResponse {
    let text = |text: &str| Value::StringParam(text.to_owned());
    let settings: HashMap<String, SettingValue> = [
        ("log_file", text("")),
        ("log_error", Value::BoolParam(levels.error)),
        ("log_warning", Value::BoolParam(levels.warning)),
        ("log_info", Value::BoolParam(levels.info)),
        ("log_verbose_level", Value::Uint32Param(levels.verbose)),
        ("log_format", text(FORMAT)),
    ]
    .into_iter()
    .map(|(name, value)| {
        let value = SettingValue {
            parameter_choice: Some(value),
        };
        (name.to_owned(), value)
    })
    .collect();
    LogSettingsResponse { settings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_a_threshold() {
        for filter in [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
        ] {
            assert_eq!(Levels::of(filter).filter(), filter);
        }
    }
}
