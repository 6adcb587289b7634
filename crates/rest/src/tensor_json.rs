//! Between JSON's values and a tensor's packed elements. Pure; owns which JSON value is which element. What is
//! packed is little-endian, and each BYTES element follows a u32 with its length.
//!
//! Elements are read straight into the packed form, never into a tree: a tensor may have millions of them.

use bytes::{BufMut, BytesMut};
use half::{bf16, f16};
use inflight_kserve::tensor::DataType;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::json;

/// How deep arrays may be nested: more dimensions than any model's tensor has.
const MAX_DEPTH: usize = 32;

/// Appends the elements of `data`, nested as deep as `depth`, in order; returns how many there are.
///
/// # Errors
/// What is not an element of `datatype`, in words.
pub(crate) fn pack(
    data: &RawValue,
    datatype: DataType,
    depth: usize,
    out: &mut BytesMut,
) -> Result<usize, serde_json::Error> {
    let mut count = 0;
    let elements = Elements {
        datatype,
        depth: depth.min(MAX_DEPTH),
        out,
        count: &mut count,
    };
    elements.deserialize(&mut serde_json::Deserializer::from_str(data.get()))?;
    Ok(count)
}

struct Elements<'a> {
    datatype: DataType,
    depth: usize,
    out: &'a mut BytesMut,
    count: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Elements<'_> {
    fn no_element<E: Error>(&self, value: impl std::fmt::Display) -> E {
        E::custom(format_args!(
            "`{value}` is not a value of {}",
            self.datatype
        ))
    }

    fn integer<E: Error>(self, value: i128) -> Result<(), E> {
        macro_rules! put {
            ($type:ty) => {
                match <$type>::try_from(value) {
                    Ok(value) => self.out.put_slice(&value.to_le_bytes()),
                    Err(_) => return Err(self.no_element(value)),
                }
            };
        }
        match self.datatype {
            DataType::Uint8 => put!(u8),
            DataType::Uint16 => put!(u16),
            DataType::Uint32 => put!(u32),
            DataType::Uint64 => put!(u64),
            DataType::Int8 => put!(i8),
            DataType::Int16 => put!(i16),
            DataType::Int32 => put!(i32),
            DataType::Int64 => put!(i64),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
                #[allow(clippy::cast_precision_loss, reason = "as JSON's numbers are read")]
                return self.float(value as f64);
            }
            // As 0 and 1 are often written for it.
            DataType::Bool if matches!(value, 0 | 1) => self.out.put_u8(u8::from(value == 1)),
            DataType::Bool | DataType::Bytes => return Err(self.no_element(value)),
        }
        *self.count += 1;
        Ok(())
    }

    fn float<E: Error>(self, value: f64) -> Result<(), E> {
        match self.datatype {
            DataType::Fp16 => self.out.put_slice(&f16::from_f64(value).to_le_bytes()),
            DataType::Bf16 => self.out.put_slice(&bf16::from_f64(value).to_le_bytes()),
            #[allow(clippy::cast_possible_truncation, reason = "the nearest FP32")]
            DataType::Fp32 => self.out.put_slice(&(value as f32).to_le_bytes()),
            DataType::Fp64 => self.out.put_slice(&value.to_le_bytes()),
            _ => return Err(self.no_element(value)),
        }
        *self.count += 1;
        Ok(())
    }
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.depth {
            0 => write!(formatter, "an element of {}", self.datatype),
            _ => write!(formatter, "elements of {}", self.datatype),
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        if self.datatype != DataType::Bool {
            return Err(self.no_element(value));
        }
        self.out.put_u8(u8::from(value));
        *self.count += 1;
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.integer(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.float(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        if self.datatype != DataType::Bytes {
            return Err(E::custom(format_args!(
                "a string is not a value of {}",
                self.datatype
            )));
        }
        let length = u32::try_from(value.len()).map_err(E::custom)?;
        self.out.put_u32_le(length);
        self.out.put_slice(value.as_bytes());
        *self.count += 1;
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(A::Error::custom("the arrays are nested too deep"));
        };
        while sequence
            .next_element_seed(Elements {
                datatype: self.datatype,
                depth,
                out: self.out,
                count: self.count,
            })?
            .is_some()
        {}
        Ok(())
    }
}

/// Appends packed elements as JSON values with commas between them; returns how many there are. What JSON cannot
/// say, NaN and infinity, is `null`, and bytes that are no text are replaced.
///
/// `data` is whole: its length was checked when the message was read.
pub(crate) fn write(datatype: DataType, data: &[u8], out: &mut Vec<u8>) -> usize {
    macro_rules! numbers {
        ($type:ty, $write:expr) => {{
            let (elements, _) = data.as_chunks::<{ size_of::<$type>() }>();
            each(elements.iter(), out, |bytes, out| {
                $write(<$type>::from_le_bytes(*bytes), out)
            })
        }};
    }
    macro_rules! integers {
        ($type:ty) => {
            numbers!($type, |value, out: &mut Vec<u8>| out
                .extend_from_slice(itoa::Buffer::new().format(value).as_bytes()))
        };
    }
    match datatype {
        DataType::Bool => each(data.iter(), out, |byte, out| {
            out.extend_from_slice(if *byte == 0 { b"false" } else { b"true" });
        }),
        DataType::Uint8 => integers!(u8),
        DataType::Uint16 => integers!(u16),
        DataType::Uint32 => integers!(u32),
        DataType::Uint64 => integers!(u64),
        DataType::Int8 => integers!(i8),
        DataType::Int16 => integers!(i16),
        DataType::Int32 => integers!(i32),
        DataType::Int64 => integers!(i64),
        DataType::Fp16 => numbers!(f16, |value: f16, out| json(&value.to_f32(), out)),
        DataType::Bf16 => numbers!(bf16, |value: bf16, out| json(&value.to_f32(), out)),
        DataType::Fp32 => numbers!(f32, |value: f32, out| json(&value, out)),
        DataType::Fp64 => numbers!(f64, |value: f64, out| json(&value, out)),
        DataType::Bytes => each(texts(data), out, |bytes, out| {
            json(&String::from_utf8_lossy(bytes), out);
        }),
    }
}

