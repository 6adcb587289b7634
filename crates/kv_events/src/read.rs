//! Bytes to a batch. Owns both forms of a batch and of an event, and the bounds of a batch.

use crate::event::{Adapter, Batch, BlockHash, Event, Extras, Group, Medium, Removed, Stored};
use crate::scan::{Malformed, Scanner, Value};

/// Bytes of a batch. A step of an engine stores some ten thousand tokens.
pub const MOST_BYTES: usize = 16 << 20;
/// Events of a batch.
pub const MOST_EVENTS: usize = 1 << 16;
/// Blocks of a batch, stored and removed, and texts that they are hashed with.
pub const MOST_BLOCKS: usize = 1 << 17;
/// Tokens of a batch.
pub const MOST_TOKENS: usize = 1 << 22;

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the batch of KV cache events has `{bytes}` bytes; at most {MOST_BYTES} are read")]
    TooLarge { bytes: usize },
    #[error("the batch of KV cache events has more than `{most}` {what}")]
    TooMany { what: &'static str, most: usize },
    #[error("the batch of KV cache events cannot be read")]
    Malformed(#[from] Malformed),
    #[error("an event `{event}` lacks `{field}`")]
    Missing {
        event: &'static str,
        field: &'static str,
    },
}

/// Reads one batch.
///
/// # Errors
/// [`ReadError`]: it is not one, or too large.
pub fn read(bytes: &[u8]) -> Result<Batch, ReadError> {
    if bytes.len() > MOST_BYTES {
        return Err(ReadError::TooLarge { bytes: bytes.len() });
    }
    let mut reader = Reader {
        scanner: Scanner::new(bytes),
        room: Room::default(),
    };
    reader.batch()
}

/// What a batch may still have.
struct Room {
    events: usize,
    blocks: usize,
    tokens: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            events: MOST_EVENTS,
            blocks: MOST_BLOCKS,
            tokens: MOST_TOKENS,
        }
    }
}

fn charge(
    room: &mut usize,
    count: usize,
    what: &'static str,
    most: usize,
) -> Result<(), ReadError> {
    let left = room.checked_sub(count);
    *room = left.ok_or(ReadError::TooMany { what, most })?;
    Ok(())
}

struct Reader<'a> {
    scanner: Scanner<'a>,
    room: Room,
}

/// Every field of any event, as far as it was there.
#[derive(Default)]
struct Fields {
    hashes: Option<Vec<BlockHash>>,
    parent: Option<BlockHash>,
    tokens: Option<Vec<i32>>,
    block_tokens: Option<u32>,
    lora_id: Option<i64>,
    lora_name: Option<String>,
    medium: Medium,
    is_remote: bool,
    salt: Option<String>,
    extras: Vec<Extras>,
    group: Option<u32>,
    kind_is_other: bool,
}

/// The fields of a batch that is an array, in their order.
const BATCH: [&str; 3] = ["ts", "events", "data_parallel_rank"];
/// The fields of an event that is an array, in their order behind its name.
const STORED: [&str; 12] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
];
const REMOVED: [&str; 4] = ["block_hashes", "medium", "group_idx", "locality"];

impl<'a> Reader<'a> {
    fn batch(&mut self) -> Result<Batch, ReadError> {
        let mut batch = Batch::default();
        let (mut has_time, mut has_events) = (false, false);
        let begun = self.scanner.next()?;
        let length = match begun {
            Value::Array(length) | Value::Map(length) => length,
            _ => return Err(self.scanner.malformed("a batch").into()),
        };
        for place in 0..length {
            let name = match begun {
                Value::Map(_) => self.text()?.unwrap_or_default(),
                _ => BATCH.get(place as usize).copied().unwrap_or_default(),
            };
            match name {
                "ts" => {
                    batch.timestamp = self.time()?;
                    has_time = true;
                }
                "events" => {
                    batch.events = self.events()?;
                    has_events = true;
                }
                "data_parallel_rank" => batch.rank = self.small("a rank")?,
                _ => self.scanner.skip()?,
            }
        }
        match has_time && has_events {
            true => Ok(batch),
            false => Err(self.scanner.malformed("behind a time and events").into()),
        }
    }

