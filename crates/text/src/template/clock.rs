//! `strftime_now`: the date as templates ask for it. In UTC, where transformers uses the machine's
//! zone: several gateways must write the same prompt, wherever they run. Knows no locale but C.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// The current time by a strftime format.
pub(super) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs());
    strftime(format, seconds)
}

/// A point in time, in seconds of Unix time, by C's strftime directives; one that is unknown stays as
/// written.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let weekday = (days + 4) % 7;
    let year_day = days - days_before(year) + 1;
    let name = |names: &[&'static str], index: u64| {
        usize::try_from(index)
            .ok()
            .and_then(|index| names.get(index).copied())
            .unwrap_or_default()
    };
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let half_day = if hour < 12 { "AM" } else { "PM" };
    let hour12 = (hour + 11) % 12 + 1;

    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next();
        // glibc's `%-d`: no padding.
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let number = |value: u64, width: usize| {
            if padded {
                format!("{value:0width$}")
            } else {
                value.to_string()
            }
        };
        let piece = match directive {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') if padded => format!("{day:2}"),
            Some('e') => day.to_string(),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('f') => "000000".to_owned(),
            Some('j') => number(year_day, 3),
            Some('w') => weekday.to_string(),
            Some('u') => ((weekday + 6) % 7 + 1).to_string(),
            Some('p') => half_day.to_owned(),
            Some('A') => name(&DAYS, weekday).to_owned(),
            Some('a') => short(name(&DAYS, weekday)).to_owned(),
            Some('B') => name(&MONTHS, month - 1).to_owned(),
            Some('b' | 'h') => short(name(&MONTHS, month - 1)).to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T' | 'X') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('D' | 'x') => format!("{month:02}/{day:02}/{:02}", year % 100),
            Some('c') => format!(
                "{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}",
                short(name(&DAYS, weekday)),
                short(name(&MONTHS, month - 1)),
            ),
            // Python's datetime.now() knows no zone.
            Some('Z' | 'z') => String::new(),
            Some('s') => seconds.to_string(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) if padded => format!("%{other}"),
            Some(other) => format!("%-{other}"),
            None if padded => "%".to_owned(),
            None => "%-".to_owned(),
        };
        text.push_str(&piece);
    }
    text
}

/// Year, month and day of the month, the latter two from 1, of a day counted from 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before(year);
    let leap = u64::from(days_before(year + 1) - days_before(year) == 366);
    let lengths = [31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

/// Days from 1970 to the start of a year.
fn days_before(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn agrees_with_c() {
        // Each expectation is what Python's datetime.fromtimestamp(..., utc).strftime prints.
        let cases = [
            (
                0,
                "%Y-%m-%d %H:%M:%S %a %A %b %B %j %p %I",
                "1970-01-01 00:00:00 Thu Thursday Jan January 001 AM 12",
            ),
            (951_782_400, "%d %b %Y", "29 Feb 2000"),
            (1_735_689_599, "%d %B %Y %j", "31 December 2024 366"),
            (1_735_689_600, "%-d/%-m/%y", "1/1/25"),
            (
                1_795_230_000,
                "%A, %e %F %T %u %w",
                "Saturday, 21 2026-11-21 03:00:00 6 6",
            ),
            (4_107_542_400, "%F", "2100-03-01"),
            (1_795_230_000, "100%% %Q %", "100% %Q %"),
        ];
        for (seconds, format, expected) in cases {
            assert_eq!(strftime(format, seconds), expected, "{format}");
        }
    }
}
