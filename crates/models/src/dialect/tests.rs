//! Configurations as releases of Triton's TensorRT-LLM backend write them, and spoiled ones.

use inflight_kserve::inference::{DataType, ModelOutput, ModelParameter};

use super::*;

const DECOUPLED: Surroundings = Surroundings {
    decoupled: true,
    excludes_prompt: false,
    adds_special_tokens: true,
};
const ONE_ANSWER: Surroundings = Surroundings {
    decoupled: false,
    excludes_prompt: false,
    adds_special_tokens: true,
};

/// `inputs`: a name and its type; a `!` before the name: it must be sent.
fn config(name: &str, inputs: &[(&str, DataType)], outputs: &[(&str, DataType)]) -> ModelConfig {
    let input = |(name, kind): &(&str, DataType)| ModelInput {
        name: name.trim_start_matches('!').to_owned(),
        data_type: *kind as i32,
        dims: vec![-1],
        optional: !name.starts_with('!'),
        ..ModelInput::default()
    };
    let output = |(name, kind): &(&str, DataType)| ModelOutput {
        name: (*name).to_owned(),
        data_type: *kind as i32,
        ..ModelOutput::default()
    };
    ModelConfig {
        name: name.to_owned(),
        max_batch_size: 8,
        input: inputs.iter().map(input).collect(),
        output: outputs.iter().map(output).collect(),
        ..ModelConfig::default()
    }
}

fn core() -> ModelConfig {
    use DataType::*;
    let inputs = [
        ("input_ids", TypeInt32),
        ("!input_lengths", TypeInt32),
        ("!request_output_len", TypeInt32),
        ("streaming", TypeBool),
        ("exclude_input_in_output", TypeBool),
        ("seed", TypeUint64),
        ("embedding_bias", TypeFp32),
        ("draft_input_ids", TypeInt32),
        ("lora_task_id", TypeUint64),
    ];
    config("tensorrt_llm", &inputs, &[("output_ids", TypeInt32)])
}

fn ensemble() -> ModelConfig {
    use DataType::*;
    let inputs = [
        ("!text_input", TypeString),
        ("!max_tokens", TypeInt32),
        ("stream", TypeBool),
        ("exclude_input_in_output", TypeBool),
        ("!bad_words", TypeString),
        ("random_seed", TypeUint64),
    ];
    config("ensemble", &inputs, &[("text_output", TypeString)])
}

fn llmapi() -> ModelConfig {
    use DataType::*;
    let inputs = [
        ("!text_input", TypeString),
        ("streaming", TypeBool),
        ("sampling_param_max_tokens", TypeInt32),
        ("sampling_param_exclude_input_from_output", TypeBool),
        ("return_finish_reason", TypeBool),
    ];
    let outputs = [("text_output", TypeString), ("finish_reason", TypeString)];
    let mut config = config("tensorrt_llm", &inputs, &outputs);
    config.max_batch_size = 0;
    config
}

fn described(config: &ModelConfig, surroundings: Surroundings) -> TritonModel {
    describe(config, surroundings).unwrap().unwrap()
}

#[test]
fn each_configuration_has_its_dialect() {
    let cases = [
        (core(), Dialect::TokenIds, true, false, Some("seed")),
        (ensemble(), Dialect::Text, true, false, Some("random_seed")),
        (llmapi(), Dialect::LlmApi, false, true, None),
    ];
    for (config, dialect, batched, accumulates, seed) in cases {
        let model = described(&config, DECOUPLED);
        assert_eq!(model.dialect, dialect, "{}", config.name);
        assert_eq!((model.batched, model.accumulates), (batched, accumulates));
        assert_eq!(model.setting(Setting::Seed), seed);
        assert!(model.decoupled);
        assert!(!described(&config, ONE_ANSWER).decoupled);
    }
    let bad_words = described(&ensemble(), DECOUPLED);
    assert!(bad_words.must_send(Setting::BadWords) && !bad_words.must_send(Setting::Seed));
}

#[test]
fn models_that_generate_nothing_by_themselves_are_passed_over() {
    use DataType::*;
    let query = [("QUERY", TypeString), ("REQUEST_OUTPUT_LEN", TypeInt32)];
    let batch = [("TOKENS_BATCH", TypeInt32), ("SEQUENCE_LENGTH", TypeInt32)];
    let others = [
        config("preprocessing", &query, &[("INPUT_ID", TypeInt32)]),
        config("postprocessing", &batch, &[("OUTPUT", TypeString)]),
        config("resnet", &[("image", TypeFp32)], &[("label", TypeString)]),
        ModelConfig::default(),
    ];
    for other in others {
        assert_eq!(describe(&other, DECOUPLED), None, "{}", other.name);
    }
}

