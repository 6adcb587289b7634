//! A prompt's request as tensors in the dialect of a Triton model. Pure: owns shapes and what is left
//! out; the tensors' names are the model's own.

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::names::ENABLE_EMPTY_FINAL_RESPONSE;
use inflight_kserve::tensor::{Element, RequestBuilder};
use inflight_models::dialect::{Dialect, Setting, TritonModel, output};
use inflight_models::sampling_params::{Extras, SamplingParams};

use crate::prompt_request::{PromptRequest, only_tokens, stop_words_list, words_list};

/// An end token that never occurs.
const NO_TOKEN: i32 = -1;

/// What the request of one sequence has beyond its prompt's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence<'a> {
    pub seed: u64,
    /// Unique at the server while the request lives.
    pub request_id: &'a str,
    /// Size of the vocabulary, for a bias; 0: unknown, and then no bias was accepted.
    pub vocabulary: u32,
}

/// The request for one sequence.
pub(super) fn triton_request(
    model: &TritonModel,
    prompt: &PromptRequest<'_>,
    sequence: Sequence<'_>,
) -> ModelInferRequest {
    let params = prompt.params;
    let capacity = size_of_val(prompt.tokens) + prompt.text.len() + 256;
    let builder = RequestBuilder::new(&model.name, sequence.request_id, capacity);
    let mut request = Writer { model, builder };
    match model.dialect {
        Dialect::TokenIds => {
            let length = i32::try_from(prompt.tokens.len()).unwrap_or(i32::MAX);
            request.values("input_ids", prompt.tokens);
            request.values("input_lengths", &[length]);
        }
        Dialect::Text | Dialect::LlmApi => request.texts("text_input", &[prompt.text]),
    }
    let max_tokens = i32::try_from(params.max_tokens).unwrap_or(i32::MAX);
    request.scalar(Setting::MaxTokens, max_tokens);
    if model.decoupled || model.must_send(Setting::Streaming) {
        request.scalar(Setting::Streaming, model.decoupled && params.streaming);
    }
    request.scalar(Setting::ExcludeInput, true);
    request.scalar(Setting::Temperature, params.temperature);
    request.scalar(Setting::TopP, params.top_p);
    // The LLM API has no 0 for "no limit"; absent is its default.
    if params.top_k > 0 || model.dialect != Dialect::LlmApi {
        request.scalar(Setting::TopK, params.top_k);
    }
    request.scalar(Setting::Seed, sequence.seed);
    request.optional(Setting::RepetitionPenalty, params.repetition_penalty, 1.0);
    request.optional(Setting::PresencePenalty, params.presence_penalty, 0.0);
    request.optional(Setting::FrequencyPenalty, params.frequency_penalty, 0.0);
    request.optional(Setting::MinTokens, params.min_tokens, 0);
    request.optional(Setting::MinP, params.min_p, 0.0);
    request.optional(Setting::EndId, params.end_id, NO_TOKEN);
    request.optional(Setting::PadId, params.pad_id, NO_TOKEN);
    request.stop_ids(&params.stop_ids);
    request.words(Setting::StopWords, prompt.stop);
    let extras = params.extras.as_deref();
    request.words(
        Setting::BadWords,
        extras.map_or(&[], |extras| &extras.bad_texts),
    );
    request.bad_ids(extras.map_or(&[], |extras| &extras.bad_words));
    let allowed = extras.map_or(&[][..], |extras| &extras.allowed_ids);
    request.bias(&params.logit_bias, allowed, sequence.vocabulary);
    if let Some(extras) = extras {
        request.extras(extras);
    }
    request.outputs(params);
    let builder = &mut request.builder;
    builder.bool_parameter(ENABLE_EMPTY_FINAL_RESPONSE, true);
    for (name, value) in prompt.trace_parameters() {
        builder.parameter(name, value);
    }
    builder.build()
}

struct Writer<'a> {
    model: &'a TritonModel,
    builder: RequestBuilder,
}

