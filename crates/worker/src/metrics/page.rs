//! Writes a page in Prometheus' text format. Owns the format; knows nothing of the families.
//!
//! Not `prometheus-client`, which the gateway uses: it writes OpenMetrics, where a counter's sample always
//! ends in `_total`. Triton's counters do not (`nv_inference_request_success`), and dashboards know them so.

use std::collections::HashMap;
use std::fmt::Write;

use super::histogram::Histogram;

/// Labels by name and value.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The page so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
    /// Where each family begins, and where its samples do.
    families: Vec<(usize, usize)>,
}

impl Page {
    /// One page of several models: each family once, with the samples of all of them.
    pub(super) fn joined(pages: impl Iterator<Item = Self>) -> Self {
        let pages: Vec<Self> = pages.collect();
        if pages.len() == 1 {
            return pages.into_iter().next().unwrap_or_default();
        }
        let mut order: Vec<&str> = Vec::new();
        let mut samples: HashMap<&str, String> = HashMap::new();
        for (head, own) in pages.iter().flat_map(Self::parts) {
            let all = samples.entry(head).or_insert_with(|| {
                order.push(head);
                String::new()
            });
            all.push_str(own);
        }
        let mut joined = Self::default();
        for head in order {
            let begins = joined.text.len();
            joined.text.push_str(head);
            joined.families.push((begins, joined.text.len()));
            joined
                .text
                .push_str(samples.get(head).map_or("", String::as_str));
        }
        joined
    }

    /// The head of each family, and its samples.
    fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        let ends = self.families.iter().skip(1).map(|(begins, _)| *begins);
        let ends = ends.chain(std::iter::once(self.text.len()));
        self.families
            .iter()
            .zip(ends)
            .map(|((begins, samples), end)| {
                let part = |from: usize, to: usize| self.text.get(from..to).unwrap_or_default();
                (part(*begins, *samples), part(*samples, end))
            })
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Begins a family; its samples follow. Its `kind` is Prometheus' type.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let begins = self.text.len();
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.families.push((begins, self.text.len()));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn page(model: &str, families: &[&str]) -> Page {
        let mut page = Page::default();
        for name in families {
            page.single((name, "counter", "A count"), &[("model", model)], 1.0);
        }
        page
    }

    #[test]
    fn the_page_of_several_models_has_each_family_once() {
        let pages = [page("a", &["x", "y"]), page("b", &["x", "z", "y"])];
        assert_eq!(
            Page::joined(pages.into_iter()).into_text(),
            "# HELP x A count\n# TYPE x counter\nx{model=\"a\"} 1\nx{model=\"b\"} 1\n\
             # HELP y A count\n# TYPE y counter\ny{model=\"a\"} 1\ny{model=\"b\"} 1\n\
             # HELP z A count\n# TYPE z counter\nz{model=\"b\"} 1\n"
        );
        let alone = || page("a\n# HELP", &["x", "y"]);
        let joined = Page::joined(std::iter::once(alone()));
        assert_eq!(joined.into_text(), alone().into_text());
    }
}
