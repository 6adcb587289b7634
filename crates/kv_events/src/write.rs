//! A batch to bytes, as vLLM writes them. Owns no bounds: those are the publisher's.

use rmp::encode::{
    ByteBuf, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_sint,
    write_str, write_uint,
};

use crate::event::{Adapter, Batch, BlockHash, Event, Extras, Medium, Removed, Stored};

/// What an event is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A map, as in vLLM 0.33.
    #[default]
    Maps,
    /// An array, as in earlier releases. A salt can only be among its extra keys.
    Arrays,
}

/// Writes one batch.
pub fn write(batch: &Batch, form: Form) -> Vec<u8> {
    let mut writer = Writer(ByteBuf::new(), form);
    writer.batch(batch);
    writer.0.into_vec()
}

/// Writing into memory never fails: what `rmp` returns is dropped.
struct Writer(ByteBuf, Form);

impl Writer {
    fn batch(&mut self, batch: &Batch) {
        let known = |event: &&Event| !matches!(event, Event::Unknown);
        self.array(3);
        let _ = write_f64(&mut self.0, batch.timestamp);
        self.array(batch.events.iter().filter(known).count());
        for event in batch.events.iter().filter(known) {
            self.event(event);
        }
        self.number(batch.rank);
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) => self.stored(stored),
            Event::Removed(removed) => self.removed(removed),
            Event::Cleared => {
                self.begin("AllBlocksCleared", 0);
            }
            Event::Unknown => {}
        }
    }

    fn stored(&mut self, stored: &Stored) {
        let salt = stored.salt.as_ref().filter(|_| self.1 == Form::Maps);
        self.begin("BlockStored", 10 + usize::from(salt.is_some()));
        self.field("block_hashes");
        self.hashes(&stored.hashes);
        self.field("parent_block_hash");
        match &stored.parent {
            Some(hash) => self.hash(hash),
            None => self.nil(),
        }
        self.field("token_ids");
        let tokens = stored.tokens.as_deref().unwrap_or_default();
        self.array(tokens.len());
        for token in tokens {
            let _ = write_sint(&mut self.0, (*token).into());
        }
        self.field("block_size");
        self.number(Some(stored.block_tokens));
        self.field("lora_id");
        match &stored.adapter {
            Adapter::Numbered(number) => drop(write_sint(&mut self.0, *number)),
            _ => self.nil(),
        }
        self.field("medium");
        self.text(medium(stored.medium));
        self.field("lora_name");
        match &stored.adapter {
            Adapter::Named(name) => self.text(name),
            _ => self.nil(),
        }
        if let Some(salt) = salt {
            self.field("cache_salt");
            self.text(salt);
        }
        self.field("extra_keys");
        self.extras(&stored.extras);
        self.field("group_idx");
        self.number(stored.group.index);
        self.field("kv_cache_spec_kind");
        match stored.group.kind_is_main {
            true => self.text("full_attention"),
            false => self.text("sliding_window"),
        }
    }

    fn removed(&mut self, removed: &Removed) {
        self.begin("BlockRemoved", 3);
        self.field("block_hashes");
        self.hashes(&removed.hashes);
        self.field("medium");
        self.text(medium(removed.medium));
        self.field("group_idx");
        self.number(removed.group);
    }

    fn extras(&mut self, extras: &[Extras]) {
        if extras.is_empty() {
            return self.nil();
        }
        self.array(extras.len());
        for of_block in extras {
            if *of_block == Extras::default() {
                self.nil();
                continue;
            }
            self.array(of_block.texts.len() + usize::from(of_block.has_others));
            for text in &of_block.texts {
                self.text(text);
            }
            if of_block.has_others {
                self.array(0);
            }
        }
    }

    fn hashes(&mut self, hashes: &[BlockHash]) {
        self.array(hashes.len());
        for hash in hashes {
            self.hash(hash);
        }
    }

    fn hash(&mut self, hash: &BlockHash) {
        match hash {
            BlockHash::Number(number) => drop(write_uint(&mut self.0, *number)),
            bytes => drop(write_bin(&mut self.0, bytes.bytes().unwrap_or_default())),
        }
    }

    /// The beginning of an event, of which so many fields follow.
    fn begin(&mut self, name: &str, fields: usize) {
        match self.1 {
            Form::Maps => self.map(1 + fields),
            Form::Arrays => self.array(1 + fields),
        }
        self.field("type");
        self.text(name);
    }

    /// The name of the field that follows; an array has their order instead.
    fn field(&mut self, name: &str) {
        if self.1 == Form::Maps {
            self.text(name);
        }
    }

    fn text(&mut self, text: &str) {
        let _ = write_str(&mut self.0, text);
    }

    fn nil(&mut self) {
        let _ = write_nil(&mut self.0);
    }

    fn number(&mut self, number: Option<u32>) {
        match number {
            Some(number) => drop(write_uint(&mut self.0, number.into())),
            None => self.nil(),
        }
    }

    fn array(&mut self, length: usize) {
        let _ = write_array_len(&mut self.0, length as u32);
    }

    fn map(&mut self, length: usize) {
        let _ = write_map_len(&mut self.0, length as u32);
    }
}

fn medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Device => "GPU",
        Medium::Host => "CPU",
        Medium::Elsewhere => "STORAGE",
    }
}
