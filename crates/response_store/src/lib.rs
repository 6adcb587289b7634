//! The responses that clients may come back to: in memory, in this gateway alone. Owns the bounds on their
//! number, memory and age, and that each belongs to the API key that asked for it. Knows nothing of requests and
//! how they are answered.

mod running;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use inflight_clients::client::Owner;
use inflight_openai::ApiError;
use inflight_openai::responses::{Head, Item, ResponseId, Unanswered};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::running::{Events, Next, Running};

/// No conversation may take more than this part of the memory, so that one cannot displace all others.
const LARGEST_SHARE: usize = 8;
/// What an entry takes in addition to its contents, about.
const ENTRY_BYTES: usize = 256;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// 0: nothing is kept.
    pub entries: usize,
    pub bytes: usize,
    pub age: Duration,
}

/// One request's items and those of its answer. A later response of the same conversation shares them.
#[derive(Debug)]
pub struct Turn {
    pub input: Vec<Item>,
    pub output: Vec<Item>,
    weight: Weight,
}

impl Turn {
    fn items(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.input.iter().chain(&self.output)
    }
}

/// Memory that is counted for as long as this lives.
#[derive(Debug)]
struct Weight {
    bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Weight {
    fn new(bytes: usize, total: &Arc<AtomicUsize>) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            total: Arc::clone(total),
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// All turns up to some response, the first one first.
#[derive(Clone, Debug, Default)]
pub struct Conversation(Vec<Arc<Turn>>);

impl Conversation {
    /// Every item.
    pub fn items(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.0.iter().flat_map(|turn| turn.items())
    }

    /// What the last response answered: all items but its own.
    pub fn input(&self) -> impl DoubleEndedIterator<Item = &Item> {
        let (last, earlier) = match self.0.split_last() {
            Some((last, earlier)) => (last.input.as_slice(), earlier),
            None => (&[][..], &[][..]),
        };
        earlier.iter().flat_map(|turn| turn.items()).chain(last)
    }

    /// The item of the last response, or of what it answered, that has this id.
    pub fn item(&self, id: &str) -> Option<&Item> {
        self.0.last()?.items().find(|item| item.id() == id)
    }

    /// The bytes of all its items.
    pub fn weight(&self) -> usize {
        self.0.iter().map(|turn| turn.weight.bytes).sum()
    }
}

/// A response that was kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The response object, in JSON.
    pub body: Bytes,
    pub conversation: Conversation,
    pub is_background: bool,
    /// Of one in the background that is also a stream.
    pub events: Option<Arc<Events>>,
}

#[derive(Debug)]
struct Entry {
    id: ResponseId,
    owner: Owner,
    since: Instant,
    kept: Kept,
    _weight: Weight,
}

#[derive(Debug, Default)]
struct Entries {
    /// In the order in which they came.
    list: BTreeMap<u64, Entry>,
    places: HashMap<ResponseId, u64>,
    next: u64,
}

impl Entries {
    fn remove(&mut self, id: ResponseId) -> Option<Entry> {
        let place = self.places.remove(&id)?;
        self.list.remove(&place)
    }

    fn remove_oldest(&mut self) -> bool {
        let Some((_, entry)) = self.list.pop_first() else {
            return false;
        };
        self.places.remove(&entry.id);
        true
    }

