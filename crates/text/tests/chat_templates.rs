//! Chat templates that a model does not bring: built-in ones, given ones and openai_trtllm's history templates.
#![allow(clippy::unwrap_used, reason = "helpers of tests may, like tests")]

use inflight_text::{
    BuiltInTemplate, ChatTemplate, ModelFiles, TemplateError, TemplateInput, TemplateSource,
    TextModel,
};
use serde_json::{Value, json};

#[path = "support/fixtures.rs"]
mod fixtures;

fn rendered(source: &TemplateSource, messages: Value) -> Result<String, TemplateError> {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let template = ChatTemplate::from_source(source, tokens.as_object().unwrap().clone())?;
    template.render(&TemplateInput {
        messages,
        add_generation_prompt: true,
        ..TemplateInput::default()
    })
}

fn conversation() -> Value {
    json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye", "name": "Ada"},
    ])
}

#[test]
fn built_in_templates_write_what_their_models_were_trained_on() {
    for (name, expected) in [
        (
            "plain",
            "System: Be brief.\nUser: Hi\nAssistant: Hello\nUser Ada: Bye\nASSISTANT:",
        ),
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\
             Hello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama-2",
            "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]",
        ),
        (
            "llama-3",
            "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user\
             <|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant\
             <|end_header_id|>\n\n",
        ),
        (
            "gemma",
            "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "phi-3",
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nBye<|end|>\n\
             <|assistant|>\n",
        ),
        (
            "vicuna",
            "Be brief. USER: Hi ASSISTANT: Hello</s>USER: Bye ASSISTANT:",
        ),
        (
            "baichuan2",
            "Be brief.<reserved_106>Hi<reserved_107>Hello<reserved_106>Bye<reserved_107>",
        ),
    ] {
        let source = TemplateSource::BuiltIn(name.parse().unwrap());
        assert_eq!(
            rendered(&source, conversation()).unwrap(),
            expected,
            "{name}"
        );
        // No message, or an unusual one, is no error.
        for messages in [json!([]), json!([{"role": "tool", "content": ""}])] {
            rendered(&source, messages).unwrap();
        }
    }
    let names = BuiltInTemplate::ALL.map(|one| one.to_string().parse::<BuiltInTemplate>());
    assert_eq!(names, BuiltInTemplate::ALL.map(Ok));
}

#[test]
fn history_templates_are_rendered_as_openai_trtllm_does() {
    let custom_roles = r#"{% for item in items -%}
{%- capture identity -%}
    {%- case item.identity -%}
        {%- when "System", "Tool" -%}
            Robot
        {%- when "User" -%}
            Customer
        {%- when "Assistant" -%}
            Support
        {%- else -%}
    {%- endcase -%}
{%- endcapture -%}

{{- identity }}{% if item.name %} {{ item.name }}{% endif %}: {{ item.content }}
{% endfor -%}
Support:"#;
    for (template, expected) in [
        (
            custom_roles,
            "Robot: Be brief.\nCustomer: Hi\nSupport: Hello\nCustomer Ada: Bye\nSupport:",
        ),
        (
            "{% for item in items %}{{ item.identity | upcase }};{% endfor %}",
            "SYSTEM;USER;ASSISTANT;USER;",
        ),
        ("no items", "no items"),
    ] {
        let source = TemplateSource::from_history(template).unwrap();
        assert_eq!(rendered(&source, conversation()).unwrap(), expected);
    }
    // What a client writes is never read as a template.
    let source = TemplateSource::from_history("{{ items[0].content }}").unwrap();
    let hostile = json!([{"role": "user", "content": "{{ items }}{% for %}"}]);
    assert_eq!(rendered(&source, hostile).unwrap(), "{{ items }}{% for %}");
}

