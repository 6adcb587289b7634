//! What the store cannot do, in the API's words.

use inflight_base::error_chain;
use inflight_batches::StoreError;
use inflight_openai::ApiError;

/// The error for a client that named `id`.
pub(crate) fn failure(error: &StoreError, id: &str) -> ApiError {
    match error {
        StoreError::NoFile => ApiError::file_not_found(id),
        StoreError::NoBatch => ApiError::batch_not_found(id),
        StoreError::Status(status) => ApiError::invalid_body(format!(
            "The batch is `{}`, so this cannot be done now.",
            status.as_str()
        )),
        StoreError::FileTooLarge(limit) => {
            ApiError::payload_too_large(u64::try_from(*limit).unwrap_or_default())
        }
        StoreError::Full(limit) => ApiError::storage_full(format!(
            "The limit of `{limit}` bytes for all files and results is nearly reached. Retry when some \
             have been deleted."
        )),
        StoreError::OwnerFull(limit) => ApiError::storage_full(format!(
            "Your limit of `{limit}` bytes for files and results is nearly reached. Delete files that you no \
             longer need."
        )),
        StoreError::TooMany => ApiError::storage_full(
            "You have reached the limit of files or batches. Delete those that you no longer need.",
        ),
        StoreError::Directory { .. }
        | StoreError::Newer { .. }
        | StoreError::Open { .. }
        | StoreError::Url(_)
        | StoreError::ObjectsUrl(_)
        | StoreError::Objects { .. }
        | StoreError::Elsewhere { .. }
        | StoreError::NoObjects { .. }
        | StoreError::WithoutObjects
        | StoreError::Connect { .. }
        | StoreError::LeaseLost
        | StoreError::Stopped
        | StoreError::Database(_) => {
            // Its text may name files: for the log only.
            tracing::error!(error = %error_chain(error), "the store of files and batches failed");
            ApiError::unavailable("Files and batches cannot be read or written now. Retry later.")
        }
    }
}
