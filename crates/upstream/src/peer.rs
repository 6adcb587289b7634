//! A server as KServe's clients use it: every model that it has, also those that OpenAI's clients cannot. Owns
//! which models these are, and how many calls are open; knows nothing of what calls say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;

use super::pool::Pool;

/// What a server serves.
#[derive(Debug)]
pub struct Served {
    pub pool: Arc<Pool>,
    /// Name and version of each model that is ready.
    pub models: BTreeSet<(String, String)>,
    /// An Inflight worker's own model, whose name OpenAI's clients use: its KServe models are called alike at all
    /// workers, whatever they serve. `None`: a plain Triton, whose names are its own.
    pub of: Option<String>,
}

impl Served {
    /// Whether there is a model of this name; an empty version is any.
    pub fn has(&self, name: &str, version: &str) -> bool {
        let of_name = self.models.iter().filter(|(model, _)| model == name);
        let mut versions = of_name.map(|(_, version)| version);
        versions.any(|own| version.is_empty() || own.is_empty() || own == version)
    }
}

/// The calls of one server.
#[derive(Debug, Default)]
pub struct Peer {
    /// As last heard; kept while the server is away, so that clients get 503 and not 404.
    served: ArcSwapOption<Served>,
    is_up: AtomicBool,
    active: AtomicUsize,
}

impl Peer {
    /// The server answers, and serves this.
    pub fn set_up(&self, served: Served) {
        self.served.store(Some(Arc::new(served)));
        self.is_up.store(true, Ordering::Release);
    }

    /// The server is lost.
    pub fn set_down(&self) {
        self.is_up.store(false, Ordering::Release);
    }

    /// Whether calls can be sent.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// What it serves, or did when last heard of.
    pub fn served(&self) -> Option<Arc<Served>> {
        self.served.load_full()
    }

    /// Open calls.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Bytes of responses that wait for clients that read slowly.
    pub fn unread_bytes(&self) -> usize {
        let served = self.served.load();
        served
            .as_ref()
            .map_or(0, |served| served.pool.unread_bytes())
    }

    /// A call begins.
    pub fn enter(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// A call has ended.
    pub fn leave(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}
