//! Where in a schema a problem is, which the compiler does not say: the deepest schema within the schema that
//! has the problem by itself, and the keyword without which it has not. Owns the bound on attempts.

use serde_json::{Map, Value};

use super::compile;

/// Schemas that are compiled in the search, each within milliseconds.
const MAX_ATTEMPTS: usize = 100;

/// Keywords whose value is a schema, a list of schemas, or an object of schemas by name.
const SCHEMAS: [&str; 9] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
];
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The JSON pointer of `problem` in `schema`, which has it; empty where it cannot be found.
pub(super) fn find(schema: &Value, problem: &str) -> String {
    let mut search = Search {
        root: schema,
        problem,
        attempts: 0,
    };
    let mut pointer = String::new();
    let mut place = schema;
    while let Some((step, inner)) = search.inner(place) {
        pointer.push_str(&step);
        place = inner;
    }
    if let Some(keyword) = search.keyword(place) {
        pointer.push_str(&format!("/{}", escaped(&keyword)));
    }
    pointer
}

struct Search<'a> {
    root: &'a Value,
    problem: &'a str,
    attempts: usize,
}

impl<'a> Search<'a> {
    /// The first schema within `schema` that has the problem, and the way to it.
    fn inner(&mut self, schema: &'a Value) -> Option<(String, &'a Value)> {
        within(schema)
            .into_iter()
            .find(|(_, inner)| self.has_problem(inner))
    }

    /// The keyword without which `schema` has not the problem.
    fn keyword(&mut self, schema: &Value) -> Option<String> {
        let object = schema.as_object()?;
        let keys = object.keys();
        let keys: Vec<&String> = keys
            .filter(|key| !NAMED[2..].contains(&key.as_str()))
            .collect();
        let found = keys.into_iter().find(|key| {
            let mut without = object.clone();
            without.shift_remove(key.as_str());
            !self.has_problem(&Value::Object(without))
        });
        found.cloned()
    }

    /// Whether the schema alone, with the root's definitions, has the problem.
    fn has_problem(&mut self, schema: &Value) -> bool {
        self.attempts += 1;
        if self.attempts > MAX_ATTEMPTS {
            return false;
        }
        let Value::Object(object) = schema else {
            return false;
        };
        let mut whole: Map<String, Value> = object.clone();
        for name in ["$defs", "definitions", "$schema"] {
            if let Some(definitions) = self.root.get(name)
                && !whole.contains_key(name)
            {
                whole.insert(name.to_owned(), definitions.clone());
            }
        }
        compile::schema(&Value::Object(whole)).is_err_and(|problem| problem == self.problem)
    }
}

/// The schemas directly within a schema, each with its pointer from there.
fn within(schema: &Value) -> Vec<(String, &Value)> {
    let Value::Object(object) = schema else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (keyword, value) in object {
        let name = keyword.as_str();
        if SCHEMAS.contains(&name) {
            all.push((format!("/{name}"), value));
        }
        if LISTS.contains(&name) || name == "items" {
            let items = value.as_array().into_iter().flatten().enumerate();
            all.extend(items.map(|(index, inner)| (format!("/{name}/{index}"), inner)));
        }
        if NAMED.contains(&name) {
            let items = value.as_object().into_iter().flatten();
            all.extend(items.map(|(key, inner)| (format!("/{name}/{}", escaped(key)), inner)));
        }
    }
    all
}

/// A key as RFC 6901 writes it.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
