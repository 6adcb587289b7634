//! Spans of one request, made at its end.

use std::borrow::Cow;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::context::TraceContext;

/// What a span is about, seen from its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that came in.
    Server,
    /// A request that went out.
    Client,
    /// A part of the work in between.
    Internal,
}

/// One span.
#[derive(Debug)]
pub struct Span {
    pub context: TraceContext,
    pub kind: Kind,
    pub name: Cow<'static, str>,
    pub start: Instant,
    pub end: Instant,
    pub attributes: Vec<KeyValue>,
    /// Why it failed.
    pub error: Option<Cow<'static, str>>,
}

impl Span {
    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }

    /// Adds an attribute that may not be known.
    #[must_use]
    pub fn with_some(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
}

/// The spans of a request, with one view of the clock.
#[derive(Debug)]
pub struct Spans {
    now: (Instant, SystemTime),
    scope: InstrumentationScope,
    pub(crate) spans: Vec<SpanData>,
}

impl Spans {
    #[allow(
        clippy::disallowed_methods,
        reason = "this crate uses no other of the repository"
    )]
    pub(crate) fn new(scope: &InstrumentationScope) -> Self {
        Self {
            now: (tokio::time::Instant::now().into_std(), SystemTime::now()),
            scope: scope.clone(),
            spans: Vec::with_capacity(8),
        }
    }

    /// Adds a span below `parent`, which another service made if `is_remote`.
    pub fn push(&mut self, span: Span, parent: Option<&TraceContext>, is_remote: bool) {
        let Span {
            context,
            kind,
            name,
            start,
            end,
            attributes,
            error,
        } = span;
        let state = context.state().and_then(|state| state.parse().ok());
        let start_time = self.time(start);
        self.spans.push(SpanData {
            span_context: SpanContext::new(
                context.trace,
                context.span,
                TraceFlags::SAMPLED,
                false,
                state.unwrap_or(TraceState::NONE),
            ),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| parent.span),
            parent_span_is_remote: is_remote,
            span_kind: match kind {
                Kind::Server => SpanKind::Server,
                Kind::Client => SpanKind::Client,
                Kind::Internal => SpanKind::Internal,
            },
            name,
            start_time,
            // Two clocks meet here; a span never ends before it starts.
            end_time: self.time(end).max(start_time),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        });
    }

    /// Adds a part of the work on `parent`.
    pub fn push_part(
        &mut self,
        parent: &TraceContext,
        name: &'static str,
        start: Instant,
        end: Instant,
    ) {
        let span = Span {
            context: parent.child(),
            kind: Kind::Internal,
            name: name.into(),
            start,
            end,
            attributes: Vec::new(),
            error: None,
        };
        self.push(span, Some(parent), false);
    }

    fn time(&self, at: Instant) -> SystemTime {
        let (now, wall) = self.now;
        wall.checked_sub(now.saturating_duration_since(at))
            .unwrap_or(wall)
    }
}
