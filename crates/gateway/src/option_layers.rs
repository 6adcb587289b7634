//! Options from the environment and from a file, for whatever the command line does not say: a flag wins over a
//! variable, a variable over the file, the file over the default. Owns the names of the variables; each option is
//! declared in `options`.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use inflight_traces::{ENDPOINT_VARIABLE, RATIO_VARIABLE, replaced};

use crate::option_file::{OptionValues, read_option_file};

/// Of openai_trtllm: its variable, and the option's flag here.
const OPENAI_TRTLLM: [(&str, &str); 7] = [
    ("OPENAI_TRTLLM_HOST", "host"),
    ("OPENAI_TRTLLM_PORT", "port"),
    ("OPENAI_TRTLLM_TRITON_ENDPOINT", "worker"),
    ("OPENAI_TRTLLM_HISTORY_TEMPLATE", "history-template"),
    (
        "OPENAI_TRTLLM_HISTORY_TEMPLATE_FILE",
        "history-template-file",
    ),
    ("OPENAI_TRTLLM_API_KEY", "api-key"),
    ("OPENAI_TRTLLM_OTLP_ENDPOINT", "otlp-endpoint"),
];
/// Of OpenTelemetry, which wants no value of these to stop anything.
const OPENTELEMETRY: [(&str, &str); 2] = [
    ("otlp-endpoint", ENDPOINT_VARIABLE),
    ("trace-sampling-ratio", RATIO_VARIABLE),
];
/// Not to be set elsewhere.
const ARGUMENTS_ONLY: [&str; 3] = ["help", "version", "config"];

/// Arguments with those of the other layers in front.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layered {
    pub arguments: Vec<OsString>,
    /// The flag of each argument that was added, and where its value is from.
    pub origins: Vec<(String, String)>,
    /// What to report to the user once the log exists.
    pub notices: Vec<String>,
    /// Whether the command line has the API key, where everybody can read it.
    pub has_public_key: bool,
}

impl Layered {
    /// Where the option is from that `text` names, if it is not from the command line.
    pub(crate) fn origin_of(&self, text: &str) -> Option<&str> {
        let named = |(flag, _): &&(String, String)| text.contains(&format!("'--{flag} "));
        self.origins
            .iter()
            .find(named)
            .map(|(_, origin)| origin.as_str())
    }
}

