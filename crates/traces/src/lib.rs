//! OpenTelemetry traces: W3C trace context, which requests are traced, spans, and their way to a collector.
//!
//! Owns what the gateway and the worker have in common. A span is made once, when what it is about is over, from
//! times that are known by then; the code that makes it does not wait. Knows nothing of requests.

mod context;
mod export;
mod options;
mod span;
mod tracer;

pub use context::TraceContext;
pub use opentelemetry::{Array, KeyValue, StringValue, Value};
pub use options::{
    DEFAULT_RATIO, ENDPOINT_VARIABLE, InvalidEndpoint, RATIO_VARIABLE, Replaced, TraceOptions,
    endpoint, ratio, replaced,
};
pub use span::{Kind, Span, Spans};
pub use tracer::{Flush, TraceError, Tracer};