fn each<T>(
    elements: impl Iterator<Item = T>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>),
) -> usize {
    let mut count = 0;
    for element in elements {
        if count > 0 {
            out.push(b',');
        }
        write(element, out);
        count += 1;
    }
    count
}

/// The elements of a BYTES tensor.
fn texts(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = data.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        data = rest;
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(text: &str, datatype: DataType) -> Result<(usize, BytesMut), String> {
        let data: &RawValue = serde_json::from_str(text).unwrap();
        let mut out = BytesMut::new();
        let count = pack(data, datatype, MAX_DEPTH, &mut out);
        count
            .map(|count| (count, out))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_back_as_they_were() {
        for (datatype, text) in [
            (DataType::Bool, "true,false"),
            (DataType::Uint8, "0,255"),
            (DataType::Int8, "-128,127"),
            (DataType::Uint16, "65535"),
            (DataType::Int16, "-32768"),
            (DataType::Uint32, "4294967295"),
            (DataType::Int32, "-2147483648"),
            (DataType::Uint64, "18446744073709551615"),
            (DataType::Int64, "-9223372036854775808"),
            (DataType::Fp16, "0.5,-2.0"),
            (DataType::Bf16, "0.5,-2.0"),
            (DataType::Fp32, "0.1,-1.5,1e-10"),
            (DataType::Fp64, "0.1,1e+300"),
            (DataType::Bytes, r#""","é \"x\"\n""#),
        ] {
            let (count, data) = packed(&format!("[{text}]"), datatype).unwrap();
            let mut out = Vec::new();
            assert_eq!(write(datatype, &data, &mut out), count);
            assert_eq!(String::from_utf8(out).unwrap(), text, "{datatype}");
        }
    }

    #[test]
    fn nested_arrays_are_flattened_row_by_row() {
        let (count, data) = packed("[[[1,2],[3,4]],[[5,6],[7,8]]]", DataType::Uint8).unwrap();
        assert_eq!((count, &data[..]), (8, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
        assert_eq!(packed("7", DataType::Uint8).unwrap().0, 1);
        assert_eq!(packed("[]", DataType::Uint8).unwrap().0, 0);
    }

    #[test]
    fn what_is_no_element_is_named() {
        for (text, datatype, words) in [
            ("[256]", DataType::Uint8, "`256` is not a value of UINT8"),
            ("[-1]", DataType::Uint64, "`-1` is not a value of UINT64"),
            ("[1.5]", DataType::Int32, "`1.5` is not a value of INT32"),
            ("[true]", DataType::Int32, "`true` is not a value of INT32"),
            (
                "[\"1\"]",
                DataType::Int32,
                "a string is not a value of INT32",
            ),
            ("[1]", DataType::Bytes, "`1` is not a value of BYTES"),
            ("[2]", DataType::Bool, "`2` is not a value of BOOL"),
            ("[null]", DataType::Fp32, "null"),
            ("[{}]", DataType::Fp32, "map"),
        ] {
            let error = packed(text, datatype).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
        assert!(packed(&deep, DataType::Int8).unwrap_err().contains("deep"));
    }

    #[test]
    fn what_json_cannot_say_is_null_or_replaced() {
        let mut out = Vec::new();
        let values = [f32::NAN, f32::INFINITY, 1.0]
            .map(f32::to_le_bytes)
            .concat();
        write(DataType::Fp32, &values, &mut out);
        assert_eq!(out, b"null,null,1.0");
        out.clear();
        write(DataType::Bytes, b"\x02\0\0\0\xffa", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "\"\u{fffd}a\"");
    }

    proptest! {
        #[test]
        fn any_floats_survive(values: Vec<f32>) {
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let mut out = vec![b'['];
            let count = write(DataType::Fp32, &data, &mut out);
            out.push(b']');
            prop_assert_eq!(count, values.len());
            let back: Vec<Option<f32>> = serde_json::from_slice(&out).unwrap();
            let finite = values.iter().map(|value| value.is_finite().then_some(*value));
            prop_assert_eq!(back, finite.collect::<Vec<_>>());
        }

        #[test]
        fn any_texts_survive(values: Vec<String>) {
            let text = serde_json::to_string(&values).unwrap();
            let (count, data) = packed(&text, DataType::Bytes).unwrap();
            let mut out = vec![b'['];
            prop_assert_eq!(write(DataType::Bytes, &data, &mut out), count);
            out.push(b']');
            prop_assert_eq!(serde_json::from_slice::<Vec<String>>(&out).unwrap(), values);
        }
    }
}
