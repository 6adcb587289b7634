//! The requests that generate, as people look at them: those that are open, the latest that have ended, and the latest
//! that were refused. Owns what is kept of each, how many, and whose they are. Knows nothing of what requests say.
//!
//! A request takes its place here once and leaves it once; a token costs nothing but the store of a number.

mod witnessed;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use inflight_base::wall_clock;
use inflight_clients::client::Owner;
use parking_lot::Mutex;
use slotmap::{DefaultKey, SlotMap};
use smallvec::SmallVec;
use tokio::time::Instant;

pub use self::witnessed::Witnessed;

/// Kept of requests that have ended: minutes of an ordinary gateway, in some hundred kilobytes.
pub(crate) const MOST_ENDED: usize = 512;
/// Kept of requests that no worker had, apart from the others: a client that is refused often pushes out none of them.
pub(crate) const MOST_REFUSED: usize = 128;

/// Characters that are kept of a name of a model that nobody may have.
const MOST_NAME: usize = 128;

/// Not known, of a number that is.
const UNKNOWN: u64 = u64::MAX;

/// A worker that a request was sent to.
#[derive(Clone, Debug)]
pub struct SentTo {
    pub worker: Arc<str>,
    /// Since the request's arrival.
    pub at: Duration,
    /// What was wrong with the worker before; `None`: there was none.
    pub because: Option<&'static str>,
}

/// What a failed response carries for the access log: no text, since that may quote the client.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Option<&'static str>,
    pub param: Option<String>,
}

/// How a request ended.
#[derive(Clone, Debug)]
pub struct End {
    pub at: SystemTime,
    /// Since its arrival.
    pub total: Duration,
    pub finish: &'static str,
    /// Of a failure.
    pub status: u16,
    pub cached_tokens: u64,
    /// Of a refusal.
    pub failure: Option<Failure>,
}

impl End {
    /// The end, now, of a request that arrived so long ago.
    pub fn now(total: Duration, finish: &'static str) -> Self {
        Self {
            at: wall_clock::now(),
            total,
            finish,
            status: 0,
            cached_tokens: 0,
            failure: None,
        }
    }
}

/// What is known of one request.
#[derive(Debug)]
pub struct Facts {
    pub id: Arc<str>,
    /// Where it came in: the template of a path, or a method of gRPC.
    pub route: &'static str,
    /// Empty: nobody has read it.
    pub model: Arc<str>,
    owner: Owner,
    started: Instant,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    /// In microseconds.
    first_output: AtomicU64,
    /// One, but for requests that moved.
    servers: Mutex<SmallVec<[SentTo; 1]>>,
    end: OnceLock<End>,
}

impl Facts {
    /// Of a request that arrived at `started`.
    pub fn new(
        id: Arc<str>,
        route: &'static str,
        model: Arc<str>,
        owner: Owner,
        started: Instant,
    ) -> Self {
        Self {
            id,
            route,
            model,
            owner,
            started,
            prompt_tokens: AtomicU64::new(UNKNOWN),
            completion_tokens: AtomicU64::new(0),
            first_output: AtomicU64::new(UNKNOWN),
            servers: Mutex::default(),
            end: OnceLock::new(),
        }
    }

    /// Time since its arrival.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// `None`: nobody has counted them.
    pub fn prompt_tokens(&self) -> Option<u64> {
        known(&self.prompt_tokens)
    }

    /// `None`: nobody counts them.
    pub fn completion_tokens(&self) -> Option<u64> {
        known(&self.completion_tokens)
    }

    /// Since its arrival.
    pub fn first_output(&self) -> Option<Duration> {
        known(&self.first_output).map(Duration::from_micros)
    }

    /// The workers that had it, in their order.
    pub fn servers(&self) -> SmallVec<[SentTo; 1]> {
        self.servers.lock().clone()
    }

    /// `None`: it is open.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// When it ended, for those that have.
    fn ended_at(&self) -> Option<SystemTime> {
        self.end().map(|end| end.at)
    }
}

fn known(number: &AtomicU64) -> Option<u64> {
    Some(number.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN)
}