#[test]
fn the_newer_of_two_names_is_used() {
    for flip in [false, true] {
        let mut config = ensemble();
        let mut newer = config.input[5].clone();
        newer.name = "seed".to_owned();
        config.input.push(newer);
        if flip {
            config.input.reverse();
        }
        let model = described(&config, DECOUPLED);
        assert_eq!(model.setting(Setting::Seed), Some("seed"));
    }
}

#[test]
fn what_cannot_be_used_is_refused_by_its_tensor() {
    type Spoil = fn(&mut ModelConfig);
    let cases: [(ModelConfig, Surroundings, Spoil, &str); 8] = [
        (
            core(),
            DECOUPLED,
            |config| config.input[0].dims = vec![1, -1],
            "input_ids",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.input[0].dims = vec![1],
            "input_ids",
        ),
        (
            ensemble(),
            DECOUPLED,
            |config| config.input[0].dims = vec![2],
            "text_input",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.input[7].optional = false,
            "draft_input_ids",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.input[8].optional = false,
            "lora_task_id",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.input[2].data_type = 4,
            "request_output_len",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.output.clear(),
            "output_ids",
        ),
        (
            core(),
            DECOUPLED,
            |config| config.output[0].data_type = 13,
            "output_ids",
        ),
    ];
    for (mut config, surroundings, spoil, tensor) in cases {
        spoil(&mut config);
        let reason = describe(&config, surroundings).unwrap().unwrap_err();
        assert!(reason.contains(&format!("`{tensor}`")), "{reason}");
    }
}

#[test]
fn answers_repeat_the_prompt_unless_a_request_or_the_core_models_parameter_says_otherwise() {
    let excluding = Surroundings {
        excludes_prompt: true,
        ..ONE_ANSWER
    };
    let mut without = ensemble();
    without
        .input
        .retain(|input| input.name != "exclude_input_in_output");
    for (config, surroundings, repeats) in [
        (&ensemble(), ONE_ANSWER, false),
        (&without, ONE_ANSWER, true),
        (&without, excluding, false),
        (&without, DECOUPLED, true),
    ] {
        let model = described(config, surroundings);
        assert_eq!(model.repeats_prompt, repeats);
        // While it streams, an answer never does.
        assert_eq!(
            model.streams(false, false, true),
            repeats && model.decoupled
        );
    }
}

#[test]
fn settings_that_cannot_be_filled_and_outputs_that_cannot_be_read_are_left_out() {
    use DataType::*;
    let mut model = core();
    for (dims, taken) in [
        (&[1][..], true),
        (&[-1], true),
        (&[1, 1], false),
        (&[3], false),
        (&[], false),
    ] {
        model.input[5].dims = dims.to_vec();
        let taken = taken.then_some("seed");
        let model = described(&model, DECOUPLED);
        assert_eq!(model.setting(Setting::Seed), taken, "{dims:?}");
    }
    for (name, kind, read) in [
        (output::LENGTH, TypeInt32, true),
        (output::LENGTH, TypeInt64, false),
        (output::LOG_PROBS, TypeFp16, true),
        (output::LOG_PROBS, TypeString, false),
        (output::REASON, TypeUint8, false),
    ] {
        let mut model = core();
        model.output.push(ModelOutput {
            name: name.to_owned(),
            data_type: kind as i32,
            ..ModelOutput::default()
        });
        let model = described(&model, DECOUPLED);
        assert_eq!(model.has_output(name), read, "{name} {kind:?}");
    }
}

#[test]
fn answers_come_in_pieces_only_where_that_is_of_use() {
    let token = described(&core(), DECOUPLED);
    let mut text = described(&ensemble(), DECOUPLED);
    // Model, asked for, stop strings, tokenizer known; streams.
    assert!(token.streams(true, false, true) && !token.streams(false, false, true));
    assert!(
        token.streams(false, true, true),
        "to stop as soon as it is seen"
    );
    assert!(
        !text.streams(false, false, true),
        "a whole text is decoded better"
    );
    assert!(text.streams(false, false, false), "to count its steps");
    text.decoupled = false;
    assert!(!text.streams(true, true, false), "it cannot");
    let mut repeating = ensemble();
    repeating.input.remove(3);
    let repeating = described(&repeating, DECOUPLED);
    assert!(
        repeating.streams(false, false, true),
        "a whole text would begin with the prompt"
    );
}

#[test]
fn flags_are_read_as_the_backends_models_read_them() {
    let mut config = ensemble();
    for (text, expected) in [
        ("true", true),
        ("T", true),
        ("1", true),
        ("Yes", true),
        ("false", false),
        ("0", false),
        ("${add}", true),
        ("", true),
    ] {
        let value = ModelParameter {
            string_value: text.to_owned(),
        };
        config.parameters.insert("flag".to_owned(), value);
        assert_eq!(flag(&config, "flag", true), expected, "{text}");
    }
    assert!(!flag(&config, "absent", false));
}
