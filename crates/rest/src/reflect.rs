//! KServe's messages as JSON, by their descriptors, as Triton writes them: with the names of the .proto files, all
//! fields that have no presence, and 64-bit numbers as numbers.

use std::sync::LazyLock;

use http::StatusCode;
use inflight_kserve::FILE_DESCRIPTORS;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::Value;

use crate::error::RestError;

static POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| {
    let [kserve, ..] = FILE_DESCRIPTORS;
    DescriptorPool::decode(kserve).ok()
});

/// The `message` of this name in the package `inference`.
///
/// # Errors
/// 500: there is none of that name, which would be a mistake here.
pub(crate) fn to_json(name: &str, message: &impl Message) -> Result<Value, RestError> {
    let options = SerializeOptions::new()
        .skip_default_fields(false)
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false);
    let write = || {
        let pool = POOL.as_ref()?;
        let descriptor = pool.get_message_by_name(&format!("inference.{name}"))?;
        let message =
            DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).ok()?;
        let json = message.serialize_with_options(serde_json::value::Serializer, &options);
        json.ok()
    };
    write().ok_or_else(|| {
        let message = format!("cannot write a `{name}` as JSON");
        RestError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })
}

#[cfg(test)]
mod tests {
    use inflight_kserve::inference::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_have_triton_s_names_and_all_their_plain_fields() {
        let metadata = ModelMetadataResponse {
            name: "m".to_owned(),
            versions: vec!["1".to_owned()],
            platform: "python".to_owned(),
            inputs: vec![model_metadata_response::TensorMetadata {
                name: "i".to_owned(),
                datatype: "BYTES".to_owned(),
                shape: vec![-1, 1],
            }],
            outputs: Vec::new(),
        };
        assert_eq!(
            to_json("ModelMetadataResponse", &metadata).unwrap(),
            json!({"name": "m", "versions": ["1"], "platform": "python",
                   "inputs": [{"name": "i", "datatype": "BYTES", "shape": [-1, 1]}], "outputs": []})
        );
        let config = ModelConfig {
            name: "m".to_owned(),
            max_batch_size: 8,
            input: vec![ModelInput {
                name: "i".to_owned(),
                data_type: DataType::TypeString as i32,
                dims: vec![-1],
                optional: true,
                ..ModelInput::default()
            }],
            model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
            ..ModelConfig::default()
        };
        let config = to_json("ModelConfig", &config).unwrap();
        assert_eq!(config["input"][0]["data_type"], "TYPE_STRING");
        assert_eq!(config["input"][0]["format"], "FORMAT_NONE");
        assert_eq!(config["input"][0]["dims"], json!([-1]));
        assert_eq!(
            config["model_transaction_policy"],
            json!({"decoupled": true})
        );
        assert_eq!(
            (&config["max_batch_size"], &config["parameters"]),
            (&json!(8), &json!({}))
        );
        assert!(config.get("dynamic_batching").is_none(), "{config}");
        let statistics = ModelStatistics {
            last_inference: u64::MAX,
            inference_stats: Some(InferStatistics {
                success: Some(StatisticDuration { count: 2, ns: 3 }),
                ..InferStatistics::default()
            }),
            ..ModelStatistics::default()
        };
        let statistics = to_json("ModelStatistics", &statistics).unwrap();
        assert_eq!(statistics["last_inference"], json!(u64::MAX));
        assert_eq!(
            statistics["inference_stats"],
            json!({"success": {"count": 2, "ns": 3}})
        );
    }
}
