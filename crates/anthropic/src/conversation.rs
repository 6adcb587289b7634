//! From Anthropic's turns to the messages of a chat. A turn's blocks become one message, or several: tools'
//! results are separate messages there. Turns of the same role become one, as Anthropic combines them, for
//! many chat templates insist on roles that alternate.

use inflight_openai::bounds::{MAX_MESSAGES, MAX_TOOL_CALLS};
use inflight_openai::chat::{Function, Message, Role, ToolCall};
use inflight_openai::reader::{self, Fields};
use inflight_openai::{ApiError, IgnoredFields};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::block::{self, Block};
use crate::fields;

/// The messages of a chat, as turns are added.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// The id and the name of each call so far.
    calls: Vec<(String, String)>,
}

/// The messages and how the last one is to be answered.
#[derive(Debug, PartialEq)]
pub(crate) struct Turns {
    /// At least one.
    pub messages: Vec<Message>,
    /// Whether the answer continues the last message, which is then the assistant's and has text.
    pub continues: bool,
}

/// Reads `system` and `messages`.
pub(crate) fn take(
    fields: &mut Fields<'_>,
    ignored: &mut IgnoredFields,
) -> Result<Turns, ApiError> {
    let mut conversation = Conversation::default();
    if let Some(raw) = fields.take("system") {
        let text = block::read_text("system", raw, ignored)?;
        if !text.is_empty() {
            conversation.add_text(Role::System, text);
        }
    }
    let turns = fields
        .list("messages", MAX_MESSAGES)?
        .ok_or_else(|| fields.missing("messages"))?;
    if turns.is_empty() {
        return Err(ApiError::invalid_request(
            "messages",
            "Invalid value for `messages`: the array is empty. Send at least one message.",
        ));
    }
    for (index, raw) in turns.into_iter().enumerate() {
        conversation.read_turn(&format!("messages[{index}]"), raw, ignored)?;
    }
    conversation.finish()
}

impl Conversation {
    fn read_turn(
        &mut self,
        path: &str,
        raw: &RawValue,
        ignored: &mut IgnoredFields,
    ) -> Result<(), ApiError> {
        let mut turn = Fields::of_value(path, raw)?;
        let role = take_role(&mut turn)?;
        let content = turn.require("content")?;
        let param = turn.param("content");
        let blocks = block::read_content(&param, content, role, ignored)?;
        fields::finish(turn, "messages.", ignored)?;
        if blocks.is_empty() {
            self.add_text(role, String::new());
        }
        for block in blocks {
            self.add(role, block)?;
        }
        let last = self.messages.last();
        let calls = last.map_or(0, |last| last.tool_calls.len());
        if calls > MAX_TOOL_CALLS {
            return Err(reader::too_many(&param, calls, MAX_TOOL_CALLS));
        }
        Ok(())
    }

    fn add(&mut self, role: Role, block: Block) -> Result<(), ApiError> {
        match block {
            Block::Text(text) => self.add_text(role, text),
            Block::Image(image) => self.last(role).add_image(image),
            Block::Unreadable => {
                self.last(role);
            }
            Block::Thinking(text) => {
                let reasoning = &mut self.last(role).reasoning_content;
                join(reasoning.get_or_insert_default(), &text);
            }
            Block::ToolUse { id, name, input } => {
                self.calls.push((id.clone(), name.clone()));
                self.last(role).tool_calls.push(ToolCall {
                    id: Some(id),
                    call_type: "function",
                    function: Function {
                        name,
                        arguments: Value::Object(input),
                    },
                });
            }
            Block::ToolResult {
                param,
                id,
                content,
                is_error,
            } => {
                // A name that is called again is the later call's.
                let call = self.calls.iter().rev().find(|(called, _)| *called == id);
                let Some((_, name)) = call else {
                    let message = format!(
                        "Invalid value for `{param}`: no earlier `tool_use` block has the id `{}`. Send the id \
                         of the call that this is the result of.",
                        reader::shortened(&id)
                    );
                    return Err(ApiError::invalid_request(param, message));
                };
                let name = name.clone();
                self.messages.push(Message {
                    tool_call_id: Some(id),
                    name: Some(name),
                    ..Message::new(Role::Tool, result_text(content, is_error))
                });
            }
        }
        Ok(())
    }

    /// Adds text to the last message, or a separate message after one of another role.
    fn add_text(&mut self, role: Role, text: String) {
        self.last(role).add_text(&text);
    }

    /// The last message, which is a new one if the last one was another's.
    fn last(&mut self, role: Role) -> &mut Message {
        let continues = self.messages.last().is_some_and(|last| last.role == role);
        if !continues {
            self.messages.push(Message::new(role, String::new()));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn finish(mut self) -> Result<Turns, ApiError> {
        let last = self.messages.last();
        let continues = match last.filter(|last| last.role == Role::Assistant) {
            None => false,
            Some(last) if !last.tool_calls.is_empty() => {
                return Err(ApiError::invalid_request(
                    "messages",
                    "The last message calls a tool and has no result. Send the results as `tool_result` \
                     blocks in a message of the role `user`.",
                ));
            }
            Some(last) => !last.content.trim().is_empty(),
        };
        // A turn that has not begun is the one to generate.
        if last.is_some_and(|last| last.role == Role::Assistant) && !continues {
            self.messages.pop();
        }
        if self.messages.is_empty() {
            return Err(ApiError::invalid_request(
                "messages",
                "Invalid value for `messages`: there is no text in them. Send a message of the role `user`.",
            ));
        }
        Ok(Turns {
            messages: self.messages,
            continues,
        })
    }
}

fn take_role(turn: &mut Fields<'_>) -> Result<Role, ApiError> {
    let word = turn.required_string("role")?;
    match word.as_str() {
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "system" => Ok(Role::System),
        other => {
            let param = turn.param("role");
            let message = format!(
                "Invalid value for `{param}`: `{}`. Send `user`, `assistant` or `system`.",
                reader::shortened(other)
            );
            Err(ApiError::invalid_request(param, message))
        }
    }
}

/// A tool's result as a chat template sees it, which has no flag for failures.
fn result_text(content: String, is_error: bool) -> String {
    let says_so = content
        .trim_start()
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case("error"));
    match is_error && !says_so {
        true => format!("Error: {content}"),
        false => content,
    }
}

fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}
