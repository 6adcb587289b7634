//! Limits as they are written: `requests=60 tokens=40000 concurrent=8`, each at most once.

use std::str::FromStr;

/// Above, a limit limits nothing, and one more is lost in the rounding.
const MAX: u64 = 1_000_000_000;

/// What a key may use; `None`: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests a minute.
    pub requests: Option<u64>,
    /// Tokens a minute, of prompts and answers.
    pub tokens: Option<u64>,
    /// Requests open at once.
    pub concurrent: Option<u64>,
}

impl Limits {
    /// Whether anything is limited.
    pub fn is_any(self) -> bool {
        self != Self::default()
    }
}

impl FromStr for Limits {
    type Err = String;

    /// The limits, separated by spaces or commas. No error shows what was written: in a file of keys, that may be a
    /// part of one.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        let words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        for word in words {
            let (name, number) = word.split_once('=').ok_or_else(form)?;
            let (name, limit) = match name {
                "requests" => ("requests", &mut limits.requests),
                "tokens" => ("tokens", &mut limits.tokens),
                "concurrent" => ("concurrent", &mut limits.concurrent),
                _ => return Err(form()),
            };
            let number = number.parse().ok().filter(|it| (1..=MAX).contains(it));
            let number =
                number.ok_or_else(|| format!("`{name}` must be a whole number from 1 to {MAX}"))?;
            if limit.replace(number).is_some() {
                return Err(format!("`{name}` appears twice"));
            }
        }
        match limits.is_any() {
            true => Ok(limits),
            false => Err(form()),
        }
    }
}

fn form() -> String {
    "limits look like `requests=60 tokens=40000 concurrent=8`: requests and tokens a minute, and open requests; \
     each may be left out"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_in_any_order() {
        let all = Limits {
            requests: Some(60),
            tokens: Some(40_000),
            concurrent: Some(8),
        };
        for text in [
            "requests=60 tokens=40000 concurrent=8",
            "concurrent=8,tokens=40000,requests=60",
            " requests=60,\ttokens=40000 , concurrent=8 ",
        ] {
            assert_eq!(text.parse(), Ok(all), "{text}");
        }
        let one = Limits {
            tokens: Some(1),
            ..Limits::default()
        };
        assert_eq!("tokens=1".parse(), Ok(one));
        for (bad, words) in [
            ("", "look like"),
            ("60", "look like"),
            ("secret=1", "look like"),
            ("requests", "look like"),
            ("requests=0", "`requests` must be"),
            ("tokens=-1", "`tokens` must be"),
            ("tokens=1000000001", "`tokens` must be"),
            ("concurrent=1.5", "`concurrent` must be"),
            ("tokens=1 tokens=2", "`tokens` appears twice"),
        ] {
            let error = bad.parse::<Limits>().unwrap_err();
            assert!(
                error.contains(words) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
