//! The document as a page that people read. Owns the HTML: no scripts, and nothing is fetched from anywhere.

use std::fmt::Write;

use serde_json::Value;

/// The console's, whose colors and bar the page has, and its own.
pub(super) const STYLE: &str = concat!(
    include_str!("../../console/style.css"),
    include_str!("../../console/reference.css")
);

/// The console's pages.
const LINKS: &str =
    "<a href=\"./#chat\">Chat</a><a href=\"./#live\">Live</a><a href=\"./#requests\">Requests</a>";

/// The page of the gateway's document. With a console, it is one of its pages.
pub(crate) fn html(document: &Value, has_console: bool) -> String {
    let mut page =
        String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let title = text(&document["info"]["title"]);
    let links = if has_console { LINKS } else { "" };
    put(
        &mut page,
        format_args!(
            "<meta name=\"viewport\" content=\"width=device-width\"><title>{title} API</title><style>{STYLE}</style></head>\
             <body><header class=\"bar\"><h1>{title}</h1><nav aria-label=\"Pages\">{links}\
             <a href=\"docs\" aria-current=\"page\">API</a></nav></header><main class=\"reference\"><div>\
             <p>Version {}. {}</p><p><a href=\"openapi.json\">openapi.json</a> has this in OpenAPI {}.</p>\n",
            text(&document["info"]["version"]),
            text(&document["info"]["description"]),
            text(&document["openapi"]),
        ),
    );
    let mut tag = String::new();
    for (path, item) in members(&document["paths"]) {
        for (method, operation) in members(item) {
            let own = text(&operation["tags"][0]);
            if own != tag {
                put(&mut page, format_args!("<h2>{own}</h2>\n"));
                tag = own;
            }
            put(
                &mut page,
                format_args!(
                    "<details><summary><span class=\"method\">{}</span><code>{}</code> {}</summary>\n",
                    escaped(&method.to_uppercase()),
                    escaped(path),
                    text(&operation["summary"]),
                ),
            );
            parameters(&mut page, operation);
            for (_, content) in members(&operation["requestBody"]["content"]) {
                body(&mut page, &content["schema"]);
            }
            answers(&mut page, &operation["responses"]);
            page.push_str("</details>\n");
        }
    }
    page.push_str("<h2>Schemas</h2>\n");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let id = escaped(name);
        put(
            &mut page,
            format_args!(
                "<details id=\"{id}\"><summary><code>{id}</code></summary><p>{}</p>\n",
                text(&schema["description"]),
            ),
        );
        fields(&mut page, schema);
        page.push_str("</details>\n");
    }
    page.push_str("</div></main></body></html>\n");
    page
}

fn parameters(page: &mut String, operation: &Value) {
    let list = operation["parameters"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return;
    }
    page.push_str("<table><tr><th>parameter</th><th>in</th><th>type</th></tr>\n");
    for one in list {
        put(
            page,
            format_args!(
                "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                text(&one["name"]),
                text(&one["in"]),
                kind(&one["schema"]),
            ),
        );
    }
    page.push_str("</table>\n");
}

fn body(page: &mut String, schema: &Value) {
    if schema.is_null() {
        return;
    }
    page.push_str("<p>Request body:</p>\n");
    fields(page, schema);
    for (list, words) in [
        ("x-inflight-refused-fields", "Refused"),
        ("x-inflight-ignored-fields", "Ignored and reported"),
    ] {
        let names = schema[list].as_array().map_or(&[][..], Vec::as_slice);
        if !names.is_empty() {
            let names: Vec<String> = names
                .iter()
                .map(|name| format!("<code>{}</code>", text(name)))
                .collect();
            put(page, format_args!("<p>{words}: {}</p>\n", names.join(", ")));
        }
    }
}

fn answers(page: &mut String, answers: &Value) {
    page.push_str("<table><tr><th>answer</th><th>type</th><th>schema</th></tr>\n");
    for (status, answer) in members(answers) {
        for (media, content) in members(&answer["content"]) {
            put(
                page,
                format_args!(
                    "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    escaped(status),
                    escaped(media),
                    kind(&content["schema"]),
                ),
            );
        }
    }
    page.push_str("</table>\n");
}

/// The properties of an object, or what replaces them.
fn fields(page: &mut String, schema: &Value) {
    let properties = members(&schema["properties"]);
    if properties.is_empty() {
        put(page, format_args!("<p>{}</p>\n", kind(schema)));
        return;
    }
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    page.push_str("<table><tr><th>field</th><th>type</th><th></th></tr>\n");
    for (name, schema) in properties {
        let is_required = required.iter().any(|one| one == name);
        put(
            page,
            format_args!(
                "<tr><td><code>{}</code>{}</td><td>{}</td><td>{}</td></tr>\n",
                escaped(name),
                if is_required { " *" } else { "" },
                kind(schema),
                text(&schema["description"]),
            ),
        );
    }
    page.push_str("</table>\n");
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = escaped(name.rsplit('/').next().unwrap_or_default());
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    for list in ["anyOf", "oneOf"] {
        if let Some(forms) = schema[list].as_array() {
            return forms.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    let shown = |value: &Value| format!("<code>{}</code>", escaped(&value.to_string()));
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(shown).collect::<Vec<_>>().join(" or ");
    }
    if !schema["const"].is_null() {
        return shown(&schema["const"]);
    }
    let mut words = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        kind => text(kind),
    };
    if !schema["items"].is_null() {
        put(&mut words, format_args!(" of {}", kind(&schema["items"])));
    }
    let bound = |name: &str| schema[name].as_number().map(ToString::to_string);
    if let (Some(low), Some(high)) = (bound("minimum"), bound("maximum")) {
        put(&mut words, format_args!(", {low} to {high}"));
    }
    words
}

fn members(value: &Value) -> Vec<(&String, &Value)> {
    value.as_object().into_iter().flatten().collect()
}

/// A string of the document as HTML.
fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

fn put(page: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = page.write_fmt(words);
}
