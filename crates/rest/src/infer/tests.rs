use inflight_kserve::tensor::ResponseBuilder;
use proptest::prelude::*;
use serde_json::json;

use inflight_kserve::inference::infer_parameter::ParameterChoice;

use super::*;

fn model() -> ModelRef {
    ModelRef {
        name: "m".to_owned(),
        version: String::new(),
    }
}

fn read(body: &Value) -> Result<(ModelInferRequest, OutputForm), String> {
    let body = Bytes::from(body.to_string());
    parse(&model(), &body, None).map_err(|error| error.message)
}

#[test]
fn json_tensors_become_raw_ones() {
    let (request, form) = read(&json!({
        "id": "7",
        "parameters": {"a": 1, "b": true, "c": "x", "d": 0.5, "e": u64::MAX, "binary_data_output": true},
        "inputs": [
            {"name": "ids", "datatype": "INT32", "shape": [1, 2], "data": [[1, -2]]},
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hé"]},
            {"name": "none", "datatype": "FP32", "shape": [1, 0], "data": []},
            {"name": "one", "datatype": "BOOL", "shape": [1], "data": [true]},
        ],
        "outputs": [{"name": "x"}, {"name": "y", "parameters": {"binary_data": false, "classification": 2}}],
    }))
    .unwrap();
    assert_eq!(
        (request.id.as_str(), request.model_name.as_str()),
        ("7", "m")
    );
    let inputs = Tensors::inputs(&request).unwrap();
    assert_eq!(inputs.values::<i32>("ids").unwrap().unwrap(), [1, -2]);
    assert_eq!(inputs.require("text").unwrap().string().unwrap(), "hé");
    assert_eq!(inputs.require("none").unwrap().shape, [1, 0]);
    assert_eq!(inputs.scalar::<bool>("one").unwrap(), Some(true));
    let choice = |name: &str| request.parameters[name].parameter_choice.clone().unwrap();
    assert_eq!(choice("a"), ParameterChoice::Int64Param(1));
    assert_eq!(choice("b"), ParameterChoice::BoolParam(true));
    assert_eq!(choice("c"), ParameterChoice::StringParam("x".to_owned()));
    assert_eq!(choice("d"), ParameterChoice::DoubleParam(0.5));
    assert_eq!(choice("e"), ParameterChoice::Uint64Param(u64::MAX));
    assert_eq!(request.parameters.len(), 5);
    assert!(form.is_binary("x") && !form.is_binary("y"));
    assert!(request.outputs[1].parameters.contains_key("classification"));
}

#[test]
fn binary_tensors_are_slices_behind_the_json() {
    let head = json!({"inputs": [
        {"name": "a", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "b", "datatype": "UINT8", "shape": [2], "data": [8, 9]},
        {"name": "c", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "d", "datatype": "UINT8", "shape": [3], "parameters": {"shared_memory_region": "r"}},
    ]})
    .to_string();
    let body = Bytes::from([head.as_bytes(), &[7, 0, 0, 0, 1, 2, 3]].concat());
    let (request, _) = parse(&model(), &body, Some(head.len())).unwrap();
    assert_eq!(
        request.raw_input_contents,
        [&[7, 0, 0, 0][..], &[8, 9], &[1, 2, 3]]
    );
    for (body, length, words) in [
        (body.slice(..body.len() - 1), head.len(), "`2` are left"),
        (
            Bytes::from([&body[..], b"x"].concat()),
            head.len(),
            "`1` bytes follow",
        ),
        (body.clone(), body.len() + 1, "must be from 1 to"),
        (body.clone(), 0, "must be from 1 to"),
        (body.clone(), head.len() - 1, "cannot be read"),
    ] {
        let error = parse(&model(), &body, Some(length)).unwrap_err();
        assert!(
            error.status == 400 && error.message.contains(words),
            "{error}"
        );
    }
}

