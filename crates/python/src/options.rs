//! The worker's options as Python sees them. Defaults are read from `inflight_worker`, where each
//! has its reason; an argument that is left out, or `None`, takes that default.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use inflight_traces::{DEFAULT_RATIO, TraceOptions};
use inflight_worker::{LogLevel, SimulatedOptions, WorkerOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How a worker listens, what it serves and where its bounds are. Times are in seconds.
#[pyclass(frozen, name = "WorkerOptions", module = "inflight._native")]
pub(crate) struct PyWorkerOptions(pub(crate) WorkerOptions);

#[pymethods]
impl PyWorkerOptions {
    #[new]
    #[pyo3(signature = (
        *, host=None, grpc_port=None, metrics_port=None, http_port=None, tls_certificate=None,
        tls_key=None, tls_client_ca=None, served_model_name=None,
        core_model_name=None, exclude_input_in_output=None, fill_outputs=None, wrap_token_ids=None, accumulate_tokens=None, draft_worker=None,
        draft_model_name=None, adapter_dir=None, assets=None, otlp_endpoint=None, trace_sampling_ratio=None,
        max_message_bytes=None, max_queue_wait_s=None, max_queued_requests=None,
        max_grpc_connections=None,
        max_concurrent_streams=None,
        progress_timeout_s=None, drain_timeout_s=None, slow_reader_timeout_s=None,
        canary_timeout_s=None
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keywords in Python, each with a default"
    )]
    fn new(
        host: Option<String>,
        grpc_port: Option<u16>,
        metrics_port: Option<u16>,
        http_port: Option<u16>,
        tls_certificate: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        tls_client_ca: Option<PathBuf>,
        served_model_name: Option<String>,
        core_model_name: Option<String>,
        exclude_input_in_output: Option<bool>,
        fill_outputs: Option<bool>,
        wrap_token_ids: Option<bool>,
        accumulate_tokens: Option<bool>,
        draft_worker: Option<String>,
        draft_model_name: Option<String>,
        adapter_dir: Option<PathBuf>,
        assets: Option<BTreeMap<String, Vec<u8>>>,
        otlp_endpoint: Option<&str>,
        trace_sampling_ratio: Option<f64>,
        max_message_bytes: Option<usize>,
        max_queue_wait_s: Option<f64>,
        max_queued_requests: Option<usize>,
        max_grpc_connections: Option<usize>,
        max_concurrent_streams: Option<u32>,
        progress_timeout_s: Option<f64>,
        drain_timeout_s: Option<f64>,
        slow_reader_timeout_s: Option<f64>,
        canary_timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let default = WorkerOptions::default();
        Ok(Self(WorkerOptions {
            host: host.unwrap_or(default.host),
            grpc_port: grpc_port.unwrap_or(default.grpc_port),
            metrics_port: metrics_port.unwrap_or(default.metrics_port),
            http_port,
            tls_certificate,
            tls_key,
            tls_client_ca,
            served_model_name: served_model_name.unwrap_or(default.served_model_name),
            core_model_name: core_model_name.unwrap_or(default.core_model_name),
            exclude_input_in_output: exclude_input_in_output
                .unwrap_or(default.exclude_input_in_output),
            fill_outputs: fill_outputs.unwrap_or(default.fill_outputs),
            wrap_token_ids: wrap_token_ids.unwrap_or(default.wrap_token_ids),
            accumulate_tokens: accumulate_tokens.unwrap_or(default.accumulate_tokens),
            draft_worker,
            draft_model_name: draft_model_name.unwrap_or(default.draft_model_name),
            adapter_dir,
            log_level: Some(LogLevel::new(inflight_gateway::set_log_level)),
            assets: assets
                .unwrap_or_default()
                .into_iter()
                .map(|(name, content)| (name, Bytes::from(content)))
                .collect(),
            traces: traces(otlp_endpoint, trace_sampling_ratio)?,
            max_message_bytes: max_message_bytes.unwrap_or(default.max_message_bytes),
            max_queue_wait: seconds("max_queue_wait_s", max_queue_wait_s, default.max_queue_wait)?,
            max_queued_requests: max_queued_requests.unwrap_or(default.max_queued_requests),
            max_grpc_connections: max_grpc_connections.unwrap_or(default.max_grpc_connections),
            max_concurrent_streams: max_concurrent_streams
                .unwrap_or(default.max_concurrent_streams),
            progress_timeout: seconds(
                "progress_timeout_s",
                progress_timeout_s,
                default.progress_timeout,
            )?,
            drain_timeout: seconds("drain_timeout_s", drain_timeout_s, default.drain_timeout)?,
            slow_reader_timeout: seconds(
                "slow_reader_timeout_s",
                slow_reader_timeout_s,
                default.slow_reader_timeout,
            )?,
            canary_timeout: seconds("canary_timeout_s", canary_timeout_s, default.canary_timeout)?,
        }))
    }

    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    #[getter]
    fn grpc_port(&self) -> u16 {
        self.0.grpc_port
    }

    #[getter]
    fn metrics_port(&self) -> u16 {
        self.0.metrics_port
    }

    #[getter]
    fn http_port(&self) -> Option<u16> {
        self.0.http_port
    }

    #[getter]
    fn tls_certificate(&self) -> Option<String> {
        text(self.0.tls_certificate.as_deref())
    }

    #[getter]
    fn tls_key(&self) -> Option<String> {
        text(self.0.tls_key.as_deref())
    }

    #[getter]
    fn tls_client_ca(&self) -> Option<String> {
        text(self.0.tls_client_ca.as_deref())
    }

    #[getter]
    fn served_model_name(&self) -> &str {
        &self.0.served_model_name
    }

    #[getter]
    fn core_model_name(&self) -> &str {
        &self.0.core_model_name
    }

    #[getter]
    fn exclude_input_in_output(&self) -> bool {
        self.0.exclude_input_in_output
    }

    #[getter]
    fn fill_outputs(&self) -> bool {
        self.0.fill_outputs
    }

    #[getter]
    fn wrap_token_ids(&self) -> bool {
        self.0.wrap_token_ids
    }

    #[getter]
    fn accumulate_tokens(&self) -> bool {
        self.0.accumulate_tokens
    }

    #[getter]
    fn draft_worker(&self) -> Option<&str> {
        self.0.draft_worker.as_deref()
    }

    #[getter]
    fn draft_model_name(&self) -> &str {
        &self.0.draft_model_name
    }

    #[getter]
    fn adapter_dir(&self) -> Option<String> {
        text(self.0.adapter_dir.as_deref())
    }

    #[getter]
    fn otlp_endpoint(&self) -> Option<&str> {
        self.0.traces.as_ref().map(|traces| &*traces.endpoint)
    }

    #[getter]
    fn trace_sampling_ratio(&self) -> f64 {
        let traces = self.0.traces.as_ref();
        traces.map_or(DEFAULT_RATIO, |traces| traces.ratio)
    }

    #[getter]
    fn max_message_bytes(&self) -> usize {
        self.0.max_message_bytes
    }

    #[getter]
    fn max_queue_wait_s(&self) -> f64 {
        self.0.max_queue_wait.as_secs_f64()
    }

    #[getter]
    fn max_queued_requests(&self) -> usize {
        self.0.max_queued_requests
    }

    #[getter]
    fn max_grpc_connections(&self) -> usize {
        self.0.max_grpc_connections
    }

    #[getter]
    fn max_concurrent_streams(&self) -> u32 {
        self.0.max_concurrent_streams
    }

    #[getter]
    fn progress_timeout_s(&self) -> f64 {
        self.0.progress_timeout.as_secs_f64()
    }

    #[getter]
    fn drain_timeout_s(&self) -> f64 {
        self.0.drain_timeout.as_secs_f64()
    }

    #[getter]
    fn slow_reader_timeout_s(&self) -> f64 {
        self.0.slow_reader_timeout.as_secs_f64()
    }

    #[getter]
    fn canary_timeout_s(&self) -> f64 {
        self.0.canary_timeout.as_secs_f64()
    }
}

