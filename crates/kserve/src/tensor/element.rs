//! Rust types that are tensor elements: how one is read from and written to little-endian bytes.

use bytes::BytesMut;

use super::DataType;

/// A fixed-size element. Sealed: the wire's datatypes are all there are.
pub trait Element: Copy + sealed::Packed + 'static {
    const DATATYPE: DataType;
}

pub(crate) mod sealed {
    use bytes::BytesMut;

    pub trait Packed: Sized {
        /// The elements of packed little-endian bytes; trailing bytes short of one are not read.
        fn unpack(data: &[u8]) -> Vec<Self>;
        /// The first element, if the bytes hold one.
        fn first(data: &[u8]) -> Option<Self>;
        fn pack(values: &[Self], out: &mut BytesMut);
    }
}

/// Makes elements of types with `from_le_bytes` and `to_le_bytes`.
macro_rules! element {
    ($($type:ty => $datatype:ident),* $(,)?) => {$(
        impl $crate::tensor::Element for $type {
            const DATATYPE: $crate::tensor::DataType = $crate::tensor::DataType::$datatype;
        }

        // Written as plain loops over exact chunks: on little-endian targets the compiler makes
        // memory copies of them, whatever the alignment.
        impl $crate::tensor::sealed::Packed for $type {
            fn unpack(data: &[u8]) -> Vec<Self> {
                let (chunks, _) = data.as_chunks::<{ size_of::<$type>() }>();
                chunks.iter().map(|chunk| <$type>::from_le_bytes(*chunk)).collect()
            }

            fn first(data: &[u8]) -> Option<Self> {
                data.first_chunk().map(|chunk| <$type>::from_le_bytes(*chunk))
            }

            fn pack(values: &[Self], out: &mut bytes::BytesMut) {
                let start = out.len();
                out.resize(start + size_of_val(values), 0);
                let (chunks, _) = out[start..].as_chunks_mut::<{ size_of::<$type>() }>();
                for (chunk, value) in chunks.iter_mut().zip(values) {
                    *chunk = value.to_le_bytes();
                }
            }
        }
    )*};
}

pub(crate) use element;

element! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    f32 => Fp32, f64 => Fp64,
    half::f16 => Fp16, half::bf16 => Bf16,
}

impl Element for bool {
    const DATATYPE: DataType = DataType::Bool;
}

impl sealed::Packed for bool {
    // Any byte but 0 is true, as in C.
    fn unpack(data: &[u8]) -> Vec<Self> {
        data.iter().map(|byte| *byte != 0).collect()
    }

    fn first(data: &[u8]) -> Option<Self> {
        data.first().map(|byte| *byte != 0)
    }

    fn pack(values: &[Self], out: &mut BytesMut) {
        out.extend(values.iter().map(|value| u8::from(*value)));
    }
}
