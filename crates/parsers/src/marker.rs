//! Finding markers in text that may end within one. Owns what must be held back for them.

use memchr::memchr3;

/// Where the first marker of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A whole marker: where, and which of the list.
    Whole { at: usize, marker: usize },
    /// The text ends with what could become a marker, from here on.
    Partial { at: usize },
    /// No marker starts in this text.
    Nowhere,
}

/// Finds the first of `markers`, which start with at most three different bytes in all. Where two markers match at
/// one place the one that is listed first counts.
pub(crate) fn find(text: &str, markers: &[&str]) -> Found {
    let bytes = text.as_bytes();
    let [one, two, three] = first_bytes(markers);
    let mut start = 0;
    while let Some(step) = bytes
        .get(start..)
        .and_then(|rest| memchr3(one, two, three, rest))
    {
        let at = start + step;
        let rest = bytes.get(at..).unwrap_or_default();
        match look(rest, markers) {
            Look::Whole(marker) => return Found::Whole { at, marker },
            Look::Partial => return Found::Partial { at },
            Look::Other => start = at + 1,
        }
    }
    Found::Nowhere
}

/// What a text starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// This one of the markers.
    Whole(usize),
    /// All of the text is a proper prefix of a marker.
    Partial,
    /// No marker.
    Other,
}

/// Compares the start of `text` with `markers`.
pub(crate) fn look(text: &[u8], markers: &[&str]) -> Look {
    let mut is_partial = false;
    for (index, marker) in markers.iter().enumerate() {
        if text.starts_with(marker.as_bytes()) {
            return Look::Whole(index);
        }
        is_partial |= marker.as_bytes().starts_with(text);
    }
    if is_partial {
        Look::Partial
    } else {
        Look::Other
    }
}

/// Up to three different first bytes, the first one repeated where there are fewer.
fn first_bytes(markers: &[&str]) -> [u8; 3] {
    let mut firsts = markers
        .iter()
        .filter_map(|marker| marker.as_bytes().first().copied());
    let one = firsts.next().unwrap_or_default();
    let two = firsts.find(|byte| *byte != one).unwrap_or(one);
    let three = firsts
        .find(|byte| *byte != one && *byte != two)
        .unwrap_or(one);
    [one, two, three]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_whole_and_partial_markers() {
        let markers = ["<tool_call>", "</tool_call>"];
        for (text, found) in [
            ("", Found::Nowhere),
            ("plain", Found::Nowhere),
            ("a < b", Found::Nowhere),
            ("a <", Found::Partial { at: 2 }),
            ("é<tool", Found::Partial { at: 2 }),
            ("<<tool_call>", Found::Whole { at: 1, marker: 0 }),
            ("x</tool_call>", Found::Whole { at: 1, marker: 1 }),
            ("<tool_cal<", Found::Partial { at: 9 }),
        ] {
            assert_eq!(find(text, &markers), found, "{text:?}");
        }
    }

    #[test]
    fn markers_may_start_with_three_different_bytes() {
        let markers = ["<a", "[a", "<b", "[b", "{a"];
        for (marker, text) in markers.iter().enumerate() {
            let at = Found::Whole { at: 1, marker };
            assert_eq!(find(&format!("x{text}"), &markers), at);
        }
        // Fewer count as well.
        assert_eq!(
            find("[a<a", &["<a", "[a"]),
            Found::Whole { at: 0, marker: 1 }
        );
        assert_eq!(find("x", &[]), Found::Nowhere);
    }
}
