//! What one run measured, and how it is reported: as numbers (JSON) and as a table. Pure but for the clock
//! readings that it is given.

use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Usage;

/// Times are recorded in microseconds with three significant digits, up to this.
const LONGEST: Duration = Duration::from_secs(3600);

/// How one request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Every token that was asked for, and the protocol's end.
    Whole,
    /// The protocol's end, before as many tokens.
    Short,
    /// The connection or the stream ended before the protocol's end.
    Truncated,
    /// The server said so, or its answer makes no sense.
    Errored(String),
}

/// The times within which an answer is worth something to who waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Objective {
    pub(crate) first_token: Duration,
    /// From the first token to the last, over the tokens between.
    pub(crate) per_token: Duration,
}

/// The times of one request while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    sent: Instant,
    first: Option<Instant>,
    last: Instant,
    choices: u32,
}

impl Timer {
    pub(crate) fn start(now: Instant) -> Self {
        Self {
            sent: now,
            first: None,
            last: now,
            choices: 1,
        }
    }

    /// Of a request for so many sequences, which come at the same time.
    pub(crate) fn of_choices(self, choices: u32) -> Self {
        Self { choices, ..self }
    }

    /// The mean time between the tokens of a sequence, where `tokens` came in all.
    fn per_token(&self, tokens: u64) -> Option<Duration> {
        let gaps = (tokens / u64::from(self.choices.max(1))).checked_sub(1)?;
        let whole = self.last.saturating_duration_since(self.first?).as_nanos();
        let nanos = whole.checked_div(u128::from(gaps))?;
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }

    fn meets(&self, objective: &Objective, tokens: u64) -> bool {
        let first = self
            .first
            .map(|first| first.saturating_duration_since(self.sent));
        first.is_some_and(|time| time <= objective.first_token)
            && self
                .per_token(tokens)
                .is_none_or(|time| time <= objective.per_token)
    }
}

/// Collects what the requests of a run did.
#[derive(Debug)]
pub(crate) struct Recorder {
    first_token: Histogram<u64>,
    between_events: Histogram<u64>,
    per_token: Histogram<u64>,
    tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    events: u64,
    whole: u64,
    short: u64,
    truncated: u64,
    errored: u64,
    first_problem: Option<String>,
    objective: Option<Objective>,
    good: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            first_token: histogram(),
            between_events: histogram(),
            per_token: histogram(),
            tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            events: 0,
            whole: 0,
            short: 0,
            truncated: 0,
            errored: 0,
            first_problem: None,
            objective: None,
            good: 0,
        }
    }
}

impl Recorder {
    /// Counts the requests that meet an objective, too.
    pub(crate) fn with_objective(objective: Objective) -> Self {
        Self {
            objective: Some(objective),
            ..Self::default()
        }
    }

    /// An event or message that brought text or tokens.
    pub(crate) fn event(&mut self, timer: &mut Timer, now: Instant) {
        self.events += 1;
        if timer.first.is_none() {
            timer.first = Some(now);
            record(
                &mut self.first_token,
                now.saturating_duration_since(timer.sent),
            );
        } else {
            record(
                &mut self.between_events,
                now.saturating_duration_since(timer.last),
            );
        }
        timer.last = now;
    }

    /// What a request's prompt had, and what of it was cached, as the server says.
    pub(crate) fn prompt(&mut self, tokens: u64, cached: u64) {
        self.prompt_tokens += tokens;
        self.cached_tokens += cached;
    }

    /// The end of a request that brought `tokens`.
    pub(crate) fn end(&mut self, timer: &Timer, tokens: u64, ending: Ending) {
        self.tokens += tokens;
        if let Some(per_token) = timer.per_token(tokens) {
            record(&mut self.per_token, per_token);
        }
        let problem = match ending {
            Ending::Whole => {
                self.whole += 1;
                let met = |objective| timer.meets(&objective, tokens);
                self.good += u64::from(self.objective.is_some_and(met));
                return;
            }
            Ending::Short => {
                self.short += 1;
                format!("a stream ended after {tokens} tokens")
            }
            Ending::Truncated => {
                self.truncated += 1;
                format!("a stream was cut after {tokens} tokens")
            }
            Ending::Errored(text) => {
                self.errored += 1;
                text
            }
        };
        self.first_problem.get_or_insert(problem);
    }

    /// Requests that ended, whichever way.
    pub(crate) fn ended(&self) -> u64 {
        self.whole + self.short + self.truncated + self.errored
    }
}

fn histogram() -> Histogram<u64> {
    // Never called with bounds that vary: these are constants that the library accepts.
    let longest = u64::try_from(LONGEST.as_micros()).unwrap_or(u64::MAX);
    Histogram::new_with_bounds(1, longest, 3).expect("1 µs to an hour in three digits")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let millis = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Self {
            mean: histogram.mean() / 1000.0,
            p50: millis(0.5),
            p99: millis(0.99),
        })
    }
}

