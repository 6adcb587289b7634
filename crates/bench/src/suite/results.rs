//! The suite's figures: medians over rounds, multiples of the floor, tables. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Mode, SuiteOptions};
use crate::measure::{Quantiles, Report};

const FLOOR: &str = "floor";
/// Share of a core above which the client counts as the bottleneck.
const CLIENT_BOUND: f64 = 0.9;

/// Everything that the suite measured.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    machine: Machine,
    tokens: u32,
    pace_ms: u128,
    rounds: u32,
    rows: Vec<Measurement>,
    /// One stream over one kept-alive connection, nothing else running.
    first_token: Vec<FirstToken>,
    /// What was not measured, and why.
    problems: Vec<String>,
}

/// Where it was measured: absolute figures are not comparable elsewhere.
#[derive(Debug, Serialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

/// One server under one load.
#[derive(Debug, Serialize)]
struct Measurement {
    server: &'static str,
    mode: Mode,
    streams: usize,
    /// One report per round.
    rounds: Vec<Report>,
}

#[derive(Debug, Serialize)]
struct FirstToken {
    server: &'static str,
    /// Milliseconds, one per round.
    rounds: Vec<Quantiles>,
}

/// The median of some rounds' values and how far they are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (lowest, highest) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            lowest,
            highest,
        })
    }
}

impl Measurement {
    fn spread(&self, value: impl Fn(&Report) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(value))
    }

    fn throughput(&self) -> Option<Spread> {
        self.spread(|report| Some(report.tokens_per_second))
    }

    fn cost(&self) -> Option<Spread> {
        self.spread(|report| report.cpu_us_per_token)
    }

    fn broken(&self) -> u64 {
        self.rounds
            .iter()
            .map(|report| report.short + report.truncated + report.errored)
            .sum()
    }
}

