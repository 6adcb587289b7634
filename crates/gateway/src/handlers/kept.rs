//! A file or a batch that a client names: the store is asked for its owner's alone. Owns how names are looked up and how
//! contents are streamed; what is done with them is the handlers'.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use inflight_base::error_chain;
use inflight_base::wall_clock::unix_seconds;
use inflight_batches::{Batch, BatchId, Dialect, FileId, Owner, Position, Store, StoreError};
use inflight_openai::ApiError;

use super::named::{PathId, owner, text};
use crate::batches::Batches;
use crate::state::AppState;

/// The store.
///
/// # Errors
/// 404: the gateway has none.
pub(super) fn enabled(state: &AppState) -> Result<&Arc<Batches>, ApiError> {
    state.batches.as_ref().ok_or_else(ApiError::no_files)
}

/// A name in a path, and who asks for it.
pub(super) struct Kept<'a> {
    pub(super) batches: &'a Arc<Batches>,
    pub(super) owner: Owner,
    /// As the client wrote it.
    pub(super) id: String,
}

impl<'a> Kept<'a> {
    /// # Errors
    /// 404: the gateway has no store.
    pub(super) fn new(
        state: &'a AppState,
        id: PathId,
        request: &Request,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            batches: enabled(state)?,
            owner: owner(request).files(),
            id: text(id),
        })
    }

    /// Does `work` on the file of this name.
    ///
    /// # Errors
    /// 404: it is not one; what `work` returns.
    pub(super) async fn file<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store, &Owner, FileId) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let id = FileId::parse(&self.id).ok_or_else(|| ApiError::file_not_found(&self.id))?;
        let owner = self.owner;
        let work = move |store: &Store| work(store, &owner, id);
        self.batches.ask(&self.id, work).await
    }

    /// Does `work` on the batch of this name, which `parse` reads.
    ///
    /// # Errors
    /// 404: it is not one; what `work` returns.
    pub(super) async fn batch<T: Send + 'static>(
        &self,
        parse: fn(&str) -> Option<BatchId>,
        work: impl FnOnce(&Store, &Owner, BatchId) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let id = parse(&self.id).ok_or_else(|| ApiError::batch_not_found(&self.id))?;
        let owner = self.owner;
        let work = move |store: &Store| work(store, &owner, id);
        self.batches.ask(&self.id, work).await
    }

    /// Stops the batch of this name.
    ///
    /// # Errors
    /// 404: it is not one; 400: it has ended.
    pub(super) async fn cancel(
        &self,
        parse: fn(&str) -> Option<BatchId>,
        dialect: Dialect,
    ) -> Result<Batch, ApiError> {
        let cancel = move |store: &Store, owner: &Owner, batch| {
            store.cancel_batch(owner, dialect, batch, unix_seconds())
        };
        let batch = self.batch(parse, cancel).await?;
        self.batches.wake();
        Ok(batch)
    }
}

/// What `read` returns from each position on, one piece after the other.
///
/// # Errors
/// The first cannot be read; a later failure breaks the answer off.
pub(super) async fn pieces<F>(batches: &Arc<Batches>, id: &str, read: F) -> Result<Body, ApiError>
where
    F: Fn(&Store, Position) -> Result<Option<(Vec<u8>, Position)>, StoreError>
        + Clone
        + Send
        + 'static,
{
    let reader = read.clone();
    let first = batches.ask(id, move |store| reader(store, Position::default()));
    let Some((first, next)) = first.await? else {
        return Ok(Body::empty());
    };
    let reading = (Arc::clone(batches), read, next);
    let rest = stream::try_unfold(reading, |(batches, read, position)| {
        let reader = read.clone();
        async move {
            let piece = batches.serve(move |store| reader(store, position)).await;
            let piece = piece.inspect_err(|error| {
                // The client sees that its answer ends too early.
                tracing::error!(error = %error_chain(error), "the store of files and batches failed");
            });
            let next = piece?.map(|(piece, next)| (Bytes::from(piece), (batches, read, next)));
            Ok::<_, StoreError>(next)
        }
    });
    let first = stream::iter([Ok(Bytes::from(first))]);
    Ok(Body::from_stream(first.chain(rest)))
}