    fn time(&mut self) -> Result<f64, ReadError> {
        match self.scanner.next()? {
            Value::Float(seconds) => Ok(seconds),
            Value::Integer(seconds) => Ok(seconds as f64),
            _ => Err(self.scanner.malformed("a time").into()),
        }
    }

    fn events(&mut self) -> Result<Vec<Event>, ReadError> {
        let count = self.scanner.array("events")?.unwrap_or(0);
        let room = &mut self.room.events;
        charge(room, count as usize, "events", MOST_EVENTS)?;
        let mut events = Vec::new();
        for _ in 0..count {
            match self.event()? {
                Event::Unknown => {}
                event => events.push(event),
            }
        }
        Ok(events)
    }

    fn event(&mut self) -> Result<Event, ReadError> {
        match self.scanner.next()? {
            Value::Array(length) if length > 0 => {
                let Value::Text(name) = self.scanner.next()? else {
                    return Err(self.scanner.malformed("an event's name").into());
                };
                self.positional(name, length - 1)
            }
            Value::Map(length) => self.named(length),
            _ => Err(self.scanner.malformed("an event").into()),
        }
    }

    fn positional(&mut self, name: &str, length: u32) -> Result<Event, ReadError> {
        let names: &[&str] = match name {
            "BlockStored" => &STORED,
            "BlockRemoved" => &REMOVED,
            _ => &[],
        };
        let mut fields = Fields::default();
        for place in 0..length {
            let field = names.get(place as usize).copied();
            self.field(field.unwrap_or_default(), &mut fields)?;
        }
        finish(name, fields)
    }

    fn named(&mut self, length: u32) -> Result<Event, ReadError> {
        // Its name may come behind its fields.
        let mut name = "";
        let mut fields = Fields::default();
        for _ in 0..length {
            match self.scanner.next()? {
                Value::Text("type") => {
                    let Value::Text(found) = self.scanner.next()? else {
                        return Err(self.scanner.malformed("an event's name").into());
                    };
                    name = found;
                }
                Value::Text(field) => self.field(field, &mut fields)?,
                other => {
                    self.scanner.pass(&other)?;
                    self.scanner.skip()?;
                }
            }
        }
        finish(name, fields)
    }

    fn field(&mut self, name: &str, fields: &mut Fields) -> Result<(), ReadError> {
        match name {
            "block_hashes" => fields.hashes = Some(self.hashes()?),
            "parent_block_hash" => fields.parent = self.hash()?,
            "token_ids" => fields.tokens = self.tokens()?,
            "block_size" => fields.block_tokens = self.small("a block's tokens")?,
            "lora_id" => fields.lora_id = self.integer("an adapter's number")?,
            "lora_name" => fields.lora_name = self.text()?.map(str::to_owned),
            "medium" => fields.medium = self.text()?.map_or(Medium::Device, medium),
            "locality" => fields.is_remote = self.text()? == Some("REMOTE"),
            "cache_salt" => fields.salt = self.text()?.map(str::to_owned),
            "extra_keys" => fields.extras = self.extras()?,
            "group_idx" => fields.group = self.small("a group")?,
            "kv_cache_spec_kind" => {
                fields.kind_is_other = self.text()?.is_some_and(|kind| !MAIN.contains(&kind));
            }
            _ => self.scanner.skip()?,
        }
        Ok(())
    }

    fn hashes(&mut self) -> Result<Vec<BlockHash>, ReadError> {
        let count = self.scanner.array("hashes")?.unwrap_or(0);
        self.charge_blocks(count)?;
        let mut hashes = Vec::new();
        for _ in 0..count {
            let hash = self.hash()?;
            hashes.push(hash.ok_or_else(|| self.scanner.malformed(HASH))?);
        }
        Ok(hashes)
    }

    fn hash(&mut self) -> Result<Option<BlockHash>, ReadError> {
        let value = self.scanner.next()?;
        let found = match value {
            Value::Nil => return Ok(None),
            // One and the same hash may be written with a sign or without.
            Value::Integer(number) => Some(BlockHash::Number(number as u64)),
            Value::Bytes(bytes) => BlockHash::from_bytes(bytes),
            _ => None,
        };
        let found = found.ok_or_else(|| self.scanner.malformed(HASH))?;
        Ok(Some(found))
    }

