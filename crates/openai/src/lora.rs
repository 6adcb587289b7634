//! The requests of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, which are vLLM's. Owns their parsing; knows
//! nothing of models.

use crate::error::ApiError;
use crate::reader::{Fields, is_neutral};

/// Which adapter is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadAdapter {
    pub name: String,
    /// At the workers.
    pub path: String,
    /// Whether a name that is loaded already means these files from now on.
    pub in_place: bool,
}

/// Which adapter is to be unloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnloadAdapter {
    pub name: String,
}

impl LoadAdapter {
    /// Parses a body. Total: any bytes give a request or a 400.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let request = Self {
            name: text(&mut fields, "lora_name")?,
            path: text(&mut fields, "lora_path")?,
            in_place: fields.boolean("load_inplace")?.unwrap_or(false),
        };
        finish(fields)?;
        Ok(request)
    }
}

impl UnloadAdapter {
    /// Parses a body. Total: any bytes give a request or a 400.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let request = Self {
            name: text(&mut fields, "lora_name")?,
        };
        // vLLM's own number, which it does not need either.
        let _ = fields.take("lora_int_id");
        finish(fields)?;
        Ok(request)
    }
}

fn text(fields: &mut Fields<'_>, name: &str) -> Result<String, ApiError> {
    let text = fields.string(name)?.unwrap_or_default();
    if text.is_empty() {
        return Err(fields.missing(name));
    }
    Ok(text)
}

fn finish(fields: Fields<'_>) -> Result<(), ApiError> {
    match fields.rest().find(|(_, raw)| !is_neutral(raw, &["false"])) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("`{name}` is not supported here. Leave it out.");
            Err(ApiError::unsupported(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_asked_for_is_read() {
        let body = json!({"lora_name": "m:sql", "lora_path": "sql", "is_3d_lora_weight": false});
        let request = LoadAdapter::parse(body.to_string().as_bytes()).unwrap();
        let expected = LoadAdapter {
            name: "m:sql".to_owned(),
            path: "sql".to_owned(),
            in_place: false,
        };
        assert_eq!(request, expected);
        let body = json!({"lora_name": "sql", "lora_path": "/a/sql", "load_inplace": true});
        assert!(
            LoadAdapter::parse(body.to_string().as_bytes())
                .unwrap()
                .in_place
        );
        let body = json!({"lora_name": "sql", "lora_int_id": 3});
        let request = UnloadAdapter::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(request.name, "sql");
    }

    #[test]
    fn what_is_missing_or_strange_is_named() {
        for (body, param) in [
            (json!({"lora_path": "sql"}), "lora_name"),
            (json!({"lora_name": "sql"}), "lora_path"),
            (json!({"lora_name": "", "lora_path": "sql"}), "lora_name"),
            (json!({"lora_name": 7, "lora_path": "sql"}), "lora_name"),
            (
                json!({"lora_name": "a", "lora_path": "b", "load_inplace": "yes"}),
                "load_inplace",
            ),
            (
                json!({"lora_name": "a", "lora_path": "b", "base_model_name": "m"}),
                "base_model_name",
            ),
        ] {
            let error = LoadAdapter::parse(body.to_string().as_bytes()).unwrap_err();
            assert_eq!(
                (error.status(), error.param.as_deref()),
                (400, Some(param)),
                "{body}"
            );
        }
        assert!(UnloadAdapter::parse(b"[]").is_err());
    }
}
