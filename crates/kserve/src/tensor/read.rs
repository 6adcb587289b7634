//! Reads the tensors of infer messages: raw contents stay slices of the message, typed contents are
//! packed to the same form, and everything is checked before it is handed out.

use bytes::{BufMut, Bytes, BytesMut};

use super::{DataType, Element, TensorError};
use crate::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
    model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
};

/// Triton's core model has under 60 inputs; the bound keeps the duplicate check cheap for any peer.
const MAX_TENSORS: usize = 256;

/// Parameter by which a tensor's data is in a shared-memory region instead of the message.
const SHARED_MEMORY_REGION: &str = "shared_memory_region";

/// One tensor, whose datatype, shape and data are known to agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub datatype: DataType,
    /// No dimension is negative; `[]` is one element.
    pub shape: &'a [i64],
    /// Packed little-endian elements; BYTES elements each follow a u32 with their length.
    pub data: Bytes,
}

/// The tensors of one message, in its order, no name twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors<'a>(Vec<Tensor<'a>>);

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

    pub fn get(&self, name: &str) -> Option<&Tensor<'a>> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    /// # Errors
    /// [`TensorError::Missing`].
    pub fn require(&self, name: &str) -> Result<&Tensor<'a>, TensorError> {
        self.get(name).ok_or_else(|| TensorError::Missing {
            tensor: name.to_owned(),
        })
    }

    /// The single value of an optional tensor.
    ///
    /// # Errors
    /// When the tensor is there and is of another type or has not one element.
    pub fn scalar<T: Element>(&self, name: &str) -> Result<Option<T>, TensorError> {
        self.get(name).map(Tensor::scalar).transpose()
    }

    /// The values of an optional tensor, whatever its shape.
    ///
    /// # Errors
    /// When the tensor is there and is of another type.
    pub fn values<T: Element>(&self, name: &str) -> Result<Option<Vec<T>>, TensorError> {
        self.get(name).map(Tensor::values).transpose()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Tensor<'a>> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for Tensors<'a> {
    type Item = Tensor<'a>;
    type IntoIter = std::vec::IntoIter<Tensor<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'s, 'a> IntoIterator for &'s Tensors<'a> {
    type Item = &'s Tensor<'a>;
    type IntoIter = std::slice::Iter<'s, Tensor<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a> Tensor<'a> {
    /// How many elements the shape holds.
    pub fn count(&self) -> usize {
        match self.datatype.size() {
            Some(size) => self.data.len() / size,
            None => self.elements().map_or(0, Iterator::count),
        }
    }

    /// All elements, in row-major order.
    ///
    /// # Errors
    /// [`TensorError::Datatype`].
    pub fn values<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        self.expect_type(T::DATATYPE)?;
        Ok(T::unpack(&self.data))
    }

    /// The one element, whatever the number of dimensions (`[1]`, `[1, 1]` or none).
    ///
    /// # Errors
    /// [`TensorError::Datatype`], [`TensorError::NotScalar`].
    pub fn scalar<T: Element>(&self) -> Result<T, TensorError> {
        self.expect_type(T::DATATYPE)?;
        match T::first(&self.data) {
            Some(value) if self.count() == 1 => Ok(value),
            _ => Err(self.not_scalar()),
        }
    }

    /// All elements of an FP32, FP16 or BF16 tensor, widened.
    ///
    /// # Errors
    /// [`TensorError::Datatype`], naming FP32 as the expected type.
    pub fn floats(&self) -> Result<Vec<f32>, TensorError> {
        match self.datatype {
            DataType::Fp16 => Ok(self
                .values::<half::f16>()?
                .into_iter()
                .map(f32::from)
                .collect()),
            DataType::Bf16 => Ok(self
                .values::<half::bf16>()?
                .into_iter()
                .map(f32::from)
                .collect()),
            _ => self.values::<f32>(),
        }
    }

    /// The elements of a BYTES tensor.
    ///
    /// # Errors
    /// [`TensorError::Datatype`].
    pub fn elements(&self) -> Result<BytesElements<'_>, TensorError> {
        self.expect_type(DataType::Bytes)?;
        Ok(BytesElements { rest: &self.data })
    }

    /// The elements of a BYTES tensor as text.
    ///
    /// # Errors
    /// [`TensorError::Datatype`], [`TensorError::InvalidUtf8`].
    pub fn strings(&self) -> Result<Vec<&str>, TensorError> {
        self.elements()?
            .enumerate()
            .map(|(element, bytes)| {
                std::str::from_utf8(bytes).map_err(|_| TensorError::InvalidUtf8 {
                    tensor: self.name.to_owned(),
                    element,
                })
            })
            .collect()
    }

    /// The one text of a BYTES tensor.
    ///
    /// # Errors
    /// [`TensorError::Datatype`], [`TensorError::NotScalar`], [`TensorError::InvalidUtf8`].
    pub fn string(&self) -> Result<&str, TensorError> {
        match self.strings()?.as_slice() {
            [text] => Ok(text),
            _ => Err(self.not_scalar()),
        }
    }

    fn expect_type(&self, expected: DataType) -> Result<(), TensorError> {
        if self.datatype == expected {
            return Ok(());
        }
        Err(TensorError::Datatype {
            tensor: self.name.to_owned(),
            expected,
            actual: self.datatype,
        })
    }

    fn not_scalar(&self) -> TensorError {
        TensorError::NotScalar {
            tensor: self.name.to_owned(),
            shape: self.shape.to_vec(),
        }
    }
}

/// Iterates over the elements of a BYTES tensor.
#[derive(Clone, Debug)]
pub struct BytesElements<'a> {
    /// Length-prefixed elements whose lengths were checked when the tensor was read.
    rest: &'a [u8],
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (prefix, rest) = self.rest.split_first_chunk::<4>()?;
        let (element, rest) = rest.split_at_checked(u32::from_le_bytes(*prefix) as usize)?;
        self.rest = rest;
        Some(element)
    }
}

/// What inputs and outputs have in common on the wire.
trait WireTensor {
    fn name(&self) -> &str;
    fn datatype(&self) -> &str;
    fn shape(&self) -> &[i64];
    fn contents(&self) -> Option<&InferTensorContents>;
    fn parameters(&self) -> &std::collections::HashMap<String, InferParameter>;
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
            fn parameters(&self) -> &std::collections::HashMap<String, InferParameter> {
                &self.parameters
            }
        }
    )*};
}
wire_tensor!(InferInputTensor, InferOutputTensor);

fn read_all<'a, W: WireTensor>(wire: &'a [W], raw: &[Bytes]) -> Result<Tensors<'a>, TensorError> {
    if wire.len() > MAX_TENSORS {
        return Err(TensorError::TooMany {
            count: wire.len(),
            limit: MAX_TENSORS,
        });
    }
    for tensor in wire {
        // Before the counts are compared: such a tensor has no raw contents of its own.
        if !tensor.parameters().is_empty() && tensor.parameters().contains_key(SHARED_MEMORY_REGION)
        {
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
    // A zero anywhere makes the product zero, also beside dimensions that would overflow without it.
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

/// Packs 32-bit wire values as the narrower type they stand for.
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
