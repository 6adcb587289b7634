//! `{% generation %}` marks the assistant's words for training. In serving the block is its content:
//! the tag becomes `{% with %}`, which has the same scope and leaves whitespace control as it is.

/// Rewrites the tags `generation` and `endgeneration`.
pub(super) fn neutralize(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        match rewrite(tag) {
            Some((text, after)) => {
                result.push_str(&text);
                rest = after;
            }
            None => {
                result.push_str("{%");
                rest = tag.strip_prefix("{%").unwrap_or_default();
            }
        }
    }
    result.push_str(rest);
    result
}

/// If a tag of the two starts here: its replacement and what follows it.
fn rewrite(tag: &str) -> Option<(String, &str)> {
    let inner = tag.strip_prefix("{%")?;
    let end = inner.find("%}")?;
    let (inner, after) = (inner.get(..end)?, inner.get(end..)?.strip_prefix("%}")?);
    let signs: &[char] = &['-', '+'];
    let open = inner
        .strip_prefix(signs)
        .map_or("", |_| inner.get(..1).unwrap_or(""));
    let body = inner.get(open.len()..)?;
    let close = body
        .strip_suffix(signs)
        .map_or("", |_| body.get(body.len() - 1..).unwrap_or(""));
    let body = body.get(..body.len() - close.len())?;
    let word = match body.trim() {
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return None,
    };
    // Lines stay, so that errors name the right one.
    let newlines = "\n".repeat(body.matches('\n').count());
    Some((format!("{{%{open} {word} {newlines}{close}%}}"), after))
}
