//! A batch as Anthropic's API writes it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::batch::{Batch, Counts, Status};

/// A part of a list of batches, as Anthropic's API writes it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MessageBatchList {
    data: Vec<MessageBatch>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

impl MessageBatchList {
    /// The part that these batches are; `time` writes seconds since the epoch.
    pub fn new(batches: &[Batch], has_more: bool, time: impl Fn(i64) -> String) -> Self {
        let id = |batch: Option<&Batch>| batch.map(|batch| batch.id.anthropics());
        Self {
            first_id: id(batches.first()),
            last_id: id(batches.last()),
            data: batches
                .iter()
                .map(|batch| MessageBatch::new(batch, &time))
                .collect(),
            has_more,
        }
    }
}

/// A batch as Anthropic's API writes it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MessageBatch {
    id: String,
    /// Always `message_batch`.
    #[serde(rename = "type")]
    kind: &'static str,
    processing_status: &'static str,
    request_counts: MessageCounts,
    /// RFC 3339, as all times.
    created_at: String,
    expires_at: String,
    ended_at: Option<String>,
    cancel_initiated_at: Option<String>,
    /// Always null: a batch is not archived, it is deleted.
    archived_at: Option<String>,
    /// The path of the results, once the batch has ended.
    results_url: Option<String>,
}

/// Lines by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MessageCounts {
    pub processing: i64,
    pub succeeded: i64,
    pub errored: i64,
    pub canceled: i64,
    pub expired: i64,
}

impl MessageBatch {
    /// `time` writes seconds since the epoch.
    pub fn new(batch: &Batch, time: impl Fn(i64) -> String) -> Self {
        let is_ended = batch.status.is_final();
        let id = batch.id.anthropics();
        Self {
            kind: "message_batch",
            processing_status: match batch.status {
                Status::Cancelling => "canceling",
                _ if is_ended => "ended",
                _ => "in_progress",
            },
            request_counts: message_counts(batch),
            created_at: time(batch.created),
            expires_at: time(batch.expires),
            ended_at: batch.ended.map(&time),
            cancel_initiated_at: batch.cancelling.map(&time),
            archived_at: None,
            results_url: is_ended.then(|| format!("/v1/messages/batches/{id}/results")),
            id,
        }
    }
}

fn message_counts(batch: &Batch) -> MessageCounts {
    let Counts {
        total,
        completed,
        failed,
    } = batch.counts;
    let left = (total - completed - failed).max(0);
    let mut counts = MessageCounts {
        succeeded: completed,
        errored: failed,
        ..MessageCounts::default()
    };
    match batch.status {
        Status::Expired => counts.expired = left,
        Status::Cancelled => counts.canceled = left,
        _ => counts.processing = left,
    }
    counts
}
