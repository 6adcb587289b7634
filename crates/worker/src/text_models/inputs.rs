//! A message's inputs against a text model's table: known, of the right type and shape, read row by row.

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::tensor::{Element, Tensor, Tensors};

use super::error::TextRequestError;
use super::spec::{Role, TextInput};
use super::table::TextModelKind;
use crate::model::{self, TensorMismatch};

/// The inputs of one request; all have as many rows.
#[derive(Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) kind: TextModelKind,
    pub(crate) rows: usize,
    given: Vec<Given<'a>>,
}

#[derive(Debug)]
pub(crate) struct Given<'a> {
    pub(crate) spec: &'static TextInput,
    pub(crate) tensor: Tensor<'a>,
}

impl<'a> Inputs<'a> {
    /// # Errors
    /// Whatever is unknown, missing, unsupported, or of the wrong type or shape; each names its tensor.
    pub(crate) fn read(
        kind: TextModelKind,
        message: &'a ModelInferRequest,
        max_rows: usize,
    ) -> Result<Self, TextRequestError> {
        let mut given: Vec<Given<'a>> = Vec::with_capacity(message.inputs.len());
        for tensor in Tensors::inputs(message)? {
            let spec = kind
                .input(tensor.name)
                .ok_or_else(|| TextRequestError::UnknownInput {
                    model: kind.asked_as(message).to_owned(),
                    tensor: tensor.name.to_owned(),
                })?;
            if spec.role == Role::Unsupported {
                return Err(TextRequestError::Unsupported { tensor: spec.name });
            }
            let rows = check(spec, &tensor)?;
            if let Some(first) = given.first() {
                let expected = rows_of(&first.tensor);
                if rows != expected {
                    let (tensor, expected_of) = (spec.name, first.spec.name);
                    return Err(TensorMismatch::BatchSize {
                        tensor,
                        actual: rows,
                        expected_of,
                        expected,
                    }
                    .into());
                }
            }
            given.push(Given { spec, tensor });
        }
        for spec in kind.inputs().iter().filter(|spec| !spec.optional) {
            if !given.iter().any(|one| one.spec.name == spec.name) {
                return Err(TextRequestError::Missing { tensor: spec.name });
            }
        }
        let rows = given.first().map_or(0, |first| rows_of(&first.tensor));
        let rows = model::checked_rows(rows, max_rows)?;
        Ok(Self { kind, rows, given })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Given<'a>> {
        self.given.iter()
    }

    fn find(&self, wanted: impl Fn(&TextInput) -> bool) -> Option<&Given<'a>> {
        self.given.iter().find(|one| wanted(one.spec))
    }

    /// The input of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Given<'a>> {
        self.find(|spec| spec.name == name)
    }

    /// The input that preprocessing reads under this name.
    pub(crate) fn preprocessing(&self, name: &str) -> Option<&Given<'a>> {
        self.find(|spec| matches!(spec.role, Role::Preprocessing(own) if own == name))
    }

    /// The strings of a row that preprocessing reads under this name, without empty ones: batches and JSON
    /// fill up with those.
    pub(crate) fn texts(&self, name: &str, row: usize) -> Result<Vec<&str>, TextRequestError> {
        self.preprocessing(name)
            .map_or(Ok(Vec::new()), |given| given.texts(row))
    }

    /// A switch of the whole request, as its first row has it.
    pub(crate) fn flag(&self, role: Role) -> Result<Option<bool>, TextRequestError> {
        self.find(|spec| spec.role == role)
            .map_or(Ok(None), |given| given.scalar(0))
    }
}

impl Given<'_> {
    /// Elements of a row.
    fn per_row(&self) -> usize {
        let dims = self.tensor.shape.get(1..).unwrap_or_default();
        usize::try_from(dims.iter().product::<i64>()).unwrap_or(0)
    }

    pub(crate) fn texts(&self, row: usize) -> Result<Vec<&str>, TextRequestError> {
        let per_row = self.per_row();
        self.tensor
            .elements()?
            .skip(row * per_row)
            .take(per_row)
            .filter(|bytes| !bytes.is_empty())
            .map(|bytes| {
                std::str::from_utf8(bytes).map_err(|_| TextRequestError::NotText {
                    tensor: self.spec.name,
                })
            })
            .collect()
    }

    pub(crate) fn values<T: Element>(&self, row: usize) -> Result<Vec<T>, TextRequestError> {
        let per_row = self.per_row();
        let all = self.tensor.values::<T>()?;
        Ok(all.into_iter().skip(row * per_row).take(per_row).collect())
    }

    /// The first value of a row; none where it has none.
    pub(crate) fn scalar<T: Element>(&self, row: usize) -> Result<Option<T>, TextRequestError> {
        Ok(self.values(row)?.into_iter().next())
    }
}

fn rows_of(tensor: &Tensor<'_>) -> usize {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    usize::try_from(rows).unwrap_or(0)
}

/// Type and shape; returns the rows.
fn check(spec: &'static TextInput, tensor: &Tensor<'_>) -> Result<usize, TensorMismatch> {
    model::check_datatype(spec.name, spec.datatype, spec.any_float, tensor.datatype)?;
    let dims = tensor.shape.get(1..).unwrap_or_default();
    // Where Triton squeezes a tensor, its backends see the batch dimension alone.
    let squeezed = spec.squeezed && tensor.shape.len() == 1;
    if model::fits(dims, spec.dims) || squeezed {
        return Ok(rows_of(tensor));
    }
    Err(TensorMismatch::shape(spec.name, tensor.shape, spec.dims))
}
