//! The names of capabilities for Python, from the one list of them.

use inflight_kserve::capability;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// What an executor can support, as class attributes.
#[pyclass(frozen, module = "inflight._native")]
pub(crate) struct Capability;

/// Gives the class its attributes.
pub(crate) fn name_all(class: &Bound<'_, PyType>) -> PyResult<()> {
    for (name, value) in capability::ALL {
        class.setattr(*name, *value)?;
    }
    Ok(())
}
