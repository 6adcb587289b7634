//! Files and batches as the gateway has them: the store off the threads that serve, its failures in the API's words, and
//! what its runner is woken for. What is kept, and how, is inflight-batches'.

mod failures;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inflight_base::blocking;
use inflight_batches::{Bounds, DataUrl, ObjectsUrl, Share, Store, StoreError};
use inflight_openai::ApiError;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

pub(crate) use self::failures::failure;

/// See the module.
#[derive(Debug)]
pub(crate) struct Batches {
    store: Arc<Store>,
    pub(crate) share: Share,
    /// There is a new batch, or one is cancelled.
    changed: Notify,
    /// Calls of clients that may run at once.
    calls: Semaphore,
}

/// Calls of clients at once. Where a server of another machine does not answer, each holds a thread, and other work
/// needs some.
const CALLS: usize = 64;
/// How long one more waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where files and batches are kept.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// For gateways of this machine.
    Directory(PathBuf),
    /// For gateways of any.
    Database(DataUrl),
}

impl Batches {
    /// Opens the store at `place`, with contents at `objects`.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) async fn open(
        place: Place,
        objects: Option<ObjectsUrl>,
        bounds: Bounds,
        share: Share,
    ) -> Result<Arc<Self>, StoreError> {
        let open = move || match place {
            Place::Directory(directory) => Store::open(&directory, objects.as_ref(), bounds),
            Place::Database(url) => Store::connect(&url, objects.as_ref(), bounds),
        };
        let store = blocking::run(open).await;
        Ok(Arc::new(Self {
            store: Arc::new(store.unwrap_or(Err(StoreError::Stopped))?),
            share,
            changed: Notify::new(),
            calls: Semaphore::new(CALLS),
        }))
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        self.store.bounds()
    }

    /// Bytes of a piece of an upload.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.store.piece_bytes()
    }

    /// Deletes the objects of what was deleted, though nobody waits for it.
    pub(crate) fn purge(&self) {
        self.later(|store| store.purge().map(drop));
    }

    /// Does `work` where it may block.
    ///
    /// # Errors
    /// What `work` returns.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let done = blocking::run(move || work(&store)).await;
        done.unwrap_or_else(|error| {
            tracing::error!(%error, "work on the store of batches failed");
            Err(StoreError::Stopped)
        })
    }

    /// [`Batches::run`] for a client, next to those of others.
    ///
    /// # Errors
    /// What `work` returns; others took too long.
    pub(crate) async fn serve<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = timeout(PATIENCE, self.calls.acquire()).await;
        let _place = place.map_err(|_| StoreError::Stopped)?;
        self.run(work).await
    }

    /// [`Batches::serve`] for a client that names `id`.
    ///
    /// # Errors
    /// What `work` returns, in the API's words.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        id: &str,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.serve(work).await.map_err(|error| failure(&error, id))
    }

    /// Does `work` though nobody waits for it.
    pub(crate) fn later(
        &self,
        work: impl FnOnce(&Store) -> Result<(), StoreError> + Send + 'static,
    ) {
        let store = Arc::clone(&self.store);
        // It is done without being awaited.
        drop(blocking::run(move || {
            if let Err(error) = work(&store) {
                tracing::warn!(error = %inflight_base::error_chain(&error), "the store of batches failed");
            }
        }));
    }

    /// Wakes the runner.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Resolves once there is something new to run or to end.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
