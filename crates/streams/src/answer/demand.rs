//! What a request demands of an answer's calls: how a forced one begins, that there is one at the end, and that
//! arguments match their schemas. Owns the words of a violation of a schema; custom tools have theirs in `custom`. The
//! checks are for answers that no grammar guides; others pass them.

use std::collections::HashMap;
use std::sync::Arc;

use inflight_guides::checks::TextGrammar;
use inflight_openai::ApiError;
use inflight_openai::chat::{InputFormat, ToolChoice, Tools};
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::custom::CustomInput;

/// Steps of a pattern on one string: many times what a sensible one takes.
const BACKTRACK_LIMIT: usize = 100_000;
/// Characters of what a violation says about the model's words.
const MAX_WORDS: usize = 300;

/// What is demanded of the calls of each choice.
#[derive(Debug)]
pub struct CallDemand {
    /// The call that the prompt has begun.
    pub begun: Option<BegunCall>,
    /// Whether the answer may go without its grammar, where that cannot be followed; it is checked anyway.
    pub may_drop_guide: bool,
    /// Whether the call must be one of a function that the request names.
    pub names_function: bool,
    must_call: bool,
    /// Of the functions whose arguments must match.
    schemas: HashMap<String, Validator>,
    /// Custom tools that may be called, with the grammars of their texts.
    customs: HashMap<String, Option<Arc<TextGrammar>>>,
    /// What an answer without calls must match.
    content: Option<Validator>,
}

/// A call that the prompt has begun.
#[derive(Debug, PartialEq)]
pub struct BegunCall {
    /// What the prompt ends with, and the parser reads first.
    pub prefix: String,
    /// What the parser reads after a grammar has ended the answer.
    pub suffix: &'static str,
}

impl CallDemand {
    /// What a request with these tools demands; `None`: nothing. `content`: the schema of an answer without calls,
    /// and the field that asked for it.
    ///
    /// # Errors
    /// 400: a schema that something must match is invalid.
    pub fn new(
        tools: &Tools,
        content: Option<&(Value, &'static str)>,
    ) -> Result<Option<Self>, ApiError> {
        let must_call = tools.choice != ToolChoice::Auto;
        let mut schemas = HashMap::new();
        let mut customs = HashMap::new();
        for function in tools.callable() {
            if let Some(format) = &function.custom {
                let grammar = match format {
                    InputFormat::Text => None,
                    InputFormat::Grammar(grammar) => Some(Arc::new(TextGrammar::new(grammar))),
                };
                customs.insert(function.name.clone(), grammar);
            } else if must_call || function.strict {
                let valid = validator(&function.schema_param(), &function.schema())?;
                schemas.insert(function.name.clone(), valid);
            }
        }
        let content = content.map(|(schema, param)| validator(param, schema));
        let content = content.transpose()?;
        let demands = must_call || !schemas.is_empty() || !customs.is_empty() || content.is_some();
        Ok(demands.then_some(Self {
            begun: None,
            may_drop_guide: false,
            names_function: matches!(tools.choice, ToolChoice::Function(_)) && customs.is_empty(),
            must_call,
            schemas,
            customs,
            content,
        }))
    }

    /// The grammars of custom tools, which are to be compiled before the first answer.
    pub fn grammars(&self) -> impl Iterator<Item = &Arc<TextGrammar>> {
        self.customs.values().flatten()
    }

    /// What reads a call that begins, if it is one of a custom tool.
    pub(super) fn custom_input(&self, name: &str) -> Option<CustomInput> {
        let grammar = self.customs.get(name)?.as_deref();
        Some(CustomInput::new(grammar.map(TextGrammar::begin)))
    }

    /// Checks a call that ended with whole arguments.
    ///
    /// # Errors
    /// 502: the arguments do not match.
    pub(super) fn call(&self, name: &str, arguments: &str) -> Result<(), ApiError> {
        let Some(schema) = self.schemas.get(name) else {
            return Ok(());
        };
        let value = serde_json::from_str(arguments).map_err(|error| {
            ApiError::invalid_answer(format!(
                "The model called `{name}` with arguments that are not JSON: {error}. Retry."
            ))
        })?;
        schema.validate(&value).map_err(|error| {
            let place = error.instance_path().to_string();
            let place = match place.as_str() {
                "" => String::new(),
                place => format!(" at `{}`", shortened(place)),
            };
            ApiError::invalid_answer(format!(
                "The model called `{name}` with arguments that do not match its schema{place}: {}. Retry.",
                shortened(&error.to_string())
            ))
        })
    }

    /// Whether [`CallDemand::end`] wants the text next to the calls.
    pub(super) fn reads_content(&self) -> bool {
        self.content.is_some()
    }

    /// Checks the end of a choice that its model ended. What a length or a stop string cut is not checked.
    ///
    /// # Errors
    /// 502: there is no call, or one that did not end; or the text in place of one does not match.
    pub(super) fn end(
        &self,
        complete: usize,
        incomplete: usize,
        content: &str,
    ) -> Result<(), ApiError> {
        if incomplete > 0 {
            return Err(malformed_call());
        }
        if self.must_call && complete == 0 {
            return Err(ApiError::invalid_answer(
                "The model called no tool, although `tool_choice` demands it. Retry.",
            ));
        }
        let Some(schema) = self.content.as_ref().filter(|_| complete == 0) else {
            return Ok(());
        };
        let value = serde_json::from_str(content).map_err(|error| {
            ApiError::invalid_answer(format!(
                "The model's answer is not JSON, as the request demands: {error}. Retry."
            ))
        })?;
        schema.validate(&value).map_err(|error| {
            ApiError::invalid_answer(format!(
                "The model's answer does not match the request's schema: {}. Retry.",
                shortened(&error.to_string())
            ))
        })
    }
}

/// 502: a call of which a part was sent already is broken.
pub(super) fn malformed_call() -> ApiError {
    ApiError::invalid_answer("The model's tool call is malformed. Retry.")
}

fn validator(param: &str, schema: &Value) -> Result<Validator, ApiError> {
    let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACK_LIMIT);
    // No schema makes the gateway read a file or a URL.
    let options = jsonschema::options()
        .offline()
        .with_pattern_options(patterns);
    options.build(schema).map_err(|error| {
        let message = format!(
            "Invalid value for `{param}`: {}. Send a valid JSON schema.",
            shortened(&error.to_string())
        );
        ApiError::invalid_request(param, message)
    })
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use inflight_openai::chat::FunctionTool;
    use serde_json::json;

