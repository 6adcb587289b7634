//! The way in which sources report. Owns that they wait for nobody, that of what one says only the latest counts, and what
//! the log says of one that cannot be followed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::listing::Listing;

/// A source that comes and goes is in the log this often.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What sources have said and nobody has read yet: the latest of each.
#[derive(Clone, Debug, Default)]
pub struct Reports(Arc<Shared>);

#[derive(Default)]
struct Shared {
    latest: Mutex<BTreeMap<usize, Listing>>,
    changed: Notify,
    troubled: Mutex<BTreeSet<usize>>,
    on_trouble: Option<Box<dyn Fn(usize) + Send + Sync>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Shared");
        shown.field("latest", &self.latest).finish_non_exhaustive()
    }
}

/// One source's way to report.
#[derive(Debug)]
pub struct Reporter {
    source: usize,
    name: String,
    reports: Reports,
    trouble: Mutex<Trouble>,
}

impl Reports {
    /// `on_trouble` is called with the number of sources that cannot be followed, whenever that changes.
    pub fn new(on_trouble: impl Fn(usize) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            on_trouble: Some(Box::new(on_trouble)),
            ..Shared::default()
        }))
    }

    /// Of the source with this number; the log has its name.
    pub fn reporter(&self, source: usize, name: String) -> Reporter {
        Reporter {
            source,
            name,
            reports: self.clone(),
            trouble: Mutex::default(),
        }
    }

    /// Waits until there is something, and takes it.
    pub async fn next(&self) -> BTreeMap<usize, Listing> {
        loop {
            let latest = std::mem::take(&mut *self.0.latest.lock());
            if !latest.is_empty() {
                return latest;
            }
            self.0.changed.notified().await;
        }
    }

    fn set_troubled(&self, source: usize, is_troubled: bool) {
        let mut troubled = self.0.troubled.lock();
        let has_changed = match is_troubled {
            true => troubled.insert(source),
            false => troubled.remove(&source),
        };
        if has_changed && let Some(on_trouble) = &self.0.on_trouble {
            on_trouble(troubled.len());
        }
    }
}

impl Reporter {
    /// This is what the source lists now.
    pub(crate) fn say(&self, listing: Listing) {
        self.reports.0.latest.lock().insert(self.source, listing);
        self.reports.0.changed.notify_one();
    }

    /// The source cannot be followed, and why.
    pub(crate) fn fails(&self, reason: String) {
        self.reports.set_troubled(self.source, true);
        if self.trouble.lock().begin(&reason, Instant::now()) {
            let source = &self.name;
            tracing::warn!(source, %reason, "cannot follow the workers; they stay as they were");
        }
    }

    /// The source is followed.
    pub(crate) fn works(&self) {
        self.reports.set_troubled(self.source, false);
        if self.trouble.lock().end() {
            let source = &self.name;
            tracing::info!(source, "the workers are followed again");
        }
    }
}

/// What the log has of a source's trouble: a reason that does not change is logged once, and one that comes and goes once in
/// a while. Pure.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// What was logged last, and when.
    logged: Option<(String, Instant)>,
    /// It is not over, as far as the log says.
    is_open: bool,
}

impl Trouble {
    /// Returns whether to log it.
    pub(crate) fn begin(&mut self, reason: &str, now: Instant) -> bool {
        let is_known = self.logged.as_ref().is_some_and(|(before, at)| {
            before == reason && (self.is_open || now.duration_since(*at) < LOG_EVERY)
        });
        if !is_known {
            self.logged = Some((reason.to_owned(), now));
            self.is_open = true;
        }
        !is_known
    }

    /// Returns whether to log it.
    pub(crate) fn end(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::listing::Missing;

    #[tokio::test]
    async fn of_each_source_the_latest_is_read() {
        let reports = Reports::default();
        let listing = |address: &str| Listing::new(vec![address.to_owned()], Missing::Doubtful);
        let reporters = [0, 1].map(|number| reports.reporter(number, "s".to_owned()));
        reporters[0].say(listing("a"));
        reporters[0].say(listing("b"));
        reporters[1].say(listing("c"));
        let said = reports.next().await;
        assert_eq!(said, BTreeMap::from([(0, listing("b")), (1, listing("c"))]));
    }

    #[test]
    fn sources_in_trouble_are_counted() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let reports = Reports::new(|count| COUNT.store(count, Ordering::Relaxed));
        let [one, other] = [0, 1].map(|number| reports.reporter(number, "s".to_owned()));
        one.fails("away".to_owned());
        one.fails("still away".to_owned());
        other.fails("away".to_owned());
        assert_eq!(COUNT.load(Ordering::Relaxed), 2);
        one.works();
        one.works();
        assert_eq!(COUNT.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_log_has_a_trouble_once_and_one_that_comes_and_goes_once_a_minute() {
        let begun = Instant::now();
        let mut trouble = Trouble::default();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!trouble.end());
        assert!(trouble.begin("away", at(0)));
        assert!(!trouble.begin("away", at(600)));
        assert!(trouble.begin("refused", at(601)));
        assert!(trouble.end());
        assert!(!trouble.begin("refused", at(602)));
        assert!(!trouble.end());
        assert!(trouble.begin("refused", at(700)));
        assert!(trouble.end());
    }
}
