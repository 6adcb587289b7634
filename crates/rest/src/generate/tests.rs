use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::tensor::{ResponseBuilder, Tensors};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn metadata() -> ModelMetadataResponse {
    let inputs = [
        ("text_input", "BYTES", vec![-1, 1]),
        ("max_tokens", "INT32", vec![-1, 1]),
        ("bad_words", "BYTES", vec![-1, -1]),
        ("temperature", "FP32", vec![-1, 1]),
        ("seed", "UINT64", vec![-1, 1]),
        ("stream", "BOOL", vec![-1, 1]),
        ("pair", "INT32", vec![-1, 2, -1]),
    ];
    let inputs = inputs.map(|(name, datatype, shape)| TensorMetadata {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape,
    });
    ModelMetadataResponse {
        inputs: inputs.to_vec(),
        ..ModelMetadataResponse::default()
    }
}

fn read(body: &str) -> Result<ModelInferRequest, String> {
    let model = ModelRef {
        name: "m".to_owned(),
        version: String::new(),
    };
    parse(&model, &metadata(), body.as_bytes()).map_err(|error| error.message)
}

#[test]
fn a_clients_time_is_known_before_the_models_inputs_are() {
    for (body, microseconds) in [
        (r#"{"text_input": "a", "timeout": 7}"#, Some(7)),
        (r#"{"parameters": {"k": [1], "timeout": 8}}"#, Some(8)),
        (r#"{"timeout": 7, "parameters": {"timeout": 8}}"#, None),
        (r#"{"timeout": 0}"#, None),
        (r#"{"timeout": -1}"#, None),
        (r#"{"timeout": "7"}"#, None),
        (r#"{"parameters": 7}"#, None),
        (r#"{"text_input": "a"}"#, None),
        ("7", None),
    ] {
        let expected = microseconds.map(Duration::from_micros);
        assert_eq!(timeout(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn keys_become_the_tensors_of_the_models_own_metadata() {
    let request = read(
        r#"{"text_input": "What?", "max_tokens": 20, "bad_words": "", "temperature": 1, "stream": true,
            "pair": [1, 2, 3, 4], "id": "x7", "k": 3, "parameters": {"seed": 18446744073709551615, "q": 0.5}}"#,
    )
    .unwrap();
    let inputs = Tensors::inputs(&request).unwrap();
    let shape = |name: &str| inputs.require(name).unwrap().shape;
    assert_eq!(
        inputs.require("text_input").unwrap().string().unwrap(),
        "What?"
    );
    assert_eq!(inputs.scalar::<i32>("max_tokens").unwrap(), Some(20));
    assert_eq!(inputs.require("bad_words").unwrap().string().unwrap(), "");
    assert_eq!(inputs.scalar::<f32>("temperature").unwrap(), Some(1.0));
    assert_eq!(inputs.scalar::<bool>("stream").unwrap(), Some(true));
    assert_eq!(inputs.scalar::<u64>("seed").unwrap(), Some(u64::MAX));
    assert_eq!(inputs.values::<i32>("pair").unwrap().unwrap(), [1, 2, 3, 4]);
    assert_eq!(shape("text_input"), [1, 1]);
    assert_eq!(shape("pair"), [1, 2, 2]);
    assert_eq!(request.id, "x7");
    let choice = |name: &str| request.parameters[name].parameter_choice.clone().unwrap();
    assert_eq!(choice("k"), ParameterChoice::Int64Param(3));
    assert_eq!(choice("q"), ParameterChoice::DoubleParam(0.5));
    assert_eq!(
        request.parameters.len(),
        3,
        "and the one that tells the end"
    );
}

#[test]
fn lists_fill_the_innermost_open_dimension() {
    for (wanted, count, expected) in [
        (&[-1, 1][..], 1, Some(vec![1, 1])),
        (&[-1, 1], 2, Some(vec![2, 1])),
        (&[-1, -1], 3, Some(vec![1, 3])),
        (&[-1, -1], 0, Some(vec![1, 0])),
        (&[-1, 2, -1], 4, Some(vec![1, 2, 2])),
        (&[-1, 2, -1], 3, None),
        (&[1], 2, None),
        (&[2], 2, Some(vec![2])),
        (&[-1], 5, Some(vec![5])),
        (&[], 1, Some(vec![])),
        (&[0], 0, None),
    ] {
        assert_eq!(shape(wanted, count), expected, "{wanted:?} {count}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (body, words) in [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "a JSON object"),
        (
            r#"{"text_input": 5}"#,
            "`text_input`: `5` is not a value of BYTES",
        ),
        (
            r#"{"max_tokens": "5"}"#,
            "`max_tokens`: a string is not a value of INT32",
        ),
        (r#"{"max_tokens": 1.5}"#, "`1.5` is not a value of INT32"),
        (
            r#"{"max_tokens": 3000000000}"#,
            "`3000000000` is not a value of INT32",
        ),
        (
            r#"{"pair": [1, 2, 3]}"#,
            "`pair` has `3` elements, which does not match the shape [-1, 2, -1]",
        ),
        (r#"{"bad_words": [["a"]]}"#, "nested too deep"),
        (
            r#"{"max_tokens": 1, "parameters": {"max_tokens": 2}}"#,
            "`max_tokens` is given twice",
        ),
        (
            r#"{"other": [1]}"#,
            "`other` is not an input of the model; as a parameter, `other` must be a number",
        ),
        (r#"{"other": null}"#, "`other` is not an input"),
        (r#"{"parameters": 3}"#, "a JSON object"),
        (r#"{"id": 5}"#, "`id` must be a string, not `5`"),
    ] {
        let error = read(body).unwrap_err();
        assert!(error.contains(words), "{body}: {error}");
    }
    let many: Vec<String> = (0..=MAX_KEYS).map(|key| format!("\"{key}\":1")).collect();
    let error = read(&format!("{{{}}}", many.join(","))).unwrap_err();
    assert!(error.contains("more than 1024 keys"), "{error}");
}

#[test]
fn responses_are_flat_and_in_the_order_of_their_keys() {
    let mut response = ResponseBuilder::new("ensemble", "q", 0)
        .version("1")
        .push_bytes("text_output", &[1, 1], ["a\"é\n"])
        .push("output_log_probs", &[1, 1, 2], &[0.0_f32, -1.5])
        .push("cum_log_probs", &[1, 1], &[0.0_f32])
        .push::<i32>("empty", &[1, 0], &[])
        .bool_parameter("sequence_end", false)
        .bool_parameter(FINAL_RESPONSE, true)
        .build();
    let mut out = Vec::new();
    write(&(&response).into(), &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"cum_log_probs":0.0,"empty":[],"id":"q","model_name":"ensemble","model_version":"1","output_log_probs":[0.0,-1.5],"sequence_end":false,"text_output":"a\"é\n"}"#
    );
    let mut nothing = Vec::new();
    response.outputs.pop();
    let refused = write(&(&response).into(), &mut nothing).unwrap_err();
    assert_eq!(refused.status, 500);
}

proptest! {
    /// Texts arrive as they were written, in both directions.
    #[test]
    fn any_text_survives(text: String, words: Vec<String>) {
        let body = json!({"text_input": text, "bad_words": words}).to_string();
        let request = read(&body).unwrap();
        let inputs = Tensors::inputs(&request).unwrap();
        prop_assert_eq!(inputs.require("text_input").unwrap().string().unwrap(), &text);
        prop_assert_eq!(inputs.require("bad_words").unwrap().strings().unwrap(), words.clone());
        let response = ResponseBuilder::new("m", "", 0)
            .push_bytes("text_output", &[1], [&text])
            .push_bytes("words", &[words.len() as i64], &words)
            .build();
        let mut out = Vec::new();
        write(&(&response).into(), &mut out).unwrap();
        let back: Value = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(back["text_output"].as_str().unwrap(), &text);
        let expected = if words.len() == 1 { json!(words[0]) } else { json!(words) };
        prop_assert_eq!(&back["words"], &expected);
    }
}
