//! The fields of one request that had no effect: for the header `x-inflight-ignored-fields` and for a
//! counter. Owns the bounds; the names come from the client and are never trusted.

use crate::fields;

/// Names in the header; the rest is a count.
const MAX_NAMES: usize = 16;
/// Bytes of the header's value, the count included.
const MAX_BYTES: usize = 512;
/// Bytes kept of one name.
const MAX_NAME_BYTES: usize = 64;

/// Which fields were ignored. Empty for most requests, and then free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredFields {
    /// Distinct, at most [`MAX_NAMES`], token characters only.
    names: Vec<String>,
    /// One a field, by the table's name or `other`.
    labels: Vec<&'static str>,
    /// Fields beyond the names kept.
    more: usize,
}

impl IgnoredFields {
    /// Records a field by its name in the body.
    pub(crate) fn push(&mut self, name: &str) {
        self.push_as(name, fields::label(name));
    }

    /// Records a field of another API's table, which counts it under `label`.
    pub fn push_as(&mut self, name: &str, label: &'static str) {
        let name = token(name);
        if self.names.contains(&name) {
            return;
        }
        self.labels.push(label);
        if self.names.len() < MAX_NAMES {
            self.names.push(name);
        } else {
            self.more += 1;
        }
    }

    /// Records a field that turned out to have no effect on the model at hand.
    pub fn add(&mut self, field: &'static str) {
        self.push(field);
    }

    /// True if every field was applied.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The header's value: `metadata, store, +3-more`. `None` if nothing was ignored.
    pub fn header_value(&self) -> Option<String> {
        // Room for the largest count is kept back, so that it always fits.
        let room = MAX_BYTES - ", +18446744073709551615-more".len();
        let mut value = String::new();
        let mut left_out = self.more;
        for name in &self.names {
            if value.len() + 2 + name.len() > room {
                left_out += 1;
                continue;
            }
            if !value.is_empty() {
                value.push_str(", ");
            }
            value.push_str(name);
        }
        if left_out > 0 {
            if !value.is_empty() {
                value.push_str(", ");
            }
            value.push_str(&format!("+{left_out}-more"));
        }
        (!value.is_empty()).then_some(value)
    }

    /// Labels for a counter, one a field: a name of the table, else `other`.
    pub fn labels(&self) -> &[&'static str] {
        &self.labels
    }
}

/// `name` in the characters of an HTTP token (RFC 9110 5.6.2), bounded; any other byte becomes `_`.
fn token(name: &str) -> String {
    if name.is_empty() {
        return "_".to_owned();
    }
    name.bytes()
        .take(MAX_NAME_BYTES)
        .map(|byte| {
            let plain = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            char::from(if plain { byte } else { b'_' })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(names: &[&str]) -> IgnoredFields {
        let mut ignored = IgnoredFields::default();
        names.iter().for_each(|name| ignored.push(name));
        ignored
    }

    #[test]
    fn nothing_ignored_sends_no_header() {
        assert_eq!(of(&[]).header_value(), None);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn names_are_listed_once_and_made_tokens() {
        let ignored = of(&["metadata", "store", "metadata", "a b\r\nx: y", "é", ""]);
        assert_eq!(
            ignored.header_value().unwrap(),
            "metadata, store, a_b__x__y, __, _"
        );
        assert_eq!(
            ignored.labels(),
            ["metadata", "store", "other", "other", "other"]
        );
    }

    #[test]
    fn past_sixteen_names_comes_a_count() {
        let names: Vec<String> = (0..20).map(|index| format!("f{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let value = of(&names).header_value().unwrap();
        assert!(value.ends_with("f15, +4-more"), "{value}");
    }

    proptest! {
        #[test]
        fn any_names_make_a_bounded_value_of_token_characters(names in prop::collection::vec(".{0,90}", 0..40)) {
            let mut ignored = IgnoredFields::default();
            names.iter().for_each(|name| ignored.push(name));
            if let Some(value) = ignored.header_value() {
                prop_assert!(value.len() <= MAX_BYTES);
                for name in value.split(", ") {
                    prop_assert!(!name.is_empty());
                    prop_assert_eq!(token(name), name);
                }
            } else {
                prop_assert!(names.is_empty());
            }
        }
    }
}
