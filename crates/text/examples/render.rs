//! Renders chat templates for comparison with another engine: one JSON object a line in, one a line out.
//! `tools/compare_text` is what runs it. Owns the format of those lines; the rendering is the crate's.

use std::io::{BufRead, Write, stdin, stdout};

use inflight_text::{ChatTemplate, TemplateInput};
use serde_json::{Map, Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut output = stdout().lock();
    for line in stdin().lock().lines() {
        let mut job: Map<String, Value> = serde_json::from_str(&line?)?;
        let answer = render(&mut job);
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
    }
    Ok(())
}

/// `{"text": …}`, or `{"error": …}` where the template refuses or fails.
fn render(job: &mut Map<String, Value>) -> Value {
    let mut take = |name: &str| job.remove(name).unwrap_or_default();
    let object = |value: Value| value.as_object().cloned().unwrap_or_default();
    let source = take("template").as_str().unwrap_or_default().to_owned();
    let special_tokens = object(take("special_tokens"));
    let input = TemplateInput {
        messages: take("messages"),
        tools: Some(take("tools")),
        add_generation_prompt: take("add_generation_prompt") == true,
        extra: object(take("extra")),
    };
    let template = ChatTemplate::new(vec![("default".to_owned(), source)], special_tokens);
    match template.render(&input) {
        Ok(text) => json!({"text": text}),
        Err(error) => json!({"error": error.to_string()}),
    }
}
