//! The models over one executor: the core model under its name, and the text models where the files have a
//! tokenizer. Owns which names are known, what each model says of itself, and when it is ready.

use std::sync::{Arc, OnceLock};

use inflight_kserve::inference as wire;
use inflight_kserve::inference::{
    ModelConfig, ModelEnsembling, ModelInferRequest, ModelInput, ModelInstanceGroup,
    ModelMetadataResponse, ModelOutput, ModelParameter, ModelTensorReshape, ModelTransactionPolicy,
    ModelVersionPolicy, model_config::SchedulingChoice, model_ensembling, model_instance_group,
    model_metadata_response::TensorMetadata, model_version_policy,
};
use tokio::sync::{Notify, Semaphore};

use crate::engine::Health;
use crate::executor::ModelInfo;
use crate::model::{self, CORE_MODEL_VERSION, OutputSpec};
use crate::model_counters::ModelCounters;
use crate::model_names::ModelNames;
use crate::text_models::{TextInput, TextModelKind, TextModels, llmapi};

/// Texts of this many bytes or fewer are tokenized where they arrive; longer ones elsewhere, so that they delay
/// no stream. About 100 µs of work.
pub(crate) const INLINE_BYTES: usize = 4096;
/// Long texts that are tokenized at once; others wait, and their streams are not read meanwhile.
const TOKENIZING: usize = 2;

/// A model that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Core,
    Text(TextModelKind),
}

/// What is served.
#[derive(Debug)]
pub(crate) struct Catalog {
    names: ModelNames,
    info: ModelInfo,
    /// `None`: the model's files have no tokenizer.
    text: Option<Text>,
}

#[derive(Debug)]
struct Text {
    loaded: OnceLock<Result<Arc<TextModels>, String>>,
    settled: Notify,
    counters: [Arc<ModelCounters>; 4],
    accumulates: bool,
    excludes_input: bool,
    tokenizing: Arc<Semaphore>,
}

impl Catalog {
    pub(crate) fn new(names: ModelNames, info: ModelInfo, text: Option<TextSettings>) -> Self {
        Self {
            names,
            info,
            text: text.map(|settings| Text {
                loaded: OnceLock::new(),
                settled: Notify::new(),
                counters: Default::default(),
                accumulates: settings.accumulates,
                excludes_input: settings.excludes_input,
                tokenizing: Arc::new(Semaphore::new(TOKENIZING)),
            }),
        }
    }

    /// The text models are loaded, or the reason why they cannot be.
    pub(crate) fn set_text(&self, loaded: Result<TextModels, String>) {
        if let Some(text) = &self.text {
            // Set once, by the task that loads.
            let _ = text.loaded.set(loaded.map(Arc::new));
            text.settled.notify_waiters();
            // For who has looked and does not wait yet.
            text.settled.notify_one();
        }
    }

    /// The model of this name.
    ///
    /// # Errors
    /// The text of a NOT_FOUND, as of [`unknown`].
    pub(crate) fn find(&self, name: &str, version: &str) -> Result<Known, String> {
        let known = if *name == **self.names.core() {
            Known::Core
        } else {
            match (self.names.text_named(name), &self.text) {
                (Some(kind), Some(_)) => Known::Text(kind),
                (Some(_), None) => {
                    return Err(format!(
                        "Request for unknown model: `{name}` is not found, because the model's files have no \
                         tokenizer; send token ids to `{}`",
                        self.names.core()
                    ));
                }
                (None, _) => {
                    return Err(unknown(name, std::iter::once(self)));
                }
            }
        };
        model::unknown_version(name, version).map_or(Ok(known), Err)
    }

