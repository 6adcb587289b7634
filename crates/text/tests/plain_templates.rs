//! Templates that are rendered in the server's own process stay within their bounds of memory and time, whatever they
//! and their conversation are: random templates of what multiplies, nests and repeats.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]
#![allow(clippy::disallowed_methods, reason = "templates take real time")]

use std::time::Instant;

use inflight_testkit::allocations::{Counting, restart, taken};
use inflight_text::{ChatTemplate, HelperCommand, TemplateInput, use_template_helper};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Many times what conversations of 16 KiB need, and harmless to a server.
const BYTES: i64 = 192 << 20;
/// In a build without optimization, on a busy machine.
const SECONDS: u64 = 20;

/// Variables that fragments share, so that they feed each other.
const NAMES: [&str; 4] = ["a", "ns.b", "ns.c", "messages[0].content"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn target() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..3])
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        name().prop_map(str::to_owned),
        Just("m".to_owned()),
        Just("m.content".to_owned()),
        Just("messages".to_owned()),
        Just("tools".to_owned()),
        Just("'<\\'\"\\\\>'".to_owned()),
        Just("loop.previtem".to_owned()),
        Just("ns.n".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        let filter = prop::sample::select(
            &[
                "string",
                "trim",
                "tojson",
                "list",
                "items",
                "first",
                "join('; ')",
                "upper",
                "dictsort",
                "reverse",
                "map(attribute='content')",
                "map(attribute='content') | join",
                "length",
                "replace('a', 'bb')",
            ][..],
        );
        let method = prop::sample::select(&["split('a')", "strip()", "items()", "upper()"][..]);
        let operator = prop::sample::select(&["~", "+", "or"][..]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            (inner.clone(), filter).prop_map(|(a, f)| format!("({a} | {f})")),
            (inner.clone(), method).prop_map(|(a, m)| format!("{a}.{m}")),
            inner.clone().prop_map(|a| format!("[{a}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            inner.clone().prop_map(|a| format!("{{'content': {a}}}")),
            inner.clone().prop_map(|a| format!("{a}[1:]")),
            inner.clone().prop_map(|a| format!("{a}[0]")),
            inner.clone().prop_map(|a| format!("f({a})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a} if {b} is string else '')")),
        ]
    })
}

fn statement() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        expression().prop_map(|e| format!("{{{{ {e} }}}}")),
        (target(), expression()).prop_map(|(t, e)| format!("{{% set {t} = {e} %}}")),
        (target(), expression()).prop_map(|(t, e)| format!("{{% set {t} = {t} ~ {e} %}}")),
        (target(), expression()).prop_map(|(t, e)| format!("{{% set {t} = {t} + [{e}] %}}")),
        Just("{% set ns.n = ns.n + 1 %}".to_owned()),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let body = prop::collection::vec(inner, 1..4).prop_map(|all| all.concat());
        prop_oneof![
            (expression(), body.clone())
                .prop_map(|(e, b)| format!("{{% for m in {e} %}}{b}{{% endfor %}}")),
            body.clone().prop_map(|b| format!("{{% for m in messages %}}{b}{{% endfor %}}")),
            (expression(), body.clone(), body.clone())
                .prop_map(|(e, a, b)| format!("{{% if {e} %}}{a}{{% else %}}{b}{{% endif %}}")),
            (target(), body.clone()).prop_map(|(t, b)| format!("{{% set a %}}{b}{{% endset %}}{{% set {t} = a %}}")),
            body.prop_map(|b| format!("{{% if m is mapping %}}{{% for k in m %}}{b}{{{{ m[k] }}}}{{% continue %}}{{% endfor %}}{{% endif %}}")),
        ]
    })
}

fn template() -> impl Strategy<Value = String> {
    let many = prop::collection::vec(statement(), 1..6).prop_map(|all| all.concat());
    let again = 1..4usize;
    (statement(), many, again).prop_map(|(inner, body, again)| {
        let inner = inner.replace("f(", "(");
        format!(
            "{{% set ns = namespace(b='', c=messages, n=0) %}}{{% set a = tools %}}\
             {{% macro f(m) %}}{inner}{{{{ m }}}}{{% endmacro %}}{}",
            body.repeat(again)
        )
    })
}

/// Conversations of the largest size that is rendered here, each hard in another way.
fn conversations() -> Vec<TemplateInput> {
    let quotes = "\"'\\\u{1}a".repeat(2_600);
    let deep = (0..24).fold(json!("a\\"), |inner, _| json!({"content": [inner]}));
    let many: Vec<Value> = (0..600).map(|_| json!({"content": "a"})).collect();
    let numbers: Vec<Value> = (0..1_000).map(|_| json!(1.5e300)).collect();
    [
        json!([{"content": quotes}]),
        json!([{"content": deep}]),
        json!(many),
        json!([{"content": numbers}]),
    ]
    .map(|messages| TemplateInput {
        tools: Some(json!([{"a": {"content": "x'"}}])),
        messages,
        ..TemplateInput::default()
    })
    .into()
}

/// Whether the template is rendered here, after every conversation was.
fn stays_within(source: &str) -> Result<bool, TestCaseError> {
    use_template_helper(HelperCommand {
        // What is not rendered here is not rendered at all.
        program: "/bin/false".to_owned(),
        arguments: Vec::new(),
    });
    let sources = vec![("default".to_owned(), source.to_owned())];
    let template = ChatTemplate::new(sources, Map::new());
    if !template.renders_at_once() {
        return Ok(false);
    }
    for input in conversations() {
        // A template that was slow once is a helper's from then on.
        if !template.renders_at_once() {
            break;
        }
        restart();
        let started = Instant::now();
        let _ = template.render(&input);
        let most = taken().most_bytes;
        prop_assert!(most < BYTES, "{} MiB for {source}", most >> 20);
        let seconds = started.elapsed().as_secs();
        prop_assert!(seconds < SECONDS, "{seconds} s for {source}");
    }
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
    ))]

    #[test]
    fn what_is_rendered_here_stays_within_its_bounds(source in template()) {
        stays_within(&source)?;
    }
}

#[test]
fn the_random_templates_are_worth_rendering() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let sources = (0..100).map(|_| template().new_tree(&mut runner).unwrap().current());
    let plain = sources.filter(|source| stays_within(source).unwrap());
    let plain = plain.count();
    assert!(
        (10..=90).contains(&plain),
        "{plain} of 100 are rendered here"
    );
}
