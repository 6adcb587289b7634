//! Configurations of the models that generate text at a Triton server, and their responses. Owns names,
//! types and dims, those of Triton's TensorRT-LLM backend and of TensorRT-LLM's `llmapi` model; knows
//! nothing of sockets.

use inflight_kserve::inference::*;
use inflight_kserve::tensor::ResponseBuilder;

/// Whether an input may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Must,
    May,
}

/// `tensorrt_llm`: token ids in and out, decoupled, with batches.
pub fn token_model(name: &str) -> ModelConfig {
    use DataType::*;
    use Need::*;
    let mut config = config(name, 8, true);
    for (input, kind, need) in [
        ("input_ids", TypeInt32, May),
        ("input_lengths", TypeInt32, Must),
        ("request_output_len", TypeInt32, Must),
        ("num_return_sequences", TypeInt32, May),
        ("end_id", TypeInt32, May),
        ("pad_id", TypeInt32, May),
        ("stop_words_list", TypeInt32, May),
        ("embedding_bias", TypeFp32, May),
        ("temperature", TypeFp32, May),
        ("runtime_top_k", TypeInt32, May),
        ("runtime_top_p", TypeFp32, May),
        ("repetition_penalty", TypeFp32, May),
        ("presence_penalty", TypeFp32, May),
        ("frequency_penalty", TypeFp32, May),
        ("min_tokens", TypeInt32, May),
        ("seed", TypeUint64, May),
        ("return_log_probs", TypeBool, May),
        ("exclude_input_in_output", TypeBool, May),
        ("stop", TypeBool, May),
        ("streaming", TypeBool, May),
    ] {
        add_input(&mut config, input, kind, need);
    }
    add_output(&mut config, "output_ids", TypeInt32);
    add_output(&mut config, "sequence_length", TypeInt32);
    add_output(&mut config, "output_log_probs", TypeFp32);
    config
}

/// `tensorrt_llm_bls`: text in and out, decoupled, with batches.
pub fn text_model(name: &str) -> ModelConfig {
    use DataType::*;
    use Need::*;
    let mut config = config(name, 8, true);
    for (input, kind, need) in [
        ("text_input", TypeString, Must),
        ("max_tokens", TypeInt32, Must),
        ("bad_words", TypeString, May),
        ("stop_words", TypeString, May),
        ("exclude_input_in_output", TypeBool, May),
        ("top_k", TypeInt32, May),
        ("top_p", TypeFp32, May),
        ("temperature", TypeFp32, May),
        ("repetition_penalty", TypeFp32, May),
        ("min_tokens", TypeInt32, May),
        ("presence_penalty", TypeFp32, May),
        ("frequency_penalty", TypeFp32, May),
        ("seed", TypeUint64, May),
        ("stream", TypeBool, May),
    ] {
        add_input(&mut config, input, kind, need);
    }
    add_output(&mut config, "text_output", TypeString);
    config
}

/// A text model that tells how many tokens prompt and answer have.
pub fn counting_model(name: &str) -> ModelConfig {
    let mut config = text_model(name);
    for count in ["num_input_tokens", "num_output_tokens"] {
        let flag = format!("return_{count}");
        add_input(&mut config, &flag, DataType::TypeBool, Need::May);
        add_output(&mut config, count, DataType::TypeInt32);
    }
    config
}

/// The `llmapi` model: text in and out, decoupled, without batches.
pub fn llmapi_model(name: &str) -> ModelConfig {
    use DataType::*;
    use Need::*;
    let mut config = config(name, 0, true);
    for (input, kind, need) in [
        ("text_input", TypeString, Must),
        ("streaming", TypeBool, May),
        ("sampling_param_temperature", TypeFp32, May),
        ("sampling_param_top_k", TypeInt32, May),
        ("sampling_param_top_p", TypeFp32, May),
        ("sampling_param_frequency_penalty", TypeFp32, May),
        ("sampling_param_presence_penalty", TypeFp32, May),
        ("sampling_param_max_tokens", TypeInt32, May),
        ("sampling_param_stop", TypeString, May),
        ("sampling_param_seed", TypeUint64, May),
        ("sampling_param_exclude_input_from_output", TypeBool, May),
        ("return_finish_reason", TypeBool, May),
    ] {
        add_input(&mut config, input, kind, need);
    }
    add_output(&mut config, "text_output", TypeString);
    add_output(&mut config, "finish_reason", TypeString);
    config
}

/// A configuration without tensors.
pub fn config(name: &str, max_batch_size: i32, decoupled: bool) -> ModelConfig {
    ModelConfig {
        name: name.to_owned(),
        backend: "python".to_owned(),
        max_batch_size,
        model_transaction_policy: Some(ModelTransactionPolicy { decoupled }),
        ..ModelConfig::default()
    }
}

/// Adds an input, in the place of one of the same name.
pub fn add_input(config: &mut ModelConfig, name: &str, kind: DataType, need: Need) {
    remove_input(config, name);
    let dims = match name {
        // Word lists of tokens: their ids, and where each ends.
        "stop_words_list" => vec![2, -1],
        _ => vec![-1],
    };
    config.input.push(ModelInput {
        name: name.to_owned(),
        data_type: kind as i32,
        dims,
        optional: need == Need::May,
        ..ModelInput::default()
    });
}

/// Takes an input away.
pub fn remove_input(config: &mut ModelConfig, name: &str) {
    config.input.retain(|input| input.name != name);
}

/// Adds an output.
pub fn add_output(config: &mut ModelConfig, name: &str, kind: DataType) {
    config.output.push(ModelOutput {
        name: name.to_owned(),
        data_type: kind as i32,
        dims: vec![-1],
        ..ModelOutput::default()
    });
}

/// Sets a parameter.
pub fn set_parameter(config: &mut ModelConfig, name: &str, value: &str) {
    let value = ModelParameter {
        string_value: value.to_owned(),
    };
    config.parameters.insert(name.to_owned(), value);
}

/// What a token-id model says of one step: one beam of one request.
pub fn tokens_response(tokens: &[i32]) -> ResponseBuilder {
    let mut response = ResponseBuilder::default();
    let count = tokens.len() as i32;
    response
        .push("output_ids", &[1, 1, i64::from(count)], tokens)
        .push("sequence_length", &[1, 1], &[count]);
    response
}

/// What a text model says of one step.
pub fn text_response(text: &str) -> ResponseBuilder {
    let mut response = ResponseBuilder::default();
    response.push_bytes("text_output", &[1, 1], [text]);
    response
}
