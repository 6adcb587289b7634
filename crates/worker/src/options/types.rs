//! The types that fields of options have: how each is a value, and what it can be.

use std::path::PathBuf;
use std::time::Duration;

use inflight_discovery::etcd::EtcdPlace;
use inflight_kserve::assets::Phases;
use inflight_kv_events::Form;

use super::declared::{OptionKind, OptionType, OptionValue};

macro_rules! plain {
    ($($type:ty: $variant:ident of $kind:ident, $expected:literal;)+) => {$(
        impl OptionType for $type {
            const KIND: OptionKind = OptionKind::$kind;

            fn value(&self) -> OptionValue {
                OptionValue::$variant(self.clone())
            }

            fn read(value: OptionValue) -> Result<Self, String> {
                match value {
                    OptionValue::$variant(value) => Ok(value),
                    _ => Err($expected.to_owned()),
                }
            }
        }
    )+};
}
plain! {
    bool: Switch of Switch, "true or false";
    f64: Number of Number, "a number";
    String: Text of Text, "text";
    PathBuf: Path of File, "a path";
    Vec<u32>: Ids of Ids, "token ids";
}

macro_rules! integers {
    ($($type:ty, $max:expr;)+) => {$(
        impl OptionType for $type {
            const KIND: OptionKind = OptionKind::Integer;
            const MIN: Option<f64> = Some(0.0);
            const MAX: Option<f64> = $max;

            fn value(&self) -> OptionValue {
                // The largest that there are count bytes of memory.
                OptionValue::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
            }

            fn read(value: OptionValue) -> Result<Self, String> {
                match value {
                    OptionValue::Integer(value) => {
                        Self::try_from(value).map_err(|_| format!("{} or less", Self::MAX))
                    }
                    _ => Err("an integer".to_owned()),
                }
            }
        }
    )+};
}
integers! {
    // Ports: the bound is for people to see.
    u16, Some(65535.0);
    u32, None;
    usize, None;
}

impl OptionType for Duration {
    const KIND: OptionKind = OptionKind::Number;
    const SUFFIX: &'static str = "_s";
    const UNIT: Option<&'static str> = Some("seconds");
    const MIN: Option<f64> = Some(0.0);

    fn value(&self) -> OptionValue {
        OptionValue::Number(self.as_secs_f64())
    }

    fn read(value: OptionValue) -> Result<Self, String> {
        let seconds = f64::read(value)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| "fewer seconds".to_owned())
    }
}

impl<T: OptionType> OptionType for Option<T> {
    const KIND: OptionKind = T::KIND;
    const SUFFIX: &'static str = T::SUFFIX;
    const UNIT: Option<&'static str> = T::UNIT;
    const MIN: Option<f64> = T::MIN;
    const MAX: Option<f64> = T::MAX;

    fn value(&self) -> OptionValue {
        self.as_ref().map_or(OptionValue::Absent, T::value)
    }

    fn read(value: OptionValue) -> Result<Self, String> {
        T::read(value).map(Some)
    }
}

macro_rules! choices {
    ($($type:ty: $($variant:ident $name:literal),+, $expected:literal;)+) => {$(
        impl OptionType for $type {
            const KIND: OptionKind = OptionKind::Text;

            fn choices() -> Vec<&'static str> {
                vec![$($name),+]
            }

            fn value(&self) -> OptionValue {
                let name = match self {
                    $(Self::$variant => $name),+
                };
                OptionValue::Text(name.to_owned())
            }

            fn read(value: OptionValue) -> Result<Self, String> {
                match String::read(value)?.as_str() {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($expected.to_owned()),
                }
            }
        }
    )+};
}
choices! {
    Phases: Both "both", Context "context", Generation "generation", "`both`, `context` or `generation`";
    Form: Maps "maps", Arrays "arrays", "`maps` or `arrays`";
}

impl OptionType for EtcdPlace {
    const KIND: OptionKind = OptionKind::Text;

    fn value(&self) -> OptionValue {
        OptionValue::Text(self.to_string())
    }

    fn read(value: OptionValue) -> Result<Self, String> {
        let text = String::read(value)?;
        let wrong = || "http://HOST:PORT/PREFIX, with commas between several HOST:PORT";
        text.parse().map_err(|_| wrong().to_owned())
    }
}

/// Where traces go: the URL of a collector, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collector(pub Option<String>);

impl OptionType for Collector {
    const KIND: OptionKind = OptionKind::Text;

    fn value(&self) -> OptionValue {
        self.0.value()
    }

    fn read(value: OptionValue) -> Result<Self, String> {
        let text = String::read(value)?;
        // As a variable may be set.
        if text.is_empty() {
            return Ok(Self(None));
        }
        let url = inflight_traces::endpoint(&text)
            .map_err(|_| "the address of an OTLP collector, such as http://HOST:4317")?;
        Ok(Self(Some(url)))
    }
}
