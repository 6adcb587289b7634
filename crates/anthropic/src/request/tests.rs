use inflight_openai::GuideKind;
use inflight_openai::chat::{Role, ToolChoice};
use serde_json::{Value, json};

use super::*;

/// A request of one short message, with more fields; null takes one away.
fn body(fields: Value) -> Vec<u8> {
    let mut body = json!({"model": "m", "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body.to_string().into_bytes()
}

fn parsed(fields: Value) -> Parsed<ChatRequest> {
    parse(&body(fields)).unwrap()
}

/// The messages as a chat template sees them.
fn told(turns: Value) -> Value {
    serde_json::to_value(parsed(json!({"messages": turns})).request.messages).unwrap()
}

/// `param` and message of the refusal.
fn refused(fields: Value) -> (String, String) {
    let error = parse(&body(fields)).unwrap_err();
    assert_eq!(error.status(), 400);
    (error.param.unwrap_or_default(), error.message)
}

#[test]
fn a_plain_request_becomes_a_chat() {
    let Parsed { request, ignored } = parsed(json!({
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                   {"type": "text", "text": "Be kind."}],
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["END", "\n\n"],
        "metadata": {"user_id": "u"}, "service_tier": "auto", "tools": [],
    }));
    assert!(ignored.is_empty(), "{ignored:?}");
    let generation = &request.generation;
    assert_eq!((generation.model.as_str(), generation.n), ("m", 1));
    assert_eq!(generation.max_tokens, Some(9));
    assert!(generation.fits_context && !generation.stream);
    assert_eq!(generation.stop, ["END", "\n\n"]);
    let sampling = &generation.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (Some(0.5), Some(0.9), Some(40))
    );
    assert_eq!(request.messages[0].role, Role::System);
    assert_eq!(request.messages[0].content, "Be brief.\nBe kind.");
    assert_eq!(request.messages[1].content, "Hi");
    assert!(request.template.add_generation_prompt);
    assert!(!request.template.continue_final_message);
}

#[test]
fn turns_become_the_messages_of_a_chat() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "it"}});
    let called = json!({"role": "assistant", "content": "Looking.", "tool_calls": [
        {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}]});
    let result = |content: Value, is_error: bool| {
        json!([user("Go"),
            {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
                "content": content, "is_error": is_error}, {"type": "text", "text": "And?"}]}])
    };
    let resulted = |content: &str| {
        json!([user("Go"), called,
            {"role": "tool", "content": content, "name": "look", "tool_call_id": "toolu_1"}, user("And?")])
    };
    for (turns, expected) in [
        // Turns of one role become one.
        (json!([user("a"), user("b")]), json!([user("a\nb")])),
        (
            json!([{"role": "user", "content": [{"type": "text", "text": "a", "citations": null},
                {"type": "text", "text": "b"}]}]),
            json!([user("a\nb")]),
        ),
        (
            json!([user("a"), {"role": "system", "content": "b"}, user("c")]),
            json!([user("a"), {"role": "system", "content": "b"}, user("c")]),
        ),
        // Reasoning is what templates call it; what nobody can read is left out.
        (
            json!([user("a"), {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "b"}]}, user("c")]),
            json!([user("a"), {"role": "assistant", "content": "b", "reasoning_content": "Hm."},
                user("c")]),
        ),
        // A turn of the assistant that has not begun is the answer.
        (
            json!([user("a"), {"role": "assistant", "content": " "}]),
            json!([user("a")]),
        ),
        (result(json!("Found."), false), resulted("Found.")),
        (
            result(
                json!([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]),
                false,
            ),
            resulted("1\n2"),
        ),
        (result(json!(null), false), resulted("")),
        (result(json!("gone"), true), resulted("Error: gone")),
        (result(json!("Error 7"), true), resulted("Error 7")),
    ] {
        assert_eq!(told(turns.clone()), expected, "{turns}");
    }
}

#[test]
fn a_last_turn_of_the_assistant_is_continued() {
    let turns =
        json!([{"role": "user", "content": "So?"}, {"role": "assistant", "content": "It is"}]);
    let request = parsed(json!({"messages": turns})).request;
    assert!(request.template.continue_final_message);
    assert!(!request.template.add_generation_prompt);
    assert_eq!(request.messages[1].content, "It is");
}

