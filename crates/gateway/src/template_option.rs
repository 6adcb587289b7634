//! Chat templates as options give them. Owns their form and reading the files; which model gets which is
//! `upstream`'s.

use std::path::Path;
use std::str::FromStr;

use inflight_base::text_file::read_text;
use inflight_text::{BuiltInTemplate, TemplateError, TemplateSource};

/// Larger files are a mistake; the largest known templates have some tens of thousands of bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A value of `--chat-template`: the name of a built-in template, or a file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplateOption(pub(crate) TemplateSource);

impl FromStr for ChatTemplateOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(template) = text.parse() {
            return Ok(Self(TemplateSource::BuiltIn(template)));
        }
        let content = read_text(Path::new(text), MAX_FILE_BYTES).map_err(|reason| {
            let names = BuiltInTemplate::ALL.map(BuiltInTemplate::name).join(", ");
            format!("{reason}; pass a file, or one of {names}")
        })?;
        let source = TemplateSource::from_file_content(&content);
        source.map(Self).map_err(|error| describe(&error))
    }
}

/// A history template of openai_trtllm, which was parsed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryTemplate(pub(crate) TemplateSource);

/// Reads the value of `--history-template`.
///
/// # Errors
/// What does not parse.
pub(crate) fn history_template(text: &str) -> Result<HistoryTemplate, String> {
    let source = TemplateSource::from_history(text);
    source
        .map(HistoryTemplate)
        .map_err(|error| describe(&error))
}

/// Reads the file of `--history-template-file`.
///
/// # Errors
/// It cannot be read, or what does not parse.
pub(crate) fn history_template_file(path: &str) -> Result<HistoryTemplate, String> {
    history_template(&read_text(Path::new(path), MAX_FILE_BYTES)?)
}

fn describe(error: &TemplateError) -> String {
    match error {
        TemplateError::Syntax { message } => format!("the template does not parse: {message}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_built_in_and_anything_else_is_a_file() {
        let parse = |text: &str| text.parse::<ChatTemplateOption>();
        let built_in = TemplateSource::BuiltIn(BuiltInTemplate::ChatMl);
        assert_eq!(parse("chatml").unwrap().0, built_in);
        let error = parse("/no/such/file").unwrap_err();
        assert!(
            error.contains("cannot read") && error.contains("llama-2"),
            "{error}"
        );
        let path = std::env::temp_dir().join(format!("template-{}", std::process::id()));
        let name = path.to_str().unwrap();
        for (content, expected) in [
            ("{{ messages[0].content }}", Ok(1)),
            (r#"{"chat_template": "x", "eos_token": "e"}"#, Ok(1)),
            (
                r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#,
                Ok(2),
            ),
            (r#"{"eos_token": "e"}"#, Err("has no `chat_template`")),
            ("{% for %}", Err("does not parse")),
            (
                r#"[{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]"#,
                Err("`default`"),
            ),
        ] {
            std::fs::write(&path, content).unwrap();
            match (parse(name), expected) {
                (Ok(ChatTemplateOption(TemplateSource::Jinja(templates))), Ok(count)) => {
                    assert_eq!(templates.len(), count, "{content}");
                }
                (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
                (other, _) => panic!("{content}: {other:?}"),
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn history_templates_are_liquid() {
        assert!(history_template("{% for item in items %}{{ item.content }}{% endfor %}").is_ok());
        let error = history_template("{% for item %}").unwrap_err();
        assert!(
            error.contains("does not parse") && !error.contains('\n'),
            "{error}"
        );
        assert!(history_template_file("/no/such/file").is_err());
    }
}
