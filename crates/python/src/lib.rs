//! `inflight._native`: the thin seam between Python and Rust, and nothing else.
//!
//! Owns the crossing (objects and columns in, exit codes out). Deliberately knows nothing of HTTP, gRPC,
//! tokens or models: those are the crates it calls. `python/inflight/_native.pyi` describes the module
//! to Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod attach;
mod cache;
mod capability;
mod columns;
mod commands;
mod core_model;
mod error;
mod executor;
mod gateway_options;
mod options;
mod process;
mod request;
mod response;
mod serve;
mod text;
mod text_models;

/// As in the gateway's own binary: its hot path, and the worker's, is many small buffers. Python keeps
/// its own allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// Nothing here relies on the GIL: state is immutable or atomic, and the types prove it.
#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::cache::PyCacheReports;
    #[pymodule_export]
    use super::capability::Capability;
    #[pymodule_export]
    use super::commands::{bench_main, gateway_main, simulate_main, template_helper_main};
    #[pymodule_export]
    use super::core_model::{
        CoreInput, CoreModel, CoreOutput, CoreParameter, CoreRequests, ParsedRequest, Refusal,
        RowResponse, core_model, gauges,
    };
    #[pymodule_export]
    use super::gateway_options::{
        PyGatewayOption, check_gateway_arguments, gateway_options, read_option_file, trace_variable,
    };
    #[pymodule_export]
    use super::options::{
        PySimulatedOptions, PyWorkerOption, PyWorkerOptions, simulated_options, worker_options,
    };
    #[pymodule_export]
    use super::serve::{PyLoadingWorker, serve_simulated_worker, serve_worker};
    #[pymodule_export]
    use super::text::{PyDetokenizer, PyTokenizer, convert_tokenizer};
    #[pymodule_export]
    use super::text_models::{Generation, TextModel, TextModels, text_models};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    const EXIT_EXECUTOR_FAILED: i32 = super::serve::EXIT_EXECUTOR_FAILED;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        process::note_import();
        capability::name_all(&module.py().get_type::<Capability>())
    }

    /// Checks the bounds of a JSON schema or a Lark grammar, which the one who compiles it cannot keep.
    ///
    /// # Errors
    /// `ValueError` with the problem in words.
    #[pyfunction]
    fn check_guide_bounds(kind: &str, text: &str) -> PyResult<()> {
        let checked = match kind {
            "json_schema" => {
                let schema = serde_json::from_str(text);
                let schema = schema.map_err(|error| {
                    PyValueError::new_err(format!("it cannot be read: {error}"))
                })?;
                inflight_guides::check_schema(&schema)
            }
            "lark" => inflight_guides::check_lark(text),
            kind => {
                return Err(PyValueError::new_err(format!(
                    "unknown kind of guide `{kind}`"
                )));
            }
        };
        checked.map_err(|problem| PyValueError::new_err(problem.to_string()))
    }

    /// Finds the objects of a JSON schema that are closed while it guides; see `inflight_guides::open_objects`.
    ///
    /// # Errors
    /// `ValueError` with the problem in words: the schema exceeds the bounds of guides.
    #[pyfunction]
    fn open_objects(schema: &str) -> PyResult<Vec<String>> {
        let schema = serde_json::from_str(schema);
        let schema =
            schema.map_err(|error| PyValueError::new_err(format!("it cannot be read: {error}")))?;
        let open = inflight_guides::open_objects(&schema);
        open.map_err(|problem| PyValueError::new_err(problem.to_string()))
    }

    /// Checks a `ResponseBatch` as the worker does before it uses one; for executors' own tests.
    ///
    /// # Errors
    /// `TypeError` for a column of the wrong type, `ValueError` for columns that do not fit together.
    #[pyfunction]
    fn check_response_batch(batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let batch = response::read(batch)?;
        batch
            .rows
            .validate()
            .map_err(|malformed| PyValueError::new_err(malformed.to_string()))
    }
}
