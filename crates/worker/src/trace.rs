//! Spans of the worker's requests: one for the request, and below it what its time went into. Owns their names and
//! attributes, which are OpenTelemetry's where it has some; the way to a collector is inflight-traces'.
//!
//! Which requests are traced is [`settings`]'.
//!
//! Whatever becomes of a request holds its trace; the last one to let go ends it.

pub(crate) mod settings;

use std::sync::Arc;
use std::time::Instant;

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{InferParameter, ModelInferRequest};
use inflight_kserve::step::FinishReason;
use inflight_traces::{Array, Kind, Span, StringValue, TraceContext, Tracer, Value};
use parking_lot::Mutex;
use tonic::Code;
use tonic::codegen::http::HeaderMap;

use self::settings::{Effective, Settings, TraceSettings, Turn};

/// Characters of a client's text that a span keeps.
const MAX_TEXT: usize = 256;

/// Request parameters, and headers, that carry W3C trace context.
const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";
/// KServe's service, as calls name it.
const SERVICE: &str = "inference.GRPCInferenceService";

/// What traces requests.
#[derive(Debug)]
pub(crate) struct Tracing {
    tracer: Tracer,
    endpoint: String,
    settings: Mutex<Settings>,
}

/// A request whose spans are made at its end.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    tracer: Tracer,
    parent: Option<TraceContext>,
    context: TraceContext,
    model: String,
    request_id: String,
    method: &'static str,
    started: Instant,
    course: Mutex<Course>,
}

/// What is known of the request so far; times are those of its first row of a batch, and its last one's end.
#[derive(Debug, Default)]
struct Course {
    submitted: Option<Instant>,
    handed_over: Option<Instant>,
    first_row: Option<Instant>,
    ended: Option<Instant>,
    prompt_tokens: i64,
    output_tokens: i64,
    finish_reasons: Vec<&'static str>,
    error: Option<String>,
}

/// One executor request that is over.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) received: Instant,
    pub(crate) handed_over: Option<Instant>,
    pub(crate) first_row: Option<Instant>,
    pub(crate) ended: Instant,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) finish_reason: u8,
    pub(crate) error: Option<Code>,
}

/// The trace context of a call that has some.
pub(crate) fn context_of(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::parse(text(TRACE_PARENT)?, text(TRACE_STATE))
}

/// A client's text, bounded: spans wait for the collector.
fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// That of one request, which a gateway sends with the tensors.
fn context_in(message: &ModelInferRequest) -> Option<TraceContext> {
    let text = |name| match message.parameters.get(name) {
        Some(InferParameter {
            parameter_choice: Some(ParameterChoice::StringParam(text)),
        }) => Some(text.as_str()),
        _ => None,
    };
    TraceContext::parse(text(TRACE_PARENT)?, text(TRACE_STATE))
}

impl Tracing {
    /// Exports to `endpoint`, by the default settings.
    pub(crate) fn new(tracer: Tracer, endpoint: String) -> Self {
        Self {
            tracer,
            endpoint,
            settings: Mutex::default(),
        }
    }

    /// Where traces go.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The share of the worker's options.
    pub(crate) fn ratio(&self) -> f64 {
        self.tracer.ratio()
    }

    /// Changes the settings of `model`, or of all where the name is empty; returns what holds then. What `change`
    /// leaves as it was counts on.
    ///
    /// # Errors
    /// What `change` returns.
    pub(crate) fn change<E>(
        &self,
        model: &str,
        change: impl FnOnce(TraceSettings) -> Result<TraceSettings, E>,
    ) -> Result<Effective, E> {
        let mut settings = self.settings.lock();
        let asked = settings.asked(model);
        let wanted = change(asked.clone())?;
        if wanted != asked {
            settings.set(model, wanted);
        }
        Ok(settings.effective(model))
    }

    /// The context of a request's own span, if it is to be traced.
    fn context(&self, model: &str, parent: Option<&TraceContext>) -> Option<TraceContext> {
        let mut settings = self.settings.lock();
        if let Some(parent) = parent {
            let is_traced = parent.is_sampled() && settings.is_on(model);
            return is_traced.then(|| parent.child());
        }
        let is_traced = match settings.turn(model) {
            Turn::No => false,
            Turn::Yes => true,
            Turn::Drawn => self.tracer.draws(),
        };
        is_traced.then(|| {
            settings.traced(model);
            TraceContext::root(true)
        })
    }

