//! What requests and responses have in common as they travel: texts, parameters, tensors.

use bytes::{BufMut, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::fields::{put_head, put_text, text_len};
use crate::inference::InferParameter;
use crate::inference::infer_parameter::ParameterChoice;
use crate::tensor::{DataType, Element, pack_bytes};

/// Field numbers of `ModelInferRequest`, `ModelInferResponse` and the messages in them, from KServe's protocol.
pub(super) mod field {
    pub(crate) const MODEL_NAME: u32 = 1;
    pub(crate) const ID: u32 = 3;
    pub(crate) const PARAMETERS: u32 = 4;
    /// A request's inputs, and a response's outputs.
    pub(crate) const TENSORS: u32 = 5;
    /// Outputs that a request asks for.
    pub(crate) const REQUESTED: u32 = 6;
    pub(crate) const RAW_INPUT_CONTENTS: u32 = 7;
    pub(crate) const RAW_OUTPUT_CONTENTS: u32 = 6;
    /// Of an input or an output.
    pub(crate) const NAME: u32 = 1;
    /// Of a tensor.
    pub(crate) const DATATYPE: u32 = 2;
    pub(crate) const SHAPE: u32 = 3;
    /// Of a map's entry.
    pub(crate) const KEY: u32 = 1;
    pub(crate) const VALUE: u32 = 2;
}

/// Key and length before each tensor's data.
const FRAME: usize = 6;

/// A message and, apart from it, its tensors' data: they come after everything else, in the order of the tensors.
#[derive(Debug)]
pub(super) struct TensorWriter {
    pub(super) message: BytesMut,
    /// Each tensor's with its key.
    data: BytesMut,
    /// The field that they are in.
    raw: u32,
}

impl TensorWriter {
    /// `head`: bytes of everything but the tensors' data. `capacity`: of the data, of so many `tensors`.
    pub(super) fn new(raw: u32, head: usize, tensors: usize, capacity: usize) -> Self {
        let data = capacity + tensors * FRAME;
        Self {
            message: BytesMut::with_capacity(head + data),
            data: BytesMut::with_capacity(data),
            raw,
        }
    }

    pub(super) fn push<T: Element>(&mut self, name: &str, shape: &[i64], values: &[T]) {
        let size = T::DATATYPE.size().unwrap_or_default();
        put_head(self.raw, values.len() * size, &mut self.data);
        T::pack(values, &mut self.data);
        self.describe(name, T::DATATYPE, shape);
    }

    pub(super) fn push_bytes<E: AsRef<[u8]>>(
        &mut self,
        name: &str,
        shape: &[i64],
        elements: impl IntoIterator<Item = E>,
    ) {
        let mut packed = BytesMut::new();
        pack_bytes(elements, &mut packed);
        put_head(self.raw, packed.len(), &mut self.data);
        self.data.put_slice(&packed);
        self.describe(name, DataType::Bytes, shape);
    }

    pub(super) fn parameter(&mut self, name: &str, value: ParameterChoice) {
        let parameter = InferParameter {
            parameter_choice: Some(value),
        };
        let value = parameter.encoded_len();
        let entry = text_len(name) + 1 + encoded_len_varint(value as u64) + value;
        put_head(field::PARAMETERS, entry, &mut self.message);
        put_text(field::KEY, name, &mut self.message);
        put_head(field::VALUE, value, &mut self.message);
        parameter.encode_raw(&mut self.message);
    }

    /// The message with the data.
    pub(super) fn build(mut self) -> BytesMut {
        self.message.put_slice(&self.data);
        self.message
    }

    fn describe(&mut self, name: &str, datatype: DataType, shape: &[i64]) {
        let datatype = datatype.name();
        let lengths = shape.iter().map(|size| encoded_len_varint(*size as u64));
        let packed_shape: usize = lengths.sum();
        let head = 1 + encoded_len_varint(packed_shape as u64);
        let tensor = text_len(name) + text_len(datatype) + head + packed_shape;
        put_head(field::TENSORS, tensor, &mut self.message);
        put_text(field::NAME, name, &mut self.message);
        put_text(field::DATATYPE, datatype, &mut self.message);
        put_head(field::SHAPE, packed_shape, &mut self.message);
        for size in shape {
            encode_varint(*size as u64, &mut self.message);
        }
    }
}
