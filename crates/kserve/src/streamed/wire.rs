//! Reads an encoded `ModelStreamInferResponse` in place. Field numbers are those of `grpc_service.proto`; what a
//! field means when it comes twice, or under an unknown number, is as protobuf says.

use bytes::{BufMut, Bytes};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::{OutputView, Parameter, ResponseView};
use crate::fields::{put_head, put_text, text_len};
use crate::tensor::SHARED_MEMORY_REGION;

/// Why bytes are no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
    #[error("field {0} has another type")]
    Type(u32),
    #[error("field {0} ends after the message")]
    Length(u32),
    #[error("field {0} is not UTF-8")]
    Text(u32),
}

/// A field's value.
enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    /// No field of these messages has it.
    Other,
}

/// A field, by its number.
struct Field<'a> {
    number: u32,
    value: Value<'a>,
}

impl<'a> Field<'a> {
    fn bytes(&self) -> Result<&'a [u8], WireError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::Type(self.number)),
        }
    }

    fn text(&self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::Text(self.number))
    }

    fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(WireError::Type(self.number)),
        }
    }

    fn double(&self) -> Result<f64, WireError> {
        match self.value {
            Value::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(WireError::Type(self.number)),
        }
    }
}

/// The fields of a message in their order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<Field<'a>>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = decode_key(&mut self.0)?;
        let value = match wire_type {
            WireType::Varint => Value::Varint(decode_varint(&mut self.0)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.0)?;
                let length = usize::try_from(length).map_err(|_| WireError::Length(number))?;
                Value::Bytes(self.take(number, length)?)
            }
            WireType::SixtyFourBit => {
                let bytes = self.take(number, 8)?;
                let bytes = bytes.first_chunk().ok_or(WireError::Length(number))?;
                Value::Fixed64(u64::from_le_bytes(*bytes))
            }
            other => {
                skip_field(other, number, &mut self.0, DecodeContext::default())?;
                Value::Other
            }
        };
        Ok(Some(Field { number, value }))
    }

    fn take(&mut self, number: u32, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(WireError::Length(number))?;
        self.0 = rest;
        Ok(taken)
    }
}

/// What a `ModelStreamInferResponse` says.
pub(super) fn read(message: &Bytes) -> Result<ResponseView<'_>, WireError> {
    let mut view = ResponseView::default();
    let mut fields = Fields(message);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => view.error_message = field.text()?,
            2 => read_response(message, field.bytes()?, &mut view)?,
            _ => {}
        }
    }
    Ok(view)
}

/// Writes a `ModelStreamInferResponse` whose response has this id. Of a field that comes twice, the last one counts.
pub(super) fn write_with_id(
    mut message: &[u8],
    id: &str,
    out: &mut impl BufMut,
) -> Result<(), WireError> {
    while !message.is_empty() {
        let mut fields = Fields(message);
        let Some(field) = fields.next()? else { break };
        let (whole, rest) = message.split_at(message.len() - fields.0.len());
        message = rest;
        if field.number != 2 {
            out.put(whole);
            continue;
        }
        let response = field.bytes()?;
        put_head(field.number, response.len() + text_len(id), out);
        out.put(response);
        put_text(3, id, out);
    }
    Ok(())
}

fn read_response<'a>(
    message: &Bytes,
    response: &'a [u8],
    view: &mut ResponseView<'a>,
) -> Result<(), WireError> {
    let mut fields = Fields(response);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => view.model_name = field.text()?,
            2 => view.model_version = field.text()?,
            3 => view.id = field.text()?,
            4 => {
                let (name, value) = entry(field.bytes()?)?;
                match view.parameters.iter_mut().find(|(own, _)| *own == name) {
                    Some((_, own)) => *own = value,
                    None => view.parameters.push((name, value)),
                }
            }
            5 => view.outputs.push(output(field.bytes()?)?),
            // A slice of the message: it shares its memory.
            6 => view.raw.push(message.slice_ref(field.bytes()?)),
            _ => {}
        }
    }
    Ok(())
}

fn output(output: &[u8]) -> Result<OutputView<'_>, WireError> {
    let mut view = OutputView::default();
    let mut fields = Fields(output);
    while let Some(field) = fields.next()? {
        match (field.number, &field.value) {
            (1, _) => view.name = field.text()?,
            (2, _) => view.datatype = field.text()?,
            (3, &Value::Bytes(mut packed)) => {
                while !packed.is_empty() {
                    view.shape.push(decode_varint(&mut packed)?.cast_signed());
                }
            }
            (3, _) => view.shape.push(field.varint()?.cast_signed()),
            (4, _) => view.in_shared_memory |= entry(field.bytes()?)?.0 == SHARED_MEMORY_REGION,
            (5, _) => view
                .contents
                .get_or_insert_default()
                .merge(field.bytes()?)?,
            _ => {}
        }
    }
    Ok(view)
}

/// An entry of a map of parameters.
fn entry(entry: &[u8]) -> Result<(&str, Parameter<'_>), WireError> {
    let (mut name, mut value) = ("", Parameter::Unset);
    let mut fields = Fields(entry);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => name = field.text()?,
            2 => read_parameter(field.bytes()?, &mut value)?,
            _ => {}
        }
    }
    Ok((name, value))
}

fn read_parameter<'a>(parameter: &'a [u8], value: &mut Parameter<'a>) -> Result<(), WireError> {
    let mut fields = Fields(parameter);
    while let Some(field) = fields.next()? {
        *value = match field.number {
            1 => Parameter::Bool(field.varint()? != 0),
            2 => Parameter::Int64(field.varint()?.cast_signed()),
            3 => Parameter::Text(field.text()?),
            4 => Parameter::Double(field.double()?),
            5 => Parameter::Uint64(field.varint()?),
            _ => continue,
        };
    }
    Ok(())
}
