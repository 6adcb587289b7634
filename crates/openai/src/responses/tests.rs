use bytes::BytesMut;
use serde_json::{Value, json};

use super::*;
use crate::chat::{InputFormat, Role, ToolChoice};
use crate::error::ApiError;
use crate::logprobs::TokenLogprob;
use crate::whole::{FinishReason, Usage};
use crate::{ListQuery, PageLimit};

const ITEMS: PageLimit = PageLimit {
    usual: 20,
    most: 100,
};

fn parse_value(body: &Value) -> Result<crate::Parsed<ResponseRequest>, ApiError> {
    parse(body.to_string().as_bytes())
}

fn request(fields: Value) -> Value {
    let mut body = json!({"model": "m", "input": "Hi"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The messages of a request as a template sees them.
fn messages_of(fields: Value) -> Value {
    let request = parse_value(&request(fields)).unwrap().request;
    let items: Vec<Item> = request.input.iter().map(own).collect();
    let chat = request.chat([].iter(), &items).unwrap();
    serde_json::to_value(&chat.messages).unwrap()
}

fn own(item: &InputItem) -> Item {
    match item {
        InputItem::Item(item) => item.clone(),
        InputItem::Reference { id, .. } => panic!("{id}"),
    }
}

#[test]
fn items_become_the_turns_of_a_chat() {
    let system = |text: &str| json!({"role": "system", "content": text});
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
    let called = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\":1}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "2"});
    let said = |text: &str| {
        json!({"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
            "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]})
    };
    let thought = |text: &str| {
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
            "content": [{"type": "reasoning_text", "text": text}]})
    };
    for (fields, expected) in [
        (json!({"input": "Hi"}), json!([user("Hi")])),
        (
            json!({"instructions": "Be brief.", "input": "Hi"}),
            json!([system("Be brief."), user("Hi")]),
        ),
        // Templates often take one system message only.
        (
            json!({"instructions": "A", "input": [{"role": "developer", "content": "B"}, user("Hi")]}),
            json!([system("A\n\nB"), user("Hi")]),
        ),
        (
            json!({"input": [{"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]}),
            json!([user("a\nb")]),
        ),
        (
            json!({"input": [user("Hi"), said("Hello"), user("And?")]}),
            json!([user("Hi"), assistant("Hello"), user("And?")]),
        ),
        // One turn: thoughts, text and two calls; the results are separate messages.
        (
            json!({"input": [user("Hi"), thought("hm"), said("So"), called("c1"), called("c2"),
                output("c1"), output("c2")]}),
            json!([
                user("Hi"),
                {"role": "assistant", "content": "So", "tool_calls": [call("c1"), call("c2")],
                    "reasoning_content": "hm"},
                {"role": "tool", "content": "2", "tool_call_id": "c1"},
                {"role": "tool", "content": "2", "tool_call_id": "c2"},
            ]),
        ),
        // Two texts are two turns, and so are thoughts after a text.
        (
            json!({"input": [said("a"), said("b"), thought("hm"), said("c")]}),
            json!([
                assistant("a"),
                assistant("b"),
                {"role": "assistant", "content": "c", "reasoning_content": "hm"},
            ]),
        ),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": [
                {"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]}]}),
            json!([{"role": "tool", "content": "x\ny", "tool_call_id": "c"}]),
        ),
    ] {
        assert_eq!(messages_of(fields.clone()), expected, "{fields}");
    }
}

#[test]
fn fields_are_taken_in_their_own_names() {
    let body = request(json!({
        "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_logprobs": 2, "seed": 3,
        "include": ["message.output_text.logprobs"], "metadata": {"k": "v"}, "store": false,
        "previous_response_id": "resp_1", "user": "u", "prompt_cache_key": "p", "stream": true,
        "truncation": "disabled", "background": false, "parallel_tool_calls": false,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
            "schema": {"type": "object"}}, "verbosity": "low"},
    }));
    let parsed = parse_value(&body).unwrap();
    let request = parsed.request;
    assert_eq!(request.generation.max_tokens, Some(7));
    assert_eq!(request.generation.sampling.seed, Some(3));
    assert!(request.generation.stream && request.generation.include_usage);
    assert_eq!(request.logprobs, Some(2));
    let guide = request.generation.extensions.unwrap().guide.unwrap();
    assert_eq!(
        (guide.param, &*guide.text),
        ("text.format", r#"{"type":"object"}"#)
    );
    let settings = serde_json::to_value(&request.settings).unwrap();
    assert_eq!(
        settings,
        json!({
            "background": false, "instructions": null, "max_output_tokens": 7, "max_tool_calls": null,
            "metadata": {"k": "v"}, "parallel_tool_calls": false, "previous_response_id": "resp_1",
            "prompt_cache_key": "p", "reasoning": {"effort": "low", "summary": "auto"},
            "safety_identifier": null, "service_tier": "default", "store": false, "temperature": 0.5,
            "text": {"format": body["text"]["format"], "verbosity": "low"},
            "tool_choice": {"type": "function", "name": "f"},
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"},
                "description": null, "strict": false}], "top_logprobs": 2, "top_p": 0.25, "truncation": "disabled", "user": "u",
        })
    );
    assert_eq!(
        parsed.ignored.header_value().as_deref(),
        Some("reasoning.summary, text.verbosity, prompt_cache_key")
    );
    let tools = request.tools.unwrap();
    assert_eq!(tools.functions[0].name, "f");
    assert_eq!(tools.choice, ToolChoice::Function("f".to_owned()));
    assert!(!tools.parallel);
    assert_eq!(request.reasoning.effort.as_deref(), Some("low"));
}

#[test]
fn what_cannot_be_served_is_refused_by_its_own_name() {
    let message = |part: Value| json!({"input": [{"role": "user", "content": [part]}]});
    for (fields, param, part) in [
        (json!({"input": null}), "input", "Missing"),
        (json!({"input": []}), "input", "empty"),
        (json!({"input": 7}), "input", "an array of items"),
        (json!({"input": [7]}), "input[0]", "an object"),
        (
            json!({"input": [{"role": "tool", "content": "x"}]}),
            "input[0].role",
            "`tool`",
        ),
        (
            json!({"input": [{"role": "user"}]}),
            "input[0].content",
            "Missing",
        ),
        (
            message(json!({"type": "input_image", "file_id": "f"})),
            "input[0].content[0].file_id",
            "`image_url`",
        ),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": [
                {"type": "input_image", "image_url": "data:"}]}]}),
            "input[0].output[0]",
            "`input_image`",
        ),
        (
            message(json!({"type": "input_file", "file_id": "f"})),
            "input[0].content[0]",
            "`input_file`",
        ),
        (
            json!({"input": [{"type": "computer_call"}]}),
            "input[0]",
            "`computer_call`",
        ),
        (
            json!({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}),
            "input[0].call_id",
            "Missing",
        ),
        (
            json!({"input": [{"type": "reasoning", "content": [{"type": "x", "text": ""}]}]}),
            "input[0].content[0].type",
            "`reasoning_text`",
        ),
        (json!({"background": "yes"}), "background", "`background`"),
        (
            json!({"conversation": "c"}),
            "conversation",
            "`previous_response_id`",
        ),
        (json!({"prompt": {"id": "p"}}), "prompt", "`instructions`"),
        (json!({"truncation": "auto"}), "truncation", "`\"auto\"`"),
        (
            json!({"max_tokens": 5}),
            "max_tokens",
            "`max_output_tokens`",
        ),
        (json!({"messages": [1]}), "messages", "`input`"),
        (
            json!({"response_format": {"type": "text"}}),
            "response_format",
            "`text.format`",
        ),
        (json!({"n": 2}), "n", "one answer"),
        (json!({"max_output_tokens": 0}), "max_output_tokens", "`0`"),
        (
            json!({"max_output_token": 5}),
            "max_output_token",
            "`max_output_tokens`",
        ),
        (json!({"top_logprobs": 21}), "top_logprobs", "`21`"),
        (
            json!({"include": ["everything"]}),
            "include[0]",
            "`everything`",
        ),
        (json!({"metadata": {"k": 1}}), "metadata", "`k`"),
        (
            json!({"text": {"format": {"type": "xml"}}}),
            "text.format.type",
            "`xml`",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}),
            "text.format.name",
            "`a b`",
        ),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "n"}}}),
            "text.format.schema",
            "Missing",
        ),
        (
            json!({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}),
            "text.format",
            "`guided_regex`",
        ),
        (
            json!({"tools": [{"type": "web_search"}]}),
            "tools[0].type",
            "`web_search`",
        ),
        (
            json!({"tools": [{"type": "function"}]}),
            "tools[0].name",
            "Missing",
        ),
        (
            json!({"tools": [{"type": "function", "name": "f"}],
                "tool_choice": {"type": "allowed_tools", "mode": "auto",
                    "tools": [{"type": "function", "name": "g"}]}}),
            "tool_choice.tools",
            "`g`",
        ),
        (json!({"tool_choice": "required"}), "tool_choice", "`tools`"),
        (
            json!({"reasoning": {"effort": "huge"}}),
            "reasoning.effort",
            "`huge`",
        ),
        (json!({"reasoning": "low"}), "reasoning", "an object"),
        (
            json!({"chat_template_kwargs": {"tools": []}}),
            "chat_template_kwargs.tools",
            "`tools`",
        ),
    ] {
        let error = parse_value(&request(fields.clone())).unwrap_err();
        assert_eq!(error.status(), 400);
        assert_eq!(error.param.as_deref(), Some(param), "{fields}: {error}");
        assert!(error.message.contains(part), "{fields}: {error}");
    }
}

