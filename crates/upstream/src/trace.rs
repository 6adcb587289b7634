//! The trace of a request: what its servers receive of it, and its spans once it is over. Owns the names of spans
//! and attributes, which are OpenTelemetry's where it has some; which requests are traced, and the way to the
//! collector, are inflight-traces'.
//!
//! The code that works on the request holds its trace. The last one to let go ends it, so that a stream's spans are
//! made when its last byte is written, and those of a client that leaves when its request is stopped.

mod spans;

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use inflight_kserve::inference::InferParameter;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_traces::{TraceContext, Tracer};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};

use self::spans::make;
use crate::metrics::RetryReason;

/// Headers, and request parameters, that carry W3C trace context; no model reads them.
const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";

/// See the module.
#[derive(Clone, Debug, Default)]
pub enum Trace {
    /// The client sent no trace context, and this gateway makes no traces.
    #[default]
    None,
    /// The request is in a trace to which this gateway adds nothing.
    Passed(Arc<TraceContext>),
    Recorded(Arc<RequestTrace>),
}

/// How a request came.
#[derive(Clone, Copy, Debug)]
pub enum EntryPoint {
    Http {
        method: &'static str,
        route: &'static str,
    },
    Grpc {
        method: &'static str,
    },
}

/// A request whose spans are made at its end.
#[derive(Debug)]
pub struct RequestTrace {
    tracer: Tracer,
    parent: Option<Arc<TraceContext>>,
    /// Of the gateway's own span.
    context: TraceContext,
    request_id: Arc<str>,
    entry: EntryPoint,
    started: Instant,
    course: Mutex<Course>,
}

/// What is known of the request so far.
#[derive(Debug, Default)]
struct Course {
    /// When its body was there and it was admitted.
    received: Option<Instant>,
    attempts: Vec<Attempt>,
    status: Option<u16>,
    /// Of gRPC.
    code: Option<i32>,
    first_output: Option<Instant>,
    generated: Option<GeneratedCounts>,
    error: Option<String>,
}

/// The request at one server.
#[derive(Debug)]
struct Attempt {
    context: TraceContext,
    method: &'static str,
    sent: Instant,
    server: Box<str>,
    /// When another server got it, and what was wrong with this one, if anything was; `None`: this is where it ended.
    left: Option<(Instant, Option<&'static str>)>,
}

impl Course {
    /// Notes that the request was sent to a server. One that refuses it and is asked again has it once, however often
    /// that is.
    fn sent(&mut self, mut attempt: Attempt, because: Option<RetryReason>) {
        let is_lost = matches!(because, None | Some(RetryReason::Unavailable));
        match self.attempts.last_mut() {
            Some(last) if last.server == attempt.server && !is_lost => {
                attempt.sent = last.sent;
                *last = attempt;
                return;
            }
            Some(last) => {
                last.left = Some((attempt.sent, because.map(|reason| reason.label())));
            }
            None => {}
        }
        self.attempts.push(attempt);
    }
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct GeneratedCounts {
    pub model: String,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: u64,
    /// `stop`, `length`, `error`, `cancelled`.
    pub end: &'static str,
}

/// A request on its way to a server: the context that it carries.
#[derive(Debug)]
pub struct OutgoingTrace {
    pub context: TraceContext,
    since: Instant,
}

impl Trace {
    /// The one that the client sent.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let parent = text(TRACE_PARENT).and_then(|it| TraceContext::parse(it, text(TRACE_STATE)));
        parent.map_or(Self::None, |parent| Self::Passed(Arc::new(parent)))
    }

    /// Records a request that arrived at `started`, if its trace is to be.
    pub fn record(
        self,
        tracer: &Tracer,
        entry: EntryPoint,
        request_id: &Arc<str>,
        started: Instant,
    ) -> Self {
        let parent = match self {
            Self::None => None,
            Self::Passed(parent) => Some(parent),
            Self::Recorded(_) => return self,
        };
        let context = tracer.begin(parent.as_deref());
        if !context.is_sampled() {
            // The first to decide decides for all, so that no trace is whole in parts.
            return Self::Passed(parent.unwrap_or_else(|| Arc::new(context)));
        }
        Self::Recorded(Arc::new(RequestTrace {
            tracer: tracer.clone(),
            parent,
            context,
            request_id: Arc::clone(request_id),
            entry,
            started,
            course: Mutex::default(),
        }))
    }

    /// The same trace for calls that it does not distinguish.
    pub fn as_parent(&self) -> Self {
        match self {
            Self::Recorded(trace) => Self::Passed(Arc::new(trace.context.clone())),
            other => other.clone(),
        }
    }

    /// What the server receives to which the request is about to be sent.
    pub fn sending(&self) -> Option<OutgoingTrace> {
        let context = match self {
            Self::None => return None,
            Self::Passed(context) => TraceContext::clone(context),
            Self::Recorded(trace) => trace.context.child(),
        };
        let since = Instant::now();
        Some(OutgoingTrace { context, since })
    }

