//! Which outputs a request of a text model wants.

use inflight_kserve::inference::ModelInferRequest;

use super::error::TextRequestError;
use super::table::TextModelKind;

/// The outputs that a request names, or all of them where it names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted(Option<Vec<&'static str>>);

impl Wanted {
    /// # Errors
    /// A name that is not an output of the model.
    pub(crate) fn read(
        kind: TextModelKind,
        message: &ModelInferRequest,
    ) -> Result<Self, TextRequestError> {
        if message.outputs.is_empty() {
            return Ok(Self(None));
        }
        let mut names = Vec::with_capacity(message.outputs.len());
        for requested in &message.outputs {
            let spec =
                kind.output(&requested.name)
                    .ok_or_else(|| TextRequestError::UnknownOutput {
                        model: kind.asked_as(message).to_owned(),
                        output: requested.name.clone(),
                    })?;
            if names.contains(&spec.name) {
                return Err(TextRequestError::RepeatedOutput {
                    output: requested.name.clone(),
                });
            }
            names.push(spec.name);
        }
        Ok(Self(Some(names)))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(&name))
    }

    /// The names, where the request named any.
    pub(crate) fn names(&self) -> Option<&[&'static str]> {
        self.0.as_deref()
    }
}