    /// Whether it is about the model of this name, also where that cannot be asked.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.has(name)
    }

    /// Whether a request is for a text model; the core model's requests are asked this first.
    #[inline]
    pub(crate) fn text_model(&self, message: &ModelInferRequest) -> Option<TextModelKind> {
        self.text.as_ref()?;
        if *message.model_name == **self.names.core() {
            return llmapi::is_asked(message).then_some(TextModelKind::LlmApi);
        }
        self.names.text_named(&message.model_name)
    }

    pub(crate) fn models(&self) -> impl Iterator<Item = Known> {
        let text = self.text.as_ref().map(|_| TextModelKind::ALL);
        std::iter::once(Known::Core).chain(text.into_iter().flatten().map(Known::Text))
    }

    pub(crate) fn name(&self, known: Known) -> &str {
        match known {
            Known::Core => self.names.core(),
            Known::Text(TextModelKind::LlmApi) => self.names.core(),
            Known::Text(kind) => self.names.text(kind),
        }
    }

    /// The text models, once they are loaded.
    ///
    /// # Errors
    /// Why they cannot be asked now.
    pub(crate) fn loaded(&self) -> Result<Arc<TextModels>, String> {
        let loaded = self.text.as_ref().and_then(|text| text.loaded.get());
        match loaded {
            Some(Ok(models)) => Ok(Arc::clone(models)),
            Some(Err(reason)) => Err(format!("the model's text files cannot be used: {reason}")),
            None => Err("the tokenizer is being loaded; retry in a moment".to_owned()),
        }
    }

    /// Whether the text models are loaded or never will be.
    pub(crate) fn is_settled(&self) -> bool {
        self.text
            .as_ref()
            .is_none_or(|text| text.loaded.get().is_some())
    }

    /// Resolves once [`is_settled`](Self::is_settled) has changed.
    pub(crate) async fn settled(&self) {
        if let Some(text) = &self.text {
            text.settled.notified().await;
        }
    }

    pub(crate) fn counters(&self, kind: TextModelKind) -> Option<&Arc<ModelCounters>> {
        let place = TextModelKind::ALL.iter().position(|one| *one == kind)?;
        self.text.as_ref()?.counters.get(place)
    }

    /// Places for long texts.
    pub(crate) fn tokenizing(&self) -> Option<Arc<Semaphore>> {
        Some(Arc::clone(&self.text.as_ref()?.tokenizing))
    }

    /// Triton's state of a model and the reason for it.
    pub(crate) fn state(&self, known: Known, health: &Health) -> (&'static str, String) {
        let text = match (known, &self.text) {
            (Known::Text(_), Some(text)) => match text.loaded.get() {
                None => return ("LOADING", String::new()),
                Some(Err(reason)) => return ("UNAVAILABLE", reason.clone()),
                Some(Ok(_)) => Some(known),
            },
            _ => None,
        };
        if let Some(Known::Text(kind)) = text
            && !kind.generates()
        {
            return ("READY", String::new());
        }
        if health.is_ready() {
            ("READY", String::new())
        } else if health.failed.is_some() {
            ("UNAVAILABLE", "the executor failed".to_owned())
        } else if health.draining {
            ("UNLOADING", String::new())
        } else {
            ("LOADING", String::new())
        }
    }

    /// As Triton answers it: shapes with the batch dimension in front.
    pub(crate) fn metadata(&self, known: Known) -> ModelMetadataResponse {
        let tensor = |name: &str, datatype: &str, dims: &[i64]| TensorMetadata {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: [&[-1], dims].concat(),
        };
        let Known::Text(kind) = known else {
            let mut core = model::metadata(self.names.core());
            if self.text.is_some() {
                let described =
                    |spec: &TextInput| tensor(spec.name, spec.datatype.name(), spec.dims);
                core.inputs.extend(llmapi::inputs().iter().map(described));
                let described =
                    |spec: &OutputSpec| tensor(spec.name, spec.datatype.name(), spec.dims);
                core.outputs.extend(llmapi::outputs().iter().map(described));
            }
            return core;
        };
        ModelMetadataResponse {
            name: self.names.text(kind).to_owned(),
            versions: vec![CORE_MODEL_VERSION.to_owned()],
            platform: platform(kind).to_owned(),
            inputs: kind
                .inputs()
                .iter()
                .map(|spec| tensor(spec.name, spec.datatype.name(), spec.dims))
                .collect(),
            outputs: kind
                .outputs()
                .iter()
                .map(|spec| tensor(spec.name, spec.datatype.name(), spec.dims))
                .collect(),
        }
    }

    pub(crate) fn config(&self, known: Known) -> ModelConfig {
        match known {
            Known::Core => {
                let mut core = model::config(self.names.core(), &self.info);
                if self.text.is_some() {
                    core.input
                        .extend(llmapi::inputs().iter().map(|spec| ModelInput {
                            optional: true,
                            ..config_input(spec)
                        }));
                    core.output
                        .extend(llmapi::outputs().iter().map(config_output));
                }
                core
            }
            Known::Text(kind) => self.text_config(kind),
        }
    }

    /// What Triton's config.pbtxt says of a text model, with this worker's batch size and options.
    fn text_config(&self, kind: TextModelKind) -> ModelConfig {
        let name = self.names.text(kind);
        let ensemble = kind == TextModelKind::Ensemble;
        let mut parameters = Vec::new();
        if let (Some(text), TextModelKind::Bls) = (&self.text, kind) {
            parameters.push(("accumulate_tokens", text.accumulates.to_string()));
            parameters.push(("tensorrt_llm_model_name", self.names.core().to_string()));
        }
        if let (Some(text), true) = (&self.text, kind.generates()) {
            parameters.push(("exclude_input_in_output", text.excludes_input.to_string()));
        }
        ModelConfig {
            name: name.to_owned(),
            platform: if ensemble { "ensemble" } else { "" }.to_owned(),
            backend: if ensemble { "" } else { "inflight" }.to_owned(),
            version_policy: Some(ModelVersionPolicy {
                policy_choice: Some(model_version_policy::PolicyChoice::Latest(
                    model_version_policy::Latest { num_versions: 1 },
                )),
            }),
            max_batch_size: i32::try_from(self.info.max_batch_size).unwrap_or(i32::MAX),
            input: kind.inputs().iter().map(config_input).collect(),
            output: kind.outputs().iter().map(config_output).collect(),
            instance_group: if ensemble {
                Vec::new()
            } else {
                vec![ModelInstanceGroup {
                    name: format!("{name}_0"),
                    kind: model_instance_group::Kind::Cpu as i32,
                    count: 1,
                    ..ModelInstanceGroup::default()
                }]
            },
            parameters: parameters
                .into_iter()
                .map(|(key, string_value)| (key.to_owned(), ModelParameter { string_value }))
                .collect(),
            scheduling_choice: ensemble.then(|| self.steps()),
            model_transaction_policy: kind
                .generates()
                .then_some(ModelTransactionPolicy { decoupled: true }),
            ..ModelConfig::default()
        }
    }

    /// The ensemble's steps by name. How their tensors are joined is this worker's own affair.
    fn steps(&self) -> SchedulingChoice {
        let step = |name: &str| model_ensembling::Step {
            model_name: name.to_owned(),
            model_version: -1,
            ..model_ensembling::Step::default()
        };
        SchedulingChoice::EnsembleScheduling(ModelEnsembling {
            step: vec![
                step(self.names.text(TextModelKind::Preprocessing)),
                step(self.names.core()),
                step(self.names.text(TextModelKind::Postprocessing)),
            ],
            ..ModelEnsembling::default()
        })
    }

    /// RepositoryIndex.
    pub(crate) fn index(
        &self,
        health: &Health,
        only_ready: bool,
    ) -> Vec<wire::repository_index_response::ModelIndex> {
        self.models()
            .map(|known| {
                let (state, reason) = self.state(known, health);
                wire::repository_index_response::ModelIndex {
                    name: self.name(known).to_owned(),
                    version: CORE_MODEL_VERSION.to_owned(),
                    state: state.to_owned(),
                    reason,
                }
            })
            .filter(|model| !only_ready || model.state == "READY")
            .collect()
    }
}

