//! A conversation with images as a prompt: whether the model and its chat template take any, and how the template is
//! shown them. The files themselves are `images`'.

use inflight_models::capability::{Capability, lacks};
use inflight_models::served::ServedModel;
use inflight_openai::ApiError;
use inflight_openai::chat::{Image, Message};
use inflight_text::TemplateError;
use serde_json::Value;

use super::content;

/// All images of a conversation, in their order.
pub(super) fn images(messages: &[Message]) -> impl Iterator<Item = &Image> {
    messages.iter().flat_map(Message::images)
}

/// Checks that the model takes the conversation's images, if it has any.
///
/// # Errors
/// 400 with the path of the first image.
pub(super) fn check(served: &ServedModel, messages: &[Message]) -> Result<(), ApiError> {
    let Some(first) = images(messages).next() else {
        return Ok(());
    };
    let Some(reason) = lacks(served, Capability::Images) else {
        return Ok(());
    };
    let path = &first.path;
    let message = format!("`{path}` is an image, which {reason}. Send text only.");
    Err(ApiError::unsupported(path, message))
}

/// The error of images that a model would take, and its chat template does not show.
pub(super) fn not_shown(messages: &[Message]) -> ApiError {
    let path = images(messages)
        .next()
        .map_or("messages", |image| &image.path);
    let message = format!(
        "`{path}` is an image, and the model's chat template cannot show images. Start the gateway with a \
         `--chat-template` that can."
    );
    ApiError::unsupported(path, message)
}

/// Renders a conversation with images. Templates differ in whether they take lists of parts, and in whether they take
/// anything else, so messages without images are given as strings first, and then as lists too. `None`: the template
/// shows no images, neither way.
///
/// # Errors
/// What `render` returns where the conversation cannot be rendered without its images either.
pub(super) fn render(
    messages: &[Message],
    mut render: impl FnMut(Value) -> Result<String, TemplateError>,
) -> Result<Option<String>, TemplateError> {
    // A template that does not support parts may print them as they are, and this with them.
    let mark = format!("{:032x}", rand::random::<u128>());
    let mut shown = None;
    let mut failed = false;
    for only_lists in [false, true] {
        let parts = |mark| with_contents(messages, ContentForm::Parts { only_lists, mark });
        let without = render(parts(None));
        let text = match render(parts(Some(&mark))) {
            Err(error) if error.is_temporary() => return Err(error),
            Err(_) => {
                failed = true;
                continue;
            }
            Ok(text) => text,
        };
        if text.contains(&mark) || without.is_ok_and(|without| without == text) {
            continue;
        }
        if has_texts(&text, messages) {
            return Ok(Some(text));
        }
        shown.get_or_insert(text);
    }
    if shown.is_none() && failed {
        // Whether it does not support lists, or nothing at all.
        render(with_contents(messages, ContentForm::Texts))?;
    }
    Ok(shown)
}

/// How a template gets what messages say.
#[derive(Clone, Copy)]
enum ContentForm<'a> {
    /// Strings, and nothing of the images.
    Texts,
    /// Messages with images as lists, the others as strings unless `only_lists`. Images are parts with the `mark`;
    /// without one they are left out.
    Parts {
        only_lists: bool,
        mark: Option<&'a str>,
    },
}

fn with_contents(messages: &[Message], form: ContentForm<'_>) -> Value {
    let formed = messages.iter().map(|message| {
        // Maps and strings always serialize.
        let mut value = serde_json::to_value(message).unwrap_or_default();
        let ContentForm::Parts { only_lists, mark } = form else {
            value["content"] = message.content.as_str().into();
            return value;
        };
        if let Value::Array(parts) = &mut value["content"] {
            parts.retain_mut(|part| {
                let is_image = part["type"] == "image";
                if let (true, Some(mark), Some(part)) = (is_image, mark, part.as_object_mut()) {
                    part.insert("inflight".to_owned(), mark.into());
                }
                !is_image || mark.is_some()
            });
        } else if only_lists && !message.content.is_empty() {
            value["content"] = content::parts(message);
        }
        value
    });
    formed.collect()
}

/// Whether the prompt has what the messages without images say.
fn has_texts(prompt: &str, messages: &[Message]) -> bool {
    let texts = messages.iter().filter(|message| message.parts.is_empty());
    texts
        .flat_map(Message::texts)
        .all(|text| prompt.contains(text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use inflight_openai::chat::{Part, Role};

    fn conversation() -> Vec<Message> {
        let image = || {
            Part::Image(Image {
                path: "messages[1].content[0]".to_owned(),
                url: "data:".to_owned(),
            })
        };
        vec![
            Message::new(Role::System, "Be brief.".to_owned()),
            Message::of_parts(
                Role::User,
                vec![image(), Part::Text("What is it?".to_owned()), image()],
            ),
            Message::new(Role::Assistant, "A cat.".to_owned()),
        ]
    }

    fn rendered(source: &str, messages: &[Message]) -> Result<Option<String>, String> {
        let (_, once) = content::tests::template(source);
        render(messages, once).map_err(|error| error.to_string())
    }

    /// As in Qwen2-VL, Llama 3.2 and LLaVA.
    const EITHER: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}\
        {% else %}{% for part in m.content %}{% if part.type == 'image' or 'image' in part %}<|image|>\
        {% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    const LISTS: &str = "{% for m in messages %}<{{ m.role }}>\
        {% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}\
        {% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endfor %}";

    #[test]
    fn images_are_where_the_template_puts_them() {
        for (source, expected) in [
            (
                EITHER,
                "<system>Be brief.<user><|image|>What is it?<|image|><assistant>A cat.",
            ),
            // It puts all images first, and takes nothing but lists.
            (
                LISTS,
                "<system>Be brief.<user><image><image>What is it?<assistant>A cat.",
            ),
            // One that takes the first message as a string only.
            (
                "{{ messages[0].content + '|' }}{% for part in messages[1].content %}\
                 {{ '<i>' if part.type == 'image' else part.text }}{% endfor %}",
                "Be brief.|<i>What is it?<i>",
            ),
        ] {
            let text = rendered(source, &conversation());
            assert_eq!(text.unwrap().as_deref(), Some(expected), "{source}");
        }
    }

    #[test]
    fn a_template_that_shows_no_images_is_found_out() {
        for source in [
            // Prints the list as it is.
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
            "{% for m in messages %}{{ '<' ~ m.content ~ '>' }}{% endfor %}",
            // Fails on it.
            "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}",
            // Leaves the images out.
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
             {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}\
             {% endif %}{% endfor %}",
        ] {
            assert_eq!(rendered(source, &conversation()), Ok(None), "{source}");
        }
    }

    #[test]
    fn what_the_template_refuses_anyway_is_its_error() {
        let source = "{{ raise_exception('no system messages') }}";
        let error = rendered(source, &conversation()).unwrap_err();
        assert!(error.contains("no system messages"), "{error}");
    }
}