    /// Notes that the request was sent to `server`, by KServe's `method`, `because` of what was wrong with the server before.
    pub fn sent(
        &self,
        sending: Option<OutgoingTrace>,
        method: &'static str,
        server: &str,
        because: Option<RetryReason>,
    ) {
        let (Self::Recorded(trace), Some(OutgoingTrace { context, since })) = (self, sending)
        else {
            return;
        };
        let attempt = Attempt {
            context,
            method,
            sent: since,
            server: server.into(),
            left: None,
        };
        trace.course.lock().sent(attempt, because);
    }

    /// What the server receives to which the request was sent last.
    fn current(&self) -> Option<TraceContext> {
        match self {
            Self::None => None,
            Self::Passed(context) => Some(TraceContext::clone(context)),
            Self::Recorded(trace) => {
                let course = trace.course.lock();
                let last = course.attempts.last().map(|last| &last.context);
                Some(last.unwrap_or(&trace.context).clone())
            }
        }
    }

    /// Adds it to a call's metadata.
    pub fn write(&self, metadata: &mut MetadataMap) {
        if let Some(context) = self.current() {
            write_context(&context, metadata);
        }
    }

    /// Adds it to a request's parameters: of a stream that several requests share, the metadata are nobody's.
    pub fn write_parameters(&self, parameters: &mut HashMap<String, InferParameter>) {
        for (name, choice) in self.current().iter().flat_map(context_parameters) {
            let parameter = InferParameter {
                parameter_choice: Some(choice),
            };
            parameters.insert(name.to_owned(), parameter);
        }
    }

    /// Notes that the body was there and the request admitted.
    pub fn received(&self) {
        self.note(|course| course.received = Some(Instant::now()));
    }

    /// Notes the first output, if none has come yet.
    pub fn output(&self, arrived: Instant) {
        self.note(|course| {
            course.first_output.get_or_insert(arrived);
        });
    }

    /// Notes the status of the response.
    pub fn status(&self, status: u16) {
        self.note(|course| course.status = Some(status));
    }

    /// Notes the code of a call's answer, and its failure if it is none of the client's.
    pub fn code(&self, code: tonic::Code) {
        self.note(|course| {
            course.code = Some(code.into());
            if is_failure(code) {
                course.error = Some(format!("{code:?}"));
            }
        });
    }

    /// Notes a failure behind a response's status.
    pub fn failed(&self, kind: impl FnOnce() -> String) {
        self.note(|course| course.error = Some(kind()));
    }

    /// Notes what was generated.
    pub fn generated(&self, generated: impl FnOnce() -> GeneratedCounts) {
        self.note(|course| course.generated = Some(generated()));
    }

    fn note(&self, note: impl FnOnce(&mut Course)) {
        if let Self::Recorded(trace) = self {
            note(&mut trace.course.lock());
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let course = std::mem::take(self.course.get_mut());
        let spans = make(self, course, Instant::now());
        self.tracer.export(spans);
    }
}

/// The request parameters that carry `context`.
pub fn context_parameters(
    context: &TraceContext,
) -> impl Iterator<Item = (&'static str, ParameterChoice)> {
    let state = context.state().map(str::to_owned);
    let state = state.map(|state| (TRACE_STATE, state));
    let all = [(TRACE_PARENT, context.to_string())]
        .into_iter()
        .chain(state);
    all.map(|(name, text)| (name, ParameterChoice::StringParam(text)))
}

/// Adds `context` to a call's metadata.
pub fn write_context(context: &TraceContext, metadata: &mut MetadataMap) {
    if let Ok(parent) = MetadataValue::try_from(context.to_string()) {
        metadata.insert(TRACE_PARENT, parent);
    }
    if let Some(Ok(state)) = context.state().map(MetadataValue::try_from) {
        metadata.insert(TRACE_STATE, state);
    }
}

/// Whether a code says that the server failed, as OpenTelemetry's conventions for gRPC count.
fn is_failure(code: tonic::Code) -> bool {
    use tonic::Code;
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_refuses_a_request_again_and_again_has_it_once() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent, None).unwrap();
        let mut course = Course::default();
        let [full, lost] = [RetryReason::Full, RetryReason::Unavailable];
        for (server, because) in [
            ("a:1", None),
            ("b:1", Some(lost)),
            ("b:1", Some(full)),
            ("b:1", Some(full)),
            // It was restarted.
            ("b:1", Some(lost)),
            ("c:1", Some(full)),
            // What it had on trial, it refused.
            ("c:1", Some(RetryReason::Leaving)),
        ] {
            let attempt = Attempt {
                context: context.clone(),
                method: "ModelStreamInfer",
                sent: Instant::now(),
                server: server.into(),
                left: None,
            };
            course.sent(attempt, because);
        }
        let attempts = course.attempts.iter().map(|attempt| {
            let left = attempt.left.map(|(_, reason)| reason.unwrap_or_default());
            (&*attempt.server, left)
        });
        let lost = Some(lost.label());
        let expected = [
            ("a:1", lost),
            ("b:1", lost),
            ("b:1", Some(full.label())),
            ("c:1", None),
        ];
        assert_eq!(attempts.collect::<Vec<_>>(), expected);
    }
}
