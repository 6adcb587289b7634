//! What a server says, as the reports of a worker: one stream of them for each of its models. Owns when a stream begins
//! again, and what is in doubt; what the events mean is `names`', and what the reports mean the [`Seat`]'s.

use std::collections::HashMap;
use std::sync::Arc;

use inflight_kserve::cache_state::{CacheShape, CacheUpdate};
use inflight_kv_events::Heard;

use super::figures::Figures;
use super::names::{Changes, Names};
use crate::placement::{Fault, Next, Seat};

/// Blocks of a report, as workers have it.
const MOST_BLOCKS: usize = 8192;

/// Who looks once a second sees every doubt.
const DOUBTED: u8 = 2;

/// The reports of a server.
#[derive(Debug)]
pub(super) struct Feed {
    /// A place for each model, and the number of its last report; 0: there is none.
    streams: Vec<(Arc<Seat>, u64)>,
    figures: Option<Figures>,
    /// `None`: its events are not listened to, and its blocks are estimated.
    events: Option<Events>,
    /// Seconds that begin before what is in doubt is tried again.
    doubted: u8,
}

#[derive(Debug, Default)]
struct Events {
    names: Names,
    is_connected: bool,
    /// Each adapter's number by its name.
    adapters: HashMap<String, u64>,
}

impl Feed {
    /// Of a server whose events are listened to, or not.
    pub(super) fn new(has_events: bool) -> Self {
        Self {
            streams: Vec::new(),
            figures: None,
            events: has_events.then(Events::default),
            doubted: 0,
        }
    }

    /// The server has these models, and these adapters.
    pub(super) fn set_models(
        &mut self,
        seats: impl Iterator<Item = Arc<Seat>>,
        adapters: HashMap<String, u64>,
    ) {
        self.streams = seats.map(|seat| (seat, 0)).collect();
        if let Some(events) = &mut self.events {
            events.adapters = adapters;
        }
    }

    /// A second passed, with this load where the server says it. What was in doubt is tried again.
    pub(super) fn tick(&mut self, figures: Option<Figures>) -> Option<Fault> {
        let before = self.shape();
        self.figures = figures.or(self.figures);
        let says_something = match &self.events {
            Some(events) => events.is_connected,
            None => self.figures.is_some(),
        };
        self.doubted = self.doubted.saturating_sub(1);
        if !says_something || self.doubted > 0 {
            return None;
        }
        if !self.has_begun() || before != self.shape() {
            return self.begin();
        }
        figures?;
        self.report(Changes::default(), figures)
    }

    /// Takes what is heard of its events.
    pub(super) fn hear(&mut self, heard: &Heard) -> Option<Fault> {
        let has_begun = self.has_begun();
        let events = self.events.as_mut()?;
        match heard {
            Heard::Connected => {
                events.is_connected = true;
                if self.doubted == 0 {
                    self.begin()
                } else {
                    None
                }
            }
            Heard::Batch(batch) => {
                let size = events.names.block_tokens();
                let adapters = &events.adapters;
                let changes = events.names.take(batch, |name| adapters.get(name).copied());
                if !has_begun || changes.is_empty() {
                    return None;
                }
                match size == events.names.block_tokens() {
                    true => self.report(changes, None),
                    false => self.begin(),
                }
            }
            Heard::Restarted => {
                events.names.clear();
                if has_begun { self.begin() } else { None }
            }
            // What was held is still assumed: a server does not say it again.
            Heard::Missed => self.doubt(Fault::Gap),
            Heard::Unreadable(_) => self.doubt(Fault::Impossible),
            Heard::Lost { is_late, .. } => {
                events.is_connected = false;
                self.doubt(if *is_late { Fault::Late } else { Fault::Lost })
            }
        }
    }

    /// What the server said no longer counts, until it is tried again. Returns the fault if it is new.
    pub(super) fn doubt(&mut self, fault: Fault) -> Option<Fault> {
        self.doubted = DOUBTED;
        let mut is_new = false;
        for (seat, sequence) in &mut self.streams {
            *sequence = 0;
            is_new |= seat.cache_reports().reason() != Some(fault.text());
            seat.doubt(fault);
        }
        is_new.then_some(fault)
    }

    /// Blocks of its that are named, and how many could not be.
    pub(super) fn blocks(&self) -> Option<(usize, u64)> {
        let names = &self.events.as_ref()?.names;
        Some((names.len(), names.unnamed()))
    }

    fn has_begun(&self) -> bool {
        self.streams.iter().all(|(_, sequence)| *sequence > 0)
    }

    /// All streams begin, with everything that is known.
    fn begin(&mut self) -> Option<Fault> {
        let parts = match &self.events {
            Some(events) => events.names.all(MOST_BLOCKS),
            None => vec![Changes::default()],
        };
        for (seat, sequence) in &mut self.streams {
            seat.begin();
            *sequence = 0;
        }
        let mut figures = self.figures;
        for part in parts {
            let fault = self.report(part, figures.take());
            if fault.is_some() {
                return fault;
            }
        }
        None
    }

    fn shape(&self) -> CacheShape {
        let figures = self.figures.unwrap_or_default();
        let Some(events) = &self.events else {
            return figures.estimated_shape();
        };
        let size = match events.names.block_tokens() {
            0 => figures.block_tokens(),
            size => size,
        };
        CacheShape {
            tokens_per_block: size,
            device_blocks: match size == figures.block_tokens() {
                true => figures.blocks(),
                false => 0,
            },
            host_blocks: 0,
            reports_blocks: size > 0,
            short_prompts_first: false,
        }
    }

    fn report(&mut self, changes: Changes, figures: Option<Figures>) -> Option<Fault> {
        let shape = self.shape();
        let load = figures.map(|figures| figures.load());
        let mut update = CacheUpdate {
            cleared: changes.cleared,
            device: Some(changes.device),
            host: Some(changes.host),
            load,
            ..CacheUpdate::default()
        };
        let mut wrong = None;
        for (seat, sequence) in &mut self.streams {
            let begins = *sequence == 0;
            *sequence += 1;
            update.sequence = *sequence;
            update.snapshot_begin = begins;
            update.snapshot_end = begins;
            update.shape = begins.then_some(shape);
            let taken = match &self.events {
                Some(_) => seat.take(&update),
                None => seat.take_load(&update).map(|()| Next::Message),
            };
            match taken {
                Ok(Next::Message) => {}
                // Its blocks have names from the next second on.
                Ok(Next::Snapshot) => *sequence = 0,
                Err(fault) => wrong = Some(fault),
            }
        }
        let fault = wrong?;
        // It may hold what it said, and more than it can is not.
        if let Some(events) = &mut self.events {
            events.names.clear();
        }
        self.doubt(fault)
    }
}

#[cfg(test)]
mod tests;
