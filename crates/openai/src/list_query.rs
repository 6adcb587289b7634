//! Which page of a list is asked for, in the query of a URL.

use crate::error::{ApiError, code};
use crate::reader;

/// How long pages of a list are.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    /// Where the request does not say.
    pub usual: usize,
    pub most: usize,
}

/// Which items are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// From the last item to the first; OpenAI's default.
    pub is_descending: bool,
    /// From 1 to the list's most.
    pub limit: usize,
    /// The item before the page.
    pub after: Option<String>,
}

impl ListQuery {
    /// Reads the pairs of a URL's query; names that it does not know change nothing.
    ///
    /// # Errors
    /// 400: a value out of its range.
    pub fn read(pairs: &[(String, String)], limit: PageLimit) -> Result<Self, ApiError> {
        let PageLimit { usual, most } = limit;
        let mut query = Self {
            is_descending: true,
            limit: usual,
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
                    let limit = limit.filter(|limit| (1..=most).contains(limit));
                    query.limit = limit
                        .ok_or_else(|| invalid("limit", value, &format!("Send 1 to {most}.")))?;
                }
                "after" => query.after = Some(value.clone()),
                _ => {}
            }
        }
        Ok(query)
    }
}

/// 400: the `value` of `param` in a query is not one.
pub(crate) fn invalid(param: &str, value: &str, hint: &str) -> ApiError {
    let value = reader::shortened(value);
    ApiError::invalid_request(
        param,
        format!("Invalid value for `{param}`: `{value}`. {hint}"),
    )
    .with_code(code::INVALID_VALUE)
}
