//! Option values of the form `[MODEL=]VALUE`: one value for a named model, or for every model
//! without its own.

use std::str::FromStr;

/// A value and the model it is for; `None`: every model without its own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForModel<T> {
    pub model: Option<String>,
    pub value: T,
}

impl<T: FromStr> FromStr for ForModel<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (model, value) = match text.split_once('=') {
            Some((model, value)) => (Some(model.to_owned()), value),
            None => (None, text),
        };
        if value.is_empty() || model.as_deref() == Some("") {
            return Err("must be VALUE or MODEL=VALUE, and neither part may be empty".to_owned());
        }
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { model, value })
    }
}

/// The value for `model`: its own, else the one for every model.
pub fn for_model<'a, T>(values: &'a [ForModel<T>], model: &str) -> Option<&'a T> {
    let own = values
        .iter()
        .find(|one| one.model.as_deref() == Some(model));
    let own = own.or_else(|| values.iter().find(|one| one.model.is_none()));
    own.map(|one| &one.value)
}
