//! Which objects of a JSON schema are closed while it guides: those that name their properties and say nothing of
//! others. OpenAI's strict mode demands that of its schemas, xgrammar reads all so, and a model that may write any
//! other name writes some. Owns where that keeps what the schema means: only where nothing else constrains the same
//! value, so not in several parts of `allOf`, next to a `$ref`, or under `not` and `if`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{Problem, check_schema};

/// The JSON pointers of the objects to close, in a fixed order.
///
/// # Errors
/// [`Problem`]: the schema is too deep to look at, or cannot be followed anyway.
pub fn open_objects(schema: &Value) -> Result<Vec<String>, Problem> {
    check_schema(schema)?;
    let mut walk = Walk {
        root: schema,
        alone: BTreeMap::new(),
    };
    walk.visit(schema, String::new(), true);
    let alone = walk.alone.into_iter().filter(|(_, alone)| *alone);
    let open = alone.filter(|(pointer, _)| schema.pointer(pointer).is_some_and(is_open));
    Ok(open.map(|(pointer, _)| pointer).collect())
}

/// Closes them.
///
/// # Errors
/// As for [`open_objects`].
pub fn close(schema: &mut Value) -> Result<(), Problem> {
    for pointer in open_objects(schema)? {
        if let Some(Value::Object(keys)) = schema.pointer_mut(&pointer) {
            keys.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    }
    Ok(())
}

/// Keywords of further schemas for the same value.
const IN_PLACE: [&str; 12] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
];
/// Keywords that what those schemas allow depends on.
const OF_PARTS: [&str; 14] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "required",
    "minProperties",
    "dependentRequired",
    "items",
    "prefixItems",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "const",
];

/// Whether a schema names properties that are all there are, unless it says otherwise.
fn is_open(schema: &Value) -> bool {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return false;
    };
    let has = |name: &str| schema.get(name).is_some();
    if has("additionalProperties") || has("unevaluatedProperties") || IN_PLACE.into_iter().any(has)
    {
        return false;
    }
    // Closed, it would allow no object at all.
    let least = schema.get("minProperties").and_then(Value::as_u64);
    let required = schema.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    least.is_none_or(|least| least <= properties.len() as u64)
        && required.all(|name| properties.contains_key(name))
}

struct Walk<'a> {
    root: &'a Value,
    /// Schemas by their pointers, and whether nothing else constrains the same value, wherever they are used.
    alone: BTreeMap<String, bool>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, schema: &'a Value, pointer: String, alone: bool) {
        let Value::Object(keys) = schema else {
            return;
        };
        match self.alone.get(&pointer) {
            Some(known) if !known || alone => return,
            _ => {}
        }
        self.alone.insert(pointer.clone(), alone);
        self.visit_parts(keys, &pointer, alone);
        self.visit_in_place(keys, &pointer, alone);
    }

    /// Visits the schemas of parts of the value.
    fn visit_parts(&mut self, keys: &'a Map<String, Value>, pointer: &str, alone: bool) {
        let has = |name: &str| keys.contains_key(name);
        let alone = alone && !IN_PLACE.into_iter().any(has);
        for (key, value) in keys {
            let alone = match key.as_str() {
                // Both may apply to one property.
                "properties" => alone && !has("patternProperties"),
                "patternProperties" => false,
                "items" | "prefixItems" | "additionalItems" => alone && !has("contains"),
                "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" => alone,
                "contains" | "propertyNames" => false,
                _ => continue,
            };
            let place = format!("{pointer}/{key}");
            match (key.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(named)) => {
                    for (name, schema) in named {
                        let name = name.replace('~', "~0").replace('/', "~1");
                        self.visit(schema, format!("{place}/{name}"), alone);
                    }
                }
                (_, Value::Array(schemas)) => self.visit_all(schemas, &place, alone),
                (_, schema) => self.visit(schema, place, alone),
            }
        }
    }

    /// Visits the further schemas of the same value.
    fn visit_in_place(&mut self, keys: &'a Map<String, Value>, pointer: &str, alone: bool) {
        let has = |name: &&&str| keys.contains_key(**name);
        let is_only =
            IN_PLACE.iter().filter(has).count() == 1 && !OF_PARTS.iter().any(|one| has(&one));
        let alone = alone && is_only;
        for (key, value) in keys {
            let place = format!("{pointer}/{key}");
            match (key.as_str(), value) {
                ("anyOf" | "oneOf", Value::Array(branches)) => {
                    self.visit_all(branches, &place, alone)
                }
                ("allOf", Value::Array(parts)) => {
                    self.visit_all(parts, &place, alone && parts.len() == 1);
                }
                ("$ref", Value::String(name)) => {
                    let target = name.strip_prefix('#').map(decoded);
                    let found =
                        target.and_then(|target| Some((self.root.pointer(&target)?, target)));
                    if let Some((schema, target)) = found {
                        self.visit(schema, target, alone);
                    }
                }
                ("not" | "if" | "then" | "else", schema) => self.visit(schema, place, false),
                ("dependentSchemas" | "dependencies", Value::Object(named)) => {
                    for (name, schema) in named {
                        let name = name.replace('~', "~0").replace('/', "~1");
                        self.visit(schema, format!("{place}/{name}"), false);
                    }
                }
                _ => {}
            }
        }
    }

    fn visit_all(&mut self, schemas: &'a [Value], place: &str, alone: bool) {
        for (index, schema) in schemas.iter().enumerate() {
            self.visit(schema, format!("{place}/{index}"), alone);
        }
    }
}