    /// The trace of a request that has just come, if it is to be traced. `call` is the context of the call that
    /// brought it.
    pub(crate) fn begin(
        &self,
        message: &ModelInferRequest,
        method: &'static str,
        call: Option<&TraceContext>,
    ) -> Option<Arc<RequestTrace>> {
        let parent = context_in(message).or_else(|| call.cloned());
        let context = self.context(&message.model_name, parent.as_ref())?;
        Some(Arc::new(RequestTrace {
            tracer: self.tracer.clone(),
            parent,
            context,
            model: shortened(&message.model_name),
            request_id: shortened(&message.id),
            method,
            started: Instant::now(),
            course: Mutex::default(),
        }))
    }
}

impl RequestTrace {
    /// Notes that a part of it is over.
    pub(crate) fn ended(&self, part: &Part) {
        let mut course = self.course.lock();
        let course = &mut *course;
        let first = |slot: &mut Option<Instant>, time: Option<Instant>| {
            *slot = [*slot, time].into_iter().flatten().min();
        };
        first(&mut course.submitted, Some(part.received));
        first(&mut course.handed_over, part.handed_over);
        first(&mut course.first_row, part.first_row);
        course.ended = course.ended.max(Some(part.ended));
        course.prompt_tokens += i64::from(part.prompt_tokens);
        course.output_tokens += i64::from(part.output_tokens);
        course.finish_reasons.push(reason(part.finish_reason));
        if let Some(code) = part.error {
            course.error = Some(format!("{code:?}"));
        }
    }

    /// Notes that it was refused or failed.
    pub(crate) fn failed(&self, code: Code) {
        self.course.lock().error = Some(format!("{code:?}"));
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let course = std::mem::take(self.course.get_mut());
        let now = Instant::now();
        let end = course.ended.unwrap_or(now);
        let mut spans = self.tracer.spans();
        let parts = [
            ("tokenize", Some(self.started), course.submitted),
            ("queue", course.submitted, course.handed_over),
            ("prefill", course.handed_over, course.first_row),
            ("decode", course.first_row, course.ended),
        ];
        for (name, from, to) in parts {
            if let (Some(from), Some(to)) = (from, to) {
                spans.push_part(&self.context, name, from, to);
            }
        }
        let reasons = course.finish_reasons.iter().copied();
        let reasons: Vec<StringValue> = reasons.map(StringValue::from).collect();
        let reasons = (!reasons.is_empty()).then_some(Value::Array(Array::String(reasons)));
        let seconds = |to: Option<Instant>, from: Instant| {
            to.map(|to| to.saturating_duration_since(from).as_secs_f64())
        };
        let submitted = course.submitted.unwrap_or(self.started);
        let span = Span {
            context: self.context.clone(),
            kind: Kind::Server,
            name: format!("{SERVICE}/{}", self.method).into(),
            start: self.started,
            end,
            attributes: Vec::with_capacity(12),
            // What is wrong with a request is its client's fault.
            error: course
                .error
                .clone()
                .filter(|code| code != "InvalidArgument")
                .map(Into::into),
        };
        let id = Some(self.request_id.clone()).filter(|id| !id.is_empty());
        let span = span
            .with("rpc.system", "grpc")
            .with("rpc.service", SERVICE)
            .with("rpc.method", self.method)
            .with("gen_ai.provider.name", "inflight")
            .with("gen_ai.request.model", self.model.clone())
            .with_some("gen_ai.request.id", id)
            .with("gen_ai.usage.input_tokens", course.prompt_tokens)
            .with("gen_ai.usage.output_tokens", course.output_tokens)
            .with_some("gen_ai.response.finish_reasons", reasons)
            .with_some(
                "gen_ai.latency.time_in_queue",
                seconds(course.handed_over, submitted),
            )
            .with_some(
                "gen_ai.latency.time_to_first_token",
                seconds(course.first_row, self.started),
            )
            .with_some("error.type", course.error);
        spans.push(span, self.parent.as_ref(), self.parent.is_some());
        self.tracer.export(spans);
    }
}

/// A share of all requests as Triton's rate: one of so many.
pub(crate) fn share_as_rate(share: f64) -> u32 {
    // A share of 0 is not a rate; the largest says that none are expected.
    (1.0 / share).round() as u32
}

fn reason(number: u8) -> &'static str {
    match FinishReason::from_number(number) {
        Some(FinishReason::EndId | FinishReason::StopWords) => "stop",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::TimedOut) => "timeout",
        Some(FinishReason::Cancelled) => "cancelled",
        Some(FinishReason::NotFinished) | None => "error",
    }
}
