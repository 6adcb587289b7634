//! Tables over malformed tensors, and properties over arbitrary ones.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, infer_parameter::ParameterChoice,
    model_infer_request::InferInputTensor,
};

fn tensor(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..Default::default()
    }
}

fn raw(datatype: &str, shape: &[i64], data: &[u8]) -> ModelInferRequest {
    ModelInferRequest {
        inputs: vec![tensor("x", datatype, shape)],
        raw_input_contents: vec![Bytes::copy_from_slice(data)],
        ..Default::default()
    }
}

fn typed(datatype: &str, shape: &[i64], contents: InferTensorContents) -> ModelInferRequest {
    let mut input = tensor("x", datatype, shape);
    input.contents = Some(contents);
    ModelInferRequest {
        inputs: vec![input],
        ..Default::default()
    }
}

fn message(request: &ModelInferRequest) -> String {
    Tensors::inputs(request).unwrap_err().to_string()
}

#[test]
fn malformed_tensors_are_named_with_their_numbers() {
    let cases = [
        (
            raw("INT33", &[1], &[0; 4]),
            "tensor `x` has unknown datatype `INT33`",
        ),
        (
            raw("INT32", &[-1], &[0; 4]),
            "tensor `x` has shape [-1], where no dimension may be negative",
        ),
        (
            raw("INT32", &[i64::MAX, i64::MAX], &[]),
            "tensor `x` has shape [9223372036854775807, 9223372036854775807], more elements than \
             can be addressed",
        ),
        (
            raw("INT64", &[1 << 62], &[]),
            "tensor `x` has shape [4611686018427387904], more elements than can be addressed",
        ),
        (
            raw("INT32", &[1, 2], &[0; 7]),
            "tensor `x` of type INT32 and shape [1, 2] needs 8 bytes, got 7",
        ),
        (
            raw("FP16", &[2], &[]),
            "tensor `x` of type FP16 and shape [2] needs 4 bytes, got 0",
        ),
        (
            raw("BYTES", &[1], &[5, 0, 0, 0, b'a']),
            "element 0 of tensor `x` says 5 bytes at offset 0, past its 5 bytes",
        ),
        (
            raw("BYTES", &[2], &[1, 0, 0, 0, b'a', 0, 0]),
            "element 1 of tensor `x` says 4 bytes at offset 5, past its 7 bytes",
        ),
        (
            raw("BYTES", &[1], &[255, 255, 255, 255]),
            "element 0 of tensor `x` says 4294967295 bytes at offset 0, past its 4 bytes",
        ),
        (
            raw("BYTES", &[1], &[0; 8]),
            "tensor `x` of shape [1] needs 1 elements, got 2",
        ),
        (
            typed(
                "INT8",
                &[1],
                InferTensorContents {
                    int_contents: vec![128],
                    ..Default::default()
                },
            ),
            "tensor `x` has the value 128, which INT8 cannot hold",
        ),
        (
            typed(
                "UINT8",
                &[1],
                InferTensorContents {
                    uint_contents: vec![256],
                    ..Default::default()
                },
            ),
            "tensor `x` has the value 256, which UINT8 cannot hold",
        ),
        (
            typed(
                "INT32",
                &[1],
                InferTensorContents {
                    int64_contents: vec![1],
                    ..Default::default()
                },
            ),
            "tensor `x` of type INT32 has contents in `int64_contents`, expected `int_contents`",
        ),
        (
            typed(
                "FP16",
                &[1],
                InferTensorContents {
                    fp32_contents: vec![1.0],
                    ..Default::default()
                },
            ),
            "tensor `x` of type FP16 can only be sent raw",
        ),
        (
            typed(
                "INT32",
                &[3],
                InferTensorContents {
                    int_contents: vec![1],
                    ..Default::default()
                },
            ),
            "tensor `x` of type INT32 and shape [3] needs 12 bytes, got 4",
        ),
        (
            ModelInferRequest {
                inputs: vec![tensor("", "INT32", &[0])],
                ..Default::default()
            },
            "tensor number 0 has no name",
        ),
        (
            ModelInferRequest {
                inputs: vec![tensor("x", "INT32", &[0]), tensor("x", "FP32", &[0])],
                ..Default::default()
            },
            "tensor `x` is given twice",
        ),
        (
            ModelInferRequest {
                inputs: vec![tensor("x", "INT32", &[0])],
                raw_input_contents: vec![Bytes::new(), Bytes::new()],
                ..Default::default()
            },
            "the message has 1 tensors but 2 raw contents; every tensor needs exactly one",
        ),
        (
            ModelInferRequest {
                inputs: vec![tensor("x", "INT32", &[0]); 300],
                ..Default::default()
            },
            "the message has 300 tensors; the limit is 256",
        ),
    ];
    for (request, expected) in cases {
        assert_eq!(message(&request), expected);
    }
}

