//! Reading the values of tensors whose type, shape and data are known to agree.

use bytes::Bytes;

use super::{DataType, Element, TensorError};

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
pub struct Tensors<'a>(pub(super) Vec<Tensor<'a>>);

impl<'a> Tensors<'a> {
    /// The tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Tensor<'a>> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    /// The tensor with this name.
    ///
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
    /// When the tensor has another type, or not exactly one element.
    pub fn scalar<T: Element>(&self, name: &str) -> Result<Option<T>, TensorError> {
        self.get(name).map(Tensor::scalar).transpose()
    }

    /// The values of an optional tensor, whatever its shape.
    ///
    /// # Errors
    /// When the tensor has another type.
    pub fn values<T: Element>(&self, name: &str) -> Result<Option<Vec<T>>, TensorError> {
        self.get(name).map(Tensor::values).transpose()
    }

    /// The tensors in the order of the message.
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