impl Results {
    pub(super) fn new(options: &SuiteOptions) -> Self {
        Self {
            machine: Machine::read(),
            tokens: options.tokens,
            pace_ms: options.pace.as_millis(),
            rounds: options.rounds,
            rows: Vec::new(),
            first_token: Vec::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, server: &'static str, mode: Mode, report: Report) {
        let streams = report.streams;
        let row = self
            .rows
            .iter_mut()
            .find(|row| (row.server, row.mode, row.streams) == (server, mode, streams));
        match row {
            Some(row) => row.rounds.push(report),
            None => self.rows.push(Measurement {
                server,
                mode,
                streams,
                rounds: vec![report],
            }),
        }
    }

    pub(super) fn add_first_token(&mut self, server: &'static str, report: Report) {
        if !report.is_clean() {
            let problem = report.first_problem.as_deref().unwrap_or("no stream ended");
            self.problem(format!("time to first token of `{server}`: {problem}"));
        }
        let Some(quantiles) = report.time_to_first_token_ms else {
            return;
        };
        match self.first_token.iter_mut().find(|row| row.server == server) {
            Some(row) => row.rounds.push(quantiles),
            None => self.first_token.push(FirstToken {
                server,
                rounds: vec![quantiles],
            }),
        }
    }

    pub(super) fn problem(&mut self, text: String) {
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// Whether everything was measured and every stream came whole.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.rows.iter().all(|row| row.broken() == 0)
    }

    /// Tables for people, and for a document.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "{} ({} cores), Linux {}. {} tokens a request; medians of {} rounds [lowest..highest]. \
             The server runs alone on one core; client and any worker behind a gateway share \
             another. An event is a server-sent event or a gRPC message: a server that is behind \
             puts all tokens that are ready into one.\n",
            self.machine.cpu, self.machine.cores, self.machine.kernel, self.tokens, self.rounds
        );
        for (mode, title) in [
            (
                Mode::Saturated,
                "Saturated: tokens come as fast as they are taken".to_owned(),
            ),
            (
                Mode::Paced,
                format!("Paced: one token per stream each {} ms", self.pace_ms),
            ),
        ] {
            let rows: Vec<&Measurement> = self.rows.iter().filter(|row| row.mode == mode).collect();
            if !rows.is_empty() {
                text.push_str(&format!("\n### {title}\n\n"));
                text.push_str(&self.table(&rows));
            }
        }
        if !self.first_token.is_empty() {
            text.push_str("\n### Time to first token, one kept-alive connection, ms\n\n");
            text.push_str(&self.first_token_table());
        }
        if !self.problems.is_empty() {
            text.push_str("\n### Not measured\n\n");
            for problem in &self.problems {
                text.push_str(&format!("- {}\n", problem.replace('\n', " ")));
            }
        }
        text
    }

    fn table(&self, rows: &[&Measurement]) -> String {
        let mut text = markdown_row(&[
            "server",
            "streams",
            "tokens/s",
            "× floor",
            "CPU µs/token",
            "× floor",
            "tokens/event",
            "CPU µs/event",
            "first token p50 / p99 ms",
            "inter-token p50 / p99 ms",
            "peak RSS MiB",
            "client",
            "broken",
        ]);
        text.push_str(&markdown_row(&["---"; 13]));
        let floors: BTreeMap<usize, &Measurement> = rows
            .iter()
            .filter(|row| row.server == FLOOR)
            .map(|row| (row.streams, *row))
            .collect();
        for row in rows {
            let floor = floors.get(&row.streams);
            let multiple = |own: Option<Spread>, of: fn(&Measurement) -> Option<Spread>| {
                let floor = floor.and_then(|floor| of(floor));
                match own.zip(floor) {
                    Some((own, floor)) if floor.median > 0.0 => {
                        format!("{:.2}", own.median / floor.median)
                    }
                    _ => "-".to_owned(),
                }
            };
            let quantiles = |of: fn(&Report) -> Option<Quantiles>| {
                let p50 = row.spread(|report| of(report).map(|quantiles| quantiles.p50));
                let p99 = row.spread(|report| of(report).map(|quantiles| quantiles.p99));
                match p50.zip(p99) {
                    Some((p50, p99)) => format!("{:.2} / {:.2}", p50.median, p99.median),
                    None => "-".to_owned(),
                }
            };
            let cells = [
                row.server.to_owned(),
                row.streams.to_string(),
                spread_text(row.throughput(), 0),
                multiple(row.throughput(), Measurement::throughput),
                spread_text(row.cost(), 2),
                multiple(row.cost(), Measurement::cost),
                number_text(row.spread(Report::tokens_per_event), 1),
                number_text(row.spread(|report| report.cpu_us_per_event), 1),
                quantiles(|report| report.time_to_first_token_ms),
                quantiles(|report| report.inter_token_ms),
                number_text(row.spread(|report| report.peak_rss_mib), 0),
                client_text(row.spread(|report| Some(report.client_utilisation))),
                row.broken().to_string(),
            ];
            text.push_str(&markdown_row(&cells.each_ref().map(String::as_str)));
        }
        text
    }

    fn first_token_table(&self) -> String {
        let mut text = markdown_row(&["server", "p50", "p99"]);
        text.push_str(&markdown_row(&["---"; 3]));
        let median = |server: &str| {
            let row = self.first_token.iter().find(|row| row.server == server)?;
            Spread::of(row.rounds.iter().map(|quantiles| quantiles.p50))
        };
        for row in &self.first_token {
            let p50 = Spread::of(row.rounds.iter().map(|quantiles| quantiles.p50));
            let p99 = Spread::of(row.rounds.iter().map(|quantiles| quantiles.p99));
            text.push_str(&markdown_row(&[
                row.server,
                &spread_text(p50, 3),
                &spread_text(p99, 3),
            ]));
        }
        if let Some((gateway, worker)) = median("gateway").zip(median("worker, step batching")) {
            text.push_str(&format!(
                "\nThe gateway adds {:.3} ms to the worker behind it (p50).\n",
                gateway.median - worker.median
            ));
        }
        text
    }
}

