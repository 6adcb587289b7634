//! A message's inputs against the model's table: known, of the right type and shape, split by row.

use inflight_kserve::step::Handle;
use inflight_kserve::tensor::{BytesElements, DataType, Element, Tensor, Tensors};

use super::{Limits, RequestError};
use crate::model::{self, FLAGS_NONE, Field, Flags, InputSpec, Neutral, TensorMismatch};

/// One input with its row of the table.
pub(super) struct Input<'a> {
    pub(super) spec: &'static InputSpec,
    tensor: &'a Tensor<'a>,
    /// The tensor's shape without the batch dimension.
    shape: &'a [i64],
    rows: usize,
}

/// All inputs of a message; their batch sizes agree.
pub(super) struct Batch<'a> {
    pub(super) inputs: Vec<Input<'a>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(tensors: &'a Tensors<'a>) -> Result<Self, RequestError> {
        let mut inputs: Vec<Input<'a>> = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let input = Input::new(tensor)?;
            if let Some(first) = inputs.first().filter(|first| first.rows != input.rows) {
                return Err(TensorMismatch::BatchSize {
                    tensor: input.spec.name,
                    actual: input.rows,
                    expected_of: first.spec.name,
                    expected: first.rows,
                }
                .into());
            }
            inputs.push(input);
        }
        Ok(Self { inputs })
    }

    pub(super) fn rows(&self, limit: u32) -> Result<usize, RequestError> {
        let rows = self.inputs.first().map_or(1, |input| input.rows);
        Ok(model::checked_rows(rows, limit as usize)?)
    }

    /// The switches; they hold for the whole batch, as the first row has them.
    pub(super) fn flags(&self, limits: &Limits) -> Result<Flags, RequestError> {
        let mut flags = FLAGS_NONE;
        for input in &self.inputs {
            if let Field::Flag(_, set) = input.spec.role.field
                && !input.is_skipped(0, limits)?
            {
                set(&mut flags, input.scalar(0)?);
            }
        }
        Ok(flags)
    }

    pub(super) fn handle(&self) -> Result<Option<Handle>, RequestError> {
        let input = self
            .inputs
            .iter()
            .find(|input| matches!(input.spec.role.field, Field::Handle));
        input.map(|input| input.scalar(0)).transpose()
    }
}

impl<'a> Input<'a> {
    fn new(tensor: &'a Tensor<'a>) -> Result<Self, RequestError> {
        let spec = model::input(tensor.name).ok_or_else(|| RequestError::UnknownInput {
            tensor: tensor.name.to_owned(),
        })?;
        model::check_datatype(spec.name, spec.datatype, spec.any_float, tensor.datatype)?;
        let wrong = || TensorMismatch::shape(spec.name, tensor.shape, spec.dims);
        let (rows, shape) = if tensor.shape.len() == spec.dims.len() {
            (1, tensor.shape)
        } else {
            match tensor.shape.split_first() {
                Some((rows, shape)) => (usize::try_from(*rows).map_err(|_| wrong())?, shape),
                // A scalar without dimensions.
                None => (1, tensor.shape),
            }
        };
        let bare_scalar = spec.dims == [1] && tensor.shape.is_empty();
        if !model::fits(shape, spec.dims) && !bare_scalar {
            return Err(wrong().into());
        }
        Ok(Self {
            spec,
            tensor,
            shape,
            rows,
        })
    }

    /// Whether the executor lacks what this tensor needs and its value needs nothing.
    ///
    /// # Errors
    /// The refusal, where the value does need it.
    pub(super) fn is_skipped(&self, row: usize, limits: &Limits) -> Result<bool, RequestError> {
        let Some(capability) = self.spec.role.capability.filter(|name| !limits.can(name)) else {
            return Ok(false);
        };
        if self.is_neutral(row) {
            return Ok(true);
        }
        Err(RequestError::Capability {
            tensor: self.spec.name,
            capability,
            executor: limits.info.executor.clone(),
        })
    }

    fn is_neutral(&self, row: usize) -> bool {
        let number = || {
            let tensor = self.row(row);
            match tensor.datatype {
                DataType::Bool => tensor.scalar::<bool>().ok().map(f64::from),
                DataType::Int32 => tensor.scalar::<i32>().ok().map(f64::from),
                DataType::Fp32 => tensor.scalar::<f32>().ok().map(f64::from),
                _ => None,
            }
        };
        match self.spec.role.neutral {
            Neutral::Never => false,
            Neutral::Zero => number() == Some(0.0),
            Neutral::One => number() == Some(1.0),
            Neutral::ZeroOrOne => number().is_some_and(|value| value == 0.0 || value == 1.0),
            Neutral::Negative => number().is_some_and(|value| value < 0.0),
            Neutral::Empty => self.shape.contains(&0),
            Neutral::AtMostOne => self.shape.iter().product::<i64>() <= 1,
        }
    }

    /// One row as a tensor without batch dimension.
    pub(super) fn row(&self, row: usize) -> Tensor<'a> {
        let data = &self.tensor.data;
        let range = if self.rows == 1 {
            0..data.len()
        } else if let Some(size) = self.tensor.datatype.size() {
            // Shape and length agree (the codec checked), so a row has this many bytes.
            let count: i64 = self.shape.iter().product();
            let bytes = size * usize::try_from(count).unwrap_or(0);
            (row * bytes).min(data.len())..((row + 1) * bytes).min(data.len())
        } else {
            text_range(self.tensor.elements().ok(), row, self.shape)
        };
        Tensor {
            name: self.tensor.name,
            datatype: self.tensor.datatype,
            shape: self.shape,
            data: data.slice(range),
        }
    }

    pub(super) fn scalar<T: Element>(&self, row: usize) -> Result<T, RequestError> {
        Ok(self.row(row).scalar()?)
    }

    pub(super) fn values<T: Element>(&self, row: usize) -> Result<Vec<T>, RequestError> {
        Ok(self.row(row).values()?)
    }

    pub(super) fn shape(&self) -> &'a [i64] {
        self.shape
    }
}

/// Where a row's length-prefixed elements are.
fn text_range(
    elements: Option<BytesElements<'_>>,
    row: usize,
    shape: &[i64],
) -> std::ops::Range<usize> {
    let per_row = usize::try_from(shape.iter().product::<i64>()).unwrap_or(0);
    let (mut start, mut end) = (0, 0);
    for (place, element) in elements.into_iter().flatten().enumerate() {
        let size = 4 + element.len();
        if place < row * per_row {
            start += size;
        }
        if place < (row + 1) * per_row {
            end += size;
        }
    }
    start..end
}