/// Adds what `variable` and the file of `--config` say; `arguments` starts with the program's name.
///
/// # Errors
/// A sentence for the user: the file cannot be used.
pub(crate) fn layered(
    command: &Command,
    arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Layered, String> {
    // Mistakes and `--help` are left to the real parser.
    let Ok(matches) = command
        .clone()
        .ignore_errors(true)
        .try_get_matches_from(&arguments)
    else {
        return Ok(Layered {
            arguments,
            ..Layered::default()
        });
    };
    let is_given = |argument: &Arg| {
        let source = matches.value_source(argument.get_id().as_str());
        source == Some(ValueSource::CommandLine)
    };
    let options = command.get_arguments().filter_map(|argument| {
        let flag = argument.get_long()?;
        (!ARGUMENTS_ONLY.contains(&flag)).then_some((flag, argument))
    });
    let options: Vec<(&str, &Arg)> = options.collect();
    let known: Vec<String> = options.iter().map(|(flag, _)| (*flag).to_owned()).collect();
    let file = config_file(&matches, &variable);
    let in_file = match &file {
        Some(path) => read_option_file(Path::new(path), &known)?,
        None => OptionValues::new(),
    };
    let mut layered = Layered {
        notices: notices(&arguments, &variable),
        ..Layered::default()
    };
    let mut added = Vec::new();
    for (flag, argument) in options {
        if is_given(argument) {
            layered.has_public_key |= flag == "api-key";
            continue;
        }
        let is_list = matches!(argument.get_action(), ArgAction::Append);
        let (values, origin) = match of_environment(flag, is_list, &variable) {
            Some(found) => found,
            None => match (in_file.get(flag), &file) {
                (Some(values), Some(path)) => (values.clone(), format!("the file `{path}`")),
                // What can be used of OpenTelemetry's variables is read with the option.
                _ => match of_opentelemetry(flag, &variable) {
                    Some((value, warning, origin)) => {
                        layered.notices.push(warning);
                        (vec![value], origin)
                    }
                    None => continue,
                },
            },
        };
        if values.len() != 1 && !is_list {
            return Err(format!("`{flag}` must have one value, in {origin}"));
        }
        for value in values {
            match argument.get_action() {
                ArgAction::SetTrue if value == "true" => added.push(format!("--{flag}").into()),
                ArgAction::SetTrue => {}
                _ => added.push(OsString::from(format!("--{flag}={value}"))),
            }
        }
        layered.origins.push((flag.to_owned(), origin));
    }
    let mut arguments = arguments.into_iter();
    layered.arguments = arguments
        .next()
        .into_iter()
        .chain(added)
        .chain(arguments)
        .collect();
    Ok(layered)
}

fn config_file(matches: &ArgMatches, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let given = matches.get_one::<std::path::PathBuf>("config");
    let given = given.map(|path| path.display().to_string());
    given.or_else(|| variable("INFLIGHT_CONFIG").filter(|path| !path.is_empty()))
}

/// The variable of an option.
fn variable_of(flag: &str) -> String {
    format!("INFLIGHT_{}", flag.to_uppercase().replace('-', "_"))
}

fn of_environment(
    flag: &str,
    is_list: bool,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<(Vec<String>, String)> {
    let ours = variable_of(flag);
    let theirs = OPENAI_TRTLLM.iter().filter(|(_, known)| *known == flag);
    let names = [ours.as_str()]
        .into_iter()
        .chain(theirs.map(|(name, _)| *name));
    for name in names {
        let Some(value) = variable(name) else {
            continue;
        };
        // Kubernetes sets `INFLIGHT_PORT` to such an address where a Service is called `inflight`. An empty key
        // would lock every client out or let every client in, so only that is reported.
        let is_ours = !value.starts_with("tcp://") && !value.starts_with("udp://");
        if !is_ours || (value.is_empty() && flag != "api-key") {
            continue;
        }
        let values = match is_list {
            true => value
                .split(',')
                .map(|part| part.trim().to_owned())
                .collect(),
            false => vec![value],
        };
        return Some((values, format!("the environment variable `{name}`")));
    }
    None
}

/// What takes the place of a variable of OpenTelemetry that cannot be used: value, warning and origin.
fn of_opentelemetry(
    flag: &str,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<(String, String, String)> {
    let (_, name) = OPENTELEMETRY.iter().find(|(known, _)| *known == flag)?;
    let replaced = replaced(name, &variable(name)?)?;
    let origin = format!("the environment variable `{name}`");
    Some((replaced.value, replaced.warning, origin))
}

fn notices(arguments: &[OsString], variable: &impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut notices = Vec::new();
    let is_theirs = |argument: &OsString| {
        let text = argument.to_string_lossy();
        text == "--triton-endpoint" || text.starts_with("--triton-endpoint=")
    };
    if arguments.iter().any(is_theirs) {
        notices
            .push("`--triton-endpoint` is read as `--worker`, which is its name here".to_owned());
    }
    for (theirs, flag) in OPENAI_TRTLLM {
        if variable(theirs).is_some_and(|value| !value.is_empty()) {
            let ours = variable_of(flag);
            notices.push(format!(
                "`{theirs}` is read as `{ours}`, which is its name here"
            ));
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::options::GatewayOptions;

    fn parse(
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(GatewayOptions, Layered), String> {
        let all = ["gateway"]
            .iter()
            .chain(arguments)
            .map(OsString::from)
            .collect();
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(known, _)| *known == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        let command = GatewayOptions::command();
        let layered = layered(&command, all, variable)?;
        let matches = command.try_get_matches_from(&layered.arguments);
        let options = matches.and_then(|matches| GatewayOptions::from_arg_matches(&matches));
        match options {
            Ok(options) => Ok((options, layered)),
            Err(error) => {
                let text = error.to_string();
                Err(format!("{text} {:?}", layered.origin_of(&text)))
            }
        }
    }

    #[test]
    fn a_flag_wins_over_a_variable_and_that_over_the_file_and_that_over_the_default() {
        let path = std::env::temp_dir().join(format!("options-{}.toml", std::process::id()));
        let text = "port = 1\nthreads = 1\nhost = \"file\"\nworker = [\"f:1\", \"f:2\"]\nlog_format = \"json\"\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let config = format!("--config={file}");
        let variables = [
            ("INFLIGHT_PORT", "2"),
            ("INFLIGHT_HOST", "variable"),
            ("INFLIGHT_WORKER", ""),
        ];
        let (options, _) = parse(&[&config, "--port=3"], &variables).unwrap();
        assert_eq!(
            (options.port, options.host.as_str(), options.threads),
            (3, "variable", 1)
        );
        assert_eq!(options.workers, ["f:1", "f:2"]);
        assert_eq!(options.max_connections, 16384);
        // A list is replaced, never mixed.
        let with = [("INFLIGHT_CONFIG", file), ("INFLIGHT_WORKER", "v:1, v:2")];
        assert_eq!(parse(&[], &with).unwrap().0.workers, ["v:1", "v:2"]);
        assert_eq!(parse(&["--worker=a:1"], &with).unwrap().0.workers, ["a:1"]);
        std::fs::write(&path, "wroker = 'a:1'").unwrap();
        let error = parse(&[&config], &[]).unwrap_err();
        assert!(
            error.contains("unknown option `wroker`; did you mean `worker`"),
            "{error}"
        );
        std::fs::write(&path, "port = [1, 2]").unwrap();
        let error = parse(&[&config], &[]).unwrap_err();
        assert!(error.contains("`port` must have one value"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_option_has_a_variable() {
        let command = GatewayOptions::command();
        let flags = command.get_arguments().filter_map(Arg::get_long);
        for flag in flags.filter(|flag| !ARGUMENTS_ONLY.contains(flag)) {
            let name = variable_of(flag);
            let variable = |asked: &str| (asked == name).then(|| "x".to_owned());
            let layered = layered(&command, vec!["gateway".into()], variable).unwrap();
            assert_eq!(
                layered.arguments[1..],
                [OsString::from(format!("--{flag}=x"))]
            );
        }
    }

    #[test]
    fn what_is_wrong_with_a_variable_names_it() {
        let error = parse(&["--worker=a:1"], &[("INFLIGHT_PORT", "x")]).unwrap_err();
        assert!(error.contains("`INFLIGHT_PORT`"), "{error}");
        let error = parse(&["--worker=a:1", "--port=x"], &[("INFLIGHT_HOST", "h")]).unwrap_err();
        assert!(error.contains("None"), "{error}");
        // A Service's address is none of ours.
        let (options, _) =
            parse(&["--worker=a:1"], &[("INFLIGHT_PORT", "tcp://10.0.0.1:80")]).unwrap();
        assert_eq!(options.port, 8000);
        assert!(parse(&["--worker=a:1"], &[("INFLIGHT_API_KEY", "")]).is_err());
    }

    #[test]
    fn a_variable_of_opentelemetry_stops_nothing() {
        let jaeger = "endpoint=http://localhost:14250,initialSamplingRate=0.25";
        let variables = [
            ("OTEL_TRACES_SAMPLER_ARG", jaeger),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://tempo:4317/v1/traces"),
        ];
        let (options, layered) = parse(&["--worker=a:1"], &variables).unwrap();
        assert_eq!(options.otlp_endpoint.as_deref(), Some("http://tempo:4317"));
        assert!((options.trace_sampling_ratio - 1.0).abs() < f64::EPSILON);
        let [endpoint, ratio] = layered.notices.as_slice() else {
            panic!("{:?}", layered.notices);
        };
        assert!(endpoint.contains("`http://tempo:4317/v1/traces`"));
        assert!(ratio.contains("`OTEL_TRACES_SAMPLER_ARG`") && ratio.contains(jaeger));
        // Our own options stay strict, and win.
        let ours = [variables[0], ("INFLIGHT_TRACE_SAMPLING_RATIO", "2")];
        assert!(parse(&["--worker=a:1"], &ours).is_err());
        let flag = "--otlp-endpoint=http://tempo:4317/v1/traces";
        assert!(parse(&["--worker=a:1", flag], &[]).is_err());
        let given = ["--worker=a:1", "--trace-sampling-ratio=0.5"];
        let (options, layered) = parse(&given, &variables[..1]).unwrap();
        assert!((options.trace_sampling_ratio - 0.5).abs() < f64::EPSILON);
        assert!(layered.notices.is_empty(), "{:?}", layered.notices);
    }

    #[test]
    fn openai_trtllms_names_are_understood_and_ours_are_told() {
        let variables = [
            ("OPENAI_TRTLLM_TRITON_ENDPOINT", "http://triton:8001"),
            ("OPENAI_TRTLLM_PORT", "3000"),
            ("OPENAI_TRTLLM_HISTORY_TEMPLATE", "{{ items }}"),
            ("OPENAI_TRTLLM_API_KEY", "secret"),
            ("OPENAI_TRTLLM_OTLP_ENDPOINT", "http://tempo:4317"),
        ];
        let (options, layered) = parse(&[], &variables).unwrap();
        assert_eq!(
            (options.workers.as_slice(), options.port),
            (&["triton:8001".to_owned()][..], 3000)
        );
        assert!(options.history_template.is_some() && options.api_key.is_some());
        assert!(!layered.has_public_key);
        assert_eq!(layered.notices.len(), 5);
        assert!(
            layered.notices[0].contains("`INFLIGHT_PORT`"),
            "{:?}",
            layered.notices
        );
        assert_eq!(options.otlp_endpoint.as_deref(), Some("http://tempo:4317"));
        // Ours wins.
        let both = [("OPENAI_TRTLLM_PORT", "1"), ("INFLIGHT_PORT", "2")];
        assert_eq!(parse(&["--triton-endpoint=a:1"], &both).unwrap().0.port, 2);
        let (options, layered) =
            parse(&["--triton-endpoint", "http://a:1", "--api-key=k"], &[]).unwrap();
        assert_eq!(options.workers, ["a:1"]);
        assert!(layered.has_public_key && layered.notices[0].contains("`--worker`"));
    }
}
