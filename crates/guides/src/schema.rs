//! Bounds on JSON schemas: depth, and patterns that meet on one string. Owns an upper bound of both, not the exact
//! number: `allOf` and `$ref` add up, branches of `anyOf` and parts of an object or array do not.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{MAX_DEPTH, Problem, intersected};

/// Checks a JSON schema.
///
/// # Errors
/// [`Problem`].
pub fn check(schema: &Value) -> Result<(), Problem> {
    let mut depths = References::new(schema);
    if depths.depth(schema, 0).is_none() {
        return Err(Problem::TooDeep);
    }
    // No deeper than that, so it fits the stack.
    intersected(References::new(schema).patterns(schema))
}

struct References<'a> {
    root: &'a Value,
    /// What is known of a reference's target; 0 while it is being looked at.
    seen: HashMap<&'a str, usize>,
}

impl<'a> References<'a> {
    fn new(root: &'a Value) -> Self {
        let seen = HashMap::new();
        Self { root, seen }
    }

    fn target(&self, name: &str) -> Option<&'a Value> {
        self.root.pointer(name.strip_prefix('#')?)
    }

    /// How deep `value` is, which itself is `level` deep; `None`: too deep.
    fn depth(&mut self, value: &'a Value, level: usize) -> Option<usize> {
        if level > MAX_DEPTH {
            return None;
        }
        let mut deepest = 0;
        match value {
            Value::Array(items) => {
                for item in items {
                    deepest = deepest.max(self.depth(item, level + 1)?);
                }
            }
            Value::Object(items) => {
                for (key, item) in items {
                    let depth = match item {
                        Value::String(name) if key == "$ref" => {
                            self.depth_of_reference(name, level + 1)?
                        }
                        item => self.depth(item, level + 1)?,
                    };
                    deepest = deepest.max(depth);
                }
            }
            _ => return Some(0),
        }
        Some(deepest + 1)
    }

    fn depth_of_reference(&mut self, name: &'a str, level: usize) -> Option<usize> {
        if let Some(depth) = self.seen.get(name) {
            return (level + depth <= MAX_DEPTH).then_some(*depth);
        }
        let Some(target) = self.target(name) else {
            return Some(0);
        };
        self.seen.insert(name, 0);
        let depth = self.depth(target, level)?;
        self.seen.insert(name, depth);
        Some(depth)
    }

    /// How many patterns may meet on one string of `schema`.
    fn patterns(&mut self, schema: &'a Value) -> usize {
        let Value::Object(keys) = schema else {
            return 0;
        };
        let mut within = own_patterns(keys);
        let mut beside = 0usize;
        for (key, value) in keys {
            match (key.as_str(), value) {
                ("$ref", Value::String(name)) => beside += self.patterns_of_reference(name),
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        beside = beside.saturating_add(self.patterns(part));
                    }
                }
                ("anyOf" | "oneOf", Value::Array(branches)) => {
                    let most = branches.iter().map(|branch| self.patterns(branch)).max();
                    beside = beside.saturating_add(most.unwrap_or(0));
                }
                // Data, however much it looks like a schema, and schemas that count where they are referred to.
                ("const" | "enum" | "default" | "examples" | "$defs" | "definitions", _) => {}
                (_, Value::Array(parts)) => {
                    let most = parts.iter().map(|part| self.patterns(part)).max();
                    within = within.max(most.unwrap_or(0));
                }
                // Any name, those of keywords too.
                ("properties" | "patternProperties" | "dependentSchemas", Value::Object(named)) => {
                    let most = named.values().map(|part| self.patterns(part)).max();
                    within = within.max(most.unwrap_or(0));
                }
                (_, schema @ Value::Object(_)) => within = within.max(self.patterns(schema)),
                _ => {}
            }
        }
        within.saturating_add(beside)
    }

    fn patterns_of_reference(&mut self, name: &'a str) -> usize {
        if let Some(patterns) = self.seen.get(name) {
            return *patterns;
        }
        let Some(target) = self.target(name) else {
            return 0;
        };
        self.seen.insert(name, 0);
        let patterns = self.patterns(target);
        self.seen.insert(name, patterns);
        patterns
    }
}

/// The patterns that a schema itself has for a string; a length counts as one.
fn own_patterns(keys: &Map<String, Value>) -> usize {
    let has = |name: &str| keys.get(name).is_some_and(|value| !value.is_object());
    usize::from(has("pattern"))
        + usize::from(has("format"))
        + usize::from(has("minLength") || has("maxLength"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::MAX_INTERSECTED;

    fn all_of(count: usize) -> Value {
        let part = |index| json!({"type": "string", "pattern": format!(".*[a-z]{{{index}}}.*")});
        json!({"allOf": (1..=count).map(part).collect::<Vec<_>>()})
    }

    #[test]
    fn patterns_that_meet_on_one_string_are_counted() {
        let named = |name: &str| json!({"properties": {name: {"type": "string", "pattern": "a"}}});
        for (schema, count) in [
            (json!({"type": "string", "pattern": "a", "maxLength": 3}), 2),
            (all_of(5), 5),
            (json!({"properties": {"x": all_of(3), "y": all_of(4)}}), 4),
            (json!({"allOf": [named("x"), named("x"), all_of(2)]}), 4),
            (json!({"anyOf": [all_of(3), all_of(5)], "pattern": "b"}), 6),
            (
                json!({"$ref": "#/$defs/a", "pattern": "b", "$defs": {"a": all_of(4)}}),
                5,
            ),
            (json!({"items": {"items": all_of(7)}}), 7),
            (json!({"prefixItems": [all_of(2), all_of(6)]}), 6),
            (json!({"const": all_of(20), "enum": [all_of(30)]}), 0),
            (
                json!({"properties": {"pattern": {"type": "string"}, "format": {"pattern": "a"}}}),
                1,
            ),
        ] {
            assert_eq!(
                References::new(&schema).patterns(&schema),
                count,
                "{schema}"
            );
        }
    }

    #[test]
    fn nested_schemas_are_looked_at_once() {
        let nested = |inner, _| json!({"properties": {"default": inner}, "items": {}});
        let schema = (0..60).fold(all_of(9), nested);
        assert_eq!(check(&schema), Err(Problem::TooManyPatterns { count: 9 }));
    }

    #[test]
    fn a_recursive_schema_ends() {
        let schema = json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": {"allOf": [
                {"properties": {"name": {"type": "string", "pattern": "^a"}}},
                {"properties": {"child": {"$ref": "#/$defs/node"}}},
            ]}},
        });
        assert_eq!(check(&schema), Ok(()));
    }

    #[test]
    fn the_bounds_are_named() {
        assert_eq!(check(&all_of(MAX_INTERSECTED)), Ok(()));
        let problem = check(&all_of(39)).unwrap_err();
        assert_eq!(
            problem.to_string(),
            "39 patterns apply to one text at once; at most 8 may"
        );
        let deep = (0..300).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(check(&deep), Err(Problem::TooDeep));
    }
}