    fn owned(&self, id: ResponseId, owner: &Owner) -> Option<&Entry> {
        let entry = self.list.get(self.places.get(&id)?)?;
        (entry.owner == *owner).then_some(entry)
    }
}

/// See the module.
#[derive(Debug)]
pub struct ResponseStore {
    bounds: Bounds,
    entries: Mutex<Entries>,
    /// In the background. As many as requests are admitted.
    running: Mutex<HashMap<ResponseId, Arc<Running>>>,
    bytes: Arc<AtomicUsize>,
}

impl ResponseStore {
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            entries: Mutex::default(),
            running: Mutex::default(),
            bytes: Arc::default(),
        })
    }

    /// Whether anything is ever kept.
    pub fn keeps(&self) -> bool {
        self.bounds.entries > 0
    }

    /// The response of this id, if `owner` may see it.
    pub fn find(&self, id: ResponseId, owner: &Owner) -> Option<Kept> {
        let mut entries = self.entries.lock();
        self.drop_old(&mut entries);
        entries.owned(id, owner).map(|entry| entry.kept.clone())
    }

    /// Forgets a response; false if `owner` has none of this id.
    pub fn delete(&self, id: ResponseId, owner: &Owner) -> bool {
        let mut entries = self.entries.lock();
        self.drop_old(&mut entries);
        let found = entries.owned(id, owner).is_some();
        let removed = if found { entries.remove(id) } else { None };
        drop(entries);
        removed.is_some()
    }

    /// Begins a response in the background.
    pub fn begin(&self, keeping: Keeping, head: Head, is_streamed: bool) -> Arc<Running> {
        let (id, owner) = (keeping.id, keeping.owner.clone());
        let most = self.bounds.bytes / LARGEST_SHARE;
        let events = is_streamed.then(|| Events::new(most, self.bounds.bytes, &self.bytes));
        let object = head.unanswered(Unanswered::Queued);
        let background = Some(Background {
            head,
            events: events.clone(),
        });
        let keeper = Keeper::new(Keeping {
            background,
            ..keeping
        });
        let running = Arc::new(Running::new(owner, object, events, keeper));
        self.running.lock().insert(id, Arc::clone(&running));
        running
    }

    /// The response of this id that runs in the background, if `owner` may see it.
    pub fn running(&self, id: ResponseId, owner: &Owner) -> Option<Arc<Running>> {
        let running = self.running.lock();
        let running = running.get(&id)?;
        (running.owner == *owner).then(|| Arc::clone(running))
    }

    /// The task of one in the background has ended, and its end is kept.
    pub fn end(&self, id: ResponseId) {
        let Some(running) = self.running.lock().remove(&id) else {
            return;
        };
        if let Some(events) = &running.events {
            events.end();
        }
        running.ended.cancel();
    }

    fn drop_old(&self, entries: &mut Entries) {
        while let Some((_, oldest)) = entries.list.first_key_value()
            && oldest.since.elapsed() >= self.bounds.age
        {
            entries.remove_oldest();
        }
    }

    fn keep(&self, keeping: Keeping, mut body: Bytes, mut output: Vec<Item>) {
        let Keeping {
            id,
            owner,
            earlier: mut conversation,
            mut input,
            background,
            ..
        } = keeping;
        // Bounded and counted by themselves.
        let events = background.as_ref().and_then(|one| one.events.clone());
        output.iter_mut().for_each(Item::forget_logprobs);
        let of_turn = input.iter().chain(&output).map(Item::weight).sum();
        let of_entry = ENTRY_BYTES + body.len() + (conversation.0.len() + 1) * size_of::<usize>();
        let is_too_large =
            conversation.weight() + of_turn + of_entry > self.bounds.bytes / LARGEST_SHARE;
        let is_background = background.is_some();
        let (mut of_turn, mut of_entry) = (of_turn, of_entry);
        if is_too_large {
            tracing::debug!(%id, "the conversation is too large to be kept");
            let Some(background) = background else {
                return;
            };
            // Its client comes back for it, and reads why.
            let error = ApiError::response_too_large();
            body = background.head.unanswered(Unanswered::Failed(&error));
            conversation = Conversation::default();
            (input, output) = (Vec::new(), Vec::new());
            (of_turn, of_entry) = (0, ENTRY_BYTES + body.len());
        }
        conversation.0.push(Arc::new(Turn {
            input,
            output,
            weight: Weight::new(of_turn, &self.bytes),
        }));
        let entry = Entry {
            id,
            owner,
            since: Instant::now(),
            kept: Kept {
                body,
                conversation,
                is_background,
                events,
            },
            _weight: Weight::new(of_entry, &self.bytes),
        };
        let mut entries = self.entries.lock();
        let place = entries.next;
        entries.next += 1;
        entries.places.insert(id, place);
        entries.list.insert(place, entry);
        self.drop_old(&mut entries);
        while entries.list.len() > self.bounds.entries
            || self.bytes.load(Ordering::Relaxed) > self.bounds.bytes
        {
            if !entries.remove_oldest() {
                break;
            }
        }
    }
}

/// What it takes to keep a response once it is there.
#[derive(Debug)]
pub struct Keeping {
    pub store: Arc<ResponseStore>,
    pub owner: Owner,
    pub id: ResponseId,
    pub earlier: Conversation,
    pub input: Vec<Item>,
    /// `None`: its client waits for it.
    pub background: Option<Background>,
}

/// What is known of a response in the background.
#[derive(Debug)]
pub struct Background {
    head: Head,
    events: Option<Arc<Events>>,
}

/// Keeps a response once: the first end that is brought counts.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Mutex<Option<Keeping>>>);

impl Keeper {
    pub fn new(keeping: Keeping) -> Self {
        Self(Arc::new(Mutex::new(Some(keeping))))
    }

    /// Keeps the response, unless that is done.
    pub fn keep(&self, body: Bytes, output: Vec<Item>) {
        let Some(keeping) = self.0.lock().take() else {
            return;
        };
        let store = Arc::clone(&keeping.store);
        store.keep(keeping, body, output);
    }

    /// Keeps why there is no answer, if its client comes back for it. Returns whether that is its end.
    pub fn keep_unanswered(&self, why: Unanswered<'_>) -> bool {
        let body = {
            let keeping = self.0.lock();
            let background = keeping.as_ref().and_then(|one| one.background.as_ref());
            background.map(|one| one.head.unanswered(why))
        };
        let is_end = body.is_some();
        if let Some(body) = body {
            self.keep(body, Vec::new());
        }
        is_end
    }

    /// What the response answers: all items but its own; `None`: it has ended.
    pub fn with_input<T>(
        &self,
        read: impl FnOnce(&mut dyn DoubleEndedIterator<Item = &Item>) -> T,
    ) -> Option<T> {
        let keeping = self.0.lock();
        let keeping = keeping.as_ref()?;
        let mut items = keeping.earlier.items().chain(&keeping.input);
        Some(read(&mut items))
    }
}

#[cfg(test)]
mod tests;