/// All of them.
#[derive(Debug)]
pub struct Requests {
    open: Mutex<SlotMap<DefaultKey, Arc<Facts>>>,
    ended: Mutex<VecDeque<Arc<Facts>>>,
    refused: Mutex<VecDeque<Arc<Facts>>>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            ended: Mutex::new(VecDeque::with_capacity(MOST_ENDED)),
            refused: Mutex::default(),
        }
    }
}

impl Requests {
    /// Adds a request, which is open as long as the result lives.
    pub(crate) fn add(self: &Arc<Self>, facts: Facts) -> OpenFacts {
        let facts = Arc::new(facts);
        let key = self.open.lock().insert(Arc::clone(&facts));
        OpenFacts {
            list: Arc::clone(self),
            key,
            facts,
        }
    }

    /// The open requests of `owner`, the oldest first.
    pub fn open(&self, owner: &Owner) -> Vec<Arc<Facts>> {
        let open = self.open.lock();
        let own = open.values().filter(|facts| facts.owner == *owner);
        let mut own: Vec<_> = own.cloned().collect();
        drop(open);
        own.sort_by_key(|facts| facts.started);
        own
    }

    /// The requests of `owner` that have ended, the latest first.
    pub fn ended(&self, owner: &Owner) -> Vec<Arc<Facts>> {
        let mut own = Vec::new();
        for list in [&self.ended, &self.refused] {
            let list = list.lock();
            own.extend(
                list.iter()
                    .rev()
                    .filter(|facts| facts.owner == *owner)
                    .cloned(),
            );
        }
        own.sort_by_key(|facts| std::cmp::Reverse(facts.ended_at()));
        own
    }

    /// Adds a request that was answered with an error, unless it is here already: a worker had it.
    pub fn refuse(&self, facts: Facts, end: End) {
        let is_here = |list: &Mutex<VecDeque<Arc<Facts>>>| {
            let list = list.lock();
            // The same id, and not an equal one, which clients choose.
            list.iter().rev().any(|it| Arc::ptr_eq(&it.id, &facts.id))
        };
        if !is_here(&self.ended) && !is_here(&self.refused) {
            let _ = facts.end.set(end);
            push(&self.refused, MOST_REFUSED, Arc::new(facts));
        }
    }
}

/// A name that a client chose, as far as it is kept.
pub fn shortened(name: &str) -> Arc<str> {
    let end = name.char_indices().nth(MOST_NAME);
    name[..end.map_or(name.len(), |(at, _)| at)].into()
}

/// Adds the latest, and forgets the oldest beyond `most`.
fn push(list: &Mutex<VecDeque<Arc<Facts>>>, most: usize, facts: Arc<Facts>) {
    let mut list = list.lock();
    let oldest = (list.len() >= most).then(|| list.pop_front());
    list.push_back(facts);
    // What it held is freed outside.
    drop(list);
    drop(oldest);
}

/// A request's own hold on its facts.
#[derive(Debug)]
pub(crate) struct OpenFacts {
    list: Arc<Requests>,
    key: DefaultKey,
    facts: Arc<Facts>,
}

impl OpenFacts {
    /// It was sent to this worker, `because` of what was wrong with the one before.
    pub(crate) fn sent(&self, worker: &Arc<str>, because: Option<&'static str>) {
        let sent = SentTo {
            worker: Arc::clone(worker),
            at: self.facts.age(),
            because,
        };
        self.facts.servers.lock().push(sent);
    }

    /// Its prompt has so many tokens.
    pub(crate) fn prompt(&self, tokens: Option<u64>) {
        let tokens = tokens.unwrap_or(UNKNOWN);
        self.facts.prompt_tokens.store(tokens, Ordering::Relaxed);
    }

    /// It has generated so many tokens by now.
    pub(crate) fn generated(&self, tokens: u64) {
        self.facts
            .completion_tokens
            .store(tokens, Ordering::Relaxed);
    }

    /// The first came then.
    pub(crate) fn first_output(&self, since_arrival: Duration) {
        let micros = u64::try_from(since_arrival.as_micros()).unwrap_or(UNKNOWN);
        self.facts.first_output.store(micros, Ordering::Relaxed);
    }

    /// Nobody counts what it generates.
    pub(crate) fn uncounted(&self) {
        self.generated(UNKNOWN);
    }