#[test]
fn a_history_template_is_liquid() {
    let all = "{% for item in items %}";
    let table = [
        // White space stays, or goes with a dash.
        ("a {{- 'b' -}} c\n", "abc\n"),
        ("{%- if true -%} x {%- endif -%}\n\n", "x"),
        ("{# no comment #}{{ \"{%\" }}", "{# no comment #}{%"),
        ("{% comment %}{{ nothing | here }}{% endcomment %}x", "x"),
        ("a {%- raw %} {{ x }}{% endraw -%} b", "a {{ x }}b"),
        // What is set in a loop is there behind it.
        (
            &format!("{all}{{% assign last = item.content %}}{{% endfor %}}{{{{ last }}}}"),
            "Bye",
        ),
        (
            "{% assign n = 0 %}{% for item in items %}{% if item.identity == 'User' %}{% assign n = n | plus: 1 %}\
             {% endif %}{% endfor %}{{ n }}",
            "2",
        ),
        // Nil and false are false, and nothing else is; nil is written as nothing.
        (
            "{% if '' %}a{% endif %}{% if 0 %}b{% endif %}{% if nil %}c{% endif %}{% if x %}d{% else %}e{% endif %}",
            "abe",
        ),
        ("[{{ items[0].name }}][{{ items[3].name }}]", "[][Ada]"),
        ("{% unless false %}a{% elsif true %}b{% endunless %}", "a"),
        (
            "{% if false or true and false %}a{% else %}b{% endif %}{% if 'abc' contains 'b' %}c{% endif %}",
            "bc",
        ),
        (
            "{% for item in items offset: 1 limit: 2 reversed %}{{ forloop.index }}{{ item.content }}{% endfor %}",
            "1Hello2Hi",
        ),
        (
            &format!(
                "{all}{{% if forloop.first %}}{{% continue %}}{{% endif %}}{{{{ item.content }}}}{{% break %}}{{% endfor %}}"
            ),
            "Hi",
        ),
        (
            "{% for x in items[0].content %}{% else %}none{% endfor %}",
            "",
        ),
        (
            "{% case items.size %}\n{% when 1 or 2 %}few{% when 4 %}{{ items.last.content | upcase | append: '!' }}{% endcase %}",
            "BYE!",
        ),
        ("{% case 3 %}{% when 1 %}a{% else %}b{% endcase %}", "b"),
        (
            "{{ ' aB ' | strip | capitalize }}{{ 'x,y' | split: ',' | last }}{{ nil | default: 'z' }}",
            "AByz",
        ),
    ];
    for (template, expected) in table {
        let source = TemplateSource::from_history(template);
        let source = source.unwrap_or_else(|error| panic!("{template}: {error}"));
        let found = rendered(&source, conversation());
        let found = found.unwrap_or_else(|error| panic!("{template}: {error}"));
        assert_eq!(found, expected, "{template}");
    }
}

#[test]
fn what_is_wrong_in_a_history_template_is_said_with_its_line() {
    for (bad, expected) in [
        ("{% for item %}", "line 1: `for` has no `in`"),
        (
            "a\n{{ items | no_such_filter }}",
            "line 2: unknown filter `no_such_filter`",
        ),
        (
            "{% include 'x' %}",
            "line 1: the tag `include` is not supported",
        ),
        ("{% if true %}\n", "line 1: the `if` has no `endif`"),
        (
            "{% if true %}{% endfor %}",
            "line 1: `endfor` closes the `if` of line 1",
        ),
        (
            "{{ item.content }}",
            "line 1: unknown variable `item`; a template has `items`",
        ),
        (
            "{% for m in items %}\n{{ m.role }}{% endfor %}",
            "line 2: an item has no `role`; it has `identity`, `content`, `name`",
        ),
        ("{{ 'a }}", "line 1: a text has no end"),
        ("{{ items", "line 1: a tag has no end"),
        ("{% raw %}", "line 1: the `raw` has no `endraw`"),
        (
            "{{ 'a' | append }}",
            "line 1: filter `append` has `0` arguments, not `1` to `1`",
        ),
        ("{{ items } }}", "line 1: `}` is not expected here"),
        ("{{ é }}", "line 1: `é` is not expected here"),
    ] {
        match TemplateSource::from_history(bad).unwrap_err() {
            TemplateError::Syntax { message } => {
                assert!(message.contains(expected), "{bad}: {message}");
                assert!(!message.contains('\n'), "{message}");
            }
            other => panic!("{bad}: {other:?}"),
        }
    }
    // What only a conversation shows fails there, and says where.
    let source = TemplateSource::from_history("{% if true %}\n{{ items[9].content }}{% endif %}");
    let error = rendered(&source.unwrap(), conversation()).unwrap_err();
    let found = matches!(&error, TemplateError::Failed { message } if message.contains("line 2"));
    assert!(found, "{error:?}");
}

