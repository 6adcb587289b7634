//! Which requests are traced, and where their spans go.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter as OtlpExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter;
use tokio::sync::{mpsc, oneshot};

use crate::context::TraceContext;
use crate::export::{self, EXPORT_TIMEOUT, Message, OnDropped, WAITING};
use crate::options::TraceOptions;
use crate::span::Spans;

/// Variables of OpenTelemetry that may ask for a protocol.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("traces cannot be exported to `{endpoint}`")]
    Exporter {
        endpoint: String,
        #[source]
        source: ExporterBuildError,
    },
    #[error("the operating system refused to start the thread that exports traces")]
    Thread(#[source] std::io::Error),
}

/// Decides and exports; as cheap to clone as a pointer.
#[derive(Clone)]
pub struct Tracer {
    shared: Arc<Shared>,
}

struct Shared {
    messages: mpsc::Sender<Message>,
    ratio: f64,
    scope: InstrumentationScope,
    on_dropped: OnDropped,
}

/// Sends what is left at the end of a process.
#[derive(Debug)]
pub struct Flush {
    messages: mpsc::Sender<Message>,
}

impl Tracer {
    /// Starts the thread that exports. The collector need not be there: it is connected when there are spans.
    /// `on_dropped` receives how many spans were dropped, because nobody took them.
    ///
    /// # Errors
    /// The endpoint, or one of OpenTelemetry's variables, is invalid.
    #[allow(
        clippy::disallowed_methods,
        reason = "this crate uses no other of the repository"
    )]
    pub fn start(
        options: &TraceOptions,
        on_dropped: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(Self, Flush), TraceError> {
        warn_of_protocol();
        let (messages, received) = mpsc::channel(WAITING);
        let on_dropped: OnDropped = Arc::new(on_dropped);
        let endpoint = options.endpoint.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(TraceError::Thread)?;
        let exporter = {
            // The exporter's connection lives in this runtime, away from those that serve requests.
            let _inside = runtime.enter();
            let exporter = OtlpExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint.clone())
                .with_timeout(EXPORT_TIMEOUT)
                .build();
            let mut exporter = exporter.map_err(|source| TraceError::Exporter {
                endpoint: endpoint.clone(),
                source,
            })?;
            exporter.set_resource(&resource(options.service));
            exporter
        };
        let dropped = Arc::clone(&on_dropped);
        std::thread::Builder::new()
            .name("inflight traces".to_owned())
            .spawn(move || runtime.block_on(export::run(exporter, received, endpoint, dropped)))
            .map_err(TraceError::Thread)?;
        let scope = InstrumentationScope::builder("inflight")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let flush = Flush {
            messages: messages.clone(),
        };
        let shared = Arc::new(Shared {
            messages,
            ratio: options.ratio,
            scope,
            on_dropped,
        });
        Ok((Self { shared }, flush))
    }

    /// The context of a request's own span: below the client's if it sent one, which then decides whether the
    /// request is traced.
    pub fn begin(&self, parent: Option<&TraceContext>) -> TraceContext {
        match parent {
            Some(parent) => parent.child(),
            None => TraceContext::root(self.draws()),
        }
    }

    /// The share of requests that are traced, of those whose client does not say.
    pub fn ratio(&self) -> f64 {
        self.shared.ratio
    }

    /// Whether a request is traced whose client does not say.
    pub fn draws(&self) -> bool {
        let ratio = self.shared.ratio;
        ratio >= 1.0 || rand::random::<f64>() < ratio
    }

    /// Spans to be filled in and exported.
    pub fn spans(&self) -> Spans {
        Spans::new(&self.shared.scope)
    }

    /// Exports spans, soon; where too many wait already, they are dropped.
    pub fn export(&self, spans: Spans) {
        let count = spans.spans.len() as u64;
        let sent = self.shared.messages.try_send(Message::Spans(spans.spans));
        if sent.is_err() {
            (self.shared.on_dropped)(count);
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("ratio", &self.shared.ratio)
            .finish_non_exhaustive()
    }
}

impl Flush {
    /// Sends what has gathered, within `limit`; returns whether it is gone.
    pub async fn within(self, limit: Duration) -> bool {
        let flushed = async {
            let (done, is_done) = oneshot::channel();
            self.messages.send(Message::Flush(done)).await.is_ok() && is_done.await.is_ok()
        };
        tokio::time::timeout(limit, flushed).await.unwrap_or(false)
    }
}

/// The service that the spans are from. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over what is given.
fn resource(service: &'static str) -> Resource {
    let named = |resource: &Resource| {
        let name = resource.get(&opentelemetry::Key::from_static_str("service.name"));
        name.is_some_and(|name| {
            !name.as_str().is_empty() && !name.as_str().starts_with("unknown_service")
        })
    };
    let found = Resource::builder().build();
    let builder = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    match named(&found) {
        true => builder.build(),
        false => builder.with_service_name(service).build(),
    }
}

fn warn_of_protocol() {
    for name in PROTOCOLS {
        if let Ok(protocol) = std::env::var(name)
            && !matches!(protocol.as_str(), "" | "grpc")
        {
            tracing::warn!("`{name}` is `{protocol}`, but traces are exported only over gRPC");
        }
    }
}
