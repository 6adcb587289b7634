//! How an error reads in one line.

use std::error::Error;

/// How tonic and hyper name their own layers; the cause below says what happened.
const LAYERS: [&str; 2] = ["transport error", "tcp connect error"];

/// An error and its causes in one line, outermost first: `a: b: c`. A cause whose text already ends the
/// line is left out, and so is one that only names a layer of the network client.
///
/// ```
/// let error = "x".parse::<u16>().unwrap_err();
/// assert_eq!(inflight_base::error_chain(&error), "invalid digit found in string");
/// ```
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) && !LAYERS.contains(&cause_text.as_str()) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn causes_follow_in_order_and_repeated_ones_are_said_once() {
        for (texts, expected) in [
            (&["a"][..], "a"),
            (&["a", "b", "c"], "a: b: c"),
            (&["a: b", "b", "c"], "a: b: c"),
            (
                &["a", "transport error", "tcp connect error", "refused"],
                "a: refused",
            ),
        ] {
            let nest = |source, text: &&'static str| {
                let source: Option<Layer> = source;
                let source = source.map(Box::new);
                Some(Layer { text, source })
            };
            let error = texts.iter().rev().fold(None, nest).unwrap();
            assert_eq!(error_chain(&error), expected);
        }
    }
}
