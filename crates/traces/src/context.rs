//! W3C trace context: the headers `traceparent` and `tracestate`, read and written.

use std::fmt;

use opentelemetry::{SpanId, TraceId};

/// A longer `tracestate` may be dropped, and is.
const MAX_STATE: usize = 512;

/// Where in which trace a span is, and whether the trace is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub(crate) trace: TraceId,
    pub(crate) span: SpanId,
    flags: u8,
    /// What others keep in `tracestate`; passed on as it is.
    state: Option<Box<str>>,
}

impl TraceContext {
    /// Reads the headers' values. `None` where `parent` is none of version 00 or of a later one that begins like
    /// it, as the standard asks.
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let hex = |text: &str| {
            text.bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut fields = parent.split('-');
        let version = fields.next().filter(|it| it.len() == 2 && hex(it))?;
        let trace = fields.next().filter(|it| it.len() == 32 && hex(it))?;
        let span = fields.next().filter(|it| it.len() == 16 && hex(it))?;
        let flags = fields.next().filter(|it| it.len() == 2 && hex(it))?;
        if version == "ff" || (version == "00" && fields.next().is_some()) {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok()?;
        let span = SpanId::from_hex(span).ok()?;
        if trace == TraceId::INVALID || span == SpanId::INVALID {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self {
            trace,
            span,
            flags,
            state: state
                .filter(|state| !state.is_empty() && state.len() <= MAX_STATE)
                .map(Box::from),
        })
    }

    /// A trace that nobody has begun.
    pub fn root(is_sampled: bool) -> Self {
        Self {
            trace: TraceId::from(nonzero(rand::random::<u128>())),
            span: new_span(),
            flags: u8::from(is_sampled),
            state: None,
        }
    }

    /// A new span's context below this one.
    pub fn child(&self) -> Self {
        Self {
            span: new_span(),
            ..self.clone()
        }
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The value of `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

impl fmt::Display for TraceContext {
    /// The value of `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags)
    }
}

fn new_span() -> SpanId {
    SpanId::from(rand::random::<u64>().max(1))
}

fn nonzero(id: u128) -> u128 {
    id.max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_read_is_written() {
        let context = TraceContext::parse(PARENT, Some("vendor=1")).unwrap();
        assert_eq!(context.to_string(), PARENT);
        assert_eq!(
            (context.is_sampled(), context.state()),
            (true, Some("vendor=1"))
        );
        let child = context.child();
        assert_eq!(
            (child.trace, child.state()),
            (context.trace, Some("vendor=1"))
        );
        assert_ne!(child.span, context.span);
        let unsampled = PARENT.replace("-01", "-00");
        let unsampled = TraceContext::parse(&unsampled, Some("")).unwrap();
        assert_eq!((unsampled.is_sampled(), unsampled.state()), (false, None));
        let later = TraceContext::parse(&format!("{}-more", PARENT.replacen("00", "01", 1)), None);
        assert_eq!(later.unwrap().to_string(), PARENT);
    }

    #[test]
    fn what_is_no_context_is_left_alone() {
        for bad in [
            "",
            "00",
            &PARENT.to_uppercase(),
            &format!("{PARENT}-x"),
            &PARENT.replace('-', "_"),
            &PARENT.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        ] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad}");
        }
        let long = "a".repeat(MAX_STATE + 1);
        assert_eq!(
            TraceContext::parse(PARENT, Some(&long)).unwrap().state(),
            None
        );
    }
}
