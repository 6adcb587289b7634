//! A file of options: TOML, one key for each option. Owns the form; which options there are is the caller's.

use std::collections::BTreeMap;
use std::path::Path;

use inflight_base::text_file::read_text;
use toml::Value;

/// Larger files are a mistake.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Names that are this near may have been meant.
const NEAR: f64 = 0.75;

/// Each option's values as text, by its name with dashes.
pub type OptionValues = BTreeMap<String, Vec<String>>;

/// Reads the options in a file, of which only `known` ones may be there.
///
/// # Errors
/// A sentence for the user, which names the file.
pub fn read_option_file(path: &Path, known: &[String]) -> Result<OptionValues, String> {
    let at = |reason: String| format!("{}: {reason}", path.display());
    let text = read_text(path, MAX_FILE_BYTES).map_err(at)?;
    parse(&text, known).map_err(at)
}

/// Reads a file of the gateway's options, for fuzzing.
///
/// # Panics
/// Where an unknown option is accepted, or an error is not one line.
pub fn check_option_file(text: &str, known: &[String]) {
    match parse(text, known) {
        Ok(values) => assert!(values.keys().all(|name| known.contains(name))),
        Err(error) => assert!(!error.contains('\n'), "{error}"),
    }
}

fn parse(text: &str, known: &[String]) -> Result<OptionValues, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| {
            1 + text
                .get(..span.start)
                .unwrap_or_default()
                .matches('\n')
                .count()
        });
        let place = line.map_or_else(String::new, |line| format!("line {line}: "));
        format!("{place}{}", error.message())
    })?;
    let mut values = OptionValues::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        if !known.contains(&name) {
            return Err(format!("unknown option `{key}`{}", near(&name, known)));
        }
        let texts = match value {
            Value::Array(items) => items.iter().map(|item| one(&key, item)).collect(),
            single => one(&key, &single).map(|text| vec![text]),
        };
        if values.insert(name, texts?).is_some() {
            return Err(format!(
                "`{key}` appears twice, with dashes and with underscores"
            ));
        }
    }
    Ok(values)
}

fn one(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(set) => Ok(set.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => Err(format!(
            "`{key}` must be text, a number, true or false, or a list of those"
        )),
    }
}

/// Options whose names are like this one, for the end of a sentence.
fn near(name: &str, known: &[String]) -> String {
    let mut scored: Vec<_> = known
        .iter()
        .map(|option| (strsim::jaro_winkler(name, option), option))
        .filter(|(score, _)| *score >= NEAR)
        .collect();
    scored.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let names: Vec<String> = scored
        .iter()
        .take(3)
        .map(|(_, option)| format!("`{option}`"))
        .collect();
    match names.as_slice() {
        [] => "; `--help` lists all".to_owned(),
        names => format!("; did you mean {}?", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<String> {
        ["port", "worker", "max-connections", "max-body-bytes"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn values_are_as_on_the_command_line() {
        let text = "port = 80 # as usual\nmax_connections = 5\nworker = [\"a:1\", \"b:2\"]\n";
        let values = parse(text, &known()).unwrap();
        assert_eq!(values["port"], ["80"]);
        assert_eq!(values["max-connections"], ["5"]);
        assert_eq!(values["worker"], ["a:1", "b:2"]);
        assert!(parse("", &known()).unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, said) in [
            ("prot = 1", "unknown option `prot`; did you mean `port`?"),
            ("max-conections = 1", "`max-connections`"),
            ("zzz = 1", "`--help` lists all"),
            ("port = 1\nport", "line 2"),
            ("port = {a = 1}", "`port` must be text"),
            ("worker = [[1]]", "`worker` must be text"),
            ("max-connections = 1\nmax_connections = 2", "appears twice"),
        ] {
            let error = parse(text, &known()).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
        let error = read_option_file(Path::new("/no/such/file"), &known()).unwrap_err();
        assert!(error.starts_with("/no/such/file: cannot read"), "{error}");
    }
}
