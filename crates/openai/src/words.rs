//! What a message repeats of what a client sent: cut, and on one line.

use std::borrow::Cow;

/// Bytes of a value that a message repeats.
const MAX_SHOWN_BYTES: usize = 80;

/// `text` cut to what a message may repeat, control characters as spaces.
pub fn shortened(text: &str) -> Cow<'_, str> {
    let end = (0..=MAX_SHOWN_BYTES.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    let shown = text.get(..end).unwrap_or_default();
    if end == text.len() && !shown.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut clean: String = shown
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .collect();
    if end < text.len() {
        clean.push('…');
    }
    Cow::Owned(clean)
}
