//! The list of a response's input items: its shape.

use schemars::JsonSchema;
use serde::Serialize;

use super::item::Item;
use crate::error::ApiError;
use crate::list_query::{ListQuery, invalid};

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
