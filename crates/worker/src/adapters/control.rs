//! What a client asks of Triton's model control, or of adapters in a request, and the error where that is not done.
//! Pure.

use std::collections::HashMap;

use inflight_kserve::inference::ModelRepositoryParameter;
use inflight_kserve::inference::model_repository_parameter::ParameterChoice;
use inflight_kserve::names;
use tonic::{Code, Status};

use super::directory::DirectoryError;
use crate::executor::AdapterError;

/// A name is part of a model's name in OpenAI's API, of paths and of log lines.
const MAX_NAME_BYTES: usize = 128;
/// As Linux has it.
const MAX_PATH_BYTES: usize = 4096;
/// Where the files are, as vLLM calls it; without it, in the directory of the adapter's name.
const PATH: &str = names::LORA_PATH;
/// Triton's clients always send it. Nothing depends on an adapter.
const UNLOAD_DEPENDENTS: &str = "unload_dependents";

/// One call: an adapter's name, and perhaps where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(super) name: String,
    path: Option<String>,
}

impl Control {
    /// Reads a call.
    ///
    /// # Errors
    /// A name or a parameter that no adapter has.
    pub(super) fn parse(
        name: String,
        parameters: HashMap<String, ModelRepositoryParameter>,
    ) -> Result<Self, Refusal> {
        check_name(&name)?;
        let mut path = None;
        for (parameter, value) in parameters {
            match (parameter.as_str(), value.parameter_choice) {
                (PATH, Some(ParameterChoice::StringParam(text))) if is_path(&text) => {
                    path = Some(text);
                }
                (PATH, _) => return Err(Refusal::BadPath),
                (UNLOAD_DEPENDENTS, _) => {}
                _ => {
                    let shown: String = parameter.chars().take(MAX_NAME_BYTES).collect();
                    return Err(Refusal::BadParameter(shown));
                }
            }
        }
        Ok(Self { name, path })
    }

    /// What a request asks for.
    ///
    /// # Errors
    /// A name or a path that no adapter has.
    pub(super) fn of(name: String, path: String) -> Result<Self, Refusal> {
        if name.is_empty() {
            return Err(Refusal::NoName);
        }
        check_name(&name)?;
        if !is_path(&path) {
            return Err(Refusal::BadPath);
        }
        let path = Some(path);
        Ok(Self { name, path })
    }

    /// Where the files are: relative to the directory of adapters, or absolute.
    pub(super) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or(&self.name)
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Refusal::LongName(name.len()));
    }
    if name.contains(':') || name.chars().any(char::is_control) {
        return Err(Refusal::BadName(name.escape_default().to_string()));
    }
    Ok(())
}

fn is_path(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_PATH_BYTES
}

/// Why nothing was loaded or unloaded. The first words of those that concern the worker as a whole are Triton's.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "explicit model load / unload is not allowed: a worker serves the models that it was started with; start \
         another worker, or stop this one"
    )]
    Fixed,
    #[error(
        "explicit model load / unload is not allowed: a worker serves the models that it was started with, and LoRA \
         adapters are loaded from the directory that `--adapter-dir` names; start it with one"
    )]
    NoDirectory,
    #[error(
        "explicit model load / unload is not allowed: the executor `{0}` cannot load LoRA adapters while it runs; start \
         the worker with them"
    )]
    Unable(String),
    #[error("an adapter's name is empty; send it in `{}`", names::LORA_NAME)]
    NoName,
    #[error(
        "an adapter `{name}` is loaded, and not from these files; request it by `lora_task_id` `{lora_task_id}`, \
         name yours otherwise, or unload it first"
    )]
    OtherFiles { name: String, lora_task_id: u64 },
    #[error("an adapter's name has at most {MAX_NAME_BYTES} bytes, got `{0}`; use a shorter one")]
    LongName(usize),
    #[error(
        "the adapter's name `{0}` has a colon or a control character; use another, since requests name it behind the \
         model's name and a colon"
    )]
    BadName(String),
    #[error(
        "`{PATH}` must be a string of 1 to {MAX_PATH_BYTES} bytes: the directory of the adapter"
    )]
    BadPath,
    #[error("the parameter `{0}` is not supported; a LoRA adapter is loaded with `{PATH}` alone")]
    BadParameter(String),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Executor(AdapterError),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Fixed | Refusal::NoDirectory | Refusal::Unable(_) => Code::Unimplemented,
            Refusal::NoName
            | Refusal::OtherFiles { .. }
            | Refusal::LongName(_)
            | Refusal::BadName(_)
            | Refusal::BadPath
            | Refusal::BadParameter(_)
            | Refusal::Directory(_) => Code::InvalidArgument,
            Refusal::Executor(AdapterError::Refused { code, .. }) => *code,
            Refusal::Executor(AdapterError::Executor(_)) => Code::Internal,
        };
        Self::new(code, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, parameters: &[(&str, ParameterChoice)]) -> Result<Control, String> {
        let parameters = parameters.iter().map(|(name, choice)| {
            let parameter_choice = Some(choice.clone());
            (
                (*name).to_owned(),
                ModelRepositoryParameter { parameter_choice },
            )
        });
        Control::parse(name.to_owned(), parameters.collect()).map_err(|refusal| refusal.to_string())
    }

    fn text(value: &str) -> ParameterChoice {
        ParameterChoice::StringParam(value.to_owned())
    }

    #[test]
    fn an_adapter_is_where_it_says_or_where_its_name_says() {
        assert_eq!(parse("support", &[]).unwrap().path(), "support");
        let control = parse("support", &[(PATH, text("v2/files"))]).unwrap();
        assert_eq!((&*control.name, control.path()), ("support", "v2/files"));
        let flag = ParameterChoice::BoolParam(false);
        assert!(parse("support", &[(UNLOAD_DEPENDENTS, flag)]).is_ok());
    }

    #[test]
    fn what_is_no_adapter_is_refused_by_what_is_wrong() {
        let long = "n".repeat(MAX_NAME_BYTES + 1);
        let deep = "p".repeat(MAX_PATH_BYTES + 1);
        for (name, parameters, words) in [
            (long.as_str(), vec![], "got `129`"),
            ("a:b", vec![], "`a:b`"),
            ("a\nb", vec![], "`a\\nb`"),
            ("a", vec![(PATH, text(""))], "`lora_path` must be a string"),
            (
                "a",
                vec![(PATH, text(&deep))],
                "`lora_path` must be a string",
            ),
            (
                "a",
                vec![(PATH, ParameterChoice::Int64Param(7))],
                "`lora_path` must be a string",
            ),
            (
                "a",
                vec![("config", text("{}"))],
                "`config` is not supported",
            ),
        ] {
            let refused = parse(name, &parameters).unwrap_err();
            assert!(refused.contains(words), "{name}: {refused}");
        }
    }
}