/// The simulated executor's timing model and sizes.
#[pyclass(frozen, name = "SimulatedOptions", module = "inflight._native")]
pub(crate) struct PySimulatedOptions(pub(crate) SimulatedOptions);

#[pymethods]
impl PySimulatedOptions {
    #[new]
    #[pyo3(signature = (
        *, prefill_us_per_token=None, step_us=None, step_us_per_sequence=None, max_batch_size=None,
        num_blocks=None, tokens_per_block=None, max_seq_len=None, max_num_tokens=None,
        vocab_size=None, answer=None, enable_kv_cache_reuse=None
    ))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keywords in Python, each with a default"
    )]
    fn new(
        prefill_us_per_token: Option<f64>,
        step_us: Option<f64>,
        step_us_per_sequence: Option<f64>,
        max_batch_size: Option<u32>,
        num_blocks: Option<u32>,
        tokens_per_block: Option<u32>,
        max_seq_len: Option<u32>,
        max_num_tokens: Option<u32>,
        vocab_size: Option<u32>,
        answer: Option<Vec<u32>>,
        enable_kv_cache_reuse: Option<bool>,
    ) -> PyResult<Self> {
        let default = SimulatedOptions::default();
        let vocab_size = size("vocab_size", vocab_size, default.vocab_size)?;
        let answer = answer.unwrap_or(default.answer);
        if let Some(id) = answer.iter().find(|id| **id >= vocab_size) {
            return Err(PyValueError::new_err(format!(
                "`answer` has the token id `{id}`; ids are below {vocab_size}"
            )));
        }
        Ok(Self(SimulatedOptions {
            prefill_us_per_token: cost(
                "prefill_us_per_token",
                prefill_us_per_token,
                default.prefill_us_per_token,
            )?,
            step_us: cost("step_us", step_us, default.step_us)?,
            step_us_per_sequence: cost(
                "step_us_per_sequence",
                step_us_per_sequence,
                default.step_us_per_sequence,
            )?,
            max_batch_size: size("max_batch_size", max_batch_size, default.max_batch_size)?,
            num_blocks: size("num_blocks", num_blocks, default.num_blocks)?,
            tokens_per_block: size(
                "tokens_per_block",
                tokens_per_block,
                default.tokens_per_block,
            )?,
            max_seq_len: size("max_seq_len", max_seq_len, default.max_seq_len)?,
            max_num_tokens: size("max_num_tokens", max_num_tokens, default.max_num_tokens)?,
            vocab_size,
            answer,
            enable_kv_cache_reuse: enable_kv_cache_reuse.unwrap_or(default.enable_kv_cache_reuse),
        }))
    }

    #[getter]
    fn enable_kv_cache_reuse(&self) -> bool {
        self.0.enable_kv_cache_reuse
    }

    #[getter]
    fn prefill_us_per_token(&self) -> f64 {
        self.0.prefill_us_per_token
    }

    #[getter]
    fn step_us(&self) -> f64 {
        self.0.step_us
    }

    #[getter]
    fn step_us_per_sequence(&self) -> f64 {
        self.0.step_us_per_sequence
    }

    #[getter]
    fn max_batch_size(&self) -> u32 {
        self.0.max_batch_size
    }

    #[getter]
    fn num_blocks(&self) -> u32 {
        self.0.num_blocks
    }

    #[getter]
    fn tokens_per_block(&self) -> u32 {
        self.0.tokens_per_block
    }

    #[getter]
    fn max_seq_len(&self) -> u32 {
        self.0.max_seq_len
    }

    #[getter]
    fn max_num_tokens(&self) -> u32 {
        self.0.max_num_tokens
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.0.vocab_size
    }

    #[getter]
    fn answer(&self) -> Option<Vec<u32>> {
        let answer = &self.0.answer;
        (!answer.is_empty()).then(|| answer.clone())
    }
}

