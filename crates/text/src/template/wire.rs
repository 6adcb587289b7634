//! What a server and its template helpers say to each other: frames of one value, each with its length in
//! front. Owns the bytes. JSON would change some floats and refuse deep values, so values have a
//! separate form.

use std::io::{Error, ErrorKind, Read, Result, Write};

use serde_json::{Map, Number, Value};

use super::values::DEPTH_LIMIT;
use super::{TemplateError, TemplateInput};

/// Bytes of a frame. Bodies and rendered texts are far smaller.
const FRAME_LIMIT: usize = 512 << 20;
/// Levels that the frames themselves add to a value's own.
const ENVELOPE: usize = 4;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const SIGNED: u8 = 3;
const UNSIGNED: u8 = 4;
const FLOAT: u8 = 5;
const TEXT: u8 = 6;
const LIST: u8 = 7;
const MAP: u8 = 8;

/// A frame with its length in front.
///
/// # Errors
/// [`TemplateError::TooDeep`]; [`TemplateError::OutputTooLarge`] for more than the largest frame.
pub(super) fn frame(value: &Value) -> std::result::Result<Vec<u8>, TemplateError> {
    let mut bytes = vec![0; 4];
    put(value, 0, &mut bytes)?;
    close(bytes)
}

/// The frame of one rendering's input; see [`input`].
///
/// # Errors
/// As [`frame`].
pub(super) fn input_frame(input: &TemplateInput) -> std::result::Result<Vec<u8>, TemplateError> {
    let mut bytes = vec![0; 4];
    bytes.push(LIST);
    put_length(4, &mut bytes);
    put(&input.messages, 1, &mut bytes)?;
    put(input.tools.as_ref().unwrap_or(&Value::Null), 1, &mut bytes)?;
    bytes.push(if input.add_generation_prompt {
        TRUE
    } else {
        FALSE
    });
    bytes.push(MAP);
    put_length(input.extra.len(), &mut bytes);
    for (name, value) in &input.extra {
        put_text(name, &mut bytes);
        put(value, 2, &mut bytes)?;
    }
    close(bytes)
}

/// The input that [`input_frame`] wrote.
pub(super) fn input(value: Value) -> Option<TemplateInput> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [messages, tools, add_generation_prompt, Value::Object(extra)] =
        <[Value; 4]>::try_from(parts).ok()?
    else {
        return None;
    };
    Some(TemplateInput {
        messages,
        tools: Some(tools).filter(|tools| !tools.is_null()),
        add_generation_prompt: add_generation_prompt == true,
        extra,
    })
}

/// Writes a frame.
pub(super) fn send(to: &mut impl Write, frame: &[u8]) -> Result<()> {
    to.write_all(frame)?;
    to.flush()
}