fn files(tokens: &[&str], template: Option<&str>) -> ModelFiles {
    let mut tokenizer: Value =
        serde_json::from_slice(&fixtures::bytes("tokenizers/byte_level.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let first = 900_u32;
    for (id, token) in (first..).zip(tokens) {
        added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}));
    }
    let mut files = ModelFiles::from([(
        "tokenizer.json".to_owned(),
        serde_json::to_vec(&tokenizer).unwrap(),
    )]);
    if let Some(template) = template {
        files.insert(
            "chat_template.json".to_owned(),
            json!({"chat_template": template}).to_string().into(),
        );
    }
    files
}

#[test]
fn a_model_without_a_template_gets_the_one_that_its_tokens_suit() {
    for (tokens, expected) in [
        (&["<|im_start|>", "<|im_end|>"][..], BuiltInTemplate::ChatMl),
        (&["<|im_start|>"], BuiltInTemplate::Plain),
        (
            &["<|start_header_id|>", "<|eot_id|>"],
            BuiltInTemplate::Llama3,
        ),
        (
            &["<start_of_turn>", "<end_of_turn>"],
            BuiltInTemplate::Gemma,
        ),
        (
            &["<|user|>", "<|assistant|>", "<|end|>"],
            BuiltInTemplate::Phi3,
        ),
        (
            &["<reserved_106>", "<reserved_107>"],
            BuiltInTemplate::Baichuan2,
        ),
        (&[], BuiltInTemplate::Plain),
    ] {
        let model = TextModel::load_for_chat(&files(tokens, None), None).unwrap();
        assert_eq!(model.built_in_template(), Some(expected));
        assert!(model.chat_template().unwrap().lacks_special_tokens());
        // The end of a turn ends the answer.
        let last = tokens
            .last()
            .and_then(|token| model.tokenizer().token_id(token));
        let ends = model
            .generation()
            .eos_token_ids
            .contains(&last.unwrap_or(0));
        let has_end = !matches!(
            expected,
            BuiltInTemplate::Plain | BuiltInTemplate::Baichuan2
        );
        assert_eq!(ends, has_end, "{expected}");
        assert!(
            TextModel::load(&files(tokens, None))
                .unwrap()
                .chat_template()
                .is_none()
        );
    }
}

#[test]
fn a_given_template_wins_over_the_models_own_and_that_over_a_built_in_one() {
    let files = files(&[], Some("own"));
    let render = |given: Option<&TemplateSource>| {
        let model = TextModel::load_for_chat(&files, given).unwrap();
        let template = model.chat_template().unwrap();
        let text = template.render(&TemplateInput {
            messages: json!([]),
            ..TemplateInput::default()
        });
        (text.unwrap(), template.lacks_special_tokens())
    };
    assert_eq!(render(None), ("own".to_owned(), false));
    let jinja = TemplateSource::from_file_content("{# #}given").unwrap();
    assert_eq!(render(Some(&jinja)), ("given".to_owned(), false));
    let history = TemplateSource::from_history("history").unwrap();
    assert_eq!(render(Some(&history)), ("history".to_owned(), true));
}