/// What is traced; an empty endpoint, as a variable may have it, counts as none.
fn traces(endpoint: Option<&str>, ratio: Option<f64>) -> PyResult<Option<TraceOptions>> {
    let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_empty()) else {
        return Ok(None);
    };
    let endpoint = inflight_traces::endpoint(endpoint)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let ratio = ratio.unwrap_or(DEFAULT_RATIO);
    if !(0.0..=1.0).contains(&ratio) {
        return Err(PyValueError::new_err(format!(
            "`trace_sampling_ratio` is `{ratio}`, expected a share from 0 to 1"
        )));
    }
    Ok(Some(TraceOptions {
        endpoint,
        ratio,
        service: "inflight-worker",
    }))
}

fn text(path: Option<&Path>) -> Option<String> {
    path.map(|path| path.display().to_string())
}

fn seconds(name: &str, given: Option<f64>, default: Duration) -> PyResult<Duration> {
    given.map_or(Ok(default), |value| {
        Duration::try_from_secs_f64(value).map_err(|_| {
            PyValueError::new_err(format!(
                "`{name}` is `{value}`, expected seconds, 0 or more"
            ))
        })
    })
}

fn cost(name: &str, given: Option<f64>, default: f64) -> PyResult<f64> {
    let value = given.unwrap_or(default);
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(PyValueError::new_err(format!(
        "`{name}` is `{value}`, expected microseconds, 0 or more"
    )))
}

fn size(name: &str, given: Option<u32>, default: u32) -> PyResult<u32> {
    let value = given.unwrap_or(default);
    if value > 0 {
        return Ok(value);
    }
    Err(PyValueError::new_err(format!(
        "`{name}` is `0`, expected 1 or more"
    )))
}
