//! Chat completions: messages become a prompt by the model's own template.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use inflight_images::Wanted;
use inflight_models::served::ServedModel;
use inflight_openai::chat::{self, ChatRequest, Message, Role, TemplateOptions};
use inflight_openai::chunk::AnswerKind;
use inflight_openai::{ApiError, Generation, IgnoredFields, Parsed};
use inflight_parsers::{CallIdForm, Format, ToolFormat};
use inflight_text::Scope;
use inflight_text::TemplateInput;
use inflight_translate::requested::Requested;
use inflight_upstream::placement::BlockKeys;
use serde_json::Value;
use tokio::time::Instant;

use super::answer_options;
use super::answering;
use super::asking::Asking;
use super::content;
use super::generate;
use super::image_prompt;
use super::locate::locate_for_text;
use super::prepared::Prepared;
use super::prompt::{self, SpecialTokens};
use super::thinking;
use crate::error::HttpError;
use crate::state::AppState;

/// `POST /v1/chat/completions`.
pub(crate) async fn create_chat_completion(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    let received = generate::receive(&state, request).await?;
    let (prepared, arrival) = received.prepare(&state, state.rendering(), prepare).await?;
    Ok(answering::answer(&state, &prepared, arrival, AnswerKind::Chat).await?)
}

fn prepare(asking: &Asking<'_>, body: &[u8]) -> Result<Prepared, ApiError> {
    prepare_parsed(asking, chat::parse(body)?)
}

/// Prepares a checked request, of this endpoint or of one that says the same in other words.
///
/// # Errors
/// 404 or 503 without a model; 400 where the prompt cannot be made or the model cannot do what is asked.
pub(super) fn prepare_parsed(
    state: &Asking<'_>,
    parsed: Parsed<ChatRequest>,
) -> Result<Prepared, ApiError> {
    let Parsed {
        mut request,
        mut ignored,
    } = parsed;
    let model = locate_for_text(state, &mut request.generation.model)?;
    let started = Instant::now();
    let messages = std::mem::take(&mut request.messages);
    image_prompt::check(&model.served, &messages)?;
    let images = state.images.read(image_prompt::images(&messages))?;
    check_truncation(&request.generation, &images)?;
    let format = state
        .formats
        .of(&model.entry.name, model.served.text.as_deref());
    let ids = call_ids(format);
    let mut text = render(
        &model.served,
        messages,
        ids,
        &request.template,
        &mut ignored,
    )?;
    let answer = answer_options::options(&mut request, format, &model.served, &mut text)?;
    let lora = model.adapter.as_ref().map(|adapter| adapter.task_id);
    let requested = Requested::chat(&request)
        .with_lora(lora)
        .with_scope(state.scope_of(&request.generation));
    let special = SpecialTokens::of(
        &request.generation,
        SpecialTokens::after_template(&model.served),
    );
    let mut prompt = prompt::text(&requested, &model.served, text, special, false)?;
    if let Some(budget) = thinking::budget(&request.generation, format, &model.served)? {
        budget.apply(&mut prompt);
    }
    state
        .metrics
        .tokenize_time
        .observe(started.elapsed().as_secs_f64());
    Ok(Prepared {
        model,
        log_probs: requested.log_probs,
        generation: request.generation,
        prompts: vec![prompt],
        answer: answer.map(Arc::new),
        ignored,
        images: images.into(),
        block_keys: BlockKeys::default(),
    })
}

/// The form of calls' ids that a model's template expects. Clients bring ids of other servers along.
pub(super) fn call_ids(format: Format) -> CallIdForm {
    format
        .tools
        .map_or(CallIdForm::Any, ToolFormat::call_id_form)
}

/// Refuses to cut a prompt with images: a placeholder might be cut, and its image stay.
fn check_truncation(generation: &Generation, images: &[Wanted]) -> Result<(), ApiError> {
    let extensions = generation.extensions.as_deref();
    let truncates = extensions.is_some_and(|asked| asked.truncate_prompt_tokens.is_some());
    if images.is_empty() || !truncates {
        return Ok(());
    }
    Err(ApiError::unsupported(
        "truncate_prompt_tokens",
        "`truncate_prompt_tokens` is not supported for a conversation with images. Send fewer messages.",
    ))
}

/// The tokens of a conversation's prompt, which is not sent from here.
///
/// # Errors
/// 400 where the model has no tokenizer here, or the prompt cannot be made.
pub(super) fn tokens(
    served: &ServedModel,
    request: ChatRequest,
    ids: CallIdForm,
    ignored: &mut IgnoredFields,
    scope: Scope,
) -> Result<Vec<u32>, ApiError> {
    let model = served.text.as_deref().ok_or_else(|| {
        ApiError::invalid_request(
            "messages",
            "The gateway has no tokenizer for this model. Start the gateway with `--tokenizer`.",
        )
    })?;
    let text = render(served, request.messages, ids, &request.template, ignored)?;
    let special = SpecialTokens::of(&request.generation, SpecialTokens::after_template(served));
    let adds = special == SpecialTokens::Added;
    prompt::tokenize(served, model, "messages", &text, adds, scope)
}

