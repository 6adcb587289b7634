//! Guides in, verdicts out.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::*;

fn guide(kind: GuideKind, text: &str) -> Guide {
    Guide {
        kind,
        text: text.into(),
        param: "response_format",
    }
}

fn refusal(schema: &Value) -> String {
    let error = verdict(&guide(GuideKind::JsonSchema, &schema.to_string())).unwrap_err();
    assert_eq!(error.status(), 400);
    assert_eq!(error.param.as_deref(), Some("response_format"));
    assert!(error.message.len() < 1000, "{error}");
    error.message
}

#[test]
fn a_schema_that_cannot_be_followed_is_refused_at_its_keyword() {
    for (schema, pointer) in [
        (json!({"not": {"type": "string"}}), "/not"),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}),
            "/properties/a/uniqueItems",
        ),
        (
            json!({"properties": {"not": {"type": "string"}, "b/c": {"if": true, "then": true}}}),
            "/properties/b~1c/",
        ),
        (
            json!({"$ref": "#/$defs/T", "$defs": {"T": {"items": {"type": "text"}}}}),
            "/$defs/T/items/type",
        ),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "string", "format": "colour"}]}),
            "/anyOf/1/format",
        ),
        (
            json!({"properties": {"a": {"type": "string", "pattern": "("}}}),
            "/properties/a/pattern",
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "/oneOf",
        ),
    ] {
        let message = refusal(&schema);
        assert!(
            message.contains(&format!("`{pointer}")),
            "{schema}: {message}"
        );
    }
}

#[test]
fn schemas_of_the_sdks_can_be_followed() {
    for schema in [
        json!({"type": "object", "additionalProperties": true}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "title": "A"}},
               "required": ["a"], "additionalProperties": false, "title": "T"}),
        json!({"$defs": {"P": {"type": "object", "properties": {"next": {"anyOf": [
                   {"$ref": "#/$defs/P"}, {"type": "null"}]}}}}, "$ref": "#/$defs/P"}),
        json!({"oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]}),
        json!({"type": "string", "format": "date-time"}),
        json!({"enum": ["a", "b", 3, null]}),
        json!({}),
    ] {
        let verdict = verdict(&guide(GuideKind::JsonSchema, &schema.to_string()));
        assert_eq!(verdict, Ok(()), "{schema}");
    }
}

#[test]
fn regular_expressions_are_checked() {
    for text in ["[a-z]+", "(a|b\\.c)", "(\\{\\}|\\/|<|\\n|é)"] {
        assert_eq!(verdict(&guide(GuideKind::Regex, text)), Ok(()), "{text}");
    }
    for text in ["(", "a{3,1}", "(?=a)b", "[z-a]"] {
        let error = verdict(&guide(GuideKind::Regex, text)).unwrap_err();
        assert!(error.message.contains("regular expression"), "{error}");
    }
}

#[test]
fn the_schemas_of_structural_tags_are_checked() {
    let tags = |schema: Value| {
        let tags = json!({"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]});
        verdict(&guide(GuideKind::StructuralTag, &tags.to_string()))
    };
    assert_eq!(tags(json!({"type": "object"})), Ok(()));
    let message = tags(json!({"not": {}})).unwrap_err().message;
    assert!(message.contains("`/structures/0/schema/not`"), "{message}");
}

/// Each would take seconds, or a stack, where the compiler had no limits.
#[test]
fn hostile_guides_end_in_time() {
    let nested = |depth: usize| {
        let inner = json!({"type": "string"});
        (0..depth).fold(inner, |inner, _| json!({"items": inner}))
    };
    let optional: serde_json::Map<String, Value> = (0..3000)
        .map(|index| (format!("p{index}"), json!({"type": "string"})))
        .collect();
    let chain: serde_json::Map<String, Value> = (0..2000)
        .map(|index| {
            (
                format!("a{index}"),
                json!({"$ref": format!("#/$defs/a{}", index + 1)}),
            )
        })
        .collect();
    let items: serde_json::Map<String, Value> = (0..1400)
        .map(|index| {
            (
                format!("a{index}"),
                json!({"items": {"$ref": format!("#/$defs/a{}", index + 1)}}),
            )
        })
        .collect();
    let started = Instant::now();
    for schema in [
        nested(100),
        json!({"type": "object", "properties": optional}),
        json!({"$ref": "#/$defs/a0", "$defs": chain}),
        json!({"$ref": "#/$defs/a0", "$defs": items}),
        json!({"$ref": "#"}),
        json!({"minimum": "é".repeat(200)}),
        json!({"type": "string", "minLength": 1_000_000, "maxLength": 1_000_000_000}),
        json!({"type": "array", "minItems": 1_000_000_000}),
        json!({"type": "string", "pattern": "(a{1000}){1000}"}),
    ] {
        let text = schema.to_string();
        let verdict = verdict(&guide(GuideKind::JsonSchema, &text));
        if let Err(error) = verdict {
            assert!(error.message.len() < 1000, "{error}");
        }
    }
    for text in [
        "(((a{1000}){1000}){1000})",
        &"(".repeat(5000),
        &"a|".repeat(20_000),
    ] {
        let _ = verdict(&guide(GuideKind::Regex, text));
    }
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_verdict_is_remembered() {
    let guides = Guides::default();
    let bad = guide(GuideKind::JsonSchema, r#"{"not":{}}"#);
    let first = guides.check(&bad).await.unwrap_err();
    assert_eq!(guides.memory.lock().recent.len(), 1);
    assert_eq!(guides.check(&bad).await.unwrap_err(), first);
    for index in 0..3 * REMEMBERED {
        let text = format!(r#"{{"const":{index}}}"#);
        let key = key(&guide(GuideKind::JsonSchema, &text));
        guides.memory.lock().insert(key, None);
    }
    let memory = guides.memory.lock();
    assert!(memory.recent.len() <= REMEMBERED && memory.older.len() <= REMEMBERED);
}

#[test]
fn intersections_that_no_compiler_ends_are_refused_at_once() {
    let part = |index| json!({"type": "string", "pattern": format!("^(b.*[a-z]{{{index}}}.*)?$")});
    let schema = json!({"properties": {"a": {"allOf": (1..40).map(part).collect::<Vec<_>>()}}});
    assert!(refusal(&schema).contains("at most 8 may"));
    let patterns: Vec<_> = (1..40)
        .map(|index| format!("/.*[a-z]{{{index}}}.*/"))
        .collect();
    let grammar = format!("start: A\nA: {}", patterns.join(" & "));
    let problem = compile::lark_matcher(&grammar).err().unwrap();
    assert!(problem.contains("39 patterns"), "{problem}");
}
