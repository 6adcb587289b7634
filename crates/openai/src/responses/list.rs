//! The list of a response's input items: which page is asked for, and its shape.

use schemars::JsonSchema;
use serde::Serialize;

use super::item::Item;
use crate::error::{ApiError, code};
use crate::reader;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// Which items are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// From the last item to the first; OpenAI's default.
    pub is_descending: bool,
    /// 1..=100
    pub limit: usize,
    /// The item before the page.
    pub after: Option<String>,
}

impl ListQuery {
    /// Reads the pairs of a URL's query; names that it does not know change nothing.
    ///
    /// # Errors
    /// 400: a value out of its range.
    pub fn read(pairs: &[(String, String)]) -> Result<Self, ApiError> {
        let mut query = Self {
            is_descending: true,
            limit: DEFAULT_LIMIT,
            after: None,
        };
        for (name, value) in pairs {
            match name.as_str() {
                "order" => {
                    query.is_descending = match value.as_str() {
                        "asc" => false,
                        "desc" => true,
                        _ => return Err(invalid("order", value, "Send `asc` or `desc`.")),
                    };
                }
                "limit" => {
                    let limit = value.parse().ok();
                    let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    query.limit = limit.ok_or_else(|| {
                        invalid("limit", value, &format!("Send 1 to {MAX_LIMIT}."))
                    })?;
                }
                "after" => query.after = Some(value.clone()),
                _ => {}
            }
        }
        Ok(query)
    }
}

fn invalid(param: &str, value: &str, hint: &str) -> ApiError {
    let value = reader::shortened(value);
    ApiError::invalid_request(
        param,
        format!("Invalid value for `{param}`: `{value}`. {hint}"),
    )
    .with_code(code::INVALID_VALUE)
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ItemList<'a> {
    object: &'static str,
    data: &'a [&'a Item],
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

/// The page of `items` that `query` asks for, in JSON.
///
/// # Errors
/// 400: no item has the id that the page is to follow.
pub fn list<'a>(
    query: &ListQuery,
    items: impl DoubleEndedIterator<Item = &'a Item>,
) -> Result<Vec<u8>, ApiError> {
    let mut items: Vec<&Item> = match query.is_descending {
        true => items.rev().collect(),
        false => items.collect(),
    };
    if let Some(after) = &query.after {
        let place = items.iter().position(|item| item.id() == after);
        let place = place
            .ok_or_else(|| invalid("after", after, "Send the id of an item of this response."))?;
        items.drain(..=place);
    }
    let has_more = items.len() > query.limit;
    items.truncate(query.limit);
    let page = ItemList {
        object: "list",
        data: &items,
        first_id: items.first().map(|item| item.id()),
        last_id: items.last().map(|item| item.id()),
        has_more,
    };
    // Items always serialize.
    Ok(serde_json::to_vec(&page).unwrap_or_default())
}
