//! The answers of S3 servers, whose elements are found by their names alone: servers differ in the namespaces.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

/// Elements within each other; answers have four.
pub(crate) const MOST_DEPTH: usize = 16;

/// What a reader finds, in the order of the text.
pub(crate) enum Found<'a> {
    /// The text of an element, whose path has the names below the root: `Contents/Key`.
    Text(&'a str, &'a str),
    /// An element ended that has others within it.
    End(&'a str),
}

/// Reads `text`, and returns the root's name. `None`: it is not XML.
pub(crate) fn read(text: &str, mut take: impl FnMut(Found<'_>)) -> Option<String> {
    let mut reader = Reader::from_str(text);
    let (mut root, mut path) = (None, Vec::new());
    let (mut content, mut is_leaf) = (String::new(), false);
    loop {
        match reader.read_event().ok()? {
            Event::Start(element) => {
                let name = element.local_name().as_ref().to_owned();
                // The reader takes any name; with this it would look like a path.
                if name.contains('/') {
                    return None;
                }
                if root.is_none() {
                    root = Some(name.clone());
                }
                path.push(name);
                content.clear();
                is_leaf = true;
                if path.len() > MOST_DEPTH {
                    return None;
                }
            }
            Event::End(_) => {
                let below = path.get(1..).unwrap_or_default().join("/");
                match is_leaf {
                    true => take(Found::Text(&below, content.trim())),
                    false => take(Found::End(&below)),
                }
                content.clear();
                is_leaf = false;
                path.pop()?;
            }
            Event::Text(part) => content.push_str(&part.xml10_content()),
            Event::CData(part) => content.push_str(&part.into_inner()),
            Event::GeneralRef(reference) => match reference.resolve_char_ref().ok()? {
                Some(character) => content.push(character),
                None => content.push_str(resolve_predefined_entity(&reference.xml10_content())?),
            },
            Event::Eof => return root.filter(|_| path.is_empty()),
            _ => {}
        }
    }
}

/// The text of the element at `path`, and the root's name.
pub(crate) fn text(xml: &[u8], path: &str) -> Option<(String, Option<String>)> {
    let mut found = None;
    let root = read(std::str::from_utf8(xml).ok()?, |one| {
        if let Found::Text(at, text) = one
            && at == path
        {
            found = Some(text.to_owned());
        }
    })?;
    Some((root, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_whatever_their_namespace() {
        let xml = r#"<?xml version="1.0"?><a:R xmlns:a="x"><a:C><K>1&amp;&#50;</K><E/><S></S></a:C> <C><K>3</K></C></a:R>"#;
        let mut all = Vec::new();
        let root = read(xml, |found| {
            all.push(match found {
                Found::Text(path, text) => format!("{path}={text}"),
                Found::End(path) => format!("/{path}"),
            });
        });
        assert_eq!(root.as_deref(), Some("R"));
        assert_eq!(all, ["C/K=1&2", "C/S=", "/C", "C/K=3", "/C", "/"]);
        for wrong in [
            "<a>",
            "<a></b>",
            "<a>&x;</a>",
            "<a><C/K>1</C/K></a>",
            "",
            "x",
            &"<a>".repeat(99),
        ] {
            assert_eq!(read(wrong, |_| {}), None, "{wrong}");
        }
    }
}