/// What happened outside the streams while a run was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) wall: Duration,
    pub(crate) client_cpu: Duration,
    /// Before and after, where a process was named.
    pub(crate) server: Option<(Usage, Usage)>,
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) streams: usize,
    pub(crate) wall_seconds: f64,
    pub(crate) tokens: u64,
    /// Of the prompts, and those of them that were cached; 0 where the server does not say.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Events or messages that brought tokens: fewer than tokens where the server coalesces.
    pub(crate) events: u64,
    pub(crate) tokens_per_second: f64,
    /// Of requests that were answered whole.
    pub(crate) requests_per_second: f64,
    pub(crate) whole: u64,
    pub(crate) short: u64,
    pub(crate) truncated: u64,
    pub(crate) errored: u64,
    pub(crate) first_problem: Option<String>,
    /// Of requests that were answered whole and met the objective, where there is one.
    pub(crate) good: Option<u64>,
    pub(crate) good_per_second: Option<f64>,
    pub(crate) time_to_first_token_ms: Option<Quantiles>,
    /// Between events that brought tokens.
    pub(crate) inter_token_ms: Option<Quantiles>,
    /// Of each request, the time from its first token to its last over the tokens between.
    pub(crate) mean_inter_token_ms: Option<Quantiles>,
    /// Share of a core that this client took; near 1, the row says more of the client than of the
    /// server.
    pub(crate) client_utilisation: f64,
    pub(crate) server_utilisation: Option<f64>,
    pub(crate) cpu_us_per_token: Option<f64>,
    pub(crate) cpu_us_per_event: Option<f64>,
    pub(crate) rss_mib: Option<f64>,
    pub(crate) peak_rss_mib: Option<f64>,
}

impl Report {
    pub(crate) fn new(streams: usize, recorder: &Recorder, around: &Surroundings) -> Self {
        let seconds = around.wall.as_secs_f64().max(1e-9);
        let server_cpu = around
            .server
            .map(|(before, after)| after.cpu_since(&before).as_secs_f64());
        let per = |count: u64| {
            let cpu = server_cpu.filter(|_| count > 0)?;
            Some(cpu * 1e6 / count as f64)
        };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Self {
            streams,
            wall_seconds: around.wall.as_secs_f64(),
            tokens: recorder.tokens,
            prompt_tokens: recorder.prompt_tokens,
            cached_tokens: recorder.cached_tokens,
            events: recorder.events,
            tokens_per_second: recorder.tokens as f64 / seconds,
            requests_per_second: recorder.whole as f64 / seconds,
            whole: recorder.whole,
            short: recorder.short,
            truncated: recorder.truncated,
            errored: recorder.errored,
            first_problem: recorder.first_problem.clone(),
            good: recorder.objective.map(|_| recorder.good),
            good_per_second: recorder.objective.map(|_| recorder.good as f64 / seconds),
            time_to_first_token_ms: Quantiles::of(&recorder.first_token),
            inter_token_ms: Quantiles::of(&recorder.between_events),
            mean_inter_token_ms: Quantiles::of(&recorder.per_token),
            client_utilisation: around.client_cpu.as_secs_f64() / seconds,
            server_utilisation: server_cpu.map(|cpu| cpu / seconds),
            cpu_us_per_token: per(recorder.tokens),
            cpu_us_per_event: per(recorder.events),
            rss_mib: around.server.map(|(_, after)| mib(after.rss_bytes)),
            peak_rss_mib: around.server.map(|(_, after)| mib(after.peak_rss_bytes)),
        }
    }

    /// Whether every stream came whole.
    pub(crate) fn is_clean(&self) -> bool {
        self.whole > 0 && self.short + self.truncated + self.errored == 0
    }

