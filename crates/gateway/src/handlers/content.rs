//! Messages as a chat template takes them: text as a string, or as a list of its parts. Owns which message gets
//! which; which form a template takes is `text`'s to know.

use inflight_openai::chat::{Message, Role};
use inflight_text::{ContentForm, TemplateError};
use serde_json::{Value, json};

/// Renders a conversation without images.
///
/// # Errors
/// What `render` returns.
pub(super) fn render(
    messages: &[Message],
    form: ContentForm,
    mut render: impl FnMut(Value) -> Result<String, TemplateError>,
) -> Result<String, TemplateError> {
    // Maps and strings always serialize.
    let texts = || serde_json::to_value(messages).unwrap_or_default();
    let mut shown = texts();
    let lists = listed(messages, form, &mut shown);
    match render(shown) {
        // Some templates take lists from users only.
        Err(error @ (TemplateError::Failed { .. } | TemplateError::Raised { .. })) if lists > 0 => {
            render(texts()).map_err(|_| error)
        }
        rendered => rendered,
    }
}

/// Makes lists of the contents that are better shown as such; returns how many.
fn listed(messages: &[Message], form: ContentForm, shown: &mut Value) -> usize {
    let mut lists = 0;
    for (message, shown) in messages
        .iter()
        .zip(shown.as_array_mut().into_iter().flatten())
    {
        let is_list = match form {
            ContentForm::Text => false,
            // From other roles many of these templates read the first part alone, or write the list as it is.
            ContentForm::TextOrParts => message.role == Role::User && !message.breaks.is_empty(),
            ContentForm::Parts => true,
        };
        if is_list {
            lists += 1;
            shown["content"] = parts(message);
        }
    }
    lists
}

/// The text of a message as a list of parts.
pub(super) fn parts(message: &Message) -> Value {
    let texts = message.texts();
    texts
        .map(|text| json!({"type": "text", "text": text}))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use inflight_openai::chat::Part;
    use inflight_text::{ChatTemplate, TemplateInput};
    use serde_json::Map;

    use super::*;

    /// A template of this source, and how messages are rendered by it.
    pub(in crate::handlers) fn template(
        source: &str,
    ) -> (
        ContentForm,
        impl FnMut(Value) -> Result<String, TemplateError>,
    ) {
        let sources = vec![("default".to_owned(), source.to_owned())];
        let template = ChatTemplate::new(sources, Map::new());
        let form = template.content_form();
        let once = move |messages| {
            template.render(&TemplateInput {
                messages,
                ..TemplateInput::default()
            })
        };
        (form, once)
    }

    fn conversation() -> Vec<Message> {
        let two = || {
            ["one", "two"]
                .map(|text| Part::Text(text.to_owned()))
                .to_vec()
        };
        vec![
            Message::new(Role::System, "Be brief.".to_owned()),
            Message::of_parts(Role::User, two()),
            Message::of_parts(Role::Tool, two()),
            Message::new(Role::Assistant, String::new()),
        ]
    }

    fn rendered(source: &str, messages: &[Message]) -> Result<String, String> {
        let (form, once) = template(source);
        render(messages, form, once).map_err(|error| error.to_string())
    }

    #[test]
    fn no_text_is_lost_whatever_form_a_template_takes() {
        for (source, expected) in [
            (
                "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
                "<system>Be brief.<user>one\ntwo<tool>one\ntwo<assistant>",
            ),
            // As in SmolVLM, LLaVA and vLLM's templates of embedding models.
            (
                "{% for m in messages %}<{{ m.role }}>{% for line in m['content'] %}\
                 {% if line['type'] == 'text' %}{{ line['text'] }}|{% endif %}{% endfor %}{% endfor %}",
                "<system>Be brief.|<user>one|two|<tool>one|two|<assistant>",
            ),
            // As in Llama 4, Gemma 3 and Qwen 3.5.
            (
                "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
                 {% for part in m.content %}{{ part.text }}|{% endfor %}{% endif %}{% endfor %}",
                "<system>Be brief.<user>one|two|<tool>one\ntwo<assistant>",
            ),
            // Lists from users only.
            (
                "{% for m in messages %}{% if m.role == 'user' %}{% for part in m.content %}{{ part.text }}|{% endfor %}\
                 {% else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{% endfor %}",
                "<system>Be brief.one|two|<tool>one\ntwo<assistant>",
            ),
            // The first message as a string.
            (
                "{{ '<s>' + messages[0].content }}{% for m in messages[1:] %}{% if m.content is string %}{{ m.content }}\
                 {% else %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endif %}{% endfor %}",
                "<s>Be brief.one|two|one\ntwo",
            ),
        ] {
            assert_eq!(
                rendered(source, &conversation()).unwrap(),
                expected,
                "{source}"
            );
        }
    }

    #[test]
    fn other_roles_parts_are_joined_where_a_template_takes_strings() {
        let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% elif m.role == 'user' %}\
            {% for part in m.content %}{{ part.text }}{% endfor %}{% else %}{{ m.content[0].text }}{% endif %};{% endfor %}";
        let parts = |role| {
            Message::of_parts(
                role,
                ["one", "two"]
                    .map(|text| Part::Text(text.to_owned()))
                    .to_vec(),
            )
        };
        let messages = [Role::System, Role::User, Role::Assistant].map(parts);
        assert_eq!(
            rendered(source, &messages).unwrap(),
            "one\ntwo;onetwo;one\ntwo;"
        );
    }

    #[test]
    fn a_template_that_fails_on_a_list_gets_strings() {
        let source = "{{ '<s>' + messages[0].content }}{% for m in messages[1:] %}{% if m.content is string %}\
            {{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endif %}{% endfor %}";
        let mut messages = conversation();
        messages.remove(0);
        assert_eq!(rendered(source, &messages).unwrap(), "<s>one\ntwoone\ntwo");
    }

    #[test]
    fn what_a_template_refuses_in_any_form_is_its_error() {
        let source = "{% for part in messages[0].content %}{{ raise_exception('no ' + part.type) }}{% endfor %}\
            {{ raise_exception('no strings') }}";
        let error = rendered(source, &conversation()).unwrap_err();
        assert!(error.contains("no text"), "{error}");
    }
}
