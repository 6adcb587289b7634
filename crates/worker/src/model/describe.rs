//! ModelMetadata and ModelConfig, read off the tables.

use inflight_kserve::inference::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelMetadataResponse,
    ModelOutput, ModelTensorReshape, ModelTransactionPolicy, ModelVersionPolicy,
    model_config::SchedulingChoice, model_instance_group, model_metadata_response::TensorMetadata,
    model_version_policy,
};

use super::{CORE_MODEL_VERSION, DEFAULT_PRIORITY_LEVEL, INPUTS, OUTPUTS, PRIORITY_LEVELS};
use crate::executor::{ModelInfo, capability};

/// As Triton answers it: shapes with the batch dimension in front.
pub(crate) fn metadata(name: &str) -> ModelMetadataResponse {
    let tensor = |name: &str, datatype: &str, dims: &[i64]| TensorMetadata {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: [&[-1], dims].concat(),
    };
    ModelMetadataResponse {
        name: name.to_owned(),
        versions: vec![CORE_MODEL_VERSION.to_owned()],
        platform: "inflight".to_owned(),
        inputs: INPUTS
            .iter()
            .map(|spec| tensor(spec.name, spec.datatype.name(), spec.dims))
            .collect(),
        outputs: OUTPUTS
            .iter()
            .map(|spec| tensor(spec.name, spec.datatype.name(), spec.dims))
            .collect(),
    }
}

/// What Triton's config.pbtxt says of the core model, with this executor's batch size.
pub(crate) fn config(name: &str, info: &ModelInfo) -> ModelConfig {
    ModelConfig {
        name: name.to_owned(),
        backend: "inflight".to_owned(),
        version_policy: Some(ModelVersionPolicy {
            policy_choice: Some(model_version_policy::PolicyChoice::Latest(
                model_version_policy::Latest { num_versions: 1 },
            )),
        }),
        max_batch_size: i32::try_from(info.max_batch_size).unwrap_or(i32::MAX),
        input: INPUTS
            .iter()
            .map(|spec| ModelInput {
                name: spec.name.to_owned(),
                data_type: spec.datatype.to_config() as i32,
                dims: spec.dims.to_vec(),
                reshape: spec
                    .squeezed
                    .then(|| ModelTensorReshape { shape: Vec::new() }),
                allow_ragged_batch: spec.ragged,
                optional: spec.optional,
                ..ModelInput::default()
            })
            .collect(),
        output: OUTPUTS
            .iter()
            .map(|spec| ModelOutput {
                name: spec.name.to_owned(),
                data_type: spec.datatype.to_config() as i32,
                dims: spec.dims.to_vec(),
                ..ModelOutput::default()
            })
            .collect(),
        instance_group: vec![ModelInstanceGroup {
            name: format!("{name}_0"),
            kind: model_instance_group::Kind::Cpu as i32,
            count: 1,
            ..ModelInstanceGroup::default()
        }],
        scheduling_choice: priorities(info),
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled: true }),
        ..ModelConfig::default()
    }
}

/// How a client learns that `priority` counts, and within which bounds.
fn priorities(info: &ModelInfo) -> Option<SchedulingChoice> {
    let honoured = info
        .capabilities
        .iter()
        .any(|name| name == capability::PRIORITY);
    honoured.then(|| {
        SchedulingChoice::DynamicBatching(ModelDynamicBatching {
            priority_levels: PRIORITY_LEVELS.into(),
            default_priority_level: DEFAULT_PRIORITY_LEVEL.into(),
            ..ModelDynamicBatching::default()
        })
    })
}