#[test]
fn a_schema_guides_the_answer() {
    let schema = json!({"type": "object", "properties": {}});
    let format = json!({"type": "json_schema", "schema": schema});
    for (fields, param) in [
        (
            json!({"output_config": {"format": format}}),
            "output_config.format",
        ),
        (json!({"output_format": format}), "output_format"),
    ] {
        let request = parsed(fields).request;
        let guide = request.generation.extensions.unwrap().guide.unwrap();
        assert_eq!((guide.kind, guide.param), (GuideKind::JsonSchema, param));
        assert_eq!(serde_json::from_str::<Value>(&guide.text).unwrap(), schema);
    }
}

#[test]
fn thinking_reaches_the_template() {
    for (thinking, expected) in [
        (
            json!({"type": "enabled", "budget_tokens": 1024}),
            Some(true),
        ),
        (
            json!({"type": "adaptive", "display": "summarized"}),
            Some(true),
        ),
        (json!({"type": "disabled"}), Some(false)),
        (json!(null), None),
    ] {
        let request = parsed(json!({"thinking": thinking, "max_tokens": 2000})).request;
        assert_eq!(request.template.reasoning.thinking, expected, "{thinking}");
        assert_eq!(
            request.include_reasoning,
            expected != Some(false),
            "{thinking}"
        );
    }
}

#[test]
fn thinking_can_be_left_out_of_the_answer() {
    let thinking = json!({"type": "adaptive", "display": "omitted"});
    let request = parsed(json!({"thinking": thinking})).request;
    assert_eq!(request.template.reasoning.thinking, Some(true));
    assert!(!request.include_reasoning);
    let request = parsed(json!({"output_config": {"effort": "high"}})).request;
    assert_eq!(request.template.reasoning.effort.as_deref(), Some("high"));
}

#[test]
fn tools_are_those_of_a_chat() {
    let schema = json!({"type": "object", "properties": {"at": {"type": "string"}}});
    let tools = json!([
        {"name": "look", "description": "Looks.", "input_schema": schema, "strict": true,
            "cache_control": {"type": "ephemeral"}, "allowed_callers": ["direct"]},
        {"type": "custom", "name": "wait", "input_schema": {"type": "object"}},
    ]);
    for (choice, expected, parallel) in [
        (json!(null), ToolChoice::Auto, true),
        (json!({"type": "auto"}), ToolChoice::Auto, true),
        (
            json!({"type": "any", "disable_parallel_tool_use": true}),
            ToolChoice::Required,
            false,
        ),
        (
            json!({"type": "tool", "name": "wait"}),
            ToolChoice::Function("wait".to_owned()),
            true,
        ),
    ] {
        let Parsed { request, ignored } = parsed(json!({"tools": tools, "tool_choice": choice}));
        assert!(ignored.is_empty(), "{ignored:?}");
        let told = request.template.tools.unwrap();
        assert_eq!(
            (&told.choice, told.parallel),
            (&expected, parallel),
            "{choice}"
        );
        let [look, wait] = told.functions.as_slice() else {
            panic!("two tools");
        };
        assert_eq!((look.name.as_str(), wait.name.as_str()), ("look", "wait"));
        assert_eq!(look.description.as_deref(), Some("Looks."));
        assert!(look.strict && !wait.strict);
        assert_eq!(look.parameters, Some(schema.clone()));
    }
    for fields in [
        json!({"tools": tools, "tool_choice": {"type": "none"}}),
        json!({"tools": []}),
        json!({"tool_choice": {"type": "auto"}}),
    ] {
        assert_eq!(parsed(fields).request.template.tools, None);
    }
}

