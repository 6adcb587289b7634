//! The KServe v2 datatypes, their names and sizes. Knows nothing of shapes or messages.

use crate::inference;

/// A tensor's element type, by its KServe name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    /// Byte strings of any length, each after a little-endian u32 with its length.
    Bytes,
}

impl DataType {
    /// Every datatype, for tables and tests.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The name on the wire, e.g. `INT32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The datatype with this wire name (upper case, as KServe spells it).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|datatype| datatype.name() == name)
    }

    /// Bytes per element; `None` for [`DataType::Bytes`], whose elements differ in length.
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// The same type as a model configuration writes it (`TYPE_INT32`; BYTES is `TYPE_STRING` there).
    pub const fn to_config(self) -> inference::DataType {
        match self {
            Self::Bool => inference::DataType::TypeBool,
            Self::Uint8 => inference::DataType::TypeUint8,
            Self::Uint16 => inference::DataType::TypeUint16,
            Self::Uint32 => inference::DataType::TypeUint32,
            Self::Uint64 => inference::DataType::TypeUint64,
            Self::Int8 => inference::DataType::TypeInt8,
            Self::Int16 => inference::DataType::TypeInt16,
            Self::Int32 => inference::DataType::TypeInt32,
            Self::Int64 => inference::DataType::TypeInt64,
            Self::Fp16 => inference::DataType::TypeFp16,
            Self::Bf16 => inference::DataType::TypeBf16,
            Self::Fp32 => inference::DataType::TypeFp32,
            Self::Fp64 => inference::DataType::TypeFp64,
            Self::Bytes => inference::DataType::TypeString,
        }
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}