/// Reads a frame, without its length.
pub(super) fn receive(from: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_LIMIT {
        return Err(malformed());
    }
    let mut bytes = Vec::new();
    let read = from.take(length as u64).read_to_end(&mut bytes)?;
    if read < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// The value of a frame.
pub(super) fn value(mut bytes: &[u8]) -> Result<Value> {
    let value = take(&mut bytes, 0).ok_or_else(malformed)?;
    if bytes.is_empty() {
        Ok(value)
    } else {
        Err(malformed())
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidData, "malformed frame")
}

fn close(mut bytes: Vec<u8>) -> std::result::Result<Vec<u8>, TemplateError> {
    let length = bytes.len() - 4;
    if length > FRAME_LIMIT {
        return Err(TemplateError::OutputTooLarge { limit: FRAME_LIMIT });
    }
    if let Some(start) = bytes.first_chunk_mut() {
        *start = (length as u32).to_le_bytes();
    }
    Ok(bytes)
}

fn put(value: &Value, depth: usize, bytes: &mut Vec<u8>) -> std::result::Result<(), TemplateError> {
    if depth > DEPTH_LIMIT + ENVELOPE {
        return Err(TemplateError::TooDeep { limit: DEPTH_LIMIT });
    }
    match value {
        Value::Null => bytes.push(NULL),
        Value::Bool(false) => bytes.push(FALSE),
        Value::Bool(true) => bytes.push(TRUE),
        Value::Number(number) => {
            let (tag, number) = if let Some(number) = number.as_i64() {
                (SIGNED, number.to_le_bytes())
            } else if let Some(number) = number.as_u64() {
                (UNSIGNED, number.to_le_bytes())
            } else {
                (FLOAT, number.as_f64().unwrap_or_default().to_le_bytes())
            };
            bytes.push(tag);
            bytes.extend_from_slice(&number);
        }
        Value::String(text) => {
            bytes.push(TEXT);
            put_text(text, bytes);
        }
        Value::Array(list) => {
            bytes.push(LIST);
            put_length(list.len(), bytes);
            for item in list {
                put(item, depth + 1, bytes)?;
            }
        }
        Value::Object(map) => {
            bytes.push(MAP);
            put_length(map.len(), bytes);
            for (key, value) in map {
                put_text(key, bytes);
                put(value, depth + 1, bytes)?;
            }
        }
    }
    Ok(())
}

fn put_text(text: &str, bytes: &mut Vec<u8>) {
    put_length(text.len(), bytes);
    bytes.extend_from_slice(text.as_bytes());
}

fn put_length(length: usize, bytes: &mut Vec<u8>) {
    // A length that does not fit makes a frame that is too large, which is refused as a whole.
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn take(bytes: &mut &[u8], depth: usize) -> Option<Value> {
    if depth > DEPTH_LIMIT + ENVELOPE {
        return None;
    }
    let (&tag, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(match tag {
        NULL => Value::Null,
        FALSE => Value::Bool(false),
        TRUE => Value::Bool(true),
        SIGNED => i64::from_le_bytes(take_array(bytes)?).into(),
        UNSIGNED => u64::from_le_bytes(take_array(bytes)?).into(),
        FLOAT => Number::from_f64(f64::from_le_bytes(take_array(bytes)?))?.into(),
        TEXT => take_text(bytes)?.into(),
        LIST => {
            let length = take_length(bytes)?;
            // Every item has a byte at least, so a length cannot ask for more memory than was sent.
            let mut list = Vec::with_capacity(length.min(bytes.len()));
            for _ in 0..length {
                list.push(take(bytes, depth + 1)?);
            }
            list.into()
        }
        MAP => {
            let mut map = Map::new();
            for _ in 0..take_length(bytes)? {
                map.insert(take_text(bytes)?, take(bytes, depth + 1)?);
            }
            map.into()
        }
        _ => return None,
    })
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let length = take_length(bytes)?;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    std::str::from_utf8(text).ok().map(str::to_owned)
}

fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(take_array(bytes)?) as usize)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*array)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_come_back_as_they_were() {
        let cases = [
            json!(null),
            json!([
                true,
                false,
                -1,
                u64::MAX,
                i64::MIN,
                0.1,
                1e300,
                -0.0,
                1.7976931348623157e308
            ]),
            json!({"z": "é", "a": {"": []}, "m": "x".repeat(70_000)}),
        ];
        for case in cases {
            let framed = frame(&case).unwrap();
            let received = receive(&mut framed.as_slice()).unwrap();
            let back = value(&received).unwrap();
            // As text: the order of keys and the sign of zero count.
            assert_eq!(back.to_string(), case.to_string());
        }
    }

    #[test]
    fn an_input_comes_back_as_it_was() {
        let extra = json!({"b": 1, "a": [2]});
        let given = TemplateInput {
            messages: json!([{"role": "user"}]),
            tools: Some(json!([{"type": "function"}])),
            add_generation_prompt: true,
            extra: extra.as_object().cloned().unwrap(),
        };
        let framed = input_frame(&given).unwrap();
        let back = input(value(framed.get(4..).unwrap()).unwrap()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{given:?}"));
    }

    #[test]
    fn deep_values_and_cut_frames_are_refused() {
        let deep = (0..10_000).fold(json!(1), |inner, _| Value::Array(vec![inner]));
        assert!(matches!(frame(&deep), Err(TemplateError::TooDeep { .. })));
        // Its drop recurses, which is not what is tested.
        std::mem::forget(deep);
        let framed = frame(&json!({"a": ["text", 1.5]})).unwrap();
        for end in 4..framed.len() {
            assert!(value(framed.get(4..end).unwrap()).is_err(), "{end}");
            assert!(receive(&mut framed.get(..end).unwrap()).is_err(), "{end}");
        }
        let huge = [LIST, 255, 255, 255, 255];
        assert!(value(&huge).is_err());
    }
}