#[test]
fn what_has_no_effect_is_reported() {
    for (fields, names) in [
        (json!({"speed": "fast"}), "speed"),
        (
            json!({"context_management": {"edits": [1]}}),
            "context_management",
        ),
        (json!({"metadata": {"team": "a"}}), "metadata.team"),
        (
            json!({"tools": [{"name": "a", "input_schema": {}, "defer_loading": true}]}),
            "tools.defer_loading",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}),
            "thinking.budget_tokens",
        ),
        (json!({"tomorrow": 1}), "tomorrow"),
        (
            json!({"messages": [{"role": "user", "content": [
                {"type": "text", "text": "Hi", "tint": "red"}]}]}),
            "content.tint",
        ),
    ] {
        let ignored = parsed(fields).ignored;
        assert_eq!(ignored.header_value().as_deref(), Some(names));
    }
}

#[test]
fn mistakes_are_refused_by_the_name_of_their_field() {
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    for (fields, param, tells) in [
        (json!({"model": ""}), "model", "0"),
        (json!({"thread": {"type": "create"}}), "thread", "whole"),
        (json!({"max_tokens": null}), "max_tokens", "Missing"),
        (json!({"max_tokens": -1}), "max_tokens", "`-1`"),
        (json!({"messages": null}), "messages", "Missing"),
        (json!({"messages": []}), "messages", "empty"),
        (json!({"messages": "Hi"}), "messages", "an array"),
        (
            json!({"messages": [{"role": "tool", "content": ""}]}),
            "messages[0].role",
            "`tool`",
        ),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
            "Missing",
        ),
        (
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages[0].content",
            "an array",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": ""}]}),
            "messages",
            "no text",
        ),
        (json!({"system": {"a": 1}}), "system", "a string"),
        (
            json!({"system": [{"type": "tool_use"}]}),
            "system[0]",
            "`text`",
        ),
        (
            block(json!({"type": "image"})),
            "messages[0].content[0].source",
            "Missing",
        ),
        (
            block(json!({"type": "image", "source": {"type": "file", "file_id": "f"}})),
            "messages[0].content[0].source.type",
            "`base64`",
        ),
        (
            block(json!({"type": "image", "source": {
                "type": "base64", "media_type": "image/bmp", "data": "AA"}})),
            "messages[0].content[0].source.media_type",
            "`image/bmp`",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "image", "source": {"type": "url", "url": "https://a/b"}}]}]}),
            "messages[0].content[0]",
            "`user`",
        ),
        (
            block(json!({"type": "document", "source": {}})),
            "messages[0].content[0]",
            "`document`",
        ),
        (
            block(json!({"type": "tool_use", "id": "a", "name": "b", "input": {}})),
            "messages[0].content[0]",
            "`assistant`",
        ),
        (
            block(json!({"type": "tool_result", "tool_use_id": "a"})),
            "messages[0].content[0].tool_use_id",
            "`a`",
        ),
        (
            block(json!({"type": "text"})),
            "messages[0].content[0].text",
            "Missing",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}),
            "messages",
            "`tool_result`",
        ),
        (json!({"temperature": 1.5}), "temperature", "`1.5`"),
        (json!({"top_p": 0}), "top_p", "`0`"),
        (json!({"top_k": -1}), "top_k", "`-1`"),
        (
            json!({"stop_sequences": "END"}),
            "stop_sequences",
            "an array",
        ),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]", "`0`"),
        (
            json!({"stop_sequences": ["a", 1]}),
            "stop_sequences[1]",
            "`1`",
        ),
        (
            json!({"stop_sequences": vec!["a"; 17]}),
            "stop_sequences",
            "`17`",
        ),
        (
            json!({"metadata": {"user_id": 5}}),
            "metadata.user_id",
            "a string",
        ),
        (json!({"thinking": {"type": "on"}}), "thinking.type", "`on`"),
        (
            json!({"thinking": {"type": "enabled"}}),
            "thinking.budget_tokens",
            "Missing",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 5}}),
            "thinking.budget_tokens",
            "`5`",
        ),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}),
            "thinking.budget_tokens",
            "`max_tokens`",
        ),
        (
            json!({"output_config": {"format": {"type": "json"}}}),
            "output_config.format.type",
            "`json`",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema",
            "Missing",
        ),
        (
            json!({"output_format": {"type": "json_schema", "schema": {"type": "object"}},
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}),
            "messages",
            "`output_format`",
        ),
        (
            json!({"output_config": {"effort": "some"}}),
            "output_config.effort",
            "`some`",
        ),
        (
            json!({"thinking": {"type": "adaptive", "display": "all"}}),
            "thinking.display",
            "`all`",
        ),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "tools[0].type",
            "`web_search_20250305`",
        ),
        (
            json!({"tools": [{"input_schema": {}}]}),
            "tools[0].name",
            "Missing",
        ),
        (
            json!({"tools": [{"name": "a"}]}),
            "tools[0].input_schema",
            "Missing",
        ),
        (
            json!({"tools": [{"name": "a", "input_schema": []}]}),
            "tools[0].input_schema",
            "an object",
        ),
        (
            json!({"tools": [{"name": "a b", "input_schema": {}}]}),
            "tools[0].name",
            "`a b`",
        ),
        (
            json!({"tools": [{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}]}),
            "tools[1].name",
            "`a`",
        ),
        (json!({"tool_choice": "auto"}), "tool_choice", "an object"),
        (
            json!({"tool_choice": {"type": "some"}}),
            "tool_choice.type",
            "`some`",
        ),
        (
            json!({"tool_choice": {"type": "any"}}),
            "tool_choice",
            "`tools`",
        ),
        (
            json!({"tools": [{"name": "a", "input_schema": {}}],
                "tool_choice": {"type": "tool", "name": "b"}}),
            "tool_choice.name",
            "`b`",
        ),
        (json!({"stop": ["END"]}), "stop", "`stop_sequences`"),
        (json!({"container": "c"}), "container", "`container`"),
        (json!({"mcp_servers": [{}]}), "mcp_servers", "server"),
        (json!({"n": 2}), "n", "one message"),
        (
            json!({"stop_sequence": ["END"]}),
            "stop_sequence",
            "`stop_sequences`",
        ),
        (json!({"maxTokens": 5}), "maxTokens", "`max_tokens`"),
    ] {
        let shown = fields.to_string();
        let (at, message) = refused(fields);
        assert_eq!(at, param, "{shown}");
        assert!(message.contains(tells), "{shown}: {message}");
    }
}

