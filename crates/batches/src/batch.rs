//! A batch and its life. Owns the states, and how OpenAI's API writes a batch.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::id::{BatchId, FileId};
use crate::input::InputErrors;
use crate::usage::Usage;
use crate::window::Window;

/// Whose forms the lines and results of a batch have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
}

/// Where a batch is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its lines are being read.
    Validating,
    /// A line is not a request: none is run.
    Failed,
    InProgress,
    /// All of its lines have results, which become files.
    Finalizing,
    Completed,
    /// Its window has passed; what was done by then has results.
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(crate) const ALL: [Self; 8] = [
        Self::Validating,
        Self::Failed,
        Self::InProgress,
        Self::Finalizing,
        Self::Completed,
        Self::Expired,
        Self::Cancelling,
        Self::Cancelled,
    ];

    /// OpenAI's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing of it changes any more.
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled
        )
    }
}

/// How many lines there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    pub total: i64,
    pub completed: i64,
    pub failed: i64,
}

/// A batch.
#[derive(Clone, Debug)]
pub struct Batch {
    pub id: BatchId,
    pub dialect: Dialect,
    /// The path that its lines are sent to.
    pub endpoint: String,
    pub window: Window,
    pub input: FileId,
    /// Of lines that succeeded; once there is one, and the batch has ended.
    pub output: Option<FileId>,
    /// Of lines that failed, likewise.
    pub failures: Option<FileId>,
    pub status: Status,
    pub errors: InputErrors,
    pub counts: Counts,
    pub usage: Usage,
    /// An object of JSON, as its client wrote it.
    pub metadata: Option<Box<RawValue>>,
    /// Seconds since the epoch, as all times.
    pub created: i64,
    pub expires: i64,
    pub started: Option<i64>,
    pub finalizing: Option<i64>,
    pub cancelling: Option<i64>,
    pub ended: Option<i64>,
}

/// A batch as OpenAI's API writes it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BatchObject {
    id: String,
    /// Always `batch`.
    object: &'static str,
    endpoint: String,
    errors: Option<InputErrors>,
    input_file_id: String,
    completion_window: String,
    status: &'static str,
    output_file_id: Option<String>,
    error_file_id: Option<String>,
    created_at: i64,
    in_progress_at: Option<i64>,
    expires_at: i64,
    finalizing_at: Option<i64>,
    completed_at: Option<i64>,
    failed_at: Option<i64>,
    expired_at: Option<i64>,
    cancelling_at: Option<i64>,
    cancelled_at: Option<i64>,
    request_counts: Counts,
    usage: BatchUsage,
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    metadata: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct BatchUsage {
    input_tokens: i64,
    input_tokens_details: InputDetails,
    output_tokens: i64,
    output_tokens_details: OutputDetails,
    total_tokens: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct InputDetails {
    cached_tokens: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OutputDetails {
    reasoning_tokens: i64,
}

impl From<Usage> for BatchUsage {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input,
            input_tokens_details: InputDetails {
                cached_tokens: usage.cached,
            },
            output_tokens: usage.output,
            output_tokens_details: OutputDetails {
                reasoning_tokens: usage.reasoning,
            },
            total_tokens: usage.input.saturating_add(usage.output),
        }
    }
}

impl From<&Batch> for BatchObject {
    fn from(batch: &Batch) -> Self {
        let ended = |status: Status| batch.ended.filter(|_| batch.status == status);
        Self {
            id: batch.id.to_string(),
            object: "batch",
            endpoint: batch.endpoint.clone(),
            errors: (batch.status == Status::Failed).then(|| batch.errors.clone()),
            input_file_id: batch.input.to_string(),
            completion_window: batch.window.to_string(),
            status: batch.status.as_str(),
            output_file_id: batch.output.map(|id| id.to_string()),
            error_file_id: batch.failures.map(|id| id.to_string()),
            created_at: batch.created,
            in_progress_at: batch.started,
            expires_at: batch.expires,
            finalizing_at: batch.finalizing,
            completed_at: ended(Status::Completed),
            failed_at: ended(Status::Failed),
            expired_at: ended(Status::Expired),
            cancelling_at: batch.cancelling,
            cancelled_at: ended(Status::Cancelled),
            request_counts: batch.counts,
            usage: batch.usage.into(),
            metadata: batch.metadata.clone(),
        }
    }
}

/// A part of a list of batches.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BatchList {
    /// Always `list`.
    object: &'static str,
    data: Vec<BatchObject>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl BatchList {
    /// The part that these batches are.
    pub fn new(batches: &[Batch], has_more: bool) -> Self {
        let id = |batch: Option<&Batch>| batch.map(|batch| batch.id.to_string());
        Self {
            object: "list",
            data: batches.iter().map(BatchObject::from).collect(),
            first_id: id(batches.first()),
            last_id: id(batches.last()),
            has_more,
        }
    }
}
