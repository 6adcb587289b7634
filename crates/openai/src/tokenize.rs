//! The requests and answers of `/tokenize`, `/detokenize` and `/tokenizer_info`, which are vLLM's. Owns their
//! parsing; knows nothing of tokenizers and templates.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Parsed;
use crate::chat::{self, Message, TemplateOptions};
use crate::error::ApiError;
use crate::fields::Endpoint;
use crate::generation::take_model;
use crate::ignored::IgnoredFields;
use crate::reader::{Fields, too_many, wrong_type};

/// More than any context; the decoder takes a hundred bytes and more for each.
const MAX_TOKENS: usize = 1 << 20;

/// What tokens are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    /// Empty: the only one that is served.
    pub model: String,
    pub input: TokenizeInput,
    /// Absent: true for text, false for messages, whose template writes them.
    pub add_special_tokens: Option<bool>,
    /// Whether each token comes as the vocabulary writes it too.
    pub return_token_strs: bool,
}

/// What a prompt is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizeInput {
    Text(String),
    /// At least one message.
    Chat(Vec<Message>, TemplateOptions),
}

/// Which text is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct DetokenizeRequest {
    /// Empty: the only one that is served.
    pub model: String,
    pub tokens: Vec<u32>,
}

/// The answer of `/tokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TokenizeResponse {
    pub count: usize,
    /// `None`: not known.
    pub max_model_len: Option<usize>,
    pub tokens: Vec<u32>,
    pub token_strs: Option<Vec<String>>,
}

/// The answer of `/detokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DetokenizeResponse {
    pub prompt: String,
}

/// What a tokenizer is where its configuration does not say it: the class that transformers takes then.
const DEFAULT_CLASS: &str = "PreTrainedTokenizerFast";

/// The answer of `/tokenizer_info`: what the model's `tokenizer_config.json` says, with the chat template that
/// renders.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct TokenizerInfo<'a> {
    /// Only where the configuration has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_class: Option<&'static str>,
    #[serde(flatten)]
    config: &'a Map<String, Value>,
    /// As in that file: a template, or a list of `{name, template}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<Value>,
}

impl<'a> TokenizerInfo<'a> {
    /// `config` has no `chat_template`, and a string as `tokenizer_class` if any; `templates` are those that
    /// render, by name.
    pub fn new(config: &'a Map<String, Value>, templates: Option<&[(String, String)]>) -> Self {
        let has_class = config.contains_key("tokenizer_class");
        let named =
            |(name, template): &(String, String)| json!({"name": name, "template": template});
        let chat_template = match templates.unwrap_or_default() {
            [] => None,
            [(_, only)] => Some(only.as_str().into()),
            several => Some(several.iter().map(named).collect()),
        };
        Self {
            tokenizer_class: (!has_class).then_some(DEFAULT_CLASS),
            config,
            chat_template,
        }
    }
}

/// Parses a body of `/tokenize`. Total: any bytes give a request or a 400.
pub fn parse_tokenize(body: &[u8]) -> Result<Parsed<TokenizeRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let model = take_model(&mut fields)?;
    let add_special_tokens = fields.boolean("add_special_tokens")?;
    let return_token_strs = fields.boolean("return_token_strs")?.unwrap_or(false);
    let prompt = fields.string("prompt")?;
    let (input, endpoint) = match prompt {
        Some(_) if fields.has("messages") => {
            return Err(ApiError::invalid_request(
                "messages",
                "`messages` and `prompt` exclude each other. Send only one.",
            ));
        }
        Some(text) => (TokenizeInput::Text(text), Endpoint::Completions),
        None if !fields.has("messages") => return Err(fields.missing("prompt")),
        None => {
            let messages = chat::take_messages(&mut fields, &mut ignored)?;
            let template = chat::take_template_options(&mut fields, &messages, &mut ignored)?;
            (TokenizeInput::Chat(messages, template), Endpoint::Chat)
        }
    };
    fields.ignore_applied(endpoint, &mut ignored);
    fields.finish(endpoint, "", &mut ignored)?;
    let request = TokenizeRequest {
        model,
        input,
        add_special_tokens,
        return_token_strs,
    };
    Ok(Parsed { request, ignored })
}

