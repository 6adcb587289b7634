//! The rows of `/v1/responses`: what it alone has, and what it calls by another name than chat does.

use super::Endpoint::Responses;
use super::kind::Kind::*;
use super::{Field, MAX_TOKENS, MAX_TOP_LOGPROBS, NO_SUCH, applied, ignored, refused};

const NO_CONVERSATION: &str =
    "Conversations are not stored. Send `previous_response_id`, or all items in `input`.";
const NO_BACKGROUND: &str = "Responses in the background have no options. Leave it out.";
const NO_LIST: &str =
    "The Responses API cannot return it. Send the request to `/v1/chat/completions`.";

/// See the module.
pub(super) const RESPONSES: &[Field] = &[
    applied(Responses, "input", TextOrObjects),
    applied(Responses, "instructions", Text),
    applied(Responses, "max_output_tokens", Integer(1, MAX_TOKENS)),
    applied(Responses, "top_logprobs", Integer(0, MAX_TOP_LOGPROBS)),
    applied(Responses, "include", Texts),
    applied(Responses, "text", Object),
    applied(Responses, "previous_response_id", Text),
    applied(Responses, "store", Boolean),
    // Kept and returned with the response.
    applied(Responses, "metadata", Object),
    applied(Responses, "chat_template_kwargs", Object),
    // Counts calls of hosted tools, of which there are none.
    applied(Responses, "max_tool_calls", Integer(1, MAX_TOKENS)),
    refused(
        Responses,
        "truncation",
        &["\"disabled\""],
        "Conversations are never truncated silently. Leave it out, and send fewer items when the context is \
         full.",
    ),
    // The answer is kept, and its client comes back for it.
    applied(Responses, "background", Boolean),
    refused(Responses, "background_options", &[], NO_BACKGROUND),
    refused(Responses, "conversation", &[], NO_CONVERSATION),
    refused(
        Responses,
        "context_management",
        &[],
        "Conversations are not compacted. Leave it out.",
    ),
    refused(
        Responses,
        "prompt",
        &[],
        "Prompt templates are not stored. Send the text in `instructions` and `input`.",
    ),
    refused(
        Responses,
        "moderation",
        &[],
        "Moderation is not supported. Leave it out and moderate the answer yourself.",
    ),
    refused(Responses, "image", &[], NO_SUCH),
    ignored(Responses, "input.content.detail", &["\"auto\""]),
    refused(Responses, "access_programs", &[], NO_SUCH),
    // Chat's names.
    refused(Responses, "messages", &[], "Send `input` instead."),
    refused(Responses, "max_tokens", &[], MAX_OUTPUT_TOKENS),
    refused(Responses, "max_completion_tokens", &[], MAX_OUTPUT_TOKENS),
    refused(
        Responses,
        "response_format",
        &[],
        "Send `text.format` instead.",
    ),
    refused(
        Responses,
        "logprobs",
        &["false"],
        "Send `top_logprobs`, and `message.output_text.logprobs` in `include`, instead.",
    ),
    refused(
        Responses,
        "reasoning_effort",
        &[],
        "Send `reasoning.effort` instead.",
    ),
    refused(
        Responses,
        "verbosity",
        &[],
        "Send `text.verbosity` instead.",
    ),
    refused(
        Responses,
        "n",
        &["1"],
        "A response has one answer. Send several requests.",
    ),
    refused(
        Responses,
        "best_of",
        &["1"],
        "A response has one answer. Leave it out.",
    ),
    refused(Responses, "return_token_ids", &["false"], NO_LIST),
    refused(Responses, "prompt_logprobs", &[], NO_LIST),
    ignored(Responses, "text.verbosity", &["\"medium\""]),
    applied(Responses, "tools", Objects),
    applied(Responses, "tool_choice", ToolChoice),
    applied(Responses, "parallel_tool_calls", Boolean),
    applied(Responses, "reasoning", Object),
    // Reasoning is returned whole, without a summary.
    ignored(Responses, "reasoning.summary", &[]),
    ignored(Responses, "reasoning.generate_summary", &[]),
    // The switches of other servers, as in chat.
    applied(Responses, "thinking", BooleanOrObject),
    applied(Responses, "enable_thinking", Boolean),
];

const MAX_OUTPUT_TOKENS: &str = "Send `max_output_tokens` instead.";
