//! The request's tools as parsers need them: which names there are, and of which types the parameters are. Owns how
//! a JSON schema becomes a set of types; checks no values.

use std::collections::HashMap;

use serde_json::Value;

/// The tools of a request, compiled once and shared by its choices.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    tools: HashMap<String, Parameters>,
}

/// The parameters of one tool, by name; `None`: it has no schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    types: Option<HashMap<String, Types>>,
}

impl Tools {
    /// The tools by name, each with the JSON schema of its parameters if it has one. The schema decides how formats
    /// without types (XML, GLM) write values: a parameter of type string stays a string.
    pub fn new<'a>(tools: impl IntoIterator<Item = (&'a str, Option<&'a Value>)>) -> Self {
        let tools = tools
            .into_iter()
            .map(|(name, schema)| (name.to_owned(), Parameters::new(schema)))
            .collect();
        Self { tools }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tools.contains_key(name)
    }

    /// Whether a tool has this parameter; `None`: its schema does not say.
    pub(crate) fn has_parameter(&self, tool: &str, parameter: &str) -> Option<bool> {
        let types = self.tools.get(tool)?.types.as_ref()?;
        Some(types.contains_key(parameter))
    }

    /// The types of a tool's parameter.
    pub(crate) fn types(&self, tool: &str, parameter: &str) -> Types {
        self.tools
            .get(tool)
            .and_then(|parameters| parameters.types.as_ref()?.get(parameter).copied())
            .unwrap_or(Types::ANY)
    }
}

impl Parameters {
    fn new(schema: Option<&Value>) -> Self {
        let types = schema.and_then(|schema| {
            let properties = schema.get("properties")?.as_object()?;
            let types = properties.iter().map(|(name, property)| {
                (
                    name.clone(),
                    Types::of(property, schema, &mut { MAX_VISITS }),
                )
            });
            Some(types.collect())
        });
        Self { types }
    }
}

/// Schemas that are looked at for the type of one parameter: references and alternatives may lead anywhere.
const MAX_VISITS: u32 = 64;

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const NUMBER: Self = Self(2);
    pub(crate) const BOOLEAN: Self = Self(4);
    pub(crate) const NULL: Self = Self(8);
    pub(crate) const OBJECT: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const ANY: Self = Self(63);
    const NONE: Self = Self(0);

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The type of a value.
    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::ANY,
        }
    }

    fn union(types: impl Iterator<Item = Self>) -> Self {
        types.fold(Self::NONE, |all, types| Self(all.0 | types.0))
    }

    /// The types that a schema allows, as far as its keywords say so plainly; [`Types::ANY`] where they do not.
    fn of(schema: &Value, root: &Value, visits: &mut u32) -> Self {
        let Some(left) = visits.checked_sub(1) else {
            return Self::ANY;
        };
        *visits = left;
        if let Some(value) = schema.get("const") {
            return Self::of_value(value);
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return Self::union(values.iter().map(Self::of_value));
        }
        match schema.get("type") {
            Some(Value::String(name)) => return Self::named(name),
            Some(Value::Array(names)) => {
                return Self::union(names.iter().filter_map(Value::as_str).map(Self::named));
            }
            _ => {}
        }
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            let target = pointer.strip_prefix('#').and_then(|at| root.pointer(at));
            return target.map_or(Self::ANY, |target| Self::of(target, root, visits));
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(alternatives) = schema.get(keyword).and_then(Value::as_array) {
                let types = alternatives.iter();
                return Self::union(types.map(|schema| Self::of(schema, root, visits)));
            }
        }
        if let Some([only]) = schema
            .get("allOf")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
        {
            return Self::of(only, root, visits);
        }
        if schema.get("properties").is_some() {
            return Self::OBJECT;
        }
        Self::ANY
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_follow_the_schema() {
        let schema = json!({
            "$defs": {"Unit": {"enum": ["c", "f"]}},
            "properties": {
                "plain": {"type": "string"},
                "several": {"type": ["integer", "null"]},
                "either": {"anyOf": [{"type": "array"}, {"type": "null"}]},
                "reference": {"allOf": [{"$ref": "#/$defs/Unit"}]},
                "nothing": {},
                "mixed": {"enum": [1, "auto"]},
                "strange": {"type": "date"},
            }
        });
        let tools = Tools::new([("f", Some(&schema)), ("g", None)]);
        for (parameter, types) in [
            ("plain", Types::STRING),
            ("several", Types(Types::NUMBER.0 | Types::NULL.0)),
            ("either", Types(Types::ARRAY.0 | Types::NULL.0)),
            ("reference", Types::STRING),
            ("nothing", Types::ANY),
            ("mixed", Types(Types::NUMBER.0 | Types::STRING.0)),
            ("strange", Types::ANY),
            ("absent", Types::ANY),
        ] {
            assert_eq!(tools.types("f", parameter), types, "{parameter}");
        }
        assert_eq!(tools.types("g", "plain"), Types::ANY);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({
            "$defs": {"a": {"$ref": "#/$defs/a"}, "b": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}},
            "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"}}
        });
        let tools = Tools::new([("f", Some(&schema))]);
        assert_eq!(tools.types("f", "a"), Types::ANY);
        assert_eq!(tools.types("f", "b"), Types::ANY);
    }
}