#[test]
fn errors_about_the_chat_name_fields_of_this_endpoint() {
    let error = ApiError::context_length_exceeded("messages", "`messages` has too many.");
    let error = in_own_words(error);
    assert_eq!(error.param.as_deref(), Some("input"));
    assert_eq!(error.message, "`input` has too many.");
}

fn head(body: Value) -> Head {
    let request = parse_value(&request(body)).unwrap().request;
    Head {
        id: ResponseId(0xabc),
        created_at: 5,
        model: "m".to_owned(),
        settings: request.settings.into(),
        input_items: 1,
        seals_reasoning: request.seals_reasoning,
    }
}

const OUTCOME: Outcome = Outcome {
    reason: FinishReason::Stop,
    usage: None,
    now: 6,
};

/// Name and data of each event; the name is in both places, and the numbers have no gap.
fn events(out: &BytesMut) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    let events = text.split_terminator("\n\n").enumerate();
    let events = events.map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], number, "{event}");
        data
    });
    events.collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names
        .map(|name| name.trim_start_matches("response."))
        .collect()
}

#[test]
fn a_text_is_streamed_in_openais_order() {
    let mut out = BytesMut::new();
    let mut writer = AnswerWriter::streamed(head(json!({"metadata": {"k": "v"}})));
    writer.begin(&mut out);
    writer.content(&mut out, "He said \"", Vec::new());
    writer.content(&mut out, "a\nb", Vec::new());
    let outcome = Outcome {
        usage: Some(Usage::new(3, 2, 1)),
        ..OUTCOME
    };
    let body = writer.finish(&mut out, outcome);
    let events = events(&out);
    assert_eq!(
        names(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let id = "msg_00000000000000000000000000000abc0001";
    assert_eq!(
        events[5],
        json!({"type": "response.output_text.delta", "sequence_number": 5, "item_id": id,
            "output_index": 0, "content_index": 0, "delta": "a\nb", "logprobs": []})
    );
    let part =
        json!({"type": "output_text", "annotations": [], "logprobs": [], "text": "He said \"a\nb"});
    assert_eq!(events[7]["part"], part);
    let item = json!({"type": "message", "id": id, "status": "completed", "role": "assistant",
        "content": [part]});
    assert_eq!(events[8]["item"], item);
    assert_eq!(events[2]["item"]["content"], json!([]));
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let response = &events[9]["response"];
    assert_eq!(*response, serde_json::from_slice::<Value>(&body).unwrap());
    assert_eq!(response["id"], "resp_00000000000000000000000000000abc");
    assert_eq!(response["output"], json!([item]));
    assert_eq!(response["completed_at"], 6);
    assert_eq!(response["metadata"], json!({"k": "v"}));
    assert_eq!(
        response["usage"],
        json!({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 5})
    );
}

#[test]
fn thoughts_text_and_calls_are_items_of_their_own() {
    let steps = |writer: &mut AnswerWriter, out: &mut BytesMut| {
        writer.reasoning(out, "h");
        writer.reasoning(out, "m");
        writer.content(out, "So", Vec::new());
        writer.call(out, Some("call_1"), "f");
        writer.arguments(out, "{\"a\"");
        writer.arguments(out, ":1}");
        writer.call(out, None, "g");
        writer.finish(out, OUTCOME)
    };
    let mut out = BytesMut::new();
    let mut streamed = AnswerWriter::streamed(head(json!({})));
    streamed.begin(&mut out);
    let body = steps(&mut streamed, &mut out);
    let events = events(&out);
    assert_eq!(
        names(&events)[2..],
        [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    let of = |prefix: &str, place: u32| format!("{prefix}_{:032x}{place:04x}", 0xabc);
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(
        *output,
        json!([
            {"type": "reasoning", "id": of("rs", 1), "status": "completed", "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": of("msg", 2), "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "So"}]},
            {"type": "function_call", "id": of("fc", 3), "status": "completed", "call_id": "call_1",
                "name": "f", "arguments": "{\"a\":1}"},
            {"type": "function_call", "id": of("fc", 4), "status": "completed",
                "call_id": of("call", 4), "name": "g", "arguments": ""},
        ])
    );
    // In one piece it is the same, and nothing is written on the way.
    let mut nothing = BytesMut::new();
    let mut whole = AnswerWriter::whole(head(json!({})));
    assert_eq!(steps(&mut whole, &mut nothing), body);
    assert!(nothing.is_empty());
    let calls = whole.take_items().into_iter();
    let weights: Vec<usize> = calls.map(|item| item.weight()).collect();
    assert!(weights.iter().all(|weight| *weight > 0));
}

#[test]
fn reasoning_comes_back_from_clients_that_keep_what_is_sealed() {
    let include = json!({"include": ["reasoning.encrypted_content"]});
    let mut writer = AnswerWriter::whole(head(include));
    let mut nothing = BytesMut::new();
    writer.reasoning(&mut nothing, "hm");
    writer.content(&mut nothing, "So", Vec::new());
    writer.finish(&mut nothing, OUTCOME);
    let mut items = serde_json::to_value(writer.take_items()).unwrap();
    items[0].as_object_mut().unwrap().remove("content");
    assert_eq!(
        messages_of(json!({"input": items})),
        json!([{"role": "assistant", "content": "So", "reasoning_content": "hm"}])
    );
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let mut out = BytesMut::new();
    let mut writer = AnswerWriter::streamed(head(json!({})));
    writer.begin(&mut out);
    writer.content(&mut out, "a", Vec::new());
    let outcome = Outcome {
        reason: FinishReason::Length,
        ..OUTCOME
    };
    writer.finish(&mut out, outcome);
    let events = events(&out);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    let response = &last["response"];
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["completed_at"], Value::Null);
    assert_eq!(response["usage"], Value::Null);
}

#[test]
fn an_answer_without_text_has_an_empty_message() {
    let mut out = BytesMut::new();
    let mut writer = AnswerWriter::whole(head(json!({})));
    let body = writer.finish(&mut out, OUTCOME);
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["output"][0]["content"][0]["text"], "");
}

#[test]
fn a_failure_ends_the_stream_with_words_that_sdks_know() {
    let mut out = BytesMut::new();
    let mut writer = AnswerWriter::streamed(head(json!({})));
    writer.begin(&mut out);
    writer.content(&mut out, "a", Vec::new());
    writer.fail(&mut out, &ApiError::timeout("The request timed out."));
    let events = events(&out);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(
        last["response"]["error"],
        json!({"code": "server_error", "message": "The request timed out."})
    );
}

#[test]
fn log_probabilities_come_with_their_text_and_again_with_the_whole() {
    let token = |token: &str| TokenLogprob {
        token: token.to_owned(),
        logprob: -0.5,
        bytes: None,
        top_logprobs: Vec::new(),
    };
    let mut out = BytesMut::new();
    let mut writer = AnswerWriter::streamed(head(json!({})));
    writer.begin(&mut out);
    writer.content(&mut out, "a", vec![token("a")]);
    writer.content(&mut out, "", vec![token("<end>")]);
    writer.finish(&mut out, OUTCOME);
    let events = events(&out);
    // SDKs require `bytes`, and do not accept null there.
    let told =
        |token: &str| json!({"token": token, "logprob": -0.5, "bytes": [], "top_logprobs": []});
    assert_eq!(events[4]["logprobs"], json!([told("a")]));
    assert_eq!(events[5]["logprobs"], json!([told("<end>")]));
    let all = json!([told("a"), told("<end>")]);
    assert_eq!(events[6]["logprobs"], all);
    assert_eq!(
        events[9]["response"]["output"][0]["content"][0]["logprobs"],
        all
    );
    let mut item = writer.take_items().remove(0);
    item.forget_logprobs();
    assert_eq!(
        serde_json::to_value(&item).unwrap()["content"][0]["logprobs"],
        json!([])
    );
}

#[test]
fn ids_are_read_as_they_are_written() {
    let id = ResponseId(0x1f << 100);
    assert_eq!(ResponseId::parse(&id.to_string()), Some(id));
    assert_eq!(ResponseId::of_item(&id.item("msg", 3)), Some(id));
    let upper = id.to_string().replace('f', "F");
    for other in [
        "",
        "resp_",
        "resp_12",
        "msg_1",
        upper.as_str(),
        "resp_+0000000000000000000000000000000",
    ] {
        assert_eq!(ResponseId::parse(other), None, "{other}");
    }
    for other in ["", "msg", "msg_12", "call_é"] {
        assert_eq!(ResponseId::of_item(other), None, "{other}");
    }
}

#[test]
fn items_keep_the_ids_that_clients_gave() {
    let body = request(json!({"input": [
        {"role": "user", "content": "a", "id": "mine"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]}));
    let request = parse_value(&body).unwrap().request;
    let mut items: Vec<Item> = request.input.iter().map(own).collect();
    for (place, item) in items.iter_mut().enumerate() {
        item.name_with(|prefix| format!("{prefix}_{place}"));
    }
    let ids: Vec<&str> = items.iter().map(Item::id).collect();
    assert_eq!(ids, ["mine", "fco_1"]);
    assert!(matches!(&items[0], Item::Message(message) if message.role == Role::User));
}

#[test]
fn items_are_listed_in_pages() {
    let body = request(json!({"input": (0..5)
        .map(|place| json!({"role": "user", "content": "x", "id": format!("i{place}")}))
        .collect::<Vec<_>>()}));
    let request = parse_value(&body).unwrap().request;
    let items: Vec<Item> = request.input.iter().map(own).collect();
    let pairs = |text: &str| -> Vec<(String, String)> {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    for (query, ids, has_more) in [
        ("", vec!["i4", "i3", "i2", "i1", "i0"], false),
        ("order=asc&limit=2", vec!["i0", "i1"], true),
        ("order=asc&limit=2&after=i1", vec!["i2", "i3"], true),
        ("after=i1&include=x", vec!["i0"], false),
        ("after=i0", vec![], false),
    ] {
        let query = ListQuery::read(&pairs(query), ITEMS).unwrap();
        let page: Value = serde_json::from_slice(&list(&query, items.iter()).unwrap()).unwrap();
        let found: Vec<&str> = page["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["id"].as_str().unwrap())
            .collect();
        assert_eq!(found, ids);
        assert_eq!(page["has_more"], has_more);
        assert_eq!(page["first_id"].as_str(), ids.first().copied());
        assert_eq!(page["last_id"].as_str(), ids.last().copied());
    }
    for (query, param) in [
        ("order=up", "order"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
    ] {
        let error = ListQuery::read(&pairs(query), ITEMS).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
    }
    let query = ListQuery::read(&pairs("after=nobody"), ITEMS).unwrap();
    assert_eq!(
        list(&query, items.iter()).unwrap_err().param.as_deref(),
        Some("after")
    );
}

#[test]
fn a_function_of_a_namespace_is_called_by_both_names() {
    let member = json!({"type": "function", "name": "spawn", "parameters": {"type": "object"}});
    let tools = json!([
        {"type": "function", "name": "crm__own"},
        {"type": "namespace", "name": "crm", "description": "", "tools": [member]},
        {"type": "web_search"},
    ]);
    let earlier = json!({"type": "function_call", "call_id": "c", "namespace": "crm", "name": "spawn",
        "arguments": "{}"});
    let asked = json!({"tools": tools, "input": [earlier]});
    let parsed = parse_value(&request(asked.clone())).unwrap();
    assert_eq!(
        parsed.ignored.header_value().as_deref(),
        Some("tools.web_search")
    );
    let request = parsed.request;
    let functions = &request.tools.as_ref().unwrap().functions;
    let names: Vec<&str> = functions.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["crm__own", "crm__spawn"]);
    let earlier = own(&request.input[0]);
    let chat = request
        .chat([].iter(), std::slice::from_ref(&earlier))
        .unwrap();
    assert_eq!(chat.messages[0].tool_calls[0].function.name, "crm__spawn");

    let mut writer = AnswerWriter::streamed(head(asked));
    let mut out = BytesMut::new();
    for name in names {
        writer.call(&mut out, None, name);
        writer.arguments(&mut out, "{}");
    }
    let whole: Value = serde_json::from_slice(&writer.finish(&mut out, OUTCOME)).unwrap();
    let [first, second] = whole["output"].as_array().unwrap().as_slice() else {
        panic!("{whole}");
    };
    assert_eq!(
        (&first["namespace"], &first["name"]),
        (&json!(null), &json!("crm__own"))
    );
    assert_eq!(
        (&second["namespace"], &second["name"]),
        (&json!("crm"), &json!("spawn"))
    );
    assert_eq!(whole["tools"][1]["tools"], json!([member]));
}

#[test]
fn a_custom_tool_takes_and_returns_text() {
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /x+/"});
    let member = json!({"type": "custom", "name": "patch", "format": format});
    let tools = json!([
        {"type": "custom", "name": "shell"},
        {"type": "namespace", "name": "files", "description": "", "tools": [member]},
    ]);
    let input = json!([
        {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a b"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "namespace": "files",
            "name": "patch", "input": "x", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c2",
            "output": [{"type": "input_text", "text": "done"}]},
    ]);
    let asked = json!({"tools": tools, "input": input,
        "tool_choice": {"type": "custom", "name": "shell"}});
    let parsed = parse_value(&request(asked.clone())).unwrap();
    assert!(parsed.ignored.is_empty());
    let request = parsed.request;
    let tools = request.tools.as_ref().unwrap();
    assert_eq!(tools.choice, ToolChoice::Function("shell".to_owned()));
    let Some(InputFormat::Grammar(grammar)) = &tools.find("files__patch").unwrap().custom else {
        panic!("{tools:?}");
    };
    assert_eq!(grammar.param, "tools[1].tools[0].format.definition");
    let items: Vec<Item> = request.input.iter().map(own).collect();
    let chat = request.chat([].iter(), &items).unwrap();
    let told = serde_json::to_value(&chat.messages).unwrap();
    assert_eq!(
        told,
        json!([
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function",
                "function": {"name": "shell", "arguments": {"input": "ls"}}}]},
            {"role": "tool", "content": "a b", "tool_call_id": "c1"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c2", "type": "function",
                "function": {"name": "files__patch", "arguments": {"input": "x"}}}]},
            {"role": "tool", "content": "done", "tool_call_id": "c2"},
        ])
    );
    let mut named = items[0].clone();
    named.name_with(|prefix| format!("{prefix}_5"));
    assert_eq!(
        serde_json::to_value(&named).unwrap(),
        json!({"type": "custom_tool_call", "id": "ctc_5", "status": "completed", "call_id": "c1",
            "name": "shell", "input": "ls"})
    );

    let mut writer = AnswerWriter::streamed(head(asked));
    let mut out = BytesMut::new();
    writer.custom_call(&mut out, Some("c9"), "files__patch");
    writer.arguments(&mut out, "x\"");
    writer.arguments(&mut out, "y");
    let whole: Value = serde_json::from_slice(&writer.finish(&mut out, OUTCOME)).unwrap();
    let item = &whole["output"][0];
    let id = item["id"].as_str().unwrap();
    assert!(id.starts_with("ctc_"), "{id}");
    assert_eq!(
        item,
        &json!({"type": "custom_tool_call", "id": id, "status": "completed", "call_id": "c9",
            "namespace": "files", "name": "patch", "input": "x\"y"})
    );
    let text = std::str::from_utf8(&out).unwrap();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let types: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        types,
        [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert_eq!(events[0]["item"]["input"], "");
    assert_eq!(
        events[3],
        json!({"type": "response.custom_tool_call_input.done", "sequence_number": 3, "item_id": id,
            "output_index": 0, "input": "x\"y"})
    );
}

#[test]
fn what_is_wrong_in_a_namespace_is_named() {
    let namespace = |tools: Value| json!({"type": "namespace", "name": "n", "tools": tools});
    let function = json!({"type": "function", "name": "f"});
    for (tools, param) in [
        (
            json!([namespace(json!([{"type": "shell"}]))]),
            "tools[0].tools[0].type",
        ),
        (
            json!([namespace(json!([{"type": "function"}]))]),
            "tools[0].tools[0].name",
        ),
        (
            json!([namespace(json!([function])), {"type": "function", "name": "n__f"}]),
            "tools[1].name",
        ),
        (
            json!([{"type": "namespace", "name": "n"}]),
            "tools[0].tools",
        ),
        // Nothing would be left of what was asked for.
        (json!([{"type": "web_search"}]), "tools[0].type"),
    ] {
        let error = parse_value(&request(json!({"tools": tools}))).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
    }
}

#[test]
fn images_are_parts_of_items_and_of_messages() {
    let input = json!({"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "https://a/b.png", "detail": "high"},
    ]}]});
    let parsed = parse_value(&request(input)).unwrap();
    assert_eq!(
        parsed.ignored.header_value().as_deref(),
        Some("input.content.detail")
    );
    let item = own(&parsed.request.input[0]);
    // As the API lists it.
    assert_eq!(
        serde_json::to_value(&item).unwrap()["content"][1],
        json!({"type": "input_image", "detail": "high", "image_url": "https://a/b.png"})
    );
    assert!(item.weight() > "https://a/b.png".len());
    let chat = parsed.request.chat([].into_iter(), &[item]).unwrap();
    let image = chat.messages[0].images().next().unwrap();
    assert_eq!(
        (image.path.as_str(), image.url.as_str()),
        ("input[0].content[1]", "https://a/b.png")
    );
    assert_eq!(chat.messages[0].content, "What is this?");
}
