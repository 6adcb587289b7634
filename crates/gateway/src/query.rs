//! The query of a URL. Owns its decoding; which names there are is the handlers'.

use std::borrow::Cow;

use http::Uri;
use percent_encoding::percent_decode_str;

/// The query's pairs, decoded. A name without a value has an empty one.
pub(crate) fn pairs(uri: &Uri) -> Vec<(String, String)> {
    let query = uri.query().unwrap_or_default();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// The value of the first pair of this name.
pub(crate) fn value(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = pairs(uri).into_iter();
    pairs.find(|pair| pair.0 == name).map(|pair| pair.1)
}

/// Forms write a space as a plus. Bytes that are not UTF-8 do not match any known name, whatever they become.
fn decoded(text: &str) -> String {
    let text = match text.contains('+') {
        true => Cow::Owned(text.replace('+', " ")),
        false => Cow::Borrowed(text),
    };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded() {
        let uri: Uri = "/x?model=a%2Fb%3Ac&limit=5&empty&a+b=%2B&model=second"
            .parse()
            .unwrap();
        let expected = [
            ("model", "a/b:c"),
            ("limit", "5"),
            ("empty", ""),
            ("a b", "+"),
            ("model", "second"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs(&uri), expected);
        assert_eq!(value(&uri, "model").as_deref(), Some("a/b:c"));
        assert_eq!(value(&uri, "none"), None);
        assert!(pairs(&"/x".parse().unwrap()).is_empty());
    }
}