#[test]
fn what_is_wrong_is_named() {
    let input = |fields: Value| {
        let mut input = json!({"name": "i", "datatype": "INT32", "shape": [1]});
        let all = input.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        json!({ "inputs": [input] })
    };
    for (body, words) in [
        (json!({}), "missing field `inputs`"),
        (json!([]), "cannot be read"),
        (input(json!({})), "input `i` has no data"),
        (
            input(json!({"data": [1], "parameters": {"binary_data_size": 4}})),
            "has its data twice",
        ),
        (input(json!({"data": [1, 2]})), "shape [1] has `2` elements"),
        (
            input(json!({"data": [1], "shape": [-1]})),
            "shape [-1] has `1` elements",
        ),
        (
            input(json!({"data": [1], "shape": [i64::MAX, 4]})),
            "has `1` elements",
        ),
        (
            input(json!({"data": ["1"]})),
            "a string is not a value of INT32",
        ),
        (input(json!({"data": [[1]]})), "nested too deep"),
        (
            input(json!({"data": [1], "datatype": "INT128"})),
            "unknown datatype `INT128`",
        ),
        (
            input(json!({"parameters": {"binary_data_size": -4}})),
            "must be a number of bytes",
        ),
        (
            json!({"inputs": [], "parameters": {"x": [1]}}),
            "the parameter `x` must be",
        ),
        (
            json!({"inputs": [], "parameters": {"binary_data_output": 1}}),
            "must be true or false",
        ),
        (
            json!({"inputs": vec![json!({"name": "i", "datatype": "INT8", "shape": [1], "data": [1]}); 257]}),
            "more than 256",
        ),
    ] {
        let error = read(&body).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn responses_are_written_as_triton_writes_them() {
    let response = ResponseBuilder::new("m", "i1", 0)
        .version("1")
        .push_bytes("text", &[1, 1], ["a\"b"])
        .push("probs", &[1, 2], &[0.0_f32, -1.5])
        .push::<i32>("empty", &[1, 0], &[])
        .bool_parameter(FINAL_RESPONSE, true)
        .build();
    let encoded = write(&response, &OutputForm::default()).unwrap();
    assert_eq!(encoded.json_length, None);
    assert_eq!(
        String::from_utf8(encoded.body).unwrap(),
        r#"{"id":"i1","model_name":"m","model_version":"1","outputs":[{"name":"text","datatype":"BYTES","shape":[1,1],"data":["a\"b"]},{"name":"probs","datatype":"FP32","shape":[1,2],"data":[0.0,-1.5]},{"name":"empty","datatype":"INT32","shape":[1,0],"data":[]}]}"#
    );
    let form = OutputForm {
        by_default: false,
        by_name: [("probs".to_owned(), true)].into(),
    };
    let encoded = write(&response, &form).unwrap();
    let (head, packed) = encoded.body.split_at(encoded.json_length.unwrap());
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!(head["outputs"][1]["parameters"]["binary_data_size"], 8);
    assert_eq!(packed, [0.0_f32, -1.5].map(f32::to_le_bytes).concat());
}

#[test]
fn outputs_in_shared_memory_say_where_they_are() {
    let mut response = ResponseBuilder::new("m", "", 0)
        .version("1")
        .push::<i32>("a", &[2], &[1, 2])
        .push::<i32>("b", &[2], &[])
        .push::<i32>("c", &[1], &[3])
        .build();
    let place = &mut response.outputs[1].parameters;
    for (name, value) in [
        ("shared_memory_region", json!("r")),
        ("shared_memory_byte_size", json!(8)),
        ("shared_memory_offset", json!(4)),
    ] {
        place.insert(name.to_owned(), parameter(name, &value).unwrap());
    }
    let all = OutputForm {
        by_default: true,
        ..OutputForm::default()
    };
    for form in [OutputForm::default(), all] {
        let encoded = write(&response, &form).unwrap();
        let length = encoded.json_length.unwrap_or(encoded.body.len());
        let (head, packed) = encoded.body.split_at(length);
        let head: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(
            head["outputs"][1],
            json!({"name": "b", "datatype": "INT32", "shape": [2], "parameters": {
                "shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}})
        );
        // The others keep their own elements.
        if form.by_default {
            assert_eq!(packed, [1_i32, 2, 3].map(i32::to_le_bytes).concat());
            assert_eq!(head["outputs"][2]["parameters"]["binary_data_size"], 4);
        } else {
            assert_eq!(head["outputs"][0]["data"], json!([1, 2]));
            assert_eq!(head["outputs"][2]["data"], json!([3]));
        }
    }
}

proptest! {
    /// Whatever is sent in one form arrives as in the other.
    #[test]
    fn both_forms_say_the_same(values: Vec<i64>, texts: Vec<String>) {
        let response = ResponseBuilder::new("m", "", 0)
            .push("n", &[values.len() as i64], &values)
            .push_bytes("t", &[texts.len() as i64], &texts)
            .build();
        let plain = write(&response, &OutputForm::default()).unwrap();
        let all = OutputForm { by_default: true, ..OutputForm::default() };
        let binary = write(&response, &all).unwrap();
        // A response has what a request needs, under another name.
        let ask = |mut encoded: Encoded| {
            let head = encoded.json_length.unwrap_or(encoded.body.len());
            let packed = encoded.body.split_off(head);
            let head = String::from_utf8(encoded.body).unwrap().replacen("outputs", "inputs", 1);
            let length = head.len();
            let body = Bytes::from([head.into_bytes(), packed].concat());
            parse(&model(), &body, encoded.json_length.map(|_| length)).unwrap().0
        };
        let (plain, binary) = (ask(plain), ask(binary));
        prop_assert_eq!(&plain.raw_input_contents, &binary.raw_input_contents);
        prop_assert_eq!(&plain.raw_input_contents, &response.raw_output_contents);
    }
}
