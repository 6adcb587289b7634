//! Triton's trace settings: whether requests are traced, which, and how many; for all models, and for one. Pure.
//!
//! As with Triton's OpenTelemetry mode, a request that comes with its own trace is neither counted nor skipped.

use std::collections::HashMap;

/// What was asked for; `None` is the default, or what holds for all models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceSettings {
    /// Whether requests are traced: `trace_level` TIMESTAMPS or OFF.
    pub(crate) is_on: Option<bool>,
    /// One request of so many is traced.
    pub(crate) rate: Option<u32>,
    /// How many more are traced; `None` within: all.
    pub(crate) count: Option<Option<u32>>,
}

/// What holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) is_on: bool,
    /// `None`: the share of the worker's options.
    pub(crate) rate: Option<u32>,
    pub(crate) count: Option<u32>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    No,
    Yes,
    /// As the share of the worker's options says.
    Drawn,
}

/// The settings and what they have counted.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    all: Scope,
    models: HashMap<String, Scope>,
}

#[derive(Debug, Default)]
struct Scope {
    asked: TraceSettings,
    /// Requests since the last change.
    seen: u64,
    /// Requests that were traced since then.
    traced: u32,
}

impl Settings {
    /// What was asked for `model`; for all models, where the name is empty.
    pub(crate) fn asked(&self, model: &str) -> TraceSettings {
        let scope = match model {
            "" => Some(&self.all),
            _ => self.models.get(model),
        };
        scope.map_or_else(TraceSettings::default, |scope| scope.asked.clone())
    }

    /// Replaces that, and begins to count anew. `model` is one that there is.
    pub(crate) fn set(&mut self, model: &str, asked: TraceSettings) {
        let scope = Scope {
            asked,
            ..Scope::default()
        };
        match model {
            "" => self.all = scope,
            _ if scope.asked == TraceSettings::default() => drop(self.models.remove(model)),
            _ => drop(self.models.insert(model.to_owned(), scope)),
        }
    }

    /// What holds for `model` now; for all models, where the name is empty.
    pub(crate) fn effective(&self, model: &str) -> Effective {
        let scope = self.models.get(model).unwrap_or(&self.all);
        let (own, all) = (&scope.asked, &self.all.asked);
        let count = own.count.or(all.count).flatten();
        Effective {
            is_on: own.is_on.or(all.is_on).unwrap_or(true),
            rate: own.rate.or(all.rate),
            count: count.map(|count| count.saturating_sub(scope.traced)),
        }
    }

    /// Whether requests of `model` that are in a trace already are traced.
    pub(crate) fn is_on(&self, model: &str) -> bool {
        self.effective(model).is_on
    }

    /// Whether a request of `model` that is in no trace is one to be traced.
    pub(crate) fn turn(&mut self, model: &str) -> Turn {
        let Effective { is_on, rate, count } = self.effective(model);
        let scope = self.models.get_mut(model).unwrap_or(&mut self.all);
        if !is_on || count == Some(0) {
            return Turn::No;
        }
        let turn = match rate {
            None => Turn::Drawn,
            Some(rate) if scope.seen.is_multiple_of(u64::from(rate)) => Turn::Yes,
            Some(_) => Turn::No,
        };
        scope.seen += 1;
        turn
    }

    /// Counts a request of `model` that had its turn and is traced.
    pub(crate) fn traced(&mut self, model: &str) {
        let scope = self.models.get_mut(model).unwrap_or(&mut self.all);
        scope.traced = scope.traced.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(settings: &mut Settings, model: &str, requests: usize) -> Vec<bool> {
        let mut one = || {
            let traced = settings.turn(model) != Turn::No;
            if traced {
                settings.traced(model);
            }
            traced
        };
        (0..requests).map(|_| one()).collect()
    }

    #[test]
    fn one_of_so_many_is_traced_until_enough_are() {
        let mut settings = Settings::default();
        assert_eq!(settings.turn("m"), Turn::Drawn);
        let asked = TraceSettings {
            rate: Some(2),
            count: Some(Some(2)),
            ..TraceSettings::default()
        };
        settings.set("", asked.clone());
        assert_eq!(
            turns(&mut settings, "m", 6),
            [true, false, true, false, false, false]
        );
        assert_eq!(settings.effective("").count, Some(0));
        assert!(settings.is_on("m"), "what has a trace goes on");
        // A change begins anew.
        settings.set("", asked);
        assert_eq!(turns(&mut settings, "m", 3), [true, false, true]);
    }

    #[test]
    fn a_model_has_settings_of_its_own_and_the_rest_from_all() {
        let mut settings = Settings::default();
        let off = TraceSettings {
            is_on: Some(false),
            ..TraceSettings::default()
        };
        let three = TraceSettings {
            rate: Some(3),
            ..TraceSettings::default()
        };
        settings.set("", off);
        settings.set("m", three.clone());
        assert_eq!(
            (settings.effective("m").rate, settings.is_on("m")),
            (Some(3), false)
        );
        settings.set("", TraceSettings::default());
        assert_eq!(turns(&mut settings, "m", 4), [true, false, false, true]);
        assert_eq!(settings.turn("other"), Turn::Drawn);
        assert_eq!(
            (settings.asked("m"), settings.asked("")),
            (three, TraceSettings::default())
        );
        settings.set("m", TraceSettings::default());
        assert_eq!(settings.effective("m"), settings.effective(""));
    }
}