impl Machine {
    fn read() -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = file("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(
                || "unknown CPU".to_owned(),
                |(_, name)| name.trim().to_owned(),
            );
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

fn spread_text(spread: Option<Spread>, digits: usize) -> String {
    match spread {
        Some(Spread {
            median,
            lowest,
            highest,
        }) if lowest < highest => {
            format!("{median:.digits$} [{lowest:.digits$}..{highest:.digits$}]")
        }
        Some(Spread { median, .. }) => format!("{median:.digits$}"),
        None => "-".to_owned(),
    }
}

fn number_text(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.digits$}", spread.median),
    )
}

/// Marks a row that says more of the client than of the server.
fn client_text(utilisation: Option<Spread>) -> String {
    let is_bound = utilisation.is_some_and(|spread| spread.median >= CLIENT_BOUND);
    let mark = if is_bound { " (client-bound)" } else { "" };
    number_text(utilisation, 2) + mark
}

fn markdown_row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Ending, Recorder, Surroundings, Timer};
    use crate::process::Usage;
    use std::time::{Duration, Instant};

    fn report(tokens: u64, cpu_us: u64) -> Report {
        let mut recorder = Recorder::default();
        let now = Instant::now();
        let mut timer = Timer::start(now);
        recorder.event(&mut timer, now + Duration::from_millis(2));
        recorder.end(&timer, tokens, Ending::Whole);
        let after = Usage {
            ticks: Duration::from_micros(cpu_us),
            ..Default::default()
        };
        let around = Surroundings {
            wall: Duration::from_secs(1),
            client_cpu: Duration::from_millis(100),
            server: Some((Usage::default(), after)),
        };
        Report::new(64, &recorder, &around)
    }

    fn results() -> Results {
        Results {
            machine: Machine {
                cpu: "CPU".into(),
                cores: 2,
                kernel: "6".into(),
            },
            tokens: 128,
            pace_ms: 20,
            rounds: 3,
            rows: Vec::new(),
            first_token: Vec::new(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_the_middles() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).map(|s| s.median);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(spread(&[f64::NAN]), None);
    }

    #[test]
    fn rows_are_multiples_of_the_floor_in_the_same_mode() {
        let mut results = results();
        for tokens in [1000, 900, 1100] {
            results.add("floor", Mode::Saturated, report(tokens, 4 * tokens));
        }
        results.add("gateway", Mode::Saturated, report(500, 5000));
        let text = results.markdown();
        assert!(
            text.contains(
                "| floor | 64 | 1000 [900..1100] | 1.00 | 4.00 | 1.00 | 1000.0 | 4000.0 |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "| gateway | 64 | 500 | 0.50 | 10.00 | 2.50 | 500.0 | 5000.0 | 2.00 / 2.00 |"
            ),
            "{text}"
        );
        assert!(!text.contains("### Paced") && !text.contains("### Not measured"));
        assert!(results.is_clean());
    }

    #[test]
    fn a_client_at_its_limit_is_marked() {
        let at = |median| Spread::of([median].into_iter());
        assert_eq!(client_text(at(0.5)), "0.50");
        assert_eq!(client_text(at(0.95)), "0.95 (client-bound)");
        assert_eq!(client_text(None), "-");
    }

    #[test]
    fn what_was_not_measured_is_told() {
        let mut results = results();
        results.problem("`gateway`: no such\nfile".to_owned());
        assert!(results.markdown().contains("- `gateway`: no such file"));
        assert!(!results.is_clean());
    }

    #[test]
    fn the_gateway_s_own_share_of_the_first_token_is_told() {
        let mut results = results();
        results.add_first_token("worker, step batching", report(4, 1));
        results.add_first_token("gateway", report(4, 1));
        assert!(results.markdown().contains("The gateway adds 0.000 ms"));
    }
}
