//! A template's source as the engine must see it to read it as Jinja does. Owns the tags that the two
//! read differently; knows nothing of values or rendering.
//!
//! - `{% generation %}` marks the assistant's words for training. In serving the block is its content:
//!   the tag becomes `{% with %}`, which has the same scope and leaves whitespace control as it is.
//! - `{% raw %}` keeps the line break behind it in Jinja, whatever `trim_blocks` says; the engine drops
//!   it unless the tag is written `{% raw +%}`.
//! - Line breaks are `\n` in Jinja, however the file has them.

/// Rewrites `source`. Lines stay where they are, so that errors name the right one; what does not parse
/// stays as it is, for the engine to refuse.
pub(super) fn adapt(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut result = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, opening)) = next_opening(rest) {
        result.push_str(before);
        let after = rest.get(before.len()..).unwrap_or_default();
        let Some(length) = length_of(opening, after) else {
            rest = after;
            break;
        };
        let (whole, after) = after.split_at(length);
        rest = after;
        match (opening == "{%").then(|| Tag::read(whole)).flatten() {
            Some(tag) if tag.word == "generation" => tag.write("with", &mut result),
            Some(tag) if tag.word == "endgeneration" => tag.write("endwith", &mut result),
            Some(tag) if tag.word == "raw" => {
                if tag.close.is_empty() {
                    Tag { close: "+", ..tag }.write("raw", &mut result);
                } else {
                    result.push_str(whole);
                }
                // Up to its end nothing is a tag.
                let end = end_of_raw(rest);
                let (literal, after) = rest.split_at(end);
                result.push_str(literal);
                rest = after;
            }
            _ => result.push_str(whole),
        }
    }
    result.push_str(rest);
    result
}

/// The text before the next tag, expression or comment, and which of them starts there.
fn next_opening(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find('{')?;
        if let Some(opening @ ("{%" | "{{" | "{#")) = text.get(start..start + 2) {
            return Some((text.get(..start)?, opening));
        }
        from = start + 1;
    }
}

/// Bytes from an opening to the end of its closing; `None` if it is never closed.
fn length_of(opening: &str, text: &str) -> Option<usize> {
    let closing = match opening {
        "{#" => return text.find("#}").map(|end| end + 2),
        "{{" => "}}",
        _ => "%}",
    };
    let mut depth = 0usize;
    let mut quote = None;
    let mut characters = text.char_indices().skip(opening.len());
    while let Some((position, character)) = characters.next() {
        match (quote, character) {
            (Some(_), '\\') => {
                characters.next();
            }
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            // A closing within a dictionary is two of its brackets.
            (None, _) if depth == 0 && text.get(position..)?.starts_with(closing) => {
                return Some(position + closing.len());
            }
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Where `{% endraw %}` starts; the whole length where there is none.
fn end_of_raw(text: &str) -> usize {
    text.match_indices("{%")
        .find(|(start, _)| {
            let inner = text.get(start + 2..).unwrap_or_default();
            let inner = inner.strip_prefix(is_sign).unwrap_or(inner).trim_start();
            inner
                .strip_prefix("endraw")
                .map(|rest| rest.trim_start().trim_start_matches(is_sign))
                .is_some_and(|rest| rest.starts_with("%}"))
        })
        .map_or(text.len(), |(start, _)| start)
}

/// Whitespace control.
fn is_sign(character: char) -> bool {
    matches!(character, '-' | '+')
}

/// A tag of one word, taken apart.
struct Tag<'a> {
    /// Whitespace control: empty, `-` or `+`.
    open: &'a str,
    word: &'a str,
    close: &'a str,
    lines: usize,
}

impl<'a> Tag<'a> {
    fn read(whole: &'a str) -> Option<Self> {
        let inner = whole.strip_prefix("{%")?.strip_suffix("%}")?;
        let body = inner.strip_prefix(is_sign).unwrap_or(inner);
        let (open, _) = inner.split_at(inner.len() - body.len());
        let word = body.strip_suffix(is_sign).unwrap_or(body);
        let (_, close) = body.split_at(word.len());
        Some(Self {
            open,
            word: word.trim(),
            close,
            lines: word.matches('\n').count(),
        })
    }

    fn write(&self, word: &str, out: &mut String) {
        let lines = "\n".repeat(self.lines);
        out.push_str(&format!("{{%{} {word} {lines}{}%}}", self.open, self.close));
    }
}
