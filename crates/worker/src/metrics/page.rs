//! Writes a page in Prometheus' text format. Owns the format; knows no family.
//!
//! Not `prometheus-client`, which the gateway uses: it writes OpenMetrics, where a counter's sample always
//! ends in `_total`. Triton's counters do not (`nv_inference_request_success`), and dashboards know them so.

use std::fmt::Write;

use super::histogram::Histogram;

/// Labels by name and value.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The page so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Begins a family; its samples follow. Its `kind` is Prometheus' type.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One sample of the family that was begun last.
    pub(super) fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        self.text.push_str(name);
        self.labels(labels);
        let _ = writeln!(self.text, " {value}");
    }

    /// A family of one sample.
    pub(super) fn single(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        labels: &Labels<'_>,
        value: f64,
    ) {
        self.family(name, kind, help);
        self.sample(name, labels, value);
    }

    /// A family of one histogram.
    pub(super) fn histogram(
        &mut self,
        (name, help): (&str, &str),
        labels: &Labels<'_>,
        histogram: &Histogram,
    ) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let bounds = histogram
            .cumulative()
            .map(|(bound, count)| (bound.to_string(), count));
        let all = std::iter::once(("+Inf".to_owned(), histogram.count));
        for (bound, count) in bounds.chain(all) {
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.sample(&bucket, &labels, count as f64);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, histogram.count as f64);
    }

    fn labels(&mut self, labels: &Labels<'_>) {
        for (place, (name, value)) in labels.iter().enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
    }
}
