//! A part of a list. Owns what may be asked of one.

/// Which part of a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The name before the part, in the list's order.
    pub after: Option<String>,
    /// The name after it: the part ends there. Of Anthropic's lists.
    pub before: Option<String>,
    pub limit: usize,
    /// From the latest to the first.
    pub is_descending: bool,
}

impl Page {
    /// One more than is wanted, which shows that there is more.
    pub(super) fn rows(&self) -> i64 {
        i64::try_from(self.limit.saturating_add(1)).unwrap_or(i64::MAX)
    }

    /// The clause that orders rows by `key`.
    pub(super) fn order(is_descending: bool) -> &'static str {
        match is_descending {
            true => "ORDER BY key DESC",
            false => "ORDER BY key ASC",
        }
    }

    /// The part out of one row more than is wanted, and whether there is more.
    pub(super) fn cut<T>(&self, mut rows: Vec<T>) -> (Vec<T>, bool) {
        let has_more = rows.len() > self.limit;
        rows.truncate(self.limit);
        (rows, has_more)
    }
}
