//! The gateway's options as data, for a command that starts a gateway and takes the same options. Owns how clap's
//! declarations are read; each option is declared in `options`.

use clap::{Arg, ArgAction, Parser};

use crate::log;
use crate::options::{self, GatewayOptions};

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// As people type it, without the dashes: `max-body-bytes`.
    pub flag: String,
    /// The placeholder of its value in the help: `BYTES`.
    pub value_name: String,
    pub help: String,
    pub default: Option<String>,
    /// The environment variable that sets it as well.
    pub environment: Option<String>,
    /// Whether it may be repeated.
    pub is_multiple: bool,
    /// All values that it may have; empty: any of its kind.
    pub choices: Vec<String>,
}

/// Every option, in the order of the help.
pub fn option_list() -> Vec<OptionInfo> {
    let command = options::command();
    command.get_arguments().filter_map(describe).collect()
}

fn describe(argument: &Arg) -> Option<OptionInfo> {
    let flag = argument.get_long()?.to_owned();
    let value_names = argument.get_value_names().unwrap_or_default();
    let default = argument.get_default_values().first();
    let choices = argument.get_possible_values();
    Some(OptionInfo {
        value_name: value_names.first().map_or_else(
            || flag.to_uppercase().replace('-', "_"),
            ToString::to_string,
        ),
        help: argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default(),
        default: default.map(|value| value.to_string_lossy().into_owned()),
        environment: argument
            .get_env()
            .map(|name| name.to_string_lossy().into_owned()),
        is_multiple: matches!(argument.get_action(), ArgAction::Append),
        choices: choices
            .iter()
            .map(|choice| choice.get_name().to_owned())
            .collect(),
        flag,
    })
}

/// Checks `arguments` as a gateway would when it starts; the first one is the program's name.
///
/// # Errors
/// What is wrong with them, in one paragraph.
pub fn check_arguments(arguments: &[String]) -> Result<(), String> {
    let options = GatewayOptions::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    })?;
    log::check_filter(&options.log)
        .map_err(|error| format!("`--log {}` is not a valid filter: {error}", options.log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_as_declared() {
        let all = option_list();
        let find = |flag: &str| all.iter().find(|option| option.flag == flag).unwrap();
        let bytes = find("max-body-bytes");
        assert_eq!(
            (bytes.value_name.as_str(), bytes.default.as_deref()),
            ("BYTES", Some("33554432"))
        );
        assert!(bytes.help.starts_with("Largest HTTP request body") && !bytes.is_multiple);
        assert!(find("allowed-origin").is_multiple);
        assert_eq!(
            find("api-key").environment.as_deref(),
            Some("INFLIGHT_API_KEY")
        );
        assert_eq!(find("log-format").choices, ["text", "json"]);
        assert_eq!(find("host").value_name, "HOST");
    }

    #[test]
    fn mistakes_are_told_before_anything_starts() {
        let check = |more: &[&str]| {
            let fixed = ["gateway", "--worker=a:1"];
            let all: Vec<String> = fixed.iter().chain(more).map(ToString::to_string).collect();
            check_arguments(&all)
        };
        assert_eq!(check(&["--max-connections=5"]), Ok(()));
        for (argument, words) in [
            ("--max-connections=x", "--max-connections"),
            ("--api-key=", "must not be empty"),
            ("--log===", "is not a valid filter"),
            ("--log-format=xml", "text, json"),
            ("--api-key-file=/no/such/file", "--api-key-file"),
        ] {
            let error = check(&[argument]).unwrap_err();
            assert!(
                error.contains(words) && !error.contains("--help"),
                "{error}"
            );
        }
    }
}