#[test]
fn raw_and_typed_contents_do_not_mix() {
    let mut request = raw("INT32", &[1], &[1, 0, 0, 0]);
    request.inputs[0].contents = Some(InferTensorContents {
        int_contents: vec![1],
        ..Default::default()
    });
    assert_eq!(
        message(&request),
        TensorError::RawAndTyped { tensor: "x".into() }.to_string()
    );
    // An empty contents message is what some clients always set.
    request.inputs[0].contents = Some(InferTensorContents::default());
    assert_eq!(
        Tensors::inputs(&request).unwrap().scalar::<i32>("x"),
        Ok(Some(1))
    );
}

#[test]
fn shared_memory_is_refused_by_name() {
    let mut request = raw("INT32", &[1], &[1, 0, 0, 0]);
    let region = ParameterChoice::StringParam("region".into());
    request.inputs[0].parameters.insert(
        "shared_memory_region".into(),
        InferParameter {
            parameter_choice: Some(region),
        },
    );
    assert_eq!(
        message(&request),
        TensorError::SharedMemory { tensor: "x".into() }.to_string()
    );
}

#[test]
fn a_zero_dimension_holds_nothing_whatever_the_others() {
    for shape in [&[0_i64][..], &[i64::MAX, 0, i64::MAX], &[1, 0]] {
        for datatype in DataType::ALL {
            let request = raw(datatype.name(), shape, &[]);
            let tensors = Tensors::inputs(&request).unwrap();
            assert_eq!(tensors.require("x").unwrap().count(), 0);
        }
    }
}

#[test]
fn readers_check_type_and_count() {
    let request = raw("INT32", &[1, 2], &[1, 0, 0, 0, 2, 0, 0, 0]);
    let tensors = Tensors::inputs(&request).unwrap();
    assert_eq!(tensors.values::<i32>("x"), Ok(Some(vec![1, 2])));
    assert_eq!(tensors.values::<i32>("absent"), Ok(None));
    for (error, expected) in [
        (
            tensors.scalar::<i32>("x").unwrap_err(),
            "tensor `x` has shape [1, 2], expected a single value",
        ),
        (
            tensors.scalar::<u32>("x").unwrap_err(),
            "tensor `x` is INT32, expected UINT32",
        ),
        (tensors.require("y").unwrap_err(), "tensor `y` is missing"),
        (
            tensors.require("x").unwrap().elements().unwrap_err(),
            "tensor `x` is INT32, expected BYTES",
        ),
        (
            tensors.require("x").unwrap().floats().unwrap_err(),
            "tensor `x` is INT32, expected FP32",
        ),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn text_must_be_utf8() {
    let request = raw("BYTES", &[2], &[1, 0, 0, 0, b'a', 1, 0, 0, 0, 0xff]);
    let tensors = Tensors::inputs(&request).unwrap();
    let tensor = tensors.require("x").unwrap();
    assert_eq!(
        tensor.elements().unwrap().collect::<Vec<_>>(),
        [&b"a"[..], &[0xff]]
    );
    let error = tensor.strings().unwrap_err();
    assert_eq!(
        error.to_string(),
        "element 1 of tensor `x` is not valid UTF-8"
    );
}

#[test]
fn half_precision_widens() {
    let mut out = RequestBuilder::new("m", "", 0);
    out.push(
        "half",
        &[2],
        &[half::f16::from_f32(1.5), half::f16::from_f32(-2.0)],
    );
    out.push("brain", &[1], &[half::bf16::from_f32(0.25)]);
    let request = out.build();
    let tensors = Tensors::inputs(&request).unwrap();
    assert_eq!(
        tensors.require("half").unwrap().floats().unwrap(),
        [1.5, -2.0]
    );
    assert_eq!(tensors.require("brain").unwrap().floats().unwrap(), [0.25]);
}

#[test]
fn raw_contents_are_not_copied() {
    let request = raw("INT32", &[1], &[1, 0, 0, 0]);
    let tensors = Tensors::inputs(&request).unwrap();
    let data = &tensors.require("x").unwrap().data;
    assert_eq!(data.as_ptr(), request.raw_input_contents[0].as_ptr());
}

#[test]
fn what_builders_write_readers_read() {
    let mut out = ResponseBuilder::new("model", "id", 64);
    out.version("1").bool_parameter("done", true);
    out.push("bools", &[2], &[true, false])
        .push("bytes", &[3], &[1_u8, 2, 3])
        .push("wide", &[1, 2], &[u64::MAX, 0])
        .push("floats", &[2], &[1.0_f32, f32::NEG_INFINITY])
        .push_bytes("texts", &[2], ["", "héllo"])
        .push_raw("given", DataType::Int16, &[1], Bytes::from_static(&[1, 2]));
    let wire = out.build().encode_to_vec();
    let response = crate::inference::ModelInferResponse::decode(Bytes::from(wire)).unwrap();
    assert_eq!(
        (response.model_name.as_str(), response.id.as_str()),
        ("model", "id")
    );
    let tensors = Tensors::outputs(&response).unwrap();
    assert_eq!(tensors.len(), 6);
    assert_eq!(tensors.values("bools"), Ok(Some(vec![true, false])));
    assert_eq!(tensors.values("bytes"), Ok(Some(vec![1_u8, 2, 3])));
    assert_eq!(tensors.values("wide"), Ok(Some(vec![u64::MAX, 0])));
    assert_eq!(
        tensors.values("floats"),
        Ok(Some(vec![1.0_f32, f32::NEG_INFINITY]))
    );
    assert_eq!(tensors.values("given"), Ok(Some(vec![0x0201_i16])));
    assert_eq!(
        tensors.require("texts").unwrap().strings(),
        Ok(vec!["", "héllo"])
    );
}

/// Typed contents in every list, small so that some of them agree with a shape.
fn contents() -> impl Strategy<Value = InferTensorContents> {
    let small = 0..3_usize;
    (
        prop::collection::vec(any::<bool>(), small.clone()),
        prop::collection::vec(any::<i32>(), small.clone()),
        prop::collection::vec(any::<u32>(), small.clone()),
        prop::collection::vec(any::<f32>(), small.clone()),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), small),
        0..5_u8,
    )
        .prop_map(
            |(bools, ints, uints, floats, bytes, only)| InferTensorContents {
                bool_contents: if only == 0 { bools } else { Vec::new() },
                int_contents: if only == 1 { ints } else { Vec::new() },
                uint_contents: if only <= 2 { uints } else { Vec::new() },
                fp32_contents: if only >= 3 { floats } else { Vec::new() },
                bytes_contents: if only == 4 {
                    bytes.into_iter().map(Bytes::from).collect()
                } else {
                    Vec::new()
                },
                ..Default::default()
            },
        )
}

