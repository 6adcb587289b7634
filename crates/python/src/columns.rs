//! The values of a packed column. Pure: bytes in, values out. Knows nothing of Python objects, and not which columns
//! there are.

/// A column whose length is not a multiple of the size of its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}` has {bytes} bytes, not a multiple of {width}")]
pub(crate) struct Ragged {
    column: &'static str,
    bytes: usize,
    width: usize,
}

/// One copy out of the Python object; the loop compiles to a memory copy on little-endian machines.
pub(crate) fn unpack<const WIDTH: usize, T>(
    column: &'static str,
    bytes: &[u8],
    from_bytes: fn([u8; WIDTH]) -> T,
) -> Result<Vec<T>, Ragged> {
    let (values, rest) = bytes.as_chunks::<WIDTH>();
    if !rest.is_empty() {
        return Err(Ragged {
            column,
            bytes: bytes.len(),
            width: WIDTH,
        });
    }
    Ok(values.iter().map(|value| from_bytes(*value)).collect())
}