/// A pointer in a URI's fragment may have its `%` escapes.
fn decoded(pointer: &str) -> String {
    pointer
        .replace("%24", "$")
        .replace("%7E", "~")
        .replace("%2F", "/")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> Value {
        json!({"type": "object", "properties": {name: {"type": "integer"}}})
    }

    #[test]
    fn objects_are_closed_where_nothing_else_constrains_them() {
        for (schema, expected) in [
            (object("a"), &[""][..]),
            (json!({"type": "object", "properties": {}}), &[""]),
            (
                json!({"properties": {"a/b": object("c")}}),
                &["", "/properties/a~1b"],
            ),
            (json!({"items": object("a")}), &["/items"]),
            (
                json!({"anyOf": [object("a"), {"type": "null"}, object("b")]}),
                &["/anyOf/0", "/anyOf/2"],
            ),
            (
                json!({"$ref": "#/$defs/A", "title": "T", "$defs": {"A": object("a")}}),
                &["/$defs/A"],
            ),
            // As pydantic writes a field with a description.
            (
                json!({"properties": {"x": {"description": "d", "allOf": [{"$ref": "#/$defs/A"}]}},
                    "$defs": {"A": object("a")}}),
                &["", "/$defs/A"],
            ),
            // A list that contains itself.
            (
                json!({"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"next": {"$ref": "#/$defs/N"}}}}}),
                &["/$defs/N"],
            ),
        ] {
            assert_eq!(open_objects(&schema).unwrap(), expected, "{schema}");
        }
    }

    #[test]
    fn what_a_schema_means_stays() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "minProperties": 2}),
            json!({"allOf": [object("a"), object("b")]}),
            json!({"properties": {"a": object("x")}, "anyOf": [object("b"), object("c")]}),
            json!({"required": ["b"], "anyOf": [object("a"), object("b")]}),
            json!({"$ref": "#/$defs/A", "properties": {"b": {}}, "$defs": {"A": object("a")}}),
            // One of the uses is next to another schema.
            json!({"anyOf": [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/A"}, object("b")]}],
                "$defs": {"A": object("a")}}),
            json!({"not": object("a")}),
            json!({"if": object("a"), "then": object("b"), "else": object("c")}),
            json!({"patternProperties": {"^a": object("x")}}),
            json!({"const": object("a"), "enum": [object("b")], "default": object("c")}),
        ] {
            let mut closed = schema.clone();
            close(&mut closed).unwrap();
            assert_eq!(closed, schema);
        }
    }

    #[test]
    fn closing_adds_one_keyword() {
        let mut schema = json!({"properties": {"a": object("b"), "c": {"type": "object"}}});
        close(&mut schema).unwrap();
        let inner = json!({"type": "object", "properties": {"b": {"type": "integer"}},
            "additionalProperties": false});
        let expected = json!({"properties": {"a": inner, "c": {"type": "object"}},
            "additionalProperties": false});
        assert_eq!(schema, expected);
        let mut deep = (0..300).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(close(&mut deep), Err(Problem::TooDeep));
    }
}
