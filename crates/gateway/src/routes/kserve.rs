//! What is below `/v2`: KServe's calls as Triton has them. One handler answers them all, and `inflight_rest` reads their
//! paths; tests hold this list to it.

use crate::openapi::{Access, Area, Body, Error, Operation, ResponseBody};

/// As the router has them.
pub(crate) const PATHS: [&str; 3] = ["/v2", "/v2/", "/v2/{*rest}"];

const KSERVE: Area = Area::new("KServe", Error::Triton, Access::Api);
const KSERVE_HEALTH: Area = Area::new("KServe", Error::None, Access::Everybody);

/// As the document has them, methods of one path together. Shared memory is one server's own: a gateway refuses its
/// calls.
#[rustfmt::skip]
pub(super) const CALLS: &[Operation] = &[
    Operation::get(KSERVE, "/v2", "server_metadata", "What the server is"),
    Operation::get(KSERVE_HEALTH, "/v2/health/live", "server_live", "Whether the server is alive"),
    Operation::get(KSERVE_HEALTH, "/v2/health/ready", "server_ready", "Whether the server is ready"),
    Operation::get(KSERVE, "/v2/models/stats", "statistics", "Statistics of all models"),
    Operation::get(KSERVE, "/v2/models/{name}", "model_metadata", "A model's tensors"),
    Operation::get(KSERVE, "/v2/models/{name}/ready", "model_ready", "Whether a model is ready"),
    Operation::get(KSERVE, "/v2/models/{name}/config", "model_config", "A model's configuration"),
    Operation::get(KSERVE, "/v2/models/{name}/stats", "model_statistics", "A model's statistics"),
    Operation::post(KSERVE, "/v2/models/{name}/infer", "infer", "Tensors in, tensors out"),
    Operation::post(KSERVE, "/v2/models/{name}/generate", "generate", "One JSON object in, one out"),
    Operation::post(KSERVE, "/v2/models/{name}/generate_stream", "generate_stream",
        "The same with an event for each answer")
        .streams(),
    Operation::get(KSERVE, "/v2/models/{name}/versions/{version}", "version_metadata", "A version's tensors"),
    Operation::get(KSERVE, "/v2/models/{name}/versions/{version}/ready", "version_ready",
        "Whether a version is ready"),
    Operation::get(KSERVE, "/v2/models/{name}/versions/{version}/config", "version_config",
        "A version's configuration"),
    Operation::get(KSERVE, "/v2/models/{name}/versions/{version}/stats", "version_statistics",
        "A version's statistics"),
    Operation::post(KSERVE, "/v2/models/{name}/versions/{version}/infer", "version_infer",
        "Tensors in, tensors out"),
    Operation::post(KSERVE, "/v2/models/{name}/versions/{version}/generate", "version_generate",
        "One JSON object in, one out"),
    Operation::post(KSERVE, "/v2/models/{name}/versions/{version}/generate_stream", "version_generate_stream",
        "The same with an event for each answer")
        .streams(),
    Operation::post(KSERVE, "/v2/repository/index", "repository_index", "The models and their states")
        .takes(Body::AnyOrNone).answers(ResponseBody::Array),
    Operation::post(KSERVE, "/v2/repository/models/{name}/load", "load_model",
        "Load a model, if the server supports it")
        .takes(Body::AnyOrNone).answers(ResponseBody::Empty),
    Operation::post(KSERVE, "/v2/repository/models/{name}/unload", "unload_model",
        "Unload a model, if the server supports it")
        .takes(Body::AnyOrNone).answers(ResponseBody::Empty),
    Operation::get(KSERVE, "/v2/trace/setting", "trace_settings", "What is traced"),
    Operation::post(KSERVE, "/v2/trace/setting", "change_trace_settings", "Change what is traced"),
    Operation::get(KSERVE, "/v2/models/{name}/trace/setting", "model_trace_settings",
        "What is traced of a model"),
    Operation::post(KSERVE, "/v2/models/{name}/trace/setting", "change_model_trace_settings",
        "Change what is traced of a model"),
    Operation::get(KSERVE, "/v2/logging", "log_settings", "What is logged"),
    Operation::post(KSERVE, "/v2/logging", "change_log_settings", "Change what is logged"),
    Operation::get(KSERVE, "/v2/systemsharedmemory/status", "system_memory_regions",
        "The registered regions of system shared memory"),
    Operation::get(KSERVE, "/v2/systemsharedmemory/region/{name}/status", "system_memory_region",
        "A registered region of system shared memory"),
    Operation::post(KSERVE, "/v2/systemsharedmemory/region/{name}/register", "register_system_memory",
        "Register a region of system shared memory")
        .takes(Body::AnyOrNone),
    Operation::post(KSERVE, "/v2/systemsharedmemory/unregister", "unregister_all_system_memory",
        "Unregister all regions of system shared memory")
        .takes(Body::AnyOrNone),
    Operation::post(KSERVE, "/v2/systemsharedmemory/region/{name}/unregister", "unregister_system_memory",
        "Unregister a region of system shared memory")
        .takes(Body::AnyOrNone),
    Operation::get(KSERVE, "/v2/cudasharedmemory/status", "cuda_memory_regions",
        "The registered regions of CUDA shared memory"),
    Operation::get(KSERVE, "/v2/cudasharedmemory/region/{name}/status", "cuda_memory_region",
        "A registered region of CUDA shared memory"),
    Operation::post(KSERVE, "/v2/cudasharedmemory/region/{name}/register", "register_cuda_memory",
        "Register a region of CUDA shared memory")
        .takes(Body::AnyOrNone),
    Operation::post(KSERVE, "/v2/cudasharedmemory/unregister", "unregister_all_cuda_memory",
        "Unregister all regions of CUDA shared memory")
        .takes(Body::AnyOrNone),
    Operation::post(KSERVE, "/v2/cudasharedmemory/region/{name}/unregister", "unregister_cuda_memory",
        "Unregister a region of CUDA shared memory")
        .takes(Body::AnyOrNone),
];
