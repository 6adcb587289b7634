//! The bodies of `/v1/models` and `/v1/models/{id}` in Anthropic's form. Knows nothing of registries: names and times
//! come in.

use inflight_openai::ApiError;
use inflight_openai::reader::shortened;
use schemars::JsonSchema;
use serde::Serialize;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 1000;

/// One model, as Anthropic describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelInfo {
    /// Always `model`.
    #[serde(rename = "type")]
    object_type: &'static str,
    pub id: String,
    /// For people; models have no name but their id.
    pub display_name: String,
    /// RFC 3339.
    pub created_at: String,
    /// Always `active`: what is listed is served.
    lifecycle: &'static str,
    /// Prompt tokens that fit; `None`: not known.
    pub max_input_tokens: Option<u32>,
    /// What `max_tokens` may be at most; `None`: not known.
    pub max_tokens: Option<u32>,
}

impl ModelInfo {
    /// `context`: prompt plus generated tokens that fit, if known.
    pub fn new(id: String, created_at: String, context: Option<u32>) -> Self {
        Self {
            object_type: "model",
            display_name: id.clone(),
            id,
            created_at,
            lifecycle: "active",
            max_input_tokens: context,
            max_tokens: context,
        }
    }
}

/// Which models are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageQuery {
    /// 1..=1000
    limit: usize,
    cursor: Option<Cursor>,
}

/// A model's id, which is not on the page itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cursor {
    After(String),
    Before(String),
}

impl PageQuery {
    /// Reads the pairs of a URL's query; names that it does not know change nothing.
    ///
    /// # Errors
    /// 400: a value out of its range, or both cursors.
    pub fn read(pairs: &[(String, String)]) -> Result<Self, ApiError> {
        let value = |name: &str| {
            let mut found = pairs.iter().filter(|pair| pair.0 == name);
            found.next().map(|pair| pair.1.clone())
        };
        let limit = match value("limit") {
            None => DEFAULT_LIMIT,
            Some(text) => {
                let limit = text.parse().ok();
                let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
                limit.ok_or_else(|| invalid("limit", &text, &format!("Send 1 to {MAX_LIMIT}.")))?
            }
        };
        let cursor = match (value("after_id"), value("before_id")) {
            (Some(_), Some(before)) => {
                return Err(invalid(
                    "before_id",
                    &before,
                    "Send only one of it and `after_id`.",
                ));
            }
            (Some(after), None) => Some(Cursor::After(after)),
            (None, before) => before.map(Cursor::Before),
        };
        Ok(Self { limit, cursor })
    }

    /// 1..=1000
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The id that the page is to follow.
    pub fn after(&self) -> Option<&str> {
        match &self.cursor {
            Some(Cursor::After(id)) => Some(id),
            _ => None,
        }
    }

    /// The id that is to follow the page.
    pub fn before(&self) -> Option<&str> {
        match &self.cursor {
            Some(Cursor::Before(id)) => Some(id),
            _ => None,
        }
    }
}

/// A page of the list of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelPage {
    pub data: Vec<ModelInfo>,
    /// Whether there are more in the direction of the cursor.
    pub has_more: bool,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
}

impl ModelPage {
    /// The page of `models` that `query` asks for, in their order.
    ///
    /// # Errors
    /// 400: no model has the cursor's id.
    pub fn new(mut models: Vec<ModelInfo>, query: &PageQuery) -> Result<Self, ApiError> {
        let place = |param: &str, id: &String| {
            let found = models.iter().position(|model| model.id == *id);
            found.ok_or_else(|| invalid(param, id, "Send the id of a listed model."))
        };
        match &query.cursor {
            None => {}
            Some(Cursor::After(id)) => {
                let place = place("after_id", id)?;
                models.drain(..=place);
            }
            Some(Cursor::Before(id)) => {
                let place = place("before_id", id)?;
                models.truncate(place);
            }
        }
        let has_more = models.len() > query.limit;
        let surplus = models.len().saturating_sub(query.limit);
        match &query.cursor {
            Some(Cursor::Before(_)) => drop(models.drain(..surplus)),
            _ => models.truncate(query.limit),
        }
        let id = |model: Option<&ModelInfo>| model.map(|model| model.id.clone());
        Ok(Self {
            has_more,
            first_id: id(models.first()),
            last_id: id(models.last()),
            data: models,
        })
    }
}

fn invalid(param: &str, value: &str, hint: &str) -> ApiError {
    let value = shortened(value);
    let message = format!("Invalid value for `{param}`: `{value}`. {hint}");
    ApiError::invalid_request(param, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Result<PageQuery, ApiError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        PageQuery::read(&pairs.iter().map(owned).collect::<Vec<_>>())
    }

    fn models() -> Vec<ModelInfo> {
        let info =
            |id: &str| ModelInfo::new(id.to_owned(), "1970-01-01T00:00:00Z".to_owned(), None);
        ["a", "b", "c", "d"].map(info).to_vec()
    }

    #[test]
    fn a_model_has_anthropics_shape() {
        let info = ModelInfo::new("m".to_owned(), "2026-11-22T00:00:00Z".to_owned(), Some(64));
        assert_eq!(
            serde_json::to_string(&info).unwrap(),
            concat!(
                r#"{"type":"model","id":"m","display_name":"m","created_at":"2026-11-22T00:00:00Z","#,
                r#""lifecycle":"active","max_input_tokens":64,"max_tokens":64}"#
            )
        );
    }

    #[test]
    fn pages_go_both_ways() {
        for (pairs, expected, has_more) in [
            (&[][..], "abcd", false),
            (&[("limit", "3")], "abc", true),
            (&[("limit", "4"), ("order", "desc")], "abcd", false),
            (&[("after_id", "b")], "cd", false),
            (&[("after_id", "a"), ("limit", "2")], "bc", true),
            (&[("after_id", "d")], "", false),
            (&[("before_id", "d"), ("limit", "2")], "bc", true),
            (&[("before_id", "b"), ("limit", "2")], "a", false),
        ] {
            let page = ModelPage::new(models(), &query(pairs).unwrap()).unwrap();
            let ids: String = page.data.iter().map(|model| model.id.as_str()).collect();
            assert_eq!(
                (ids.as_str(), page.has_more),
                (expected, has_more),
                "{pairs:?}"
            );
            let ends = (
                page.first_id.unwrap_or_default(),
                page.last_id.unwrap_or_default(),
            );
            let end = |character: Option<char>| character.map(String::from).unwrap_or_default();
            let expected = (end(expected.chars().next()), end(expected.chars().last()));
            assert_eq!(ends, expected, "{pairs:?}");
        }
    }

    #[test]
    fn what_cannot_be_listed_is_named() {
        for (pairs, param) in [
            (&[("limit", "0")][..], "limit"),
            (&[("limit", "1001")], "limit"),
            (&[("limit", "x")], "limit"),
            (&[("after_id", "a"), ("before_id", "b")], "before_id"),
            (&[("after_id", "z")], "after_id"),
            (&[("before_id", "z")], "before_id"),
        ] {
            let page = query(pairs).and_then(|query| ModelPage::new(models(), &query));
            assert_eq!(page.unwrap_err().param.as_deref(), Some(param), "{pairs:?}");
        }
    }
}