    use super::*;

    fn check(
        choice: ToolChoice,
        strict: bool,
        schema: Value,
    ) -> Result<Option<CallDemand>, ApiError> {
        let function = |name: &str, schema: Option<Value>| {
            FunctionTool::checked(
                ("tools[0].function", "parameters"),
                name.to_owned(),
                None,
                schema,
                strict,
            )
            .unwrap()
        };
        let functions = vec![function("f", Some(schema)), function("g", None)];
        let tools = Tools {
            functions,
            choice,
            parallel: true,
        };
        CallDemand::new(&tools, None)
    }

    #[test]
    fn arguments_are_checked_where_the_request_demands_it() {
        let schema =
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let named = || ToolChoice::Function("f".to_owned());
        for (choice, strict, arguments, part) in [
            (ToolChoice::Required, false, r#"{"n": 1}"#, None),
            (
                ToolChoice::Required,
                false,
                r#"{"n": "x"}"#,
                Some("at `/n`"),
            ),
            (named(), false, "{}", Some("required")),
            (named(), false, "{", Some("not JSON")),
            (ToolChoice::Auto, true, "{}", Some("required")),
        ] {
            let check = check(choice, strict, schema.clone()).unwrap().unwrap();
            let outcome = check.call("f", arguments);
            match part {
                None => outcome.unwrap(),
                Some(part) => {
                    let error = outcome.unwrap_err();
                    assert_eq!(
                        (error.status(), error.code()),
                        (502, Some("invalid_answer"))
                    );
                    assert!(error.message.contains(part), "{error}");
                }
            }
        }
        assert!(check(ToolChoice::Auto, false, schema).unwrap().is_none());
    }

    #[test]
    fn a_demanded_call_must_come_and_end() {
        let of = |choice| check(choice, true, json!({})).unwrap().unwrap();
        let required = of(ToolChoice::Required);
        assert!(required.end(1, 0, "").is_ok() && of(ToolChoice::Auto).end(0, 0, "").is_ok());
        assert!(required.end(0, 0, "").is_err() && required.end(1, 1, "").is_err());
    }

    #[test]
    fn what_is_no_schema_is_named() {
        for schema in [
            json!({"type": 5}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "file:///etc/passwd"}),
        ] {
            let error = check(ToolChoice::Required, false, schema).unwrap_err();
            let param = error.param.as_deref();
            assert_eq!(param, Some("tools[0].function.parameters"), "{error}");
        }
    }
}
