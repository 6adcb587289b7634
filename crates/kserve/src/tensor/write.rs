//! Building infer messages with raw contents. Owns the packing. Whether shape and number of values agree is
//! up to the caller, and checked by the reader.

use bytes::{BufMut, BytesMut};

use super::{DataType, Element};
use crate::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse,
    infer_parameter::ParameterChoice,
    model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    model_infer_response::InferOutputTensor,
};

/// Packs the elements of a BYTES tensor.
pub(crate) fn pack_bytes<E: AsRef<[u8]>>(
    elements: impl IntoIterator<Item = E>,
    out: &mut BytesMut,
) {
    for element in elements {
        let element = element.as_ref();
        // Messages are limited far below 4 GiB; a longer element could not be sent.
        let length = u32::try_from(element.len()).unwrap_or(u32::MAX);
        out.put_u32_le(length);
        out.put_slice(element);
    }
}

macro_rules! builder {
    (
        $(#[$attribute:meta])* $builder:ident, $message:ident, $tensor:ident, $tensors:ident, $raw:ident
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub struct $builder {
            message: $message,
            /// One allocation behind all tensors: each takes its part off the front.
            buffer: BytesMut,
        }

        impl $builder {
            /// `capacity` is the expected size of all tensor data in bytes.
            pub fn new(model_name: impl Into<String>, id: impl Into<String>, capacity: usize) -> Self {
                let message = $message {
                    model_name: model_name.into(),
                    id: id.into(),
                    ..Default::default()
                };
                Self { message, buffer: BytesMut::with_capacity(capacity) }
            }

            /// Appends a tensor of fixed-size elements.
            pub fn push<T: Element>(
                &mut self,
                name: impl Into<String>,
                shape: &[i64],
                values: &[T],
            ) -> &mut Self {
                T::pack(values, &mut self.buffer);
                self.finish(name.into(), T::DATATYPE, shape)
            }

            /// Appends a BYTES tensor.
            pub fn push_bytes<E: AsRef<[u8]>>(
                &mut self,
                name: impl Into<String>,
                shape: &[i64],
                elements: impl IntoIterator<Item = E>,
            ) -> &mut Self {
                pack_bytes(elements, &mut self.buffer);
                self.finish(name.into(), DataType::Bytes, shape)
            }

            /// Appends a tensor whose bytes are packed already.
            pub fn push_raw(
                &mut self,
                name: impl Into<String>,
                datatype: DataType,
                shape: &[i64],
                data: bytes::Bytes,
            ) -> &mut Self {
                self.describe(name.into(), datatype, shape);
                self.message.$raw.push(data);
                self
            }

            /// Sets a parameter of the message.
            pub fn parameter(&mut self, name: impl Into<String>, value: ParameterChoice) -> &mut Self {
                let value = InferParameter { parameter_choice: Some(value) };
                self.message.parameters.insert(name.into(), value);
                self
            }

            /// Sets a boolean parameter of the message.
            pub fn bool_parameter(&mut self, name: impl Into<String>, value: bool) -> &mut Self {
                self.parameter(name, ParameterChoice::BoolParam(value))
            }

            /// Takes the message; the builder is empty afterwards.
            pub fn build(&mut self) -> $message {
                std::mem::take(&mut self.message)
            }

            fn finish(&mut self, name: String, datatype: DataType, shape: &[i64]) -> &mut Self {
                self.describe(name, datatype, shape);
                self.message.$raw.push(self.buffer.split().freeze());
                self
            }

            fn describe(&mut self, name: String, datatype: DataType, shape: &[i64]) {
                self.message.$tensors.push($tensor {
                    name,
                    datatype: datatype.name().to_owned(),
                    shape: shape.to_vec(),
                    ..Default::default()
                });
            }
        }
    };
}

builder! {
    /// Builds a [`ModelInferRequest`].
    RequestBuilder, ModelInferRequest, InferInputTensor, inputs, raw_input_contents
}
builder! {
    /// Builds a [`ModelInferResponse`].
    ResponseBuilder, ModelInferResponse, InferOutputTensor, outputs, raw_output_contents
}

impl RequestBuilder {
    /// A single value, shape `[1, 1]`: Triton's core model has a batch dimension before its own.
    pub fn scalar<T: Element>(&mut self, name: impl Into<String>, value: T) -> &mut Self {
        self.push(name, &[1, 1], &[value])
    }

    /// A list of values, shape `[1, n]`.
    pub fn vector<T: Element>(&mut self, name: impl Into<String>, values: &[T]) -> &mut Self {
        self.push(name, &[1, values.len() as i64], values)
    }

    /// Asks for an output by name. With none asked for, a server sends what the model always has.
    pub fn output(&mut self, name: impl Into<String>) -> &mut Self {
        self.message.outputs.push(InferRequestedOutputTensor {
            name: name.into(),
            ..Default::default()
        });
        self
    }
}

impl ResponseBuilder {
    /// The model's version, which responses carry.
    pub fn version(&mut self, version: impl Into<String>) -> &mut Self {
        self.message.model_version = version.into();
        self
    }
}
