use inflight_parsers::{AnswerParser, Delta, Deltas, Format, ParserOptions, Tools};
use proptest::strategy::{Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::*;

const FORMATS: [ToolFormat; 3] = [
    ToolFormat::Qwen3Coder,
    ToolFormat::Glm45,
    ToolFormat::Pythonic,
];

fn function(name: &str, schema: Value) -> FunctionTool {
    FunctionTool::checked(
        ("t", "parameters"),
        name.to_owned(),
        None,
        Some(schema),
        true,
    )
    .unwrap()
}

/// The only call in a text, if it is complete and nothing else is there.
fn call(format: ToolFormat, functions: &[FunctionTool], text: &str) -> Option<(String, Value)> {
    let known = functions.iter();
    let known = known.map(|function| (function.name.as_str(), function.parameters.as_ref()));
    let format = Format {
        tools: Some(format),
        reasoning: None,
    };
    let options = ParserOptions {
        tools: Some(Tools::new(known).into()),
        ..ParserOptions::default()
    };
    let mut parser = AnswerParser::new(format, options);
    let mut deltas = Deltas::default();
    parser.push(text, &mut deltas);
    parser.finish(&mut deltas);
    let (mut called, mut arguments, mut ends) = (None, String::new(), 0);
    for delta in deltas.iter() {
        match delta {
            Delta::CallBegin { name, .. } if called.is_none() => called = Some(name.to_owned()),
            Delta::CallArguments { json, .. } => arguments.push_str(json),
            Delta::CallEnd {
                is_complete: true, ..
            } => ends += 1,
            _ => return None,
        }
    }
    (ends == 1).then_some(())?;
    Some((called?, serde_json::from_str(&arguments).ok()?))
}

fn schemas() -> Vec<Value> {
    let object = |properties: Value, required: Value| {
        json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false})
    };
    vec![
        object(json!({}), json!([])),
        object(json!({"city": {"type": "string"}}), json!(["city"])),
        object(
            json!({"a": {"type": "string", "maxLength": 5}, "b": {"type": "string"}}),
            json!([]),
        ),
        object(
            json!({
                "n": {"type": "integer"}, "x": {"type": "number"}, "is": {"type": "boolean"},
                "nothing": {"type": "null"}, "unit": {"enum": ["c", "f (old)"]}, "one": {"const": 1},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            }),
            json!(["x", "unit"]),
        ),
        object(
            json!({
                "list": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
                "any": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/P"}]}},
                "point": {"$ref": "#/$defs/P"},
            }),
            json!(["list", "point"]),
        ),
    ]
    .into_iter()
    .map(|mut schema| {
        schema["$defs"] = json!({"P": {"type": "object", "title": "P", "required": ["y"],
            "properties": {"x": {"type": "number"}, "y": {"type": "integer"}, "q\"": {"type": "string"}}}});
        schema
    })
    .collect()
}

#[test]
fn what_an_expression_matches_is_a_call_that_fits_its_schema() {
    let mut runner = TestRunner::deterministic();
    for (format, schema) in FORMATS
        .into_iter()
        .flat_map(|format| schemas().into_iter().map(move |schema| (format, schema)))
    {
        let functions = [
            function("get-it", schema),
            function("other", json!({"type": "object"})),
        ];
        let written = written(format).unwrap();
        let pattern = written.calls(&functions).unwrap();
        let texts = string_regex(&pattern).unwrap();
        for _ in 0..200 {
            let matched = texts.new_tree(&mut runner).unwrap().current();
            let text = format!("{}{matched}{}", written.begin, written.end);
            let (name, arguments) =
                call(format, &functions, &text).unwrap_or_else(|| panic!("{format}: {text:?}"));
            let called = functions
                .iter()
                .find(|function| function.name == name)
                .unwrap();
            let schema = called.schema();
            let valid = jsonschema::validator_for(&schema).unwrap();
            assert!(
                valid.is_valid(&arguments),
                "{format}: {text:?}: {arguments}"
            );
        }
    }
}

#[test]
fn a_text_may_hold_all_but_what_ends_it() {
    let pattern = format!("^(?:{})$", without("</parameter>"));
    let expression = jsonschema::validator_for(&json!({"pattern": pattern})).unwrap();
    for text in [
        "",
        "a < b && b </ c",
        "<p>x</p></param",
        "<</parameter",
        "</parameters>",
        "x\n<parameter=y>\n",
    ] {
        assert!(expression.is_valid(&json!(text)), "{text}");
    }
    for text in ["</parameter>", "a<</parameter>b", "</parame</parameter>"] {
        assert!(!expression.is_valid(&json!(text)), "{text}");
    }
}

#[test]
fn a_schema_that_says_more_is_not_guided() {
    for property in [
        json!({"type": "string", "pattern": "a+"}),
        json!({"type": "string", "minLength": 1}),
        json!({"type": "integer", "minimum": 3}),
        json!({"type": "array"}),
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}], "not": {"const": 1}}),
        json!({"enum": [{"a": 1}]}),
        json!({"$ref": "#"}),
        json!({"$ref": "#/properties/p"}),
        json!({}),
        json!(true),
    ] {
        let schema = json!({"type": "object", "properties": {"p": property}, "required": ["p"]});
        for format in FORMATS {
            let functions = [function("f", schema.clone())];
            assert_eq!(
                written(format).unwrap().calls(&functions),
                None,
                "{format}: {schema}"
            );
        }
    }
    // These are ambiguous as bare text alone.
    for property in [
        json!({"enum": ["a", 1]}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
    ] {
        let functions = [function("f", json!({"properties": {"p": property}}))];
        assert_eq!(
            written(ToolFormat::Qwen3Coder).unwrap().calls(&functions),
            None
        );
        assert!(
            written(ToolFormat::Pythonic)
                .unwrap()
                .calls(&functions)
                .is_some()
        );
    }
    for schema in [
        json!({"type": "object", "properties": {"a b": {"type": "string"}}}),
        json!({"type": "object", "required": ["gone"]}),
        json!({"type": "object", "minProperties": 1}),
    ] {
        for format in FORMATS {
            let functions = [function("f", schema.clone())];
            assert_eq!(
                written(format).unwrap().calls(&functions),
                None,
                "{format}: {schema}"
            );
        }
    }
}