/// Parses a body of `/detokenize`. Total: any bytes give a request or a 400.
pub fn parse_detokenize(body: &[u8]) -> Result<Parsed<DetokenizeRequest>, ApiError> {
    let mut fields = Fields::of_body(body)?;
    let mut ignored = IgnoredFields::default();
    let model = take_model(&mut fields)?;
    let raw = fields.require("tokens")?;
    let expected = "an array of token ids (each an integer from 0 to 2147483647)";
    let tokens: Vec<u32> =
        serde_json::from_str(raw.get()).map_err(|_| wrong_type("tokens", expected, raw))?;
    if tokens.len() > MAX_TOKENS {
        return Err(too_many("tokens", tokens.len(), MAX_TOKENS));
    }
    fields.ignore_applied(Endpoint::Completions, &mut ignored);
    fields.finish(Endpoint::Completions, "", &mut ignored)?;
    let request = DetokenizeRequest { model, tokens };
    Ok(Parsed { request, ignored })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tokenize(body: Value) -> Result<Parsed<TokenizeRequest>, ApiError> {
        parse_tokenize(body.to_string().as_bytes())
    }

    #[test]
    fn both_forms_are_read() {
        let parsed = tokenize(json!({"prompt": "a", "add_special_tokens": false})).unwrap();
        assert_eq!(
            parsed.request,
            TokenizeRequest {
                model: String::new(),
                input: TokenizeInput::Text("a".to_owned()),
                add_special_tokens: Some(false),
                return_token_strs: false,
            }
        );
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let body = json!({
            "model": "m", "messages": messages, "return_token_strs": true,
            "chat_template_kwargs": {"enable_thinking": false}, "temperature": 1,
        });
        let parsed = tokenize(body).unwrap();
        let TokenizeInput::Chat(read, options) = parsed.request.input else {
            panic!("not a chat");
        };
        assert_eq!((read.len(), options.add_generation_prompt), (1, true));
        assert_eq!(options.kwargs["enable_thinking"], false);
        assert_eq!(parsed.request.model, "m");
        // Sampling has no effect on tokens.
        assert_eq!(
            parsed.ignored.header_value().as_deref(),
            Some("temperature")
        );
    }

    #[test]
    fn a_tokenizer_is_told_as_its_configuration_has_it() {
        let told = |config: Value, templates: Option<&[(String, String)]>| {
            let config = config.as_object().unwrap().clone();
            serde_json::to_value(TokenizerInfo::new(&config, templates)).unwrap()
        };
        let named = |name: &str| (name.to_owned(), "{{ x }}".to_owned());
        assert_eq!(
            told(json!({}), None),
            json!({"tokenizer_class": "PreTrainedTokenizerFast"})
        );
        assert_eq!(
            told(
                json!({"tokenizer_class": "A", "eos_token": "e"}),
                Some(&[named("chatml")])
            ),
            json!({"tokenizer_class": "A", "eos_token": "e", "chat_template": "{{ x }}"})
        );
        let several = told(json!({}), Some(&[named("default"), named("tool_use")]));
        assert_eq!(
            several["chat_template"][1],
            json!({"name": "tool_use", "template": "{{ x }}"})
        );
    }

    #[test]
    fn what_cannot_be_tokenized_is_named() {
        let message = json!([{"role": "user", "content": "Hi"}]);
        for (body, param) in [
            (json!({}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": ["a"]}), "prompt"),
            (json!({"prompt": "a", "messages": message}), "messages"),
            (json!({"messages": []}), "messages"),
            (
                json!({"messages": message, "chat_template": "x"}),
                "chat_template",
            ),
            (json!({"prompt": "a", "model": "m".repeat(300)}), "model"),
        ] {
            let error = tokenize(body.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn token_ids_are_read_or_refused() {
        let parse = |body: Value| parse_detokenize(body.to_string().as_bytes());
        let parsed = parse(json!({"tokens": [1, 2]})).unwrap();
        assert_eq!(parsed.request.tokens, [1, 2]);
        let none = parse(json!({"tokens": []})).unwrap();
        assert!(none.request.tokens.is_empty());
        for body in [
            json!({}),
            json!({"tokens": "a"}),
            json!({"tokens": [-1]}),
            json!({"tokens": [1.5]}),
            json!({"tokens": [[1]]}),
            json!({"tokens": vec![1; MAX_TOKENS + 1]}),
        ] {
            let error = parse(body.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tokens"), "{error:?}");
        }
    }
}
