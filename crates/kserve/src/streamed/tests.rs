use proptest::prelude::*;

use super::*;
use crate::inference::ModelInferResponse;
use crate::inference::model_infer_response::InferOutputTensor;
use crate::tensor::ResponseBuilder;

fn streamed(response: ModelInferResponse) -> ModelStreamInferResponse {
    ModelStreamInferResponse {
        infer_response: Some(response),
        ..ModelStreamInferResponse::default()
    }
}

/// Both forms say the same.
fn assert_same(message: &ModelStreamInferResponse, bytes: &[u8]) {
    check_same(bytes);
    let encoded = EncodedResponse::new(Bytes::copy_from_slice(bytes));
    assert!(encoded.view().is_ok());
    assert_eq!(&encoded.decode().unwrap(), message);
}

#[test]
fn a_response_is_read_in_place() {
    let response = ResponseBuilder::new("ensemble", "a.1", 0)
        .version("1")
        .push_bytes("text_output", &[1], ["hé"])
        .push("cum_log_probs", &[1, 1], &[-0.5_f32])
        .bool_parameter(names::FINAL_RESPONSE, true)
        .build();
    let encoded = EncodedResponse::from(&streamed(response));
    let view = encoded.view().unwrap();
    assert_eq!(
        (view.model_name, view.model_version, view.id),
        ("ensemble", "1", "a.1")
    );
    assert!(view.is_final() && view.has_outputs());
    let outputs = view.outputs().unwrap();
    let text = &outputs.require("text_output").unwrap();
    assert_eq!(text.string().unwrap(), "hé");
    assert!(encoded.bytes.as_ptr_range().contains(&text.data.as_ptr()));
    let log_prob = outputs.scalar::<f32>("cum_log_probs").unwrap();
    assert_eq!(log_prob, Some(-0.5));
}

#[test]
fn a_response_takes_another_id() {
    let response = ResponseBuilder::new("ensemble", "a.1", 0).build();
    let encoded = EncodedResponse::from(&streamed(response)).with_id("a".into());
    assert_eq!(encoded.view().unwrap().id, "a");
    let size = encoded.size();
    let detached = encoded.detached();
    assert!(size > 2 && detached.size() == size);
    let view = detached.view().unwrap();
    assert_eq!((view.id, view.model_name), ("a", "ensemble"));
    let message = detached.clone().decode().unwrap();
    assert_eq!(message.infer_response.unwrap().id, "a");
    // An error about no request has no response to name.
    let alone = EncodedResponse::default().with_id("a".into());
    assert_eq!(alone.decode().unwrap().infer_response, None);
}

#[test]
fn an_error_tells_its_code() {
    let code = ParameterChoice::Int64Param(tonic::Code::NotFound as i64);
    let code = InferParameter {
        parameter_choice: Some(code),
    };
    let failed = ModelStreamInferResponse {
        error_message: "no such model".to_owned(),
        ..streamed(ModelInferResponse {
            parameters: [(names::ERROR_CODE.to_owned(), code)].into(),
            ..ModelInferResponse::default()
        })
    };
    let encoded = EncodedResponse::from(&failed);
    let view = encoded.view().unwrap();
    assert_eq!(view.error_message, "no such model");
    assert_eq!(view.error_code(), Some(tonic::Code::NotFound));
    assert!(!view.is_final() && !view.has_outputs());
}

#[test]
fn what_comes_twice_or_is_unknown_is_as_protobuf_says() {
    let first = ResponseBuilder::new("a", "1", 0)
        .push("x", &[1], &[1])
        .bool_parameter("p", true)
        .build();
    let second = ResponseBuilder::new("b", "", 0)
        .push("y", &[1], &[2])
        .bool_parameter("p", false)
        .build();
    // The second response of a message is merged into the first. Field 15: a number, a 64-bit value, a group.
    let mut bytes = streamed(first).encode_to_vec();
    bytes.extend(streamed(second).encode_to_vec());
    bytes.extend([0x78, 1, 0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x7b, 0x78, 1, 0x7c]);
    let merged = ModelStreamInferResponse::decode(&*bytes).unwrap();
    assert_eq!(merged.infer_response.as_ref().unwrap().outputs.len(), 2);
    assert_same(&merged, &bytes);
    // An output, in a response, in a message, whose shape is not packed: [2, 300].
    let bytes = [0x12, 7, 0x2a, 5, 0x18, 2, 0x18, 0xac, 2];
    let unpacked = ModelStreamInferResponse::decode(&bytes[..]).unwrap();
    let output = &unpacked.infer_response.as_ref().unwrap().outputs[0];
    assert_eq!(output.shape, [2, 300]);
    assert_same(&unpacked, &bytes);
}

