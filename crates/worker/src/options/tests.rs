use std::collections::HashSet;
use std::time::Duration;

use super::{OptionKind, OptionValue, Options, WorkerOptions};
use crate::SimulatedOptions;

fn set(name: &str, value: OptionValue) -> Result<WorkerOptions, String> {
    let mut options = WorkerOptions::default();
    let list = WorkerOptions::list();
    let option = list.iter().find(|option| option.name == name);
    let option = option.expect("an option of the worker");
    match options.set(option, value) {
        Ok(()) => Ok(options),
        Err(error) => Err(error.to_string()),
    }
}

fn check_list<T: Options>() {
    let default = T::default();
    let mut names = HashSet::new();
    for option in T::list() {
        assert!(option.help.len() > 10, "{}", option.name);
        assert!(!option.help.starts_with(' '), "{}", option.name);
        assert!(!option.help.ends_with(['.', ' ']), "{}", option.name);
        assert_eq!(default.get(&option.name), Some(option.default.clone()));
        let mut same = T::default();
        if option.default != OptionValue::Absent {
            same.set(&option, option.default.clone())
                .expect("a default is in range");
        }
        assert!(names.insert(option.name.clone()), "{}", option.name);
    }
    assert_eq!(default.get("no_such_option"), None);
}

#[test]
fn every_option_says_what_it_is_and_has_a_default_that_it_takes() {
    check_list::<WorkerOptions>();
    check_list::<SimulatedOptions>();
}

#[test]
fn a_time_is_given_in_seconds() {
    let options = set("drain_timeout_s", OptionValue::Number(1.5)).expect("seconds");
    assert_eq!(options.drain_timeout, Duration::from_millis(1500));
    assert_eq!(
        options.get("drain_timeout_s"),
        Some(OptionValue::Number(1.5))
    );
    assert_eq!(options.get("drain_timeout"), None);
}

#[test]
fn an_empty_collector_is_none() {
    let options = set("otlp_endpoint", OptionValue::Text(String::new())).expect("none");
    assert_eq!(options.traces(), None);
    let options = set("otlp_endpoint", OptionValue::Text("tempo:4317".into())).expect("one");
    let traces = options.traces().expect("traces");
    assert_eq!(traces.endpoint, "http://tempo:4317");
}

#[test]
fn a_value_out_of_range_is_refused_with_the_range() {
    for (name, value, expected) in [
        (
            "drain_timeout_s",
            OptionValue::Number(-1.0),
            "`drain_timeout_s` is `-1`, expected seconds, 0 or more",
        ),
        (
            "drain_timeout_s",
            OptionValue::Number(f64::NAN),
            "`drain_timeout_s` is `NaN`, expected seconds, 0 or more",
        ),
        (
            "max_message_bytes",
            OptionValue::Integer(0),
            "`max_message_bytes` is `0`, expected 1 or more",
        ),
        (
            "max_concurrent_streams",
            OptionValue::Integer(1 << 32),
            "`max_concurrent_streams` is `4294967296`, expected 4294967295 or less",
        ),
        (
            "grpc_port",
            OptionValue::Integer(65536),
            "`grpc_port` is `65536`, expected 0 to 65535",
        ),
        (
            "trace_sampling_ratio",
            OptionValue::Number(2.0),
            "`trace_sampling_ratio` is `2`, expected 0 to 1",
        ),
        (
            "host",
            OptionValue::Integer(1),
            "`host` is `1`, expected text",
        ),
        (
            "otlp_endpoint",
            OptionValue::Text("grpc://x:1".into()),
            "`otlp_endpoint` is `grpc://x:1`, expected the address of an OTLP collector, such as http://HOST:4317",
        ),
    ] {
        assert_eq!(set(name, value).expect_err("refused"), expected);
    }
}

#[test]
fn the_kind_of_an_option_is_that_of_its_field() {
    let list = WorkerOptions::list();
    let kind = |name| {
        list.iter()
            .find(|option| option.name == name)
            .map(|one| one.kind)
    };
    assert_eq!(kind("http_port"), Some(OptionKind::Integer));
    assert_eq!(kind("tls_key"), Some(OptionKind::File));
    assert_eq!(kind("adapter_dir"), Some(OptionKind::Directory));
}
