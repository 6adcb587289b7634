//! `/v1/responses`: the request, the items of a conversation, the response object and its events. Owns how
//! they translate to and from chat's terms; everything about generation is `generation`'s. Keeps nothing: what
//! earlier responses said comes in as items.

mod answer;
mod event;
mod item;
mod list;
mod messages;
mod object;
mod request;

pub use answer::{AnswerWriter, Outcome};
pub use item::{InputItem, Item};
pub use list::list;
pub use object::{Head, ResponseId, Settings, Unanswered};
pub use request::{ResponseRequest, in_own_words, parse};

use schemars::{Schema, SchemaGenerator};

/// The schema of the response object.
pub fn object_schema(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<object::ResponseObject<'static>>()
}

/// The schema of a page of [`list()`].
pub fn list_schema(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<list::ItemList<'static>>()
}

#[cfg(test)]
mod tests;
