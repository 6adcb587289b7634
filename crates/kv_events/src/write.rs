//! A batch to bytes: maps, as vLLM writes them. Owns no bounds: those are the publisher's.

use rmp::encode::{
    ByteBuf, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_sint,
    write_str, write_uint,
};

use crate::event::{Adapter, Batch, BlockHash, Event, Extras, Medium, Removed, Stored};

/// Writes one batch.
pub fn write(batch: &Batch) -> Vec<u8> {
    let mut writer = Writer(ByteBuf::new());
    writer.batch(batch);
    writer.0.into_vec()
}

/// Writing into memory never fails: what `rmp` returns is dropped.
struct Writer(ByteBuf);

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
                self.map(1);
                self.name("AllBlocksCleared");
            }
            Event::Unknown => {}
        }
    }

    fn stored(&mut self, stored: &Stored) {
        self.map(11 + u32::from(stored.salt.is_some()));
        self.name("BlockStored");
        self.text("block_hashes");
        self.hashes(&stored.hashes);
        self.text("parent_block_hash");
        match &stored.parent {
            Some(hash) => self.hash(hash),
            None => self.nil(),
        }
        self.text("token_ids");
        let tokens = stored.tokens.as_deref().unwrap_or_default();
        self.array(tokens.len());
        for token in tokens {
            let _ = write_sint(&mut self.0, (*token).into());
        }
        self.text("block_size");
        self.number(Some(stored.block_tokens));
        self.text("lora_id");
        match &stored.adapter {
            Adapter::Numbered(number) => drop(write_sint(&mut self.0, *number)),
            _ => self.nil(),
        }
        self.text("medium");
        self.text(medium(stored.medium));
        self.text("lora_name");
        match &stored.adapter {
            Adapter::Named(name) => self.text(name),
            _ => self.nil(),
        }
        if let Some(salt) = &stored.salt {
            self.text("cache_salt");
            self.text(salt);
        }
        self.text("extra_keys");
        self.extras(&stored.extras);
        self.text("group_idx");
        self.number(stored.group.index);
        self.text("kv_cache_spec_kind");
        match stored.group.kind_is_main {
            true => self.text("full_attention"),
            false => self.text("sliding_window"),
        }
    }

    fn removed(&mut self, removed: &Removed) {
        self.map(4);
        self.name("BlockRemoved");
        self.text("block_hashes");
        self.hashes(&removed.hashes);
        self.text("medium");
        self.text(medium(removed.medium));
        self.text("group_idx");
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

    fn name(&mut self, name: &str) {
        self.text("type");
        self.text(name);
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

    fn map(&mut self, length: u32) {
        let _ = write_map_len(&mut self.0, length);
    }
}

fn medium(medium: Medium) -> &'static str {
    match medium {
        Medium::Device => "GPU",
        Medium::Host => "CPU",
        Medium::Elsewhere => "STORAGE",
    }
}
