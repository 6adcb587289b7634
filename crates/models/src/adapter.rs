//! LoRA adapters by name: a client's model `base:adapter`. Owns how such a name is read and which task of a
//! server it means; knows nothing of tables and weights.

use inflight_kserve::assets;

use super::capability::{Capability, has};
use super::served::ServedModel;

/// An adapter that a request names, as the servers that it may go to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub name: String,
    /// The tensor `lora_task_id`.
    pub task_id: u64,
}

/// What `model` may mean as a base model and an adapter. Both may contain colons; the longest base
/// comes first.
pub fn readings(model: &str) -> impl Iterator<Item = (&str, &str)> {
    let colons = model.rmatch_indices(':');
    colons.map(|(place, _)| (&model[..place], &model[place + 1..]))
}

/// The name of an adapter among the models.
pub fn full_name(base: &str, adapter: &str) -> String {
    format!("{base}:{adapter}")
}

/// The task of the adapter `name`: one that the server has `announced`, or else the number itself, where weights
/// can have been sent to the server under it.
pub fn task_of(model: &ServedModel, announced: &[assets::Adapter], name: &str) -> Option<u64> {
    let mut announced = announced.iter();
    if let Some(adapter) = announced.find(|adapter| adapter.name == name) {
        return Some(adapter.lora_task_id);
    }
    let number: u64 = name.parse().ok()?;
    let is_plain = number.to_string() == name;
    (is_plain && has(model, Capability::Lora)).then_some(number)
}

#[cfg(test)]
mod tests {
    use inflight_kserve::assets::ModelDescription;

    use super::super::served::Protocol;
    use super::*;

    #[test]
    fn a_name_is_read_from_its_last_colon() {
        let found: Vec<_> = readings("llama3:8b:support").collect();
        assert_eq!(found, [("llama3:8b", "support"), ("llama3", "8b:support")]);
        assert_eq!(readings("llama3").count(), 0);
    }

    #[test]
    fn a_task_is_announced_or_a_number() {
        let model = |capabilities: &[&str]| ServedModel {
            description: ModelDescription {
                capabilities: capabilities.iter().map(|name| (*name).to_owned()).collect(),
                ..ModelDescription::default()
            },
            text: None,
            template: None,
            protocol: Protocol::StepBatching,
        };
        let announced = [assets::Adapter {
            name: "support".to_owned(),
            lora_task_id: 9,
        }];
        for (name, capabilities, expected) in [
            ("support", &["lora"][..], Some(9)),
            ("sales", &["lora"], None),
            ("7", &["lora"], Some(7)),
            ("7", &[], None),
            ("007", &["lora"], None),
            ("+7", &["lora"], None),
            ("", &["lora"], None),
            ("18446744073709551616", &["lora"], None),
        ] {
            let found = task_of(&model(capabilities), &announced, name);
            assert_eq!(found, expected, "{name}");
        }
    }
}