impl Writer<'_> {
    /// `[n]`, behind a batch of one where the model has batches.
    fn shape(&self, dimensions: &[i64]) -> Vec<i64> {
        let batch = self.model.batched.then_some(1);
        batch
            .into_iter()
            .chain(dimensions.iter().copied())
            .collect()
    }

    fn values<T: Element>(&mut self, name: &str, values: &[T]) {
        let shape = self.shape(&[values.len() as i64]);
        self.builder.push(name, &shape, values);
    }

    fn texts<S: AsRef<str>>(&mut self, name: &str, texts: &[S]) {
        let shape = self.shape(&[texts.len() as i64]);
        let texts = texts.iter().map(|text| text.as_ref().as_bytes());
        self.builder.push_bytes(name, &shape, texts);
    }

    fn scalar<T: Element>(&mut self, setting: Setting, value: T) {
        if let Some(name) = self.model.setting(setting) {
            self.values(name, &[value]);
        }
    }

    /// `neutral` changes nothing; it is sent where the model requires a value.
    fn optional<T: Element>(&mut self, setting: Setting, value: Option<T>, neutral: T) {
        match value {
            Some(value) => self.scalar(setting, value),
            None if self.model.must_send(setting) => self.scalar(setting, neutral),
            None => {}
        }
    }

    /// Sends `false` only if the model requires a value.
    fn flag(&mut self, setting: Setting, wanted: bool) {
        if wanted || self.model.must_send(setting) {
            self.scalar(setting, wanted);
        }
    }

    fn stop_ids(&mut self, ids: &[i32]) {
        if let Some(name) = self.model.setting(Setting::StopIds)
            && (!ids.is_empty() || self.model.must_send(Setting::StopIds))
        {
            let shape = self.shape(&[2, ids.len() as i64]);
            self.builder.push(name, &shape, &stop_words_list(ids));
        }
    }

    fn bad_ids(&mut self, words: &[Vec<i32>]) {
        if let Some(name) = self.model.setting(Setting::BadIds)
            && (!words.is_empty() || self.model.must_send(Setting::BadIds))
        {
            let (width, list) = words_list(words);
            let shape = self.shape(&[2, width]);
            self.builder.push(name, &shape, &list);
        }
    }

    fn text(&mut self, setting: Setting, text: &str) {
        if let Some(name) = self.model.setting(setting) {
            self.texts(name, &[text]);
        }
    }

    /// What the model can do of it was checked before.
    fn extras(&mut self, extras: &Extras) {
        if let Some(guide) = &extras.guide {
            self.text(Setting::GuideType, guide.guide_type);
            self.text(Setting::Guide, &guide.guide);
        }
        if let Some(size) = extras.no_repeat_ngram_size {
            self.scalar(Setting::NoRepeatNgram, size);
        }
        if let Some(salt) = &extras.cache_salt {
            self.text(Setting::CacheSalt, salt);
        }
        if let Some(task) = extras.lora_task_id {
            self.scalar(Setting::LoraTask, task);
        }
    }

    /// Old releases must be sent a list; an empty word is their empty list.
    fn words(&mut self, setting: Setting, words: &[String]) {
        let Some(name) = self.model.setting(setting) else {
            return;
        };
        if !words.is_empty() {
            self.texts(name, words);
        } else if self.model.must_send(setting) {
            self.texts(name, &[""]);
        }
    }

    /// What is added to each token's logit, the whole vocabulary long.
    fn bias(&mut self, bias: &[(i32, f32)], allowed: &[i32], vocabulary: u32) {
        let Some(name) = self.model.setting(Setting::EmbeddingBias) else {
            return;
        };
        if bias.is_empty() && allowed.is_empty() {
            if self.model.must_send(Setting::EmbeddingBias) {
                self.values::<f32>(name, &[]);
            }
            return;
        }
        let mut dense = match allowed {
            [] => vec![0f32; vocabulary as usize],
            ids => only_tokens(ids, vocabulary),
        };
        for (id, value) in bias {
            let slot = usize::try_from(*id).ok().and_then(|id| dense.get_mut(id));
            if let Some(slot) = slot {
                *slot += *value;
            }
        }
        self.values(name, &dense);
    }

    fn outputs(&mut self, params: &SamplingParams) {
        let model = self.model;
        match model.dialect {
            Dialect::TokenIds => {
                self.builder.output(output::IDS);
                for name in [output::LENGTH, output::REASON] {
                    if model.has_output(name) {
                        self.builder.output(name);
                    }
                }
                let log_probs = params.log_probs.is_some();
                self.flag(Setting::ReturnLogProbs, log_probs);
                if log_probs {
                    self.builder.output(output::LOG_PROBS);
                }
            }
            Dialect::Text | Dialect::LlmApi => {
                self.builder.output(output::TEXT);
            }
        }
        let counts = model.counts_tokens();
        self.flag(Setting::ReturnInputTokens, counts);
        self.flag(Setting::ReturnOutputTokens, counts);
        if counts {
            self.builder.output(output::INPUT_TOKENS);
            self.builder.output(output::OUTPUT_TOKENS);
        }
        let reason = model.reports_reason();
        self.flag(Setting::ReturnFinishReason, reason);
        if reason {
            self.builder.output(output::FINISH_REASON);
        }
    }
}
