//! MessagePack values, one after another. Owns that nothing is read behind the end, however long the bytes say that
//! something is, and that nothing is allocated here; knows nothing of events.

use rmp::Marker;

/// Bytes that are not the MessagePack that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} is not {expected}")]
pub struct Malformed {
    pub at: usize,
    pub expected: &'static str,
}

/// A value, or the beginning of one that has others inside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Nil,
    Boolean,
    /// Between the least `i64` and the greatest `u64`.
    Integer(i128),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs of values follow.
    Map(u32),
    /// An extension's.
    Other,
}

/// A place between values.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            length: bytes.len(),
        }
    }

    pub(crate) fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    pub(crate) fn malformed(&self, expected: &'static str) -> Malformed {
        let at = self.at();
        Malformed { at, expected }
    }

    /// Reads a value's beginning; of what has no values inside, all of it.
    pub(crate) fn next(&mut self) -> Result<Value<'a>, Malformed> {
        let [marker] = self.fixed("a value")?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Boolean,
            Marker::FixPos(number) => Value::Integer(number.into()),
            Marker::FixNeg(number) => Value::Integer(number.into()),
            Marker::U8 => Value::Integer(u8::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::U16 => Value::Integer(u16::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::U32 => Value::Integer(u32::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::U64 => Value::Integer(u64::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::I8 => Value::Integer(i8::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::I16 => Value::Integer(i16::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::I32 => Value::Integer(i32::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::I64 => Value::Integer(i64::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::F32 => Value::Float(f32::from_be_bytes(self.fixed(NUMBER)?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.fixed(NUMBER)?)),
            Marker::FixStr(length) => self.text(length.into())?,
            Marker::Str8 => {
                let length = self.length_8()?;
                self.text(length)?
            }
            Marker::Str16 => {
                let length = self.length_16()?;
                self.text(length)?
            }
            Marker::Str32 => {
                let length = self.length_32()?;
                self.text(length)?
            }
            Marker::Bin8 => {
                let length = self.length_8()?;
                Value::Bytes(self.take(length, "bytes")?)
            }
            Marker::Bin16 => {
                let length = self.length_16()?;
                Value::Bytes(self.take(length, "bytes")?)
            }
            Marker::Bin32 => {
                let length = self.length_32()?;
                Value::Bytes(self.take(length, "bytes")?)
            }
            Marker::FixArray(length) => Value::Array(length.into()),
            Marker::Array16 => Value::Array(self.length_16()?),
            Marker::Array32 => Value::Array(self.length_32()?),
            Marker::FixMap(length) => Value::Map(length.into()),
            Marker::Map16 => Value::Map(self.length_16()?),
            Marker::Map32 => Value::Map(self.length_32()?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => {
                let length = self.length_8()?;
                self.extension(length)?
            }
            Marker::Ext16 => {
                let length = self.length_16()?;
                self.extension(length)?
            }
            Marker::Ext32 => {
                let length = self.length_32()?;
                self.extension(length)?
            }
            Marker::Reserved => return Err(self.malformed("behind a known marker")),
        })
    }

    /// Passes what follows a value's beginning, however deep it is.
    pub(crate) fn pass(&mut self, begun: &Value<'a>) -> Result<(), Malformed> {
        let inside = |value: &Value<'a>| match value {
            Value::Array(length) => u64::from(*length),
            Value::Map(length) => 2 * u64::from(*length),
            _ => 0,
        };
        let mut left = inside(begun);
        while left > 0 {
            // Each value is a byte at least, so that this ends with the bytes.
            left = left - 1 + inside(&self.next()?);
        }
        Ok(())
    }

    /// Passes a whole value.
    pub(crate) fn skip(&mut self) -> Result<(), Malformed> {
        let begun = self.next()?;
        self.pass(&begun)
    }

    /// Reads the beginning of an array; `None`: it is nil.
    pub(crate) fn array(&mut self, expected: &'static str) -> Result<Option<u32>, Malformed> {
        match self.next()? {
            Value::Array(length) => Ok(Some(length)),
            Value::Nil => Ok(None),
            _ => Err(self.malformed(expected)),
        }
    }

    fn take(&mut self, length: u32, expected: &'static str) -> Result<&'a [u8], Malformed> {
        let found = self.rest.split_at_checked(length as usize);
        let (taken, rest) = found.ok_or_else(|| self.malformed(expected))?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self, expected: &'static str) -> Result<[u8; N], Malformed> {
        let found = self.rest.split_first_chunk();
        let (taken, rest) = found.ok_or_else(|| self.malformed(expected))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn length_8(&mut self) -> Result<u32, Malformed> {
        Ok(u8::from_be_bytes(self.fixed(LENGTH)?).into())
    }

    fn length_16(&mut self) -> Result<u32, Malformed> {
        Ok(u16::from_be_bytes(self.fixed(LENGTH)?).into())
    }

    fn length_32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.fixed(LENGTH)?))
    }

    fn text(&mut self, length: u32) -> Result<Value<'a>, Malformed> {
        let before = self.malformed("text in UTF-8");
        let text = std::str::from_utf8(self.take(length, "text")?);
        text.map(Value::Text).map_err(|_| before)
    }

    fn extension(&mut self, length: u32) -> Result<Value<'a>, Malformed> {
        let [_kind] = self.fixed::<1>("an extension")?;
        self.take(length, "an extension")?;
        Ok(Value::Other)
    }
}

const NUMBER: &str = "a number";
const LENGTH: &str = "a length";