    /// How far the server coalesced.
    pub(crate) fn tokens_per_event(&self) -> Option<f64> {
        (self.events > 0).then(|| self.tokens as f64 / self.events as f64)
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let quantiles = |q: Option<Quantiles>| {
            q.map_or_else(
                || "-".to_owned(),
                |q| format!("p50 {:.3}  p99 {:.3}", q.p50, q.p99),
            )
        };
        // Refusals are fast; their rate would look like the server's.
        let rate = |text: String| match self.whole {
            0 => "-".to_owned(),
            _ => text,
        };
        let number = |value: Option<f64>, unit: &str| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}{unit}"))
        };
        let broken = format!(
            "{} short, {} truncated, {} errored",
            self.short, self.truncated, self.errored
        );
        let rows = [
            ("streams", self.streams.to_string()),
            ("requests", format!("{} whole, {broken}", self.whole)),
            (
                "tokens",
                format!("{} in {} events", self.tokens, self.events),
            ),
            ("tokens/s", rate(format!("{:.0}", self.tokens_per_second))),
            (
                "requests/s",
                rate(format!("{:.1}", self.requests_per_second)),
            ),
            (
                "time to first token, ms",
                quantiles(self.time_to_first_token_ms),
            ),
            ("inter-token latency, ms", quantiles(self.inter_token_ms)),
            (
                "mean inter-token latency, ms",
                quantiles(self.mean_inter_token_ms),
            ),
            ("server CPU per token", number(self.cpu_us_per_token, " µs")),
            (
                "server utilisation",
                number(self.server_utilisation, " cores"),
            ),
            ("server RSS (peak)", {
                let peak = number(self.peak_rss_mib, " MiB");
                format!("{} ({peak})", number(self.rss_mib, " MiB"))
            }),
            (
                "client utilisation",
                number(Some(self.client_utilisation), " cores"),
            ),
        ];
        for (name, value) in rows {
            table.add_row([name.to_owned(), value]);
        }
        if self.prompt_tokens > 0 {
            let share = 100.0 * self.cached_tokens as f64 / self.prompt_tokens as f64;
            let text = format!(
                "{} of {}, {share:.1} %",
                self.cached_tokens, self.prompt_tokens
            );
            table.add_row(["cached prompt tokens".to_owned(), text]);
        }
        if let (Some(good), Some(rate)) = (self.good, self.good_per_second) {
            let text = format!("{good}, {rate:.1} per second");
            table.add_row(["requests within the objective".to_owned(), text]);
        }
        let mut text = table.trim_fmt();
        if let Some(problem) = &self.first_problem {
            text.push_str(&format!("\nfirst problem: {problem}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_streams_are_counted_and_never_clean() {
        let now = Instant::now();
        let timer = Timer::start(now);
        for (ending, counts) in [
            (Ending::Whole, (1, 0, 0, 0)),
            (Ending::Short, (0, 1, 0, 0)),
            (Ending::Truncated, (0, 0, 1, 0)),
            (Ending::Errored("HTTP 503".into()), (0, 0, 0, 1)),
        ] {
            let mut recorder = Recorder::default();
            recorder.end(&timer, 3, ending.clone());
            let report = Report::new(1, &recorder, &Surroundings::default());
            assert_eq!(
                (report.whole, report.short, report.truncated, report.errored),
                counts,
                "{ending:?}"
            );
            assert_eq!(report.is_clean(), ending == Ending::Whole);
            assert_eq!(report.first_problem.is_some(), ending != Ending::Whole);
            let rate = ["tokens/s", "requests/s"].map(|name| {
                let table = report.table();
                let row = table.lines().find(|row| row.contains(name)).unwrap();
                row.contains(" - ") || row.trim_end().ends_with('-')
            });
            assert_eq!(rate, [ending != Ending::Whole; 2], "{}", report.table());
            assert_eq!(report.tokens, 3);
        }
        let nothing = Report::new(1, &Recorder::default(), &Surroundings::default());
        assert!(!nothing.is_clean());
    }

    #[test]
    fn times_are_first_token_gaps_and_mean_per_token() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut recorder = Recorder::default();
        let mut timer = Timer::start(start);
        for millis in [10, 30, 50] {
            recorder.event(&mut timer, at(millis));
        }
        // Five tokens in three events.
        recorder.end(&timer, 5, Ending::Whole);
        recorder.prompt(40, 30);
        let report = Report::new(1, &recorder, &Surroundings::default());
        assert!(
            report.table().contains("30 of 40, 75.0 %"),
            "{}",
            report.table()
        );
        let near = |actual: Option<Quantiles>, expected: f64| {
            let actual = actual.unwrap().p50;
            assert!(
                (actual - expected).abs() < expected * 0.01,
                "{actual} is not {expected}"
            );
        };
        near(report.time_to_first_token_ms, 10.0);
        near(report.inter_token_ms, 20.0);
        near(report.mean_inter_token_ms, 10.0);
        assert_eq!(report.events, 3);
    }

    #[test]
    fn cost_is_cpu_over_tokens() {
        let mut recorder = Recorder::default();
        recorder.end(&Timer::start(Instant::now()), 1000, Ending::Whole);
        let before = Usage {
            ticks: Duration::from_secs(1),
            ..Default::default()
        };
        let after = Usage {
            ticks: Duration::from_millis(1004),
            rss_bytes: 3 << 20,
            ..before
        };
        let around = Surroundings {
            wall: Duration::from_secs(2),
            client_cpu: Duration::from_secs(1),
            server: Some((before, after)),
        };
        let report = Report::new(1, &recorder, &around);
        assert!((report.cpu_us_per_token.unwrap() - 4.0).abs() < 1e-6);
        assert!((report.client_utilisation - 0.5).abs() < 1e-9);
        assert_eq!(report.rss_mib, Some(3.0));
        assert!((report.tokens_per_second - 500.0).abs() < 1e-6);
    }
}