fn input() -> impl Strategy<Value = InferInputTensor> {
    let datatype = prop_oneof![
        9 => prop::sample::select(DataType::ALL.map(DataType::name).to_vec()),
        1 => Just("NONE"),
    ];
    let dimension = prop_oneof![8 => 0..3_i64, 1 => any::<i64>()];
    (
        "[abc]?",
        datatype,
        prop::collection::vec(dimension, 0..3),
        prop::option::of(contents()),
    )
        .prop_map(|(name, datatype, shape, contents)| InferInputTensor {
            contents,
            ..tensor(&name, datatype, &shape)
        })
}

proptest! {
    #[test]
    fn reading_any_message_is_total(
        inputs in prop::collection::vec(input(), 0..4),
        raw in prop::collection::vec(prop::collection::vec(0..6_u8, 0..12), 0..4),
    ) {
        let raw_input_contents = raw.into_iter().map(Bytes::from).collect();
        let request = ModelInferRequest { inputs, raw_input_contents, ..Default::default() };
        match Tensors::inputs(&request) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(tensors) => {
                for tensor in &tensors {
                    // Whatever was accepted reads without a gap.
                    let count = tensor.count();
                    if tensor.datatype == DataType::Bytes {
                        prop_assert_eq!(tensor.elements().unwrap().count(), count);
                    }
                    if tensor.datatype == DataType::Int32 {
                        prop_assert_eq!(tensor.values::<i32>().unwrap().len(), count);
                    }
                }
            }
        }
    }

    #[test]
    fn reading_any_bytes_is_total(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(request) = ModelInferRequest::decode(Bytes::from(bytes)) {
            let _ = Tensors::inputs(&request);
        }
    }

    #[test]
    fn typed_and_raw_contents_read_alike(values in prop::collection::vec(any::<i32>(), 0..20)) {
        let shape = [values.len() as i64];
        let contents = InferTensorContents { int_contents: values.clone(), ..Default::default() };
        let typed = typed("INT32", &shape, contents);
        let raw = RequestBuilder::new("m", "", 0).push("x", &shape, &values).build();
        prop_assert_eq!(Tensors::inputs(&typed).unwrap(), Tensors::inputs(&raw).unwrap());
    }
}
