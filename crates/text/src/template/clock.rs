//! `strftime_now`: the time as templates ask for it, which transformers reads from the machine's clock in
//! the machine's zone. Owns where C's directives and jiff's part; supports only the locale C.

use jiff::Zoned;
use jiff::civil::DateTime;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};

/// The current local time by a strftime format. Several gateways that must write the same prompt need the
/// same zone (`TZ`).
pub(super) fn strftime_now(format: &str) -> String {
    strftime(format, Zoned::now().datetime())
}

/// A point in time by C's strftime directives; one that is unknown stays as written.
fn strftime(format: &str, time: DateTime) -> String {
    // Python's datetime.now() has no zone, and writes none; its seconds have microseconds, always six.
    let format = format
        .split("%%")
        .map(|part| {
            part.replace("%Z", "")
                .replace("%z", "")
                .replace("%f", "%6f")
        })
        .collect::<Vec<_>>()
        .join("%%");
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    let mut text = String::new();
    // Lenient formatting into a string has nothing left that could fail.
    let _ = BrokenDownTime::from(time).format_with_config(&config, &format, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_python() {
        // Each expectation is what Python's datetime(...).strftime(...) prints on Linux.
        let cases = [
            (
                (1970, 1, 1, 0, 0, 0),
                "%Y-%m-%d %H:%M:%S %a %A %b %B %j %p %I",
                "1970-01-01 00:00:00 Thu Thursday Jan January 001 AM 12",
            ),
            ((2000, 2, 29, 0, 0, 0), "%d %b %Y", "29 Feb 2000"),
            (
                (2024, 12, 31, 23, 59, 59),
                "%d %B %Y %j",
                "31 December 2024 366",
            ),
            ((2025, 1, 1, 0, 0, 0), "%-d/%-m/%y", "1/1/25"),
            (
                (2026, 11, 21, 3, 0, 0),
                "%A, %e %F %T %u %w",
                "Saturday, 21 2026-11-21 03:00:00 6 6",
            ),
            (
                (2026, 11, 21, 13, 4, 5),
                "%c|%x|%X|%D|%R|%r|%-I:%M %p|%h|%n|%t|%f",
                "Sat Nov 21 13:04:05 2026|11/21/26|13:04:05|11/21/26|13:04|01:04:05 PM|1:04 PM|Nov|\n|\t|000000",
            ),
            ((2026, 11, 21, 3, 0, 0), "%Z|%z|%%Z", "||%Z"),
            (
                (2026, 1, 2, 3, 4, 5),
                "%_d|%^a|%^B|%-H|%k|%l|%C|%G-W%V|%U|%W|%g|%P|%-j",
                " 2|FRI|JANUARY|3| 3| 3|20|2026-W01|00|00|26|am|2",
            ),
            ((2026, 1, 2, 3, 4, 5), "100%% %é %", "100% %é %"),
        ];
        for ((year, month, day, hour, minute, second), format, expected) in cases {
            let time = jiff::civil::datetime(year, month, day, hour, minute, second, 0);
            assert_eq!(strftime(format, time), expected, "{format}");
        }
    }
}