#[test]
fn typed_contents_are_read_as_prost_reads_them() {
    let mut message = streamed(ModelInferResponse::default());
    message.infer_response.as_mut().unwrap().outputs = vec![InferOutputTensor {
        name: "x".to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![2],
        contents: Some(InferTensorContents {
            int_contents: vec![1, -2],
            ..InferTensorContents::default()
        }),
        ..InferOutputTensor::default()
    }];
    let encoded = EncodedResponse::from(&message);
    let view = encoded.view().unwrap();
    let values = view.outputs().unwrap().values::<i32>("x").unwrap();
    assert_eq!(values, Some(vec![1, -2]));
    assert_same(&message, &message.encode_to_vec());
}

#[test]
fn what_is_no_response_is_refused() {
    for bytes in [
        // A length beyond the end, a key without a value, a text that is invalid, a number where a text is due.
        &[0x0a, 5, b'a'][..],
        &[0x0a],
        &[0x0a, 1, 0xff],
        &[0x08, 1],
        // The same one level deeper, and a group that does not end.
        &[0x12, 2, 0x08, 1],
        &[0x7b, 0x78, 1],
    ] {
        let encoded = EncodedResponse::new(Bytes::copy_from_slice(bytes));
        let error = encoded.view().unwrap_err();
        assert_eq!(error.code(), tonic::Code::Internal, "{bytes:?}");
        assert!(error.message().contains("damaged"), "{error}");
        assert!(ModelStreamInferResponse::decode(bytes).is_err());
    }
}

fn parameter() -> impl Strategy<Value = InferParameter> {
    let choice = prop_oneof![
        any::<bool>().prop_map(ParameterChoice::BoolParam),
        any::<i64>().prop_map(ParameterChoice::Int64Param),
        any::<u64>().prop_map(ParameterChoice::Uint64Param),
        prop::num::f64::NORMAL.prop_map(ParameterChoice::DoubleParam),
        ".*".prop_map(ParameterChoice::StringParam),
    ];
    prop::option::of(choice).prop_map(|parameter_choice| InferParameter { parameter_choice })
}

fn output() -> impl Strategy<Value = InferOutputTensor> {
    let contents =
        prop::collection::vec(any::<i32>(), 0..3).prop_map(|numbers| InferTensorContents {
            int_contents: numbers,
            ..InferTensorContents::default()
        });
    let parameters = prop::collection::hash_map(
        prop_oneof!["[a-z]", Just("shared_memory_region".to_owned())],
        parameter(),
        0..2,
    );
    let shape = prop::collection::vec(any::<i64>(), 0..6);
    let contents = prop::option::of(contents);
    (".*", ".*", shape, parameters, contents).prop_map(
        |(name, datatype, shape, parameters, contents)| InferOutputTensor {
            name,
            datatype,
            shape,
            parameters,
            contents,
        },
    )
}

prop_compose! {
    fn message()(
        texts in prop::array::uniform4(".*"),
        parameters in prop::collection::hash_map(".{0,3}", parameter(), 0..6),
        outputs in prop::collection::vec(output(), 0..4),
        raw in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..4),
    ) -> ModelStreamInferResponse {
        let [error_message, model_name, model_version, id] = texts;
        ModelStreamInferResponse {
            error_message,
            ..streamed(ModelInferResponse {
                model_name, model_version, id, parameters, outputs,
                raw_output_contents: raw.into_iter().map(Bytes::from).collect(),
            })
        }
    }
}

proptest! {
    #[test]
    fn both_forms_of_a_message_say_the_same(message in message()) {
        assert_same(&message, &message.encode_to_vec());
    }

    #[test]
    fn a_response_is_written_as_it_came_but_for_its_id(
        message in message(),
        id in prop::option::of(".{0,200}"),
    ) {
        let came = EncodedResponse { bytes: message.encode_to_vec().into(), id: id.map(Arc::from) };
        let mut written = Vec::new();
        came.clone().write(&mut written).unwrap();
        prop_assert_eq!(ModelStreamInferResponse::decode(&*written).unwrap(), came.decode().unwrap());
    }

    /// Whatever the bytes are, what is read is what prost reads.
    #[test]
    fn a_damaged_message_is_read_as_prost_reads_it(
        message in message(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = message.encode_to_vec();
        prop_assume!(!bytes.is_empty());
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        check_same(&bytes);
    }
}

#[test]
fn a_detached_response_is_in_separate_memory() {
    let response = ResponseBuilder::new("ensemble", "a.1", 0).build();
    let encoded = EncodedResponse::from(&streamed(response));
    let bytes = encoded.bytes.clone();
    let detached = encoded.detached();
    assert_eq!(detached.bytes, bytes);
    assert_ne!(detached.bytes.as_ptr(), bytes.as_ptr());
}
