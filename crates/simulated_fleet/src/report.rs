//! What came of a seed, as a value and as the line that its process prints.

use crate::oracle::{End, Invariant};

/// What came of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The hash over all events, and their number.
    pub history: u64,
    pub events: u64,
    pub requests: u64,
    /// Answers by their end: whole, an error, cut, and those whose client left.
    pub whole: u64,
    pub errors: u64,
    pub cut: u64,
    pub left: u64,
    pub faults: u64,
    /// Workers that were lost at each step of a hand-over, in their order.
    pub steps: [u64; 6],
    pub virtual_ms: u64,
    /// What did not hold: an invariant's name and how.
    pub broken: Vec<String>,
}

impl Report {
    /// Of a run that did not come to its end.
    pub(crate) fn of_failure(how: String) -> Self {
        Self {
            broken: vec![format!("{}: {how}", Invariant::NoPanic.name())],
            ..Self::default()
        }
    }

    /// One line for the process that started this one.
    pub fn to_line(&self) -> String {
        let numbers = [
            self.history,
            self.events,
            self.requests,
            self.whole,
            self.errors,
            self.cut,
            self.left,
            self.faults,
            self.virtual_ms,
        ];
        let broken =
            serde_json::json!({"numbers": numbers, "steps": self.steps, "broken": self.broken});
        broken.to_string()
    }

    /// The report of such a line.
    pub fn of_line(line: &str) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let numbers = value["numbers"].as_array()?;
        let number = |place: usize| numbers.get(place)?.as_u64();
        let broken = value["broken"].as_array()?.iter();
        Some(Self {
            history: number(0)?,
            events: number(1)?,
            requests: number(2)?,
            whole: number(3)?,
            errors: number(4)?,
            cut: number(5)?,
            left: number(6)?,
            faults: number(7)?,
            steps: serde_json::from_value(value["steps"].clone()).ok()?,
            virtual_ms: number(8)?,
            broken: broken
                .map(|one| one.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
        })
    }

    /// Counts an answer by its end.
    pub(crate) fn count(&mut self, end: &End) {
        self.requests += 1;
        match end {
            End::Whole => self.whole += 1,
            End::Left => self.left += 1,
            End::Cut(_) => self.cut += 1,
            _ => self.errors += 1,
        }
    }

    /// Adds what came of another seed.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.whole += other.whole;
        self.errors += other.errors;
        self.cut += other.cut;
        self.left += other.left;
        self.faults += other.faults;
        for (sum, other) in self.steps.iter_mut().zip(other.steps) {
            *sum += other;
        }
        self.virtual_ms += other.virtual_ms;
        self.broken.extend_from_slice(&other.broken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_report() {
        let report = Report {
            history: u64::MAX,
            whole: 3,
            steps: [1, 2, 3, 4, 5, 6],
            broken: vec!["a \"b\"\n".to_owned()],
            ..Report::default()
        };
        assert_eq!(Report::of_line(&report.to_line()), Some(report));
        assert_eq!(Report::of_line("killed"), None);
    }
}