/// The text of a NOT_FOUND. Clients of Triton look for its first words.
pub(crate) fn unknown<'a>(name: &str, catalogs: impl Iterator<Item = &'a Catalog>) -> String {
    let names: Vec<&str> = catalogs
        .flat_map(|catalog| catalog.models().map(|known| catalog.name(known)))
        .collect();
    let shown: String = name.chars().take(model::MAX_SHOWN_NAME).collect();
    format!(
        "Request for unknown model: `{shown}` is not found; this worker serves `{}`",
        names.join("`, `")
    )
}

/// What of the options the text models' configs say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextSettings {
    pub(crate) accumulates: bool,
    pub(crate) excludes_input: bool,
}

fn platform(kind: TextModelKind) -> &'static str {
    if kind == TextModelKind::Ensemble {
        "ensemble"
    } else {
        "inflight"
    }
}

fn config_input(spec: &TextInput) -> ModelInput {
    ModelInput {
        name: spec.name.to_owned(),
        data_type: spec.datatype.to_config() as i32,
        dims: spec.dims.to_vec(),
        reshape: spec
            .squeezed
            .then(|| ModelTensorReshape { shape: Vec::new() }),
        allow_ragged_batch: spec.ragged,
        optional: spec.optional,
        ..ModelInput::default()
    }
}

fn config_output(spec: &OutputSpec) -> ModelOutput {
    ModelOutput {
        name: spec.name.to_owned(),
        data_type: spec.datatype.to_config() as i32,
        dims: spec.dims.to_vec(),
        ..ModelOutput::default()
    }
}
