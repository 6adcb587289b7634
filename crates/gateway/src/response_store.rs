//! The responses that clients may come back to: in memory, in this gateway alone. Owns the bounds on their
//! number, memory and age, and that each belongs to the API key that asked for it. Knows nothing of requests and
//! streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use inflight_openai::responses::{Item, ResponseId};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::client::Owner;

/// No conversation may take more than this part of the memory, so that one cannot displace all others.
const LARGEST_SHARE: usize = 8;
/// What an entry takes in addition to its contents, about.
const ENTRY_BYTES: usize = 256;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// 0: nothing is kept.
    pub entries: usize,
    pub bytes: usize,
    pub age: Duration,
}

/// One request's items and those of its answer. A later response of the same conversation shares them.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) input: Vec<Item>,
    pub(crate) output: Vec<Item>,
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
pub(crate) struct Conversation(Vec<Arc<Turn>>);

impl Conversation {
    /// Every item.
    pub(crate) fn items(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.0.iter().flat_map(|turn| turn.items())
    }

    /// What the last response answered: all items but its own.
    pub(crate) fn input(&self) -> impl DoubleEndedIterator<Item = &Item> {
        let (last, earlier) = match self.0.split_last() {
            Some((last, earlier)) => (last.input.as_slice(), earlier),
            None => (&[][..], &[][..]),
        };
        earlier.iter().flat_map(|turn| turn.items()).chain(last)
    }

    /// The item of the last response, or of what it answered, that has this id.
    pub(crate) fn item(&self, id: &str) -> Option<&Item> {
        self.0.last()?.items().find(|item| item.id() == id)
    }

    /// The bytes of all its items.
    pub(crate) fn weight(&self) -> usize {
        self.0.iter().map(|turn| turn.weight.bytes).sum()
    }
}

/// A response that was kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The response object, in JSON.
    pub(crate) body: Bytes,
    pub(crate) conversation: Conversation,
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
pub(crate) struct ResponseStore {
    bounds: Bounds,
    entries: Mutex<Entries>,
    bytes: Arc<AtomicUsize>,
}

impl ResponseStore {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            entries: Mutex::default(),
            bytes: Arc::default(),
        })
    }

    /// Whether anything is ever kept.
    pub(crate) fn keeps(&self) -> bool {
        self.bounds.entries > 0
    }

    /// The response of this id, if `owner` may see it.
    pub(crate) fn find(&self, id: ResponseId, owner: &Owner) -> Option<Kept> {
        let mut entries = self.entries.lock();
        self.drop_old(&mut entries);
        entries.owned(id, owner).map(|entry| entry.kept.clone())
    }

    /// Forgets a response; false if `owner` has none of this id.
    pub(crate) fn delete(&self, id: ResponseId, owner: &Owner) -> bool {
        let mut entries = self.entries.lock();
        self.drop_old(&mut entries);
        let found = entries.owned(id, owner).is_some();
        let removed = if found { entries.remove(id) } else { None };
        drop(entries);
        removed.is_some()
    }

    fn drop_old(&self, entries: &mut Entries) {
        while let Some((_, oldest)) = entries.list.first_key_value()
            && oldest.since.elapsed() >= self.bounds.age
        {
            entries.remove_oldest();
        }
    }

    fn keep(&self, mut keeping: Keeping, body: Bytes, mut output: Vec<Item>) {
        let Keeping { id, owner, .. } = keeping;
        let mut conversation = std::mem::take(&mut keeping.earlier);
        let input = std::mem::take(&mut keeping.input);
        output.iter_mut().for_each(Item::forget_logprobs);
        let of_turn = input.iter().chain(&output).map(Item::weight).sum();
        let of_entry = ENTRY_BYTES + body.len() + (conversation.0.len() + 1) * size_of::<usize>();
        if conversation.weight() + of_turn + of_entry > self.bounds.bytes / LARGEST_SHARE {
            tracing::debug!(%id, "the conversation is too large to be kept");
            return;
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
            kept: Kept { body, conversation },
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
pub(crate) struct Keeping {
    pub(crate) store: Arc<ResponseStore>,
    pub(crate) owner: Owner,
    pub(crate) id: ResponseId,
    pub(crate) earlier: Conversation,
    pub(crate) input: Vec<Item>,
}

impl Keeping {
    /// Keeps the response.
    pub(crate) fn keep(self, body: Bytes, output: Vec<Item>) {
        let store = Arc::clone(&self.store);
        store.keep(self, body, output);
    }
}

#[cfg(test)]
mod tests;
