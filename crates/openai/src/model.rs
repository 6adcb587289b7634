//! The bodies of `/v1/models` and `/v1/models/{id}`. Knows nothing of registries: names and times come in.

use schemars::JsonSchema;
use serde::Serialize;

/// One model, as OpenAI lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelCard {
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    pub owned_by: String,
    /// Prompt plus generated tokens that fit one request: the extension that open servers share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,
    /// Whose weights these are: the model's own name, as vLLM and SGLang have it.
    pub root: String,
    /// The model that a LoRA adapter belongs to; an extension of vLLM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl ModelCard {
    /// A card owned by `inflight`.
    pub fn new(id: impl Into<String>, created: u64, max_model_len: Option<u32>) -> Self {
        let id = id.into();
        Self {
            root: id.clone(),
            id,
            object: "model",
            created,
            owned_by: "inflight".to_owned(),
            max_model_len,
            parent: None,
        }
    }

    /// The card of an adapter of this model.
    pub fn adapter(&self, id: impl Into<String>) -> Self {
        let id = id.into();
        Self {
            root: id.clone(),
            id,
            parent: Some(self.id.clone()),
            ..self.clone()
        }
    }
}

/// All models, as OpenAI lists them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    pub data: Vec<ModelCard>,
}

impl ModelList {
    pub fn new(data: Vec<ModelCard>) -> Self {
        Self {
            object: "list",
            data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_openai_shape() {
        let list = ModelList::new(vec![
            ModelCard::new("a", 7, Some(512)),
            ModelCard::new("b", 8, None).adapter("b:c"),
        ]);
        assert_eq!(
            serde_json::to_string(&list).unwrap(),
            concat!(
                r#"{"object":"list","data":["#,
                r#"{"id":"a","object":"model","created":7,"owned_by":"inflight","max_model_len":512,"root":"a"},"#,
                r#"{"id":"b:c","object":"model","created":8,"owned_by":"inflight","root":"b:c","parent":"b"}]}"#
            )
        );
    }
}
