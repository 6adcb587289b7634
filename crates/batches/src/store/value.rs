//! The values of statements, for both engines.

/// A value of a statement. A missing one has its type, too: PostgreSQL wants to know it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Integer(Option<i64>),
    Text(Option<&'a str>),
    Blob(Option<&'a [u8]>),
    Id(Option<[u8; 16]>),
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Integer(Some(value))
    }
}

impl From<Option<i64>> for Value<'_> {
    fn from(value: Option<i64>) -> Self {
        Self::Integer(value)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(Some(value))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(value: &'a [u8]) -> Self {
        Self::Blob(Some(value))
    }
}

impl<'a> From<Option<&'a [u8]>> for Value<'a> {
    fn from(value: Option<&'a [u8]>) -> Self {
        Self::Blob(value)
    }
}

impl From<[u8; 16]> for Value<'_> {
    fn from(value: [u8; 16]) -> Self {
        Self::Id(Some(value))
    }
}

impl From<Option<[u8; 16]>> for Value<'_> {
    fn from(value: Option<[u8; 16]>) -> Self {
        Self::Id(value)
    }
}

/// Values of several types as one array.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        [$($crate::store::value::Value::from($value)),*]
    };
}

pub(super) use values;
