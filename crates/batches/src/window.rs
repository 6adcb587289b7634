//! How long a batch may take. Owns how that is written: hours, as in OpenAI's `24h`, or days.

/// The time within which the lines of a batch are run; what is left then expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    hours: u32,
}

/// A week: nobody waits longer, and what is kept for ever is never cleaned up.
const MAX_HOURS: u32 = 168;

/// It is not a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("send `24h`, or another number of hours from `1h` to `168h`")]
pub struct WindowError;

impl Window {
    /// OpenAI's only one.
    pub const DAY: Self = Self { hours: 24 };

    /// Its length.
    pub fn seconds(self) -> i64 {
        i64::from(self.hours) * 3600
    }
}

impl std::str::FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let hours = text.strip_suffix('h').ok_or(WindowError)?;
        let is_plain = hours.bytes().all(|byte| byte.is_ascii_digit()) && !hours.starts_with('0');
        let hours = hours.parse().ok().filter(|_| is_plain);
        let hours = hours.filter(|hours| (1..=MAX_HOURS).contains(hours));
        hours.map(|hours| Self { hours }).ok_or(WindowError)
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}h", self.hours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_number_of_hours() {
        for (text, seconds) in [
            ("24h", Some(86_400)),
            ("1h", Some(3600)),
            ("168h", Some(604_800)),
            ("0h", None),
            ("169h", None),
            ("024h", None),
            ("+24h", None),
            ("24", None),
            ("24H", None),
            ("h", None),
            ("", None),
        ] {
            let window: Result<Window, _> = text.parse();
            assert_eq!(window.map(Window::seconds).ok(), seconds, "{text}");
            if let Ok(window) = window {
                assert_eq!(window.to_string(), text);
            }
        }
        assert_eq!("24h".parse(), Ok(Window::DAY));
    }
}
