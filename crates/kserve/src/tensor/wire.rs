//! From wire messages to tensors: raw contents stay slices of the message, typed contents are packed to
//! the same form, and everything is checked before it is handed out.

use bytes::{BufMut, Bytes, BytesMut};

use super::{DataType, Element, Tensor, TensorError, Tensors};
use crate::inference::{
    InferTensorContents, ModelInferRequest, ModelInferResponse,
    model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
};

/// Triton's core model has under 60 inputs; the bound keeps the duplicate check cheap for any peer.
const MAX_TENSORS: usize = 256;

/// Parameter by which a tensor's data is in a shared-memory region instead of the message.
pub(crate) use crate::names::SHARED_MEMORY_REGION;

/// What inputs and outputs have in common on the wire.
pub(crate) trait WireTensor {
    fn name(&self) -> &str;
    fn datatype(&self) -> &str;
    fn shape(&self) -> &[i64];
    fn contents(&self) -> Option<&InferTensorContents>;
    /// Whether its data is in a shared-memory region.
    fn in_shared_memory(&self) -> bool;
}

macro_rules! wire_tensor {
    ($($type:ty),*) => {$(
        impl WireTensor for $type {
            fn name(&self) -> &str {
                &self.name
            }
            fn datatype(&self) -> &str {
                &self.datatype
            }
            fn shape(&self) -> &[i64] {
                &self.shape
            }
            fn contents(&self) -> Option<&InferTensorContents> {
                self.contents.as_ref()
            }
            fn in_shared_memory(&self) -> bool {
                !self.parameters.is_empty() && self.parameters.contains_key(SHARED_MEMORY_REGION)
            }
        }
    )*};
}
wire_tensor!(InferInputTensor, InferOutputTensor);

impl<'a> Tensors<'a> {
    /// The inputs of a request.
    ///
    /// # Errors
    /// When any input is malformed: the request as a whole is then invalid.
    pub fn inputs(request: &'a ModelInferRequest) -> Result<Self, TensorError> {
        read_all(&request.inputs, &request.raw_input_contents)
    }

    /// The outputs of a response.
    ///
    /// # Errors
    /// When any output is malformed: the response as a whole is then invalid.
    pub fn outputs(response: &'a ModelInferResponse) -> Result<Self, TensorError> {
        read_all(&response.outputs, &response.raw_output_contents)
    }

    /// The tensors of a message in another form.
    pub(crate) fn read(wire: &'a [impl WireTensor], raw: &[Bytes]) -> Result<Self, TensorError> {
        read_all(wire, raw)
    }
}

fn read_all<'a, W: WireTensor>(wire: &'a [W], raw: &[Bytes]) -> Result<Tensors<'a>, TensorError> {
    if wire.len() > MAX_TENSORS {
        return Err(TensorError::TooMany {
            count: wire.len(),
            limit: MAX_TENSORS,
        });
    }
    for tensor in wire {
        // Before the counts are compared: such a tensor has no separate raw contents.
        if tensor.in_shared_memory() {
            return Err(TensorError::SharedMemory {
                tensor: tensor.name().to_owned(),
            });
        }
    }
    if !raw.is_empty() && raw.len() != wire.len() {
        return Err(TensorError::RawCount {
            tensors: wire.len(),
            raw: raw.len(),
        });
    }
    let mut tensors: Vec<Tensor<'a>> = Vec::with_capacity(wire.len());
    for (position, tensor) in wire.iter().enumerate() {
        if tensor.name().is_empty() {
            return Err(TensorError::Unnamed { position });
        }
        if tensors.iter().any(|earlier| earlier.name == tensor.name()) {
            return Err(TensorError::Duplicate {
                tensor: tensor.name().to_owned(),
            });
        }
        tensors.push(read_one(tensor, raw.get(position))?);
    }
    Ok(Tensors(tensors))
}

fn read_one<'a, W: WireTensor>(
    wire: &'a W,
    raw: Option<&Bytes>,
) -> Result<Tensor<'a>, TensorError> {
    let name = wire.name();
    let datatype =
        DataType::from_name(wire.datatype()).ok_or_else(|| TensorError::UnknownDatatype {
            tensor: name.to_owned(),
            datatype: wire.datatype().to_owned(),
        })?;
    let shape = wire.shape();
    let count = element_count(name, shape)?;
    let data = match (raw, wire.contents().filter(|contents| !is_empty(contents))) {
        (Some(_), Some(_)) => {
            return Err(TensorError::RawAndTyped {
                tensor: name.to_owned(),
            });
        }
        (Some(raw), None) => raw.clone(),
        (None, Some(contents)) => pack_contents(name, datatype, contents)?,
        (None, None) => Bytes::new(),
    };
    let tensor = Tensor {
        name,
        datatype,
        shape,
        data,
    };
    check_length(&tensor, count)?;
    Ok(tensor)
}

fn element_count(name: &str, shape: &[i64]) -> Result<usize, TensorError> {
    if shape.iter().any(|dimension| *dimension < 0) {
        return Err(TensorError::NegativeDimension {
            tensor: name.to_owned(),
            shape: shape.to_vec(),
        });
    }
    // A zero anywhere makes the product zero, also next to dimensions that would overflow without it.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1_usize, |product, dimension| {
            product.checked_mul(usize::try_from(*dimension).ok()?)
        })
        .ok_or_else(|| TensorError::ShapeOverflow {
            tensor: name.to_owned(),
            shape: shape.to_vec(),
        })
}