#[test]
fn counting_needs_no_max_tokens() {
    let request = parse_count(&body(json!({"max_tokens": null})))
        .unwrap()
        .request;
    assert_eq!(request.generation.max_tokens, None);
    assert!(parse(&body(json!({"max_tokens": null}))).is_err());
}

#[test]
fn any_bytes_are_a_request_or_a_400() {
    let whole = body(json!({"system": "s", "thinking": {"type": "disabled"}}));
    for end in 0..whole.len() {
        assert_eq!(parse(&whole[..end]).unwrap_err().status(), 400);
    }
    for bytes in [
        &b"[]"[..],
        b"null",
        b"\xff",
        b"{\"messages\":[[]]}",
        b"{\"messages\":[{}]}",
    ] {
        assert_eq!(parse(bytes).unwrap_err().status(), 400);
    }
}

#[test]
fn images_keep_their_places_among_the_texts() {
    let read = parsed(json!({"messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "What"},
            {"type": "image", "cache_control": {"type": "ephemeral"},
             "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            {"type": "text", "text": "is this?"},
        ]},
        {"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]},
    ]}));
    assert!(read.ignored.is_empty(), "{:?}", read.ignored);
    // Turns of one role are one message.
    let [message] = read.request.messages.as_slice() else {
        panic!("not one message");
    };
    let images: Vec<(&str, &str)> = message
        .images()
        .map(|image| (image.path.as_str(), image.url.as_str()))
        .collect();
    assert_eq!(
        images,
        [
            ("messages[0].content[1]", "data:image/png;base64,AA=="),
            ("messages[1].content[0]", "https://a/b.png"),
        ]
    );
    assert_eq!(
        serde_json::to_value(message).unwrap()["content"],
        json!([
            {"type": "text", "text": "What"},
            {"type": "image"},
            {"type": "text", "text": "is this?"},
            {"type": "image"},
        ])
    );
}
