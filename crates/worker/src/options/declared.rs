//! Options that are declared once: `options!` makes of a table a struct with its defaults and a list that
//! command lines are made of.
//!
//! Owns what a declaration says of an option, and the check of its range. The types of fields are in `types`; knows nothing of what options do.

use std::path::PathBuf;

/// The value of an option, whatever its type.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    Switch(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    Path(PathBuf),
    Ids(Vec<u32>),
    /// Of an option that may be left out.
    Absent,
}

/// Characters of a text in an error.
const SHOWN: usize = 100;

/// What people give for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    Switch,
    Integer,
    Number,
    Text,
    /// Whether it exists is for its user to see.
    File,
    /// One that exists.
    Directory,
    /// Token ids; on a command line, a file with the text that they encode.
    Ids,
}

impl OptionKind {
    /// As command lines know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Text => "text",
            Self::File => "file",
            Self::Directory => "directory",
            Self::Ids => "ids",
        }
    }
}

/// One option, as it is declared.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionInfo {
    /// As a keyword; on a command line with dashes. Of a time, it ends in `_s`.
    pub name: String,
    /// A noun phrase or an imperative for the command's help.
    pub help: &'static str,
    pub kind: OptionKind,
    pub default: OptionValue,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// The placeholder of its value in the help; `None`: that of its kind.
    pub value_name: Option<&'static str>,
    /// All values that it may have; empty: any of its kind.
    pub choices: Vec<&'static str>,
    /// The environment variable that sets it as well.
    pub environment: Option<&'static str>,
    pub(crate) unit: Option<&'static str>,
}

/// A value that an option cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is `{value}`, expected {expected}")]
pub struct InvalidOption {
    pub name: String,
    pub value: String,
    pub expected: String,
}

/// Options that `options!` declares.
pub trait Options: Default {
    /// All of them, in the order of a command's help.
    fn list() -> Vec<OptionInfo>;

    /// The value of the option `name`; `None`: there is none of that name.
    fn get(&self, name: &str) -> Option<OptionValue>;

    /// Sets an option of [`list`](Options::list); another one changes nothing.
    ///
    /// # Errors
    /// What the option can have instead.
    fn set(&mut self, option: &OptionInfo, value: OptionValue) -> Result<(), InvalidOption>;
}

/// The type of an option's field.
pub(crate) trait OptionType: Sized {
    const KIND: OptionKind;
    /// What the option's name has in addition to the field's.
    const SUFFIX: &'static str = "";
    const UNIT: Option<&'static str> = None;
    const MIN: Option<f64> = None;
    const MAX: Option<f64> = None;

    /// All words that a text may be; empty: any.
    fn choices() -> Vec<&'static str> {
        Vec::new()
    }

    fn value(&self) -> OptionValue;

    /// `Err` is what is expected instead.
    fn read(value: OptionValue) -> Result<Self, String>;
}

impl OptionInfo {
    pub(crate) fn new<T: OptionType>(
        field: &'static str,
        help: &'static str,
        default: &T,
    ) -> OptionInfo {
        OptionInfo {
            name: name::<T>(field),
            // Every line of a doc comment begins with a space.
            help: help.trim_start(),
            kind: T::KIND,
            default: default.value(),
            min: T::MIN,
            max: T::MAX,
            value_name: None,
            choices: T::choices(),
            environment: None,
            unit: T::UNIT,
        }
    }

    /// The value as the type of its field.
    pub(crate) fn read<T: OptionType>(&self, value: OptionValue) -> Result<T, InvalidOption> {
        let (number, shown) = match &value {
            OptionValue::Integer(value) => (Some(*value as f64), value.to_string()),
            OptionValue::Number(value) => {
                // `1e300` without its zeros.
                let shown = format!("{value:?}");
                (Some(*value), shown.trim_end_matches(".0").to_owned())
            }
            OptionValue::Text(value) => (None, value.escape_debug().take(SHOWN).collect()),
            other => (None, format!("{other:?}")),
        };
        let invalid = |expected| InvalidOption {
            name: self.name.clone(),
            value: shown,
            expected,
        };
        // Neither NaN nor infinity, which is nobody's intention.
        let (min, max) = (self.min.unwrap_or(f64::MIN), self.max.unwrap_or(f64::MAX));
        if number.is_some_and(|number| !(min..=max).contains(&number)) {
            return Err(invalid(self.range()));
        }
        T::read(value).map_err(invalid)
    }

    fn range(&self) -> String {
        let range = match (self.min, self.max) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("{min} or more"),
            (None, Some(max)) => format!("{max} or less"),
            (None, None) => "a finite number".to_owned(),
        };
        match self.unit {
            Some(unit) => format!("{unit}, {range}"),
            None => range,
        }
    }
}

/// An option's name, by its field.
pub(crate) fn name<T: OptionType>(field: &str) -> String {
    format!("{field}{}", T::SUFFIX)
}

/// Declares a struct of options. A row is the help as a doc comment, then `field: type = default`, then fields of
/// [`OptionInfo`] that differ from its type's (`=> min: Some(1.0)`). The fields after `and` are not options.
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $struct:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty = $default:expr $(=> $($key:ident: $value:expr),+)?;
            )+
        }
        $(and {
            $( $(#[doc = $doc:literal])+ $other:ident: $other_type:ty = $other_default:expr; )+
        })?
    ) => {
        $(#[$attribute])*
        pub struct $struct {
            $( $(#[doc = $help])+ pub $field: $type, )+
            $($( $(#[doc = $doc])+ pub $other: $other_type, )+)?
        }

        impl Default for $struct {
            fn default() -> Self {
                Self {
                    $( $field: $default, )+
                    $($( $other: $other_default, )+)?
                }
            }
        }

        impl $crate::options::Options for $struct {
            fn list() -> Vec<$crate::options::OptionInfo> {
                let default = Self::default();
                vec![$( $crate::options::OptionInfo {
                    $($( $key: $value, )+)?
                    ..$crate::options::OptionInfo::new(
                        stringify!($field), concat!($($help),+), &default.$field
                    )
                } ),+]
            }

            fn get(&self, name: &str) -> Option<$crate::options::OptionValue> {
                use $crate::options::declared;
                $(
                    if name == declared::name::<$type>(stringify!($field)) {
                        return Some(declared::OptionType::value(&self.$field));
                    }
                )+
                None
            }

            fn set(
                &mut self,
                option: &$crate::options::OptionInfo,
                value: $crate::options::OptionValue,
            ) -> Result<(), $crate::options::InvalidOption> {
                use $crate::options::declared;
                $(
                    if option.name == declared::name::<$type>(stringify!($field)) {
                        self.$field = option.read(value)?;
                        return Ok(());
                    }
                )+
                Ok(())
            }
        }
    };
}
pub(crate) use options;
