//! The reference page lists every format and every name.

use inflight_parsers::{ReasoningFormat, ToolFormat};

#[test]
fn the_page_lists_every_name() {
    let page = include_str!("../../../../docs/reference/tool-formats.md");
    let (tools, reasoning) = page.split_once("\n## Reasoning\n").unwrap();
    let (reasoning, _) = reasoning.split_once("\n## Rules\n").unwrap();
    for (part, error) in [
        (tools, "?".parse::<ToolFormat>().unwrap_err().to_string()),
        (
            reasoning,
            "?".parse::<ReasoningFormat>().unwrap_err().to_string(),
        ),
    ] {
        // The error lists every name.
        let (_, known) = error.split_once("use one of ").unwrap();
        for name in known.split(", ") {
            let is_listed = part
                .lines()
                .filter(|line| line.starts_with('|'))
                .any(|line| line.split('|').take(3).any(|cell| cell.contains(name)));
            assert!(is_listed, "{name} is not in the page");
        }
    }
}