    /// Time since its arrival.
    pub(crate) fn age(&self) -> Duration {
        self.facts.age()
    }

    /// It has ended. Only what is said first counts.
    pub(crate) fn ended(&self, end: End) {
        let _ = self.facts.end.set(end);
    }
}

impl Drop for OpenFacts {
    fn drop(&mut self) {
        self.list.open.lock().remove(self.key);
        let facts = Arc::clone(&self.facts);
        match self.facts.servers.lock().is_empty() {
            true => push(&self.list.refused, MOST_REFUSED, facts),
            false => push(&self.list.ended, MOST_ENDED, facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inflight_clients::client::Held;

    fn facts(id: &str, owner: &Owner) -> Facts {
        Facts::new(id.into(), "/r", "m".into(), owner.clone(), Instant::now())
    }

    fn end() -> End {
        End::now(Duration::from_millis(3), "stop")
    }

    fn ids(list: &[Arc<Facts>]) -> Vec<&str> {
        list.iter().map(|facts| &*facts.id).collect()
    }

    #[test]
    fn each_sees_only_its_own() {
        let list = Arc::new(Requests::default());
        let everybody = Owner::default();
        let key = Owner::of_key(&Arc::new(Held::default()));
        let open = list.add(facts("one", &key));
        open.sent(&"a:1".into(), None);
        open.prompt(Some(7));
        let two = list.add(facts("two", &key));
        two.sent(&"a:1".into(), None);
        two.ended(end());
        drop(two);
        assert_eq!(ids(&list.open(&key)), ["one"]);
        assert_eq!(ids(&list.ended(&key)), ["two"]);
        assert!(list.open(&everybody).is_empty() && list.ended(&everybody).is_empty());
        let [one] = &list.open(&key)[..] else {
            panic!("one is open")
        };
        assert_eq!((one.prompt_tokens(), one.first_output()), (Some(7), None));
        open.first_output(Duration::from_millis(2));
        open.generated(4);
        open.ended(end());
        drop(open);
        let ended = list.ended(&key);
        assert_eq!(ids(&ended), ["one", "two"], "the latest first");
        assert_eq!(ended[0].completion_tokens(), Some(4));
        assert_eq!(ended[0].first_output(), Some(Duration::from_millis(2)));
        assert_eq!(ended[0].end().unwrap().finish, "stop");
        assert_eq!(&*ended[0].servers()[0].worker, "a:1");
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let list = Arc::new(Requests::default());
        let owner = Owner::default();
        for number in 0..MOST_ENDED + 3 {
            let one = list.add(facts(&number.to_string(), &owner));
            one.sent(&"a:1".into(), None);
            one.ended(end());
        }
        let ended = list.ended(&owner);
        assert_eq!(ended.len(), MOST_ENDED);
        assert_eq!(&*ended[0].id, (MOST_ENDED + 2).to_string());
        assert!(list.open(&owner).is_empty());
        for number in 0..MOST_REFUSED + 3 {
            list.refuse(facts(&format!("refused-{number}"), &owner), end());
        }
        let all = list.ended(&owner);
        assert_eq!(
            all.len(),
            MOST_ENDED + MOST_REFUSED,
            "no refusal pushes out another request"
        );
        assert_eq!(&*all[0].id, format!("refused-{}", MOST_REFUSED + 2));
    }

    #[test]
    fn a_request_that_a_worker_had_is_not_refused_as_well() {
        let list = Arc::new(Requests::default());
        let owner = Owner::default();
        let one = facts("same", &owner);
        let again = |id: &Arc<str>| {
            Facts::new(
                Arc::clone(id),
                "/r",
                "".into(),
                Owner::default(),
                Instant::now(),
            )
        };
        let (same, equal) = (again(&one.id), again(&"same".into()));
        let open = list.add(one);
        open.sent(&"a:1".into(), None);
        open.ended(End::now(Duration::ZERO, "error"));
        drop(open);
        list.refuse(same, End::now(Duration::ZERO, "refused"));
        assert_eq!(list.ended(&owner).len(), 1);
        list.refuse(equal, End::now(Duration::ZERO, "refused"));
        assert_eq!(list.ended(&owner).len(), 2, "clients choose ids");
    }
}
