//! A cache's changes as the events that vLLM publishes, for routers of other makers. Owns what the events say of our
//! blocks; how they travel is [`Publisher`]'s.
//!
//! A block's hash is its chain key. Its tokens are in the event, and so are the adapter's name and the salt, so that a
//! reader who names blocks otherwise can do so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use inflight_base::wall_clock::since_epoch;
use inflight_kv_events::{
    Adapter, Batch, BlockHash, Event, Extras, Medium, Publisher, Removed, Stored,
};
use tokio::time::sleep;

use super::blocks::CacheBlocks;
use super::changes::Difference;
use super::contents::{Content, Origin};
use super::watch::BATCH;
use super::{Board, Level};

/// Tokens of a batch, but for its last block: some 300 KB.
const MOST_TOKENS: usize = 1 << 16;
/// Blocks that one event removes.
const MOST_REMOVED: usize = 1 << 13;

/// Publishes what changes in a cache, until the worker ends. `name_of`: an adapter's name by its task id.
pub(crate) async fn publish(
    board: Arc<Board>,
    publisher: Arc<Publisher>,
    name_of: impl Fn(u64) -> Option<String> + Send,
) {
    let mut publication = Publication::new(board);
    while let Some(events) = publication.next(&name_of).await {
        let timestamp = now();
        for events in batches(events) {
            publisher.publish(&Batch {
                timestamp,
                events,
                rank: None,
            });
        }
        sleep(BATCH).await;
    }
}

/// How far a cache is published.
struct Publication {
    board: Arc<Board>,
    /// The number of the first change that is not.
    next: u64,
}

impl Publication {
    fn new(board: Arc<Board>) -> Self {
        Self { board, next: 0 }
    }

    /// What has changed since the last call; waits until anything has. `None`: the worker ends.
    async fn next(&mut self, name_of: impl Fn(u64) -> Option<String>) -> Option<Vec<Event>> {
        loop {
            let changed = self.board.changed.notified();
            tokio::pin!(changed);
            // Before looking, so that no change is missed between.
            changed.as_mut().enable();
            let changes = {
                let state = self.board.state.lock();
                if state.closed {
                    return None;
                }
                let kept = state.blocks.changes();
                let changes = match kept.since(self.next) {
                    Some(difference) => Changes::of(&state.blocks, difference),
                    // Too much has changed meanwhile.
                    None => Changes::all(&state.blocks),
                };
                self.next = kept.end();
                changes
            };
            // Without the lock, which the executor's thread may want.
            let events = changes.events(&name_of);
            if !events.is_empty() {
                return Some(events);
            }
            changed.await;
        }
    }
}

/// Batches with everything that a cache holds.
pub(crate) fn everything(board: &Board, name_of: impl Fn(u64) -> Option<String>) -> Vec<Batch> {
    let changes = Changes::all(&board.state.lock().blocks);
    let timestamp = now();
    let batches = batches(changes.events(name_of)).into_iter();
    batches
        .map(|events| Batch {
            timestamp,
            events,
            rank: None,
        })
        .collect()
}

fn now() -> f64 {
    since_epoch().as_secs_f64()
}

/// A block that is stored.
struct Place {
    key: u64,
    /// The key before it; 0: it is a prompt's first.
    after: u64,
    level: Level,
    content: Content,
}

/// What is to be said.
struct Changes {
    cleared: bool,
    stored: Vec<Place>,
    removed: [(Level, Vec<u64>); 2],
    block_tokens: u32,
}

impl Changes {
    fn of(blocks: &CacheBlocks, difference: Difference) -> Self {
        let Difference {
            cleared,
            device,
            host,
        } = difference;
        let zip = |keys: Vec<u64>, after: Vec<u64>| keys.into_iter().zip(after).collect();
        let stored = [
            zip(device.stored, device.after),
            zip(host.stored, host.after),
        ];
        Self {
            cleared,
            stored: places(blocks, stored),
            removed: [(Level::Device, device.removed), (Level::Host, host.removed)],
            block_tokens: blocks.tokens_per_block(),
        }
    }

    /// Everything anew.
    fn all(blocks: &CacheBlocks) -> Self {
        Self {
            cleared: true,
            stored: places(blocks, blocks.keys()),
            removed: [Level::Device, Level::Host].map(|level| (level, Vec::new())),
            block_tokens: blocks.tokens_per_block(),
        }
    }

    fn events(self, name_of: impl Fn(u64) -> Option<String>) -> Vec<Event> {
        let mut events = Vec::new();
        if self.cleared {
            events.push(Event::Cleared);
        }
        store(self.stored, self.block_tokens, name_of, &mut events);
        // Last, so that what moves is nowhere missing, and what is stored comes after blocks that are known.
        for (level, removed) in self.removed {
            for keys in removed.chunks(MOST_REMOVED) {
                events.push(Event::Removed(Removed {
                    hashes: keys.iter().map(|key| BlockHash::Number(*key)).collect(),
                    medium: medium(level),
                    group: None,
                }));
            }
        }
        events
    }
}

