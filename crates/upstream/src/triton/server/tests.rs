//! Whatever a server says of its models and answers: nothing panics, what it demands is sent, and what
//! comes of an answer has its bounds.

use std::sync::Arc;

use bytes::Bytes;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::model_ensembling::Step;
use inflight_kserve::inference::model_infer_response::InferOutputTensor;
use inflight_kserve::inference::{
    InferParameter, InferTensorContents, ModelEnsembling, ModelInferResponse, ModelInput,
    ModelOutput, ModelParameter, ModelTransactionPolicy,
};
use inflight_kserve::names::FINAL_RESPONSE;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::Tensors;
use inflight_models::sampling_params::SamplingParams;
use inflight_testkit::triton_models::{
    counting_model, llmapi_model, set_parameter, text_model, token_model,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::answer::{Expected, Reader};
use super::super::request::{Sequence, triton_request};
use super::*;
use crate::prompt_request::PromptRequest;

/// A model as a server has it, before it is spoiled.
fn sound() -> impl Strategy<Value = ModelConfig> {
    let mut accumulating = text_model("m");
    set_parameter(&mut accumulating, "accumulate_tokens", "true");
    let models = vec![
        token_model("m"),
        text_model("m"),
        accumulating,
        counting_model("m"),
        llmapi_model("m"),
    ];
    select(models)
}

/// Types, dimensions and what may be left out, each as it was more often than not.
fn spoiled() -> impl Strategy<Value = ModelConfig> {
    let kind = prop::option::weighted(0.02, any::<i32>());
    let dims = prop::option::weighted(0.05, prop::collection::vec(-2..4_i64, 0..3));
    let change = (prop::bool::weighted(0.95), any::<bool>(), kind, dims);
    let changes = prop::collection::vec(change, 64);
    let step = ("m|n|preprocessing", any::<bool>());
    let platform = (
        prop::option::weighted(0.2, prop::collection::vec(step, 0..3)),
        prop::option::of(any::<bool>()),
        prop_oneof![Just(0), Just(8), any::<i32>()],
        "(true|no|\\PC{0,4})",
    );
    (sound(), changes, platform).prop_map(|(mut model, changes, platform)| {
        let (steps, decoupled, max_batch_size, flag) = platform;
        let mut changes = changes.into_iter();
        let mut change = || changes.next().unwrap_or((true, true, None, None));
        let (mut inputs, mut outputs): (Vec<ModelInput>, Vec<ModelOutput>) = Default::default();
        for mut input in model.input.drain(..) {
            let (kept, optional, kind, dims) = change();
            input.optional = optional;
            input.data_type = kind.unwrap_or(input.data_type);
            input.dims = dims.unwrap_or(input.dims);
            inputs.extend(kept.then_some(input));
        }
        for mut output in model.output.drain(..) {
            let (kept, _, kind, _) = change();
            output.data_type = kind.unwrap_or(output.data_type);
            outputs.extend(kept.then_some(output));
        }
        (model.input, model.output) = (inputs, outputs);
        model.max_batch_size = max_batch_size;
        let policy = decoupled.map(|decoupled| ModelTransactionPolicy { decoupled });
        model.model_transaction_policy = policy;
        let flag = ModelParameter { string_value: flag };
        model.parameters.insert("add_special_tokens".into(), flag);
        if let Some(steps) = steps {
            model.platform = "ensemble".to_owned();
            let steps = steps.into_iter().map(|(model_name, _)| Step {
                model_name,
                ..Step::default()
            });
            let step = steps.collect();
            let ensemble = ModelEnsembling {
                step,
                ..ModelEnsembling::default()
            };
            model.scheduling_choice = Some(SchedulingChoice::EnsembleScheduling(ensemble));
        }
        model
    })
}

fn surrounded() -> impl Strategy<Value = (ModelConfig, Configs)> {
    let others = prop::collection::btree_map(
        "m|n|preprocessing|",
        prop::result::maybe_ok(spoiled(), "gone"),
        0..3,
    );
    (spoiled(), others).prop_map(|(model, mut configs)| {
        configs.insert("m".to_owned(), Ok(model.clone()));
        (model, configs)
    })
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let id = || prop::option::of(0..9_i32);
    let ids = prop::collection::vec(0..9_i32, 0..3);
    let bias = prop::collection::vec((0..12_i32, -1.0..1.0_f32), 0..3);
    let number = || prop::option::of(0.1..2.0_f32);
    let numbers = (number(), number(), number(), number(), 0..3_i32);
    let counts = (1..50_u32, id(), prop::option::of(0..2_u32), any::<bool>());
    (id(), id(), ids, bias, numbers, counts).prop_map(
        |(end_id, pad_id, stop_ids, logit_bias, numbers, counts)| {
            let (min_p, repetition_penalty, presence_penalty, frequency_penalty, top_k) = numbers;
            let (max_tokens, min_tokens, log_probs, streaming) = counts;
            SamplingParams {
                n: 1,
                max_tokens,
                streaming,
                may_wait: false,
                temperature: 1.0,
                top_k,
                top_p: 1.0,
                min_p,
                seed: 1,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                min_tokens,
                end_id,
                pad_id,
                stop_ids,
                logit_bias,
                log_probs,
                prompt_log_probs: None,
                cached_tokens: false,
                extras: None,
            }
        },
    )
}

/// An output under a name that is read, or none, with contents that fit it or do not.
fn tensor() -> impl Strategy<Value = (InferOutputTensor, Option<Bytes>)> {
    use dialect::output::*;
    let names = [
        IDS,
        LENGTH,
        LOG_PROBS,
        REASON,
        TEXT,
        FINISH_REASON,
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        "other",
        "",
    ];
    let text = select(vec![
        "",
        "a",
        "ab",
        "ab ",
        "a\u{fffd}",
        "None",
        "stop",
        "length",
        "?",
    ]);
    let numbers = prop::collection::vec(prop_oneof![0..9_i32, any::<i32>()], 0..4);
    let spoiled = prop::option::weighted(
        0.2,
        (
            select(vec!["INT32", "INT64", "BYTES", "FP32", "UINT8", "NONE"]),
            prop::collection::vec(prop_oneof![8 => -1..4_i64, 1 => any::<i64>()], 0..4),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        ),
    );
    (select(names.to_vec()), text, numbers, spoiled).prop_map(|(name, text, numbers, spoiled)| {
        let is_text = [TEXT, FINISH_REASON].contains(&name);
        let kind = match name {
            LOG_PROBS => "FP32",
            _ if is_text => "BYTES",
            _ => "INT32",
        };
        let data: Vec<u8> = match is_text {
            true => [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat(),
            false => numbers.iter().flat_map(|one| one.to_le_bytes()).collect(),
        };
        let count = if is_text { 1 } else { numbers.len() as i64 };
        let (kind, shape, data) = match spoiled {
            Some((kind, shape, data)) => (kind, shape, data),
            None => (kind, vec![1, count], Some(data)),
        };
        let output = InferOutputTensor {
            name: name.to_owned(),
            datatype: kind.to_owned(),
            shape,
            ..InferOutputTensor::default()
        };
        (output, data.map(Bytes::from))
    })
}

fn response() -> impl Strategy<Value = ModelInferResponse> {
    let flag = prop_oneof![
        8 => Just(Some(ParameterChoice::BoolParam(false))),
        2 => Just(Some(ParameterChoice::BoolParam(true))),
        1 => Just(Some(ParameterChoice::Int64Param(1))),
        1 => Just(None),
    ];
    let tensors = prop::collection::vec(tensor(), 0..5);
    let typed = prop::option::weighted(0.1, prop::collection::vec(any::<i32>(), 0..3));
    (tensors, flag, typed, prop::bool::weighted(0.9)).prop_map(
        |(mut tensors, flag, typed, distinct)| {
            if distinct {
                tensors.sort_by(|one, other| one.0.name.cmp(&other.0.name));
                tensors.dedup_by(|one, other| one.0.name == other.0.name);
                tensors.retain(|(output, _)| !output.name.is_empty());
            }
            let mut response = ModelInferResponse::default();
            for (mut output, data) in tensors {
                output.contents = typed.clone().map(|int_contents| InferTensorContents {
                    int_contents,
                    ..InferTensorContents::default()
                });
                response.outputs.push(output);
                response.raw_output_contents.extend(data);
            }
            let flag = flag.map(|flag| InferParameter {
                parameter_choice: Some(flag),
            });
            let flag = flag.map(|flag| (FINAL_RESPONSE.to_owned(), flag));
            response.parameters.extend(flag);
            response
        },
    )
}

proptest! {
    #[test]
    fn what_is_served_of_any_configuration_gets_all_that_it_demands(
        (config, configs) in surrounded(),
        mut params in params(),
    ) {
        for (_, found) in find_models(&configs, &Tokenizers::default()) {
            prop_assert!(found.is_ok() || found.is_err_and(|reason| reason.starts_with('`')));
        }
        if let Some(Ok(model)) = dialect::describe(&config, surroundings(&config, &configs)) {
            if !model.has_output(dialect::output::LOG_PROBS) {
                // Refused before it is asked.
                params.log_probs = None;
            }
            let prompt = PromptRequest {
                phases: crate::phases::Phases::Both,
                params: &params,
                tokens: &[1, 2],
                text: "text",
                stop: &[],
                is_counted: true,
                request_id: "id",
                trace: None,
                timeout: None,
                generated: &[],
            };
            let sequence = Sequence { seed: 1, request_id: "id", vocabulary: 9 };
            let request = triton_request(&model, &prompt, sequence);
            let sent = Tensors::inputs(&request).unwrap();
            for input in config.input.iter().filter(|input| !input.optional) {
                // The LLM API has no number for "no limit".
                let unlimited = input.name == "sampling_param_top_k" && params.top_k == 0;
                prop_assert!(unlimited || sent.get(&input.name).is_some(), "{}", input.name);
            }
            for tensor in &sent {
                let input = config.input.iter().find(|input| input.name == tensor.name).unwrap();
                let batch: &[i64] = if config.max_batch_size > 0 { &[1] } else { &[] };
                let dims = [batch, &input.dims].concat();
                prop_assert_eq!(tensor.shape.len(), dims.len());
                let fits = |(dim, sent): (&i64, &i64)| *dim == -1 || dim == sent;
                prop_assert!(dims.iter().zip(tensor.shape).all(fits), "{}", tensor.name);
            }
            for output in &request.outputs {
                prop_assert!(config.output.iter().any(|one| one.name == output.name));
            }
        }
    }

    #[test]
    fn what_comes_of_any_responses_has_its_bounds(
        config in sound(),
        responses in prop::collection::vec(response(), 0..12),
        limit in 1..20_u32,
        (streaming, log_probs) in any::<(bool, bool)>(),
    ) {
        let configs = Configs::from([("m".to_owned(), Ok(config.clone()))]);
        let model = dialect::describe(&config, surroundings(&config, &configs));
        let expected = Expected {
            limit,
            end_ids: Arc::from([7]),
            streaming,
            log_probs,
            tokenizer: None,
            repeated: None,
            prompt_tokens: true,
        };
        let mut reader = Reader::new(Arc::new(model.unwrap().unwrap()), expected);
        let mut tokens = 0;
        for response in &responses {
            let Ok(answer) = reader.read(response) else {
                break;
            };
            tokens += answer.tokens.len();
            prop_assert!(tokens <= limit as usize);
            prop_assert_eq!(answer.finish == FinishReason::NotFinished, !answer.last);
            let details = answer.details.unwrap_or_default();
            if !answer.tokens.is_empty() {
                let expected = if log_probs { answer.tokens.len() } else { 0 };
                prop_assert_eq!(details.log_probs.len(), expected);
            }
            if answer.last {
                break;
            }
        }
    }
}

#[test]
fn a_model_whose_name_would_fill_or_forge_the_log_is_not_served() {
    let names = [
        ("x".repeat(3 << 20), false),
        ("a\nb".to_owned(), false),
        ("x".repeat(256), true),
    ];
    for (name, is_served) in names {
        let configs = Configs::from([(name.clone(), Ok(llmapi_model(&name)))]);
        let found = find_models(&configs, &Tokenizers::default());
        let reason = found.into_iter().next().unwrap().1.err();
        assert_eq!(reason.is_none(), is_served, "{reason:?}");
        assert!(reason.is_none_or(|reason| reason.len() < 200 && !reason.contains('\n')));
    }
}
