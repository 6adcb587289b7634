//! Rows of step messages, of `inflight_kserve`: what the pieces read and write of them.

use super::{Bytes, Code};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    NotFinished,
    EndId,
    Length,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogProbs;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub struct RowError {
    pub code: Code,
    pub text: String,
    pub retry_after_ms: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct TopLogProbs<'a> {
    pub width: usize,
    pub ids: &'a [i32],
    pub values: &'a [f32],
}

#[derive(Clone, Copy, Debug)]
pub struct Row<'a, Id = Handle> {
    pub id: Id,
    pub sequence_index: i32,
    pub tokens: &'a [i32],
    pub finish_reason: FinishReason,
    pub is_final: bool,
    pub error: Option<&'a RowError>,
    pub log_probs: Option<&'a [f32]>,
    pub top_log_probs: Option<TopLogProbs<'a>>,
    pub cached_tokens: Option<u32>,
    pub context_phase: Option<&'a Bytes>,
    pub prompt_log_probs: Option<&'a PromptLogProbs>,
}

impl<'a, Id> Row<'a, Id> {
    pub fn new(id: Id, tokens: &'a [i32], is_final: bool) -> Self {
        Self {
            id,
            sequence_index: 0,
            tokens,
            finish_reason: match is_final {
                true => FinishReason::Length,
                false => FinishReason::NotFinished,
            },
            is_final,
            error: None,
            log_probs: None,
            top_log_probs: None,
            cached_tokens: None,
            context_phase: None,
            prompt_log_probs: None,
        }
    }

    pub fn with_id<Other>(self, id: Other) -> Row<'a, Other> {
        Row::new(id, self.tokens, self.is_final)
    }
}

/// Each row's tokens, and whether it is its request's last.
#[derive(Clone, Debug, PartialEq)]
pub struct StepBatch<Id = Handle> {
    pub ids: Vec<Id>,
    rows: Vec<(Vec<i32>, bool)>,
}

impl<Id> Default for StepBatch<Id> {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            rows: Vec::new(),
        }
    }
}

impl<Id: Copy> StepBatch<Id> {
    /// A row of one token.
    pub fn of(id: Id, token: i32, is_final: bool) -> Self {
        let mut batch = Self::default();
        batch.push(&Row::new(id, &[token], is_final));
        batch
    }

    pub fn push(&mut self, row: &Row<'_, Id>) {
        self.ids.push(row.id);
        self.rows.push((row.tokens.to_vec(), row.is_final));
    }

    pub fn append(&mut self, mut other: Self) {
        self.ids.append(&mut other.ids);
        self.rows.append(&mut other.rows);
    }

    pub fn rows(&self) -> impl Iterator<Item = Row<'_, Id>> {
        let rows = self.ids.iter().zip(&self.rows);
        rows.map(|(id, (tokens, is_final))| Row::new(*id, tokens, *is_final))
    }
}