/// The blocks with these keys, each with the key before it, of the device and of the host.
fn places(blocks: &CacheBlocks, keys: [Vec<(u64, u64)>; 2]) -> Vec<Place> {
    let levels = [Level::Device, Level::Host].into_iter().zip(keys);
    let keys = levels.flat_map(|(level, keys)| keys.into_iter().map(move |key| (level, key)));
    let places = keys.filter_map(|(level, (key, after))| {
        Some(Place {
            key,
            after,
            level,
            content: blocks.content(key)?.clone(),
        })
    });
    places.collect()
}

/// Adds events for these blocks: one for as many as follow one another.
fn store(
    stored: Vec<Place>,
    block_tokens: u32,
    name_of: impl Fn(u64) -> Option<String>,
    events: &mut Vec<Event>,
) {
    for place in in_order(stored) {
        let Place {
            key,
            after,
            level,
            content,
        } = place;
        let hash = BlockHash::Number(key);
        let parent = (after != 0).then_some(BlockHash::Number(after));
        if let Some(Event::Stored(last)) = events.last_mut()
            && last.medium == medium(level)
            && parent.is_some()
            && last.hashes.last() == parent.as_ref()
            && let Some(tokens) = &mut last.tokens
            && tokens.len() < MOST_TOKENS
        {
            last.hashes.push(hash);
            tokens.extend_from_slice(&content.tokens);
            if !last.extras.is_empty() {
                last.extras.push(extras(&last.adapter, None));
            }
            continue;
        }
        let adapter = adapter(&content.origin, &name_of);
        let salt = &content.origin.salt;
        let first = parent.is_none().then_some(&**salt);
        events.push(Event::Stored(Stored {
            hashes: vec![hash],
            parent,
            tokens: Some(content.tokens.to_vec()),
            block_tokens,
            extras: match *content.origin == Origin::default() {
                true => Vec::new(),
                false => vec![extras(&adapter, first)],
            },
            adapter,
            medium: medium(level),
            // Dynamo's indexer and SGLang's listeners read it here, of each event.
            salt: std::str::from_utf8(salt)
                .ok()
                .filter(|salt| !salt.is_empty())
                .map(str::to_owned),
            ..Stored::default()
        }));
    }
}

/// The same blocks, none before the one that it comes after, and what follows one another together.
fn in_order(stored: Vec<Place>) -> Vec<Place> {
    let keys: HashSet<u64> = stored.iter().map(|place| place.key).collect();
    let mut after: HashMap<u64, Vec<Place>> = HashMap::new();
    let mut next = Vec::new();
    // The last one is taken first.
    for place in stored.into_iter().rev() {
        match keys.contains(&place.after) {
            true => after.entry(place.after).or_default().push(place),
            false => next.push(place),
        }
    }
    let mut ordered = Vec::with_capacity(keys.len());
    while let Some(place) = next.pop() {
        next.extend(after.remove(&place.key).unwrap_or_default());
        ordered.push(place);
    }
    ordered
}

fn adapter(origin: &Origin, name_of: impl Fn(u64) -> Option<String>) -> Adapter {
    match origin.lora_task_id {
        None => Adapter::None,
        Some(id) => match name_of(id) {
            Some(name) => Adapter::Named(name),
            None => Adapter::Numbered(i64::try_from(id).unwrap_or(i64::MAX)),
        },
    }
}

/// What a block is hashed with besides its tokens, as vLLM says it: the adapter's name, and in a prompt's first block its
/// salt.
fn extras(adapter: &Adapter, salt: Option<&[u8]>) -> Extras {
    let mut extras = Extras::default();
    if let Adapter::Named(name) = adapter {
        extras.texts.push(name.clone());
    }
    match salt.map(std::str::from_utf8) {
        None | Some(Ok("")) => {}
        Some(Ok(salt)) => extras.texts.push(salt.to_owned()),
        Some(Err(_)) => extras.has_others = true,
    }
    extras
}

fn medium(level: Level) -> Medium {
    match level {
        Level::Device => Medium::Device,
        Level::Host => Medium::Host,
    }
}

/// Events in batches that are not too large.
fn batches(events: Vec<Event>) -> Vec<Vec<Event>> {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut room = MOST_TOKENS;
    for event in events {
        let size = match &event {
            Event::Stored(stored) => {
                stored.hashes.len() + stored.tokens.as_ref().map_or(0, Vec::len)
            }
            Event::Removed(removed) => removed.hashes.len(),
            Event::Cleared | Event::Unknown => 0,
        };
        if size > room && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            room = MOST_TOKENS;
        }
        room = room.saturating_sub(size);
        batch.push(event);
    }
    batches.push(batch);
    batches
}

#[cfg(test)]
mod tests;
