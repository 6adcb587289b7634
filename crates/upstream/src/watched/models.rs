//! `GET /v1/models` of another maker's server: its models, and the LoRA adapters of each, which are models there as well.
//! Pure.

use std::collections::BTreeMap;

use inflight_kserve::assets::Adapter;
use inflight_models::served::MAX_NAME_BYTES;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// Models of one server that are watched; each has a place among the workers of its name.
const MOST_MODELS: usize = 64;
/// Adapters of one server that are known by name.
const MOST_ADAPTERS: usize = 4096;

/// A model of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Prompt and generated tokens together, where the server says it.
    pub(super) context: Option<u32>,
    pub(super) adapters: Vec<Adapter>,
}

#[derive(Deserialize)]
struct List {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    /// The model that it is an adapter of.
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    max_model_len: Option<u32>,
}

/// Reads the list: models by name.
///
/// # Errors
/// A sentence: it is not one.
pub(super) fn read(bytes: &[u8]) -> Result<BTreeMap<String, Found>, String> {
    let list: List = serde_json::from_slice(bytes)
        .map_err(|error| format!("`/v1/models` is not a list of models: {error}"))?;
    // Names are logged as they are.
    let is_plain = |name: &str| {
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
    };
    let (adapters, models): (Vec<_>, Vec<_>) = list
        .data
        .into_iter()
        .filter(|card| is_plain(&card.id))
        .partition(|card| card.parent.is_some());
    let models = models.into_iter().take(MOST_MODELS);
    let mut found: BTreeMap<String, Found> = models
        .map(|card| {
            let found = Found {
                context: card.max_model_len.filter(|length| *length > 0),
                adapters: Vec::new(),
            };
            (card.id, found)
        })
        .collect();
    for card in adapters.into_iter().take(MOST_ADAPTERS) {
        let parent = card.parent.as_deref().unwrap_or_default();
        // Where a model has several names, an adapter is of one, and can be used with each.
        let is_named = found.contains_key(parent);
        for (name, model) in &mut found {
            if !is_named || name == parent {
                model.adapters.push(Adapter {
                    lora_task_id: adapter_number(&card.id),
                    name: card.id.clone(),
                });
            }
        }
    }
    Ok(found)
}

/// The number by which blocks are named with an adapter that a server has by its name alone: the same for all servers.
pub(super) fn adapter_number(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_their_models() {
        let list = br#"{"object": "list", "data": [
            {"id": "m", "object": "model", "root": "/m", "parent": null, "max_model_len": 4096, "permission": []},
            {"id": "other", "max_model_len": 0},
            {"id": "support", "root": "/s", "parent": "m"},
            {"id": "sales", "parent": "/path/of/m"},
            {"id": "bad\u0007name"}, {"id": ""}
        ]}"#;
        let found = read(list).unwrap();
        let seen: Vec<_> = found
            .iter()
            .map(|(name, model)| {
                let adapters = model.adapters.iter().map(|one| one.name.as_str());
                (name.as_str(), model.context, adapters.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("m", Some(4096), vec!["support", "sales"]),
                ("other", None, vec!["sales"])
            ]
        );
        let numbers: Vec<u64> = found["m"]
            .adapters
            .iter()
            .map(|one| one.lora_task_id)
            .collect();
        assert_eq!(
            numbers,
            [adapter_number("support"), adapter_number("sales")]
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"data": [{}]}"#,
            r#"{"data": [{"id": 1}]}"#,
        ] {
            let error = read(bad.as_bytes()).unwrap_err();
            assert!(error.starts_with("`/v1/models` is not a list"), "{error}");
        }
        let many: Vec<String> = (0..100)
            .map(|number| format!(r#"{{"id": "{number}"}}"#))
            .collect();
        let many = format!(r#"{{"data": [{}]}}"#, many.join(","));
        assert_eq!(read(many.as_bytes()).unwrap().len(), MOST_MODELS);
    }
}
