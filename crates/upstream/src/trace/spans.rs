//! The spans of a request that is over. Pure but for the ids of the spans that it makes.

use inflight_traces::{Array, Kind, Span, Spans, StringValue, Value};
use tokio::time::Instant;

use super::{Attempt, Course, EntryPoint, GeneratedCounts, RequestTrace};

/// KServe's service, as calls name it.
const SERVICE: &str = "inference.GRPCInferenceService";

/// The gateway's own span and its parts: receiving the body, preparing the request, and each server that had it.
pub(super) fn make(trace: &RequestTrace, course: Course, end: Instant) -> Spans {
    let mut spans = trace.tracer.spans();
    let context = &trace.context;
    let sent = course.attempts.first().map(|first| first.sent);
    if let Some(received) = course.received {
        let (started, received) = (trace.started.into_std(), received.into_std());
        spans.push_part(context, "receive", started, received);
        // Where nothing was sent, preparing is what failed.
        let sent = sent.unwrap_or(end).into_std();
        spans.push_part(context, "prepare", received, sent);
    }
    // A status of 4xx is the client's fault, as OpenTelemetry's conventions for HTTP count.
    let failed = course.status.filter(|status| *status >= 500);
    let error = course.error.clone();
    let error = error.or_else(|| failed.map(|status| status.to_string()));
    for attempt in &course.attempts {
        let span = at_server(attempt, end, error.as_deref());
        spans.push(span, Some(context), false);
    }
    let whole = whole(trace, course, error, end);
    let parent = trace.parent.as_deref();
    spans.push(whole, parent, parent.is_some());
    spans
}

fn at_server(attempt: &Attempt, end: Instant, error: Option<&str>) -> Span {
    let (end, error) = match attempt.left {
        Some((at, reason)) => (at, reason),
        None => (end, error),
    };
    let (host, port) = match attempt.server.rsplit_once(':') {
        Some((host, port)) => (host, port.parse::<i64>().ok()),
        None => (&*attempt.server, None),
    };
    let span = Span {
        context: attempt.context.clone(),
        kind: Kind::Client,
        name: format!("{SERVICE}/{}", attempt.method).into(),
        start: attempt.sent.into_std(),
        end: end.into_std(),
        attributes: Vec::with_capacity(6),
        error: error.map(|error| error.to_owned().into()),
    };
    span.with("rpc.system", "grpc")
        .with("rpc.service", SERVICE)
        .with("rpc.method", attempt.method)
        .with("server.address", host.to_owned())
        .with_some("server.port", port)
        .with_some("error.type", error.map(str::to_owned))
}

fn whole(trace: &RequestTrace, course: Course, error: Option<String>, end: Instant) -> Span {
    let Course {
        attempts,
        status,
        code,
        first_output,
        generated,
        ..
    } = course;
    let name = match trace.entry {
        EntryPoint::Http { method, route } => format!("{method} {route}"),
        EntryPoint::Grpc { method } => format!("{SERVICE}/{method}"),
    };
    let cancelled = matches!(&generated, Some(it) if it.end == "cancelled").then_some("cancelled");
    let kind = error.clone().or_else(|| cancelled.map(str::to_owned));
    let span = Span {
        context: trace.context.clone(),
        kind: Kind::Server,
        name: name.into(),
        start: trace.started.into_std(),
        end: end.into_std(),
        attributes: Vec::with_capacity(16),
        error: error.map(Into::into),
    };
    let span = match trace.entry {
        EntryPoint::Http { method, route } => span
            .with("http.request.method", method)
            .with("http.route", route)
            .with_some("http.response.status_code", status.map(i64::from)),
        EntryPoint::Grpc { method } => span
            .with("rpc.system", "grpc")
            .with("rpc.service", SERVICE)
            .with("rpc.method", method)
            .with_some("rpc.grpc.status_code", code.map(i64::from)),
    };
    let waited = first_output.map(|first| (first - trace.started).as_secs_f64());
    let resent = attempts.len().saturating_sub(1) as i64;
    let span = span
        .with("gen_ai.request.id", trace.request_id.to_string())
        .with_some("gen_ai.operation.name", operation(trace.entry))
        .with_some("gen_ai.latency.time_to_first_token", waited)
        .with_some("inflight.retries", Some(resent).filter(|count| *count > 0))
        .with_some("error.type", kind);
    let Some(generated) = generated else {
        return span;
    };
    let GeneratedCounts {
        model,
        prompt_tokens,
        completion_tokens,
        end,
    } = generated;
    let reason = matches!(end, "stop" | "length").then(|| StringValue::from(end));
    span.with("gen_ai.provider.name", "inflight")
        .with("gen_ai.request.model", model.clone())
        .with("gen_ai.response.model", model)
        .with_some("gen_ai.usage.input_tokens", prompt_tokens.map(count))
        .with("gen_ai.usage.output_tokens", count(completion_tokens))
        .with_some(
            "gen_ai.response.finish_reasons",
            reason.map(|reason| Value::Array(Array::String(vec![reason]))),
        )
}

fn count(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// OpenTelemetry's word for what a route does.
fn operation(entry: EntryPoint) -> Option<&'static str> {
    match entry {
        EntryPoint::Http { route, .. } => match route {
            "/v1/chat/completions" | "/v1/messages" | "/v1/responses" => Some("chat"),
            "/v1/completions" => Some("text_completion"),
            "/v1/embeddings" => Some("embeddings"),
            _ => None,
        },
        EntryPoint::Grpc { .. } => None,
    }
}
