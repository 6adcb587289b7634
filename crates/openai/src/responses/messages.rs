//! What a model reads of a conversation's items: chat's messages. Owns which items make one message together.

use serde_json::Value;

use super::item::{CallOutput, CustomToolCall, FunctionCall, Item, MessageItem, Part, Reasoning};
use crate::chat::{self, Function, Image, Message, Role, ToolCall, in_namespace};

/// The messages of `instructions` and `items`. Reasoning, text and calls that follow each other are one turn of
/// the assistant; instructions join a system message that comes first, because many templates take only one.
pub(super) fn messages<'a>(
    instructions: Option<&str>,
    items: impl Iterator<Item = &'a Item>,
) -> Vec<Message> {
    let mut messages = Vec::new();
    if let Some(text) = instructions {
        messages.push(Message::new(Role::System, text.to_owned()));
    }
    for item in items {
        match item {
            Item::Message(item) => add_message(&mut messages, item),
            Item::FunctionCall(call) => {
                open_turn(&mut messages, |_| true)
                    .tool_calls
                    .push(tool_call(call));
            }
            Item::CustomToolCall(call) => {
                open_turn(&mut messages, |_| true)
                    .tool_calls
                    .push(custom_call(call));
            }
            Item::FunctionCallOutput(output) | Item::CustomToolCallOutput(output) => {
                let text = match &output.output {
                    CallOutput::Text(text) => text.clone(),
                    CallOutput::Parts(parts) => joined(parts),
                };
                let mut message = Message::new(Role::Tool, text);
                message.tool_call_id = Some(output.call_id.clone());
                messages.push(message);
            }
            Item::Reasoning(reasoning) => {
                let text = thoughts(reasoning);
                if !text.is_empty() {
                    // Thoughts come before what they are about.
                    open_turn(&mut messages, is_bare).reasoning_content = Some(text);
                }
            }
        }
    }
    messages
}

fn add_message(messages: &mut Vec<Message>, item: &MessageItem) {
    let text = joined(&item.content);
    match item.role {
        Role::Assistant => {
            let has_no_text =
                |turn: &Message| turn.content.is_empty() && turn.tool_calls.is_empty();
            open_turn(messages, has_no_text).content = text;
        }
        Role::System | Role::Developer => match messages.as_mut_slice() {
            [first] if is_system(first) => {
                first.content.push_str("\n\n");
                first.content.push_str(&text);
            }
            _ => messages.push(Message::new(item.role, text)),
        },
        role => messages.push(Message::of_parts(role, chat_parts(&item.content))),
    }
}

fn chat_parts(parts: &[Part]) -> Vec<chat::Part> {
    let parts = parts.iter().map(|part| match part {
        Part::InputImage {
            image_url, path, ..
        } => chat::Part::Image(Image {
            path: path.clone(),
            url: image_url.clone(),
        }),
        part => chat::Part::Text(part.text().to_owned()),
    });
    parts.collect()
}

/// The assistant's turn at the end, if there is one and `fits` says that it takes more; else a new one.
fn open_turn(messages: &mut Vec<Message>, fits: impl Fn(&Message) -> bool) -> &mut Message {
    let is_open = messages
        .last()
        .is_some_and(|last| last.role == Role::Assistant && fits(last));
    if !is_open {
        messages.push(Message::new(Role::Assistant, String::new()));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn is_bare(turn: &Message) -> bool {
    turn.content.is_empty() && turn.tool_calls.is_empty() && turn.reasoning_content.is_none()
}

fn is_system(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

fn joined(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts.iter().map(Part::text).collect();
    texts.join("\n")
}

fn thoughts(reasoning: &Reasoning) -> String {
    let parts = match reasoning.content.as_slice() {
        [] => &reasoning.summary,
        _ => &reasoning.content,
    };
    let texts: Vec<&str> = parts.iter().map(|part| part.text()).collect();
    texts.join("\n")
}

fn tool_call(call: &FunctionCall) -> ToolCall {
    let arguments = match serde_json::from_str(&call.arguments) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => Value::String(call.arguments.clone()),
    };
    ToolCall {
        id: Some(call.call_id.clone()),
        call_type: "function",
        function: Function {
            name: full_name(call.namespace.as_deref(), &call.name),
            arguments,
        },
    }
}

fn custom_call(call: &CustomToolCall) -> ToolCall {
    let name = full_name(call.namespace.as_deref(), &call.name);
    ToolCall {
        id: Some(call.call_id.clone()),
        call_type: "function",
        function: Function::custom(name, call.input.clone()),
    }
}

/// The name under which the model made the call.
fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => in_namespace(namespace, name),
        None => name.to_owned(),
    }
}