    /// `None`: they are no token ids.
    fn tokens(&mut self) -> Result<Option<Vec<i32>>, ReadError> {
        let count = self.scanner.array("token ids")?.unwrap_or(0);
        let what = "tokens";
        charge(&mut self.room.tokens, count as usize, what, MOST_TOKENS)?;
        let mut tokens = Some(Vec::new());
        for _ in 0..count {
            let value = self.scanner.next()?;
            self.scanner.pass(&value)?;
            let token = match value {
                Value::Integer(number) => i32::try_from(number).ok().filter(|id| *id >= 0),
                // Pairs, with the drafts of a model that predicts two.
                _ => None,
            };
            match token {
                Some(id) => tokens.iter_mut().for_each(|tokens| tokens.push(id)),
                None => tokens = None,
            }
        }
        Ok(tokens)
    }

    fn extras(&mut self) -> Result<Vec<Extras>, ReadError> {
        let count = self.scanner.array("extra keys")?.unwrap_or(0);
        self.charge_blocks(count)?;
        let mut extras = Vec::new();
        for _ in 0..count {
            let mut of_block = Extras::default();
            let keys = self.scanner.array("a block's extra keys")?.unwrap_or(0);
            for _ in 0..keys {
                let value = self.scanner.next()?;
                self.scanner.pass(&value)?;
                match value {
                    Value::Text(text) => {
                        self.charge_blocks(1)?;
                        of_block.texts.push(text.to_owned());
                    }
                    _ => of_block.has_others = true,
                }
            }
            extras.push(of_block);
        }
        Ok(extras)
    }

    fn charge_blocks(&mut self, count: u32) -> Result<(), ReadError> {
        let room = &mut self.room.blocks;
        charge(room, count as usize, "blocks", MOST_BLOCKS)
    }

    fn integer(&mut self, expected: &'static str) -> Result<Option<i64>, ReadError> {
        match self.scanner.next()? {
            Value::Nil => Ok(None),
            Value::Integer(number) => Ok(i64::try_from(number).ok()),
            _ => Err(self.scanner.malformed(expected).into()),
        }
    }

    fn small(&mut self, expected: &'static str) -> Result<Option<u32>, ReadError> {
        let number = self.integer(expected)?;
        let small = |number| u32::try_from(number).map_err(|_| self.scanner.malformed(expected));
        Ok(number.map(small).transpose()?)
    }

    fn text(&mut self) -> Result<Option<&'a str>, ReadError> {
        match self.scanner.next()? {
            Value::Nil => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            _ => Err(self.scanner.malformed("text").into()),
        }
    }
}

/// Kinds of layers that attend to all tokens.
const MAIN: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];
const HASH: &str = "behind a hash of at most 32 bytes";

fn medium(name: &str) -> Medium {
    match name {
        "GPU" | "DEVICE" => Medium::Device,
        "CPU" | "CPU_PINNED" | "CPU_TIER1" => Medium::Host,
        _ => Medium::Elsewhere,
    }
}

fn finish(name: &str, fields: Fields) -> Result<Event, ReadError> {
    let medium = match fields.is_remote {
        true => Medium::Elsewhere,
        false => fields.medium,
    };
    match name {
        "BlockStored" => {
            let event = "BlockStored";
            let missing = |field| ReadError::Missing { event, field };
            Ok(Event::Stored(Stored {
                hashes: fields.hashes.ok_or(missing("block_hashes"))?,
                parent: fields.parent,
                tokens: fields.tokens,
                block_tokens: fields.block_tokens.ok_or(missing("block_size"))?,
                adapter: match (fields.lora_name, fields.lora_id) {
                    (Some(name), _) => Adapter::Named(name),
                    (None, Some(number)) => Adapter::Numbered(number),
                    (None, None) => Adapter::None,
                },
                medium,
                salt: fields.salt,
                extras: fields.extras,
                group: Group {
                    index: fields.group,
                    kind_is_main: !fields.kind_is_other,
                },
            }))
        }
        "BlockRemoved" => {
            let event = "BlockRemoved";
            let field = "block_hashes";
            Ok(Event::Removed(Removed {
                hashes: fields.hashes.ok_or(ReadError::Missing { event, field })?,
                medium,
                group: fields.group,
            }))
        }
        "AllBlocksCleared" => Ok(Event::Cleared),
        _ => Ok(Event::Unknown),
    }
}
