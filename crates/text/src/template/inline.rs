//! Rendering in the server's own process, of small conversations by templates that are proven [`plain`]. Owns
//! the bounds of one rendering and when a template is no longer rendered here.
//!
//! A helper costs a conversation two hand-overs and a thread that waits; a plain template takes some tens of
//! microseconds. A rendering here ends after [`FUEL`] steps over values that the proof bounds, so within seconds
//! whatever the template. After one that takes [`SLOW`] by the clock, the next is measured by what its thread computed,
//! for which the kernel is asked; if that takes as long, it is the last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::engine::Engine;
use super::large_stack::on_large_stack;
use super::{INLINE_BYTES, Sources, TemplateError, TemplateInput, TemplateLimits, plain, source};

/// Steps: those of a hundred messages. More are left to a helper.
pub(super) const FUEL: u64 = 20_000;
/// Bytes of a rendered text: eight times the input, and as much of the template's own.
const OUTPUT_BYTES: usize = 16 * INLINE_BYTES;
/// CPU time: many times what an honest template takes.
const SLOW: Duration = Duration::from_millis(50);

pub(super) struct Inline {
    engine: Engine,
    /// Whether the last one took long, and perhaps only because the machine was busy.
    is_suspect: AtomicBool,
    is_slow: AtomicBool,
}

impl Inline {
    /// `None`: some template is not proven plain.
    pub(super) fn new(sources: &Sources) -> Option<Self> {
        let mut sources = sources.clone();
        let adapted = sources
            .templates
            .iter()
            .map(|(_, text)| source::adapt(text));
        let mut adapted = adapted.map(|text| plain::is_plain(&text));
        // They come with the model, too, and are as much an input as the conversation.
        let mut left = INLINE_BYTES;
        let tokens = &sources.special_tokens;
        if !tokens.values().all(|token| take(token, &mut left, 0)) {
            return None;
        }
        if sources.templates.is_empty() || !adapted.all(|is_plain| is_plain) {
            return None;
        }
        sources.limits = TemplateLimits {
            fuel: sources.limits.fuel.min(FUEL),
            output_bytes: sources.limits.output_bytes.min(OUTPUT_BYTES),
            ..sources.limits
        };
        let engine = Engine::new(sources);
        on_large_stack(|| engine.compile())?;
        Some(Self {
            engine,
            is_suspect: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
        })
    }

    /// Whether small conversations are rendered here.
    pub(super) fn is_used(&self) -> bool {
        !self.is_slow.load(Ordering::Relaxed)
    }

    /// Renders a small conversation; `None`: it is a helper's.
    pub(super) fn render(&self, input: &TemplateInput) -> Option<Result<String, TemplateError>> {
        if !self.is_used() || !is_small(input) {
            return None;
        }
        let limit = SLOW.min(self.engine.sources().limits.cpu_time);
        let computed = self.is_suspect.load(Ordering::Relaxed).then(cpu_time);
        #[expect(clippy::disallowed_methods, reason = "what is limited is real time")]
        let started = Instant::now();
        let rendered = self.engine.render(input);
        if started.elapsed() >= limit {
            let is_slow = computed.is_some_and(|before| cpu_time().saturating_sub(before) >= limit);
            self.is_slow.store(is_slow, Ordering::Relaxed);
            self.is_suspect.store(!is_slow, Ordering::Relaxed);
        }
        match rendered {
            Err(error) if error.is_limit() => None,
            rendered => Some(rendered),
        }
    }
}

/// What this thread has computed so far. A busy machine may have others compute meanwhile.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time outlives the call. It only fails for clocks that are not there.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn is_small(input: &TemplateInput) -> bool {
    let mut left = INLINE_BYTES;
    let mut fits = |value: &Value| take(value, &mut left, 0);
    fits(&input.messages)
        && input.tools.as_ref().is_none_or(&mut fits)
        && input.extra.values().all(fits)
}

/// Takes the bytes of a value from what is left; false: it has more, or nests deeply.
fn take(value: &Value, left: &mut usize, depth: usize) -> bool {
    const DEPTH: usize = 32;
    /// Of a number, a bracket or a comma.
    const ROUGHLY: usize = 8;
    let own = match value {
        Value::String(text) => text.len(),
        Value::Object(fields) => fields.keys().map(String::len).sum(),
        _ => 0,
    };
    let Some(rest) = left.checked_sub(own + ROUGHLY) else {
        return false;
    };
    *left = rest;
    depth < DEPTH
        && match value {
            Value::Array(items) => items.iter().all(|item| take(item, left, depth + 1)),
            Value::Object(fields) => fields.values().all(|field| take(field, left, depth + 1)),
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn inline(source: &str) -> Inline {
        let sources = Sources {
            templates: vec![("default".to_owned(), source.to_owned())],
            special_tokens: Map::new(),
            limits: TemplateLimits::default(),
        };
        Inline::new(&sources).unwrap()
    }

    fn input(messages: Value) -> TemplateInput {
        TemplateInput {
            messages,
            ..TemplateInput::default()
        }
    }

    #[test]
    fn what_is_large_or_long_is_left_to_a_helper() {
        let template = inline("{% for m in messages %}{{ m.content }};{% endfor %}");
        let text = template.render(&input(json!([{"content": "a"}, {"content": "b"}])));
        assert_eq!(text.unwrap().unwrap(), "a;b;");
        let large = json!([{"content": "x".repeat(INLINE_BYTES)}]);
        assert!(template.render(&input(large)).is_none());
        let deep = (0..64).fold(json!("a"), |inner, _| json!([inner]));
        assert!(
            template
                .render(&input(json!([{"content": deep}])))
                .is_none()
        );
        let pairs = inline(
            "{% for a in messages %}{% for b in messages %}{{ a.content in b.content }}{% endfor %}{% endfor %}",
        );
        let many = vec![json!({"content": "x"}); 400];
        assert!(pairs.render(&input(Value::Array(many))).is_none());
        assert!(pairs.is_used(), "a short one may come next");
    }

    #[test]
    fn special_tokens_are_as_small_as_a_conversation() {
        for (bytes, is_inline) in [(10, true), (INLINE_BYTES, false)] {
            let tokens = json!({"bos_token": "x".repeat(bytes)});
            let sources = Sources {
                templates: vec![("default".to_owned(), "{{ bos_token }}".to_owned())],
                special_tokens: tokens.as_object().unwrap().clone(),
                limits: TemplateLimits::default(),
            };
            assert_eq!(Inline::new(&sources).is_some(), is_inline);
        }
    }

    #[test]
    fn errors_of_the_conversation_are_the_same_as_a_helper_s() {
        let template = inline("{{ raise_exception('only ' + messages[0].role) }}");
        let refused = template.render(&input(json!([{"role": "user"}]))).unwrap();
        assert!(
            matches!(refused, Err(TemplateError::Raised { message }) if message == "only user")
        );
    }
}