/// The prompt of a conversation, by the model's chat template. Reports the fields that the template does not read.
pub(super) fn render(
    served: &ServedModel,
    mut messages: Vec<Message>,
    ids: CallIdForm,
    options: &TemplateOptions,
    ignored: &mut IgnoredFields,
) -> Result<String, ApiError> {
    image_prompt::check(served, &messages)?;
    let template = served.chat_template().ok_or_else(|| {
        ApiError::invalid_request(
            "messages",
            "The model has no chat template. Use `/v1/completions`.",
        )
    })?;
    for message in &mut messages {
        // OpenAI's newer name for the same; templates know the older one.
        if message.role == Role::Developer {
            message.role = Role::System;
        }
        let made = message
            .tool_calls
            .iter_mut()
            .filter_map(|call| call.id.as_mut());
        for id in made.chain(message.tool_call_id.as_mut()) {
            if let Cow::Owned(fitting) = ids.fit(id) {
                *id = fitting;
            }
        }
    }
    let tools = options.tools.as_ref().map(|tools| tools.for_template());
    if tools.is_some() && !template.names("tools") {
        return Err(ApiError::unsupported(
            "tools",
            "The model's chat template does not show tools to the model. Leave `tools` out, or send them to a \
             model that was trained with them.",
        ));
    }
    let mut kwargs = options.kwargs.clone();
    for field in options
        .reasoning
        .apply(&mut kwargs, |name| template.names(name))
    {
        ignored.add(field);
    }
    let mut input = TemplateInput {
        messages: Value::Null,
        tools,
        add_generation_prompt: options.add_generation_prompt,
        extra: kwargs,
    };
    let once = |messages| {
        input.messages = messages;
        template.render(&input)
    };
    let text = if image_prompt::images(&messages).next().is_some() {
        match image_prompt::render(&messages, once) {
            Ok(None) => return Err(image_prompt::not_shown(&messages)),
            Ok(Some(text)) => Ok(text),
            Err(error) => Err(error),
        }
    } else {
        content::render(&messages, template.content_form(), once)
    };
    let text = text.map_err(|error| {
        if error.is_temporary() {
            tracing::error!(%error, "the model's chat template cannot be rendered");
            return ApiError::unavailable(
                "The model's chat template cannot be rendered now. Retry later.",
            );
        }
        if error.is_models_fault() {
            tracing::error!(%error, "the model's chat template cannot be used");
        }
        ApiError::invalid_request("messages", format!("{error}."))
    })?;
    check_roles(&messages, &text)?;
    match messages.last().filter(|_| options.continue_final_message) {
        Some(last) => continued(text, last),
        None => Ok(text),
    }
}

/// Checks that messages of roles that are not OpenAI's are in the prompt: templates leave out those they do not know.
///
/// # Errors
/// 400 with the role of the first that is not.
fn check_roles(messages: &[Message], text: &str) -> Result<(), ApiError> {
    let custom = messages.iter().enumerate();
    let mut custom = custom.filter(|(_, message)| message.role == Role::Custom);
    let lost = custom.find(|(_, message)| {
        let mut texts = message.texts();
        texts.any(|part| !text.contains(part.trim()))
    });
    let Some((index, message)) = lost else {
        return Ok(());
    };
    let param = format!("messages[{index}].role");
    let message = format!(
        "Invalid value for `{param}`: the model's chat template does not show messages of the role `{}`. Send `system`, \
         `developer`, `user`, `assistant`, `tool` or `function`.",
        message.role_name()
    );
    Err(ApiError::invalid_request(param, message))
}

/// The rendering up to the end of the last message's own text, as in Hugging Face's `apply_chat_template`.
fn continued(mut text: String, last: &Message) -> Result<String, ApiError> {
    let whole = last.content.as_str();
    let part = last.texts().last().unwrap_or_default();
    // Templates often trim a message, and those that take parts write them one by one.
    let mut forms = [whole, whole.trim(), part, part.trim()].into_iter();
    let last = forms.find(|form| text.contains(form)).unwrap_or_default();
    let end = text.rfind(last).map(|start| start + last.len());
    let end = end.filter(|_| !last.is_empty()).ok_or_else(|| {
        ApiError::invalid_request(
            "continue_final_message",
            "The last message's text is empty or does not appear in the rendered prompt, so it cannot be \
             continued. Leave out `continue_final_message`.",
        )
    })?;
    text.truncate(end);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use inflight_openai::chat::Part;

    use super::*;

    #[test]
    fn a_prompt_ends_with_the_text_that_is_continued() {
        let rendered = || "<u>So?<e><a>So it is<e>".to_owned();
        let said = |texts: &[&str]| {
            let parts = texts.iter().map(|text| Part::Text((*text).to_owned()));
            Message::of_parts(Role::Assistant, parts.collect())
        };
        assert_eq!(
            continued(rendered(), &said(&["So it is"])).unwrap(),
            "<u>So?<e><a>So it is"
        );
        assert_eq!(
            continued(rendered(), &said(&[" So it "])).unwrap(),
            "<u>So?<e><a>So it"
        );
        assert_eq!(
            continued(rendered(), &said(&["<a>", "So it"])).unwrap(),
            "<u>So?<e><a>So it"
        );
        for last in ["", "other"] {
            let error = continued(rendered(), &said(&[last])).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("continue_final_message"));
        }
    }
}