fn check_length(tensor: &Tensor<'_>, count: usize) -> Result<(), TensorError> {
    let actual = tensor.data.len();
    let name = || tensor.name.to_owned();
    let shape = || tensor.shape.to_vec();
    if let Some(size) = tensor.datatype.size() {
        let expected = count
            .checked_mul(size)
            .ok_or_else(|| TensorError::ShapeOverflow {
                tensor: name(),
                shape: shape(),
            })?;
        if actual == expected {
            return Ok(());
        }
        let datatype = tensor.datatype;
        return Err(TensorError::ByteLength {
            tensor: name(),
            datatype,
            shape: shape(),
            expected,
            actual,
        });
    }
    let (mut offset, mut found) = (0, 0);
    while offset < actual {
        let rest = &tensor.data[offset..];
        let length = rest
            .first_chunk()
            .map(|prefix| u32::from_le_bytes(*prefix) as usize);
        match length {
            Some(length) if length <= rest.len() - 4 => offset += 4 + length,
            _ => {
                return Err(TensorError::Truncated {
                    tensor: name(),
                    element: found,
                    offset,
                    length: length.unwrap_or(4),
                    available: actual,
                });
            }
        }
        found += 1;
    }
    if found == count {
        return Ok(());
    }
    Err(TensorError::ElementCount {
        tensor: name(),
        shape: shape(),
        expected: count,
        actual: found,
    })
}

fn is_empty(contents: &InferTensorContents) -> bool {
    filled(contents).next().is_none()
}

/// Names of the lists that hold something.
fn filled(contents: &InferTensorContents) -> impl Iterator<Item = &'static str> {
    [
        ("bool_contents", contents.bool_contents.is_empty()),
        ("int_contents", contents.int_contents.is_empty()),
        ("int64_contents", contents.int64_contents.is_empty()),
        ("uint_contents", contents.uint_contents.is_empty()),
        ("uint64_contents", contents.uint64_contents.is_empty()),
        ("fp32_contents", contents.fp32_contents.is_empty()),
        ("fp64_contents", contents.fp64_contents.is_empty()),
        ("bytes_contents", contents.bytes_contents.is_empty()),
    ]
    .into_iter()
    .filter_map(|(name, is_empty)| (!is_empty).then_some(name))
}

/// Typed contents in the form of raw ones.
fn pack_contents(
    name: &str,
    datatype: DataType,
    contents: &InferTensorContents,
) -> Result<Bytes, TensorError> {
    let expected = match datatype {
        DataType::Bool => "bool_contents",
        DataType::Int8 | DataType::Int16 | DataType::Int32 => "int_contents",
        DataType::Int64 => "int64_contents",
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => "uint_contents",
        DataType::Uint64 => "uint64_contents",
        DataType::Fp32 => "fp32_contents",
        DataType::Fp64 => "fp64_contents",
        DataType::Bytes => "bytes_contents",
        DataType::Fp16 | DataType::Bf16 => {
            return Err(TensorError::RawOnly {
                tensor: name.to_owned(),
                datatype,
            });
        }
    };
    if let Some(found) = filled(contents).find(|found| *found != expected) {
        let tensor = name.to_owned();
        return Err(TensorError::WrongContents {
            tensor,
            datatype,
            found,
            expected,
        });
    }
    let mut out = BytesMut::new();
    match datatype {
        DataType::Bool => pack(&contents.bool_contents, &mut out),
        DataType::Int8 => narrow::<i8, _>(name, &contents.int_contents, &mut out)?,
        DataType::Int16 => narrow::<i16, _>(name, &contents.int_contents, &mut out)?,
        DataType::Int32 => pack(&contents.int_contents, &mut out),
        DataType::Int64 => pack(&contents.int64_contents, &mut out),
        DataType::Uint8 => narrow::<u8, _>(name, &contents.uint_contents, &mut out)?,
        DataType::Uint16 => narrow::<u16, _>(name, &contents.uint_contents, &mut out)?,
        DataType::Uint32 => pack(&contents.uint_contents, &mut out),
        DataType::Uint64 => pack(&contents.uint64_contents, &mut out),
        DataType::Fp32 => pack(&contents.fp32_contents, &mut out),
        DataType::Fp64 => pack(&contents.fp64_contents, &mut out),
        DataType::Bytes => {
            for element in &contents.bytes_contents {
                // A protobuf field is under 2 GiB, so the length fits.
                out.put_u32_le(element.len() as u32);
                out.put_slice(element);
            }
        }
        DataType::Fp16 | DataType::Bf16 => {}
    }
    Ok(out.freeze())
}

fn pack<T: Element>(values: &[T], out: &mut BytesMut) {
    T::pack(values, out);
}

/// Packs 32-bit wire values as the narrower type they represent.
fn narrow<T, W>(name: &str, values: &[W], out: &mut BytesMut) -> Result<(), TensorError>
where
    T: Element + TryFrom<W>,
    W: Copy + Into<i64>,
{
    let values: Vec<T> = values
        .iter()
        .map(|value| {
            T::try_from(*value).map_err(|_| TensorError::OutOfRange {
                tensor: name.to_owned(),
                datatype: T::DATATYPE,
                value: (*value).into(),
            })
        })
        .collect::<Result<_, _>>()?;
    T::pack(&values, out);
    Ok(())
}
