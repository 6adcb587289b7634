//! [`PythonExecutor`]: the worker's executor trait over a Python object with the protocol of
//! `python/inflight/executors/base.py`. Owns attaching to the interpreter, one crossing per call; knows
//! nothing of sockets.
//!
//! The first exception ends it: from then on every call answers the same failure without entering
//! Python, so that the traceback is logged once.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use inflight_kserve::step::Code;
use inflight_worker::executor::{
    Adapter, AdapterError, CacheReports, ClientId, Executor, ExecutorFailed, IterationStats,
    ModelInfo, Request, ResponseBatch,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::attach::keep_thread_state;
use crate::cache::PyCacheReports;
use crate::error;
use crate::request::RequestClasses;
use crate::response;

pub(crate) struct PythonExecutor {
    executor: Py<PyAny>,
    classes: RequestClasses,
    /// `json.dumps`: iteration statistics cross as the JSON that TensorRT-LLM itself speaks.
    dumps: Py<PyAny>,
    info: ModelInfo,
    failed: OnceLock<ExecutorFailed>,
}

impl PythonExecutor {
    /// Wraps an executor that is ready to serve, and asks what it serves.
    ///
    /// # Errors
    /// Whatever `info()` raises, and `ValueError` or `AttributeError` where its answer is not a
    /// `ModelInfo`.
    pub(crate) fn new(executor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = executor.py();
        Ok(Self {
            classes: RequestClasses::import(py)?,
            dumps: py.import("json")?.getattr("dumps")?.unbind(),
            info: read_info(&executor.call_method0("info")?)?,
            executor: executor.clone().unbind(),
            failed: OnceLock::new(),
        })
    }

    /// Attaches, calls, and turns an exception into the failure that ends the worker.
    fn crossing<T>(
        &self,
        method: &'static str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, ExecutorFailed> {
        if let Some(failed) = self.failed.get() {
            return Err(failed.clone());
        }
        // `try_attach` fails only while the interpreter ends, which the worker outlives on no path
        // but a second signal.
        Python::try_attach(|py| {
            call(self.executor.bind(py)).map_err(|raised| {
                let (failed, traceback) = error::executor_failed(py, method, &raised);
                if self.failed.set(failed.clone()).is_ok() {
                    tracing::error!("{failed}\n{}", traceback.trim_end());
                }
                failed
            })
        })
        .unwrap_or_else(|| {
            Err(ExecutorFailed(
                "the Python interpreter is shutting down".to_owned(),
            ))
        })
    }
}

impl Executor for PythonExecutor {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed> {
        self.crossing("enqueue", |executor| {
            let py = executor.py();
            keep_thread_state(py);
            let requests = self.classes.build(py, &requests)?;
            executor
                .call_method1(intern!(py, "enqueue"), (requests,))
                .map(drop)
        })
    }

    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed> {
        self.crossing("cancel", |executor| {
            let py = executor.py();
            keep_thread_state(py);
            let client_ids = PyList::new(py, client_ids.iter().map(|id| id.0))?;
            executor
                .call_method1(intern!(py, "cancel"), (client_ids,))
                .map(drop)
        })
    }

    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed> {
        self.crossing("await_responses", |executor| {
            let py = executor.py();
            keep_thread_state(py);
            let batch =
                executor.call_method1(intern!(py, "await_responses"), (timeout.as_secs_f64(),))?;
            response::read(&batch)
        })
    }

    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed> {
        self.crossing("stats", |executor| {
            let py = executor.py();
            let stats = executor.call_method0(intern!(py, "stats"))?;
            if stats.len()? == 0 {
                return Ok(Vec::new());
            }
            let list = py.get_type::<PyList>().call1((stats,))?;
            let json: String = self.dumps.bind(py).call1((list,))?.extract()?;
            serde_json::from_str(&json).map_err(|malformed| {
                PyValueError::new_err(format!("iteration statistics cannot be read: {malformed}"))
            })
        })
    }

    fn report_cache(&self, reports: CacheReports) -> Result<(), ExecutorFailed> {
        let capacity = self.crossing("report_cache", |executor| {
            let py = executor.py();
            let report = PyCacheReports::new(reports.clone(), self.info.tokens_per_block);
            let report = Bound::new(py, report)?.getattr(intern!(py, "report"))?;
            let capacity = executor.call_method1(intern!(py, "report_cache"), (report,))?;
            capacity.extract::<(u64, u64)>()
        });
        let (device, host) = capacity?;
        reports.report(|blocks| blocks.set_capacity(device, host));
        Ok(())
    }

    fn load_adapter(&self, name: &str, path: &Path) -> Result<u64, AdapterError> {
        self.crossing("load_adapter", |executor| {
            let method = intern!(executor.py(), "load_adapter");
            match executor.call_method1(method, (name, path.as_os_str())) {
                Ok(task_id) => task_id.extract().map(Ok),
                Err(raised) => refused(executor.py(), raised).map(Err),
            }
        })?
    }

    fn unload_adapter(&self, name: &str) -> Result<(), AdapterError> {
        self.crossing("unload_adapter", |executor| {
            let method = intern!(executor.py(), "unload_adapter");
            match executor.call_method1(method, (name,)) {
                Ok(_) => Ok(Ok(())),
                Err(raised) => refused(executor.py(), raised).map(Err),
            }
        })?
    }

    fn shutdown(&self) {
        let _ = Python::try_attach(|py| {
            let executor = self.executor.bind(py);
            if let Err(raised) = executor.call_method0(intern!(py, "shutdown")) {
                let (failed, traceback) = error::executor_failed(py, "shutdown", &raised);
                tracing::warn!("{failed}\n{}", traceback.trim_end());
            }
        });
    }
}

/// Reads an `inflight.executors.base.AdapterRefused`.
///
/// # Errors
/// `raised` itself, where it is something else.
fn refused(py: Python<'_>, raised: PyErr) -> PyResult<AdapterError> {
    let class = py
        .import("inflight.executors.base")?
        .getattr("AdapterRefused")?;
    if !raised.is_instance(py, &class) {
        return Err(raised);
    }
    let refusal = raised.value(py);
    Ok(AdapterError::Refused {
        code: Code::from_i32(refusal.getattr("code")?.extract()?),
        text: refusal.getattr("text")?.extract()?,
    })
}

/// Reads an `inflight.executors.base.ModelInfo`.
pub(crate) fn read_info(info: &Bound<'_, PyAny>) -> PyResult<ModelInfo> {
    Ok(ModelInfo {
        executor: info.getattr("executor")?.extract()?,
        vocab_size: info.getattr("vocab_size")?.extract()?,
        max_seq_len: info.getattr("max_seq_len")?.extract()?,
        max_input_len: info.getattr("max_input_len")?.extract()?,
        max_batch_size: info.getattr("max_batch_size")?.extract()?,
        max_num_tokens: info.getattr("max_num_tokens")?.extract()?,
        max_beam_width: info.getattr("max_beam_width")?.extract()?,
        tokens_per_block: info.getattr("tokens_per_block")?.extract()?,
        capabilities: info.getattr("capabilities")?.extract()?,
        adapters: read_adapters(&info.getattr("adapters")?)?,
        weights: info.getattr("weights")?.extract()?,
    })
}

fn read_adapters(adapters: &Bound<'_, PyAny>) -> PyResult<Vec<Adapter>> {
    let pairs: Vec<(String, u64)> = adapters.extract()?;
    Ok(pairs
        .into_iter()
        .map(|(name, lora_task_id)| Adapter { name, lora_task_id })
        .collect())
}
