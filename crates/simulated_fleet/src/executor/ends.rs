//! Sequences that end by themselves, over an executor whose sequences all reach their limit: rows in, rows out. Knows
//! where they end from [`answer`](crate::answer).

use std::collections::BTreeMap;

use inflight_kserve::step::{FinishReason, Row, StepBatch};
use inflight_testkit::model::END;
use inflight_worker::executor::{ClientId, Request};

use crate::answer::{first_of, own_end};

/// The requests that have such sequences, from their beginning to the last row that the executor below has for them.
#[derive(Default)]
pub(super) struct Ends(BTreeMap<ClientId, Vec<Sequence>>);

struct Sequence {
    /// Tokens so far.
    produced: u32,
    own_end: Option<u32>,
    has_ended: bool,
}

impl Ends {
    /// Notes a request.
    pub(super) fn begin(&mut self, request: &Request) {
        if request.end_id != Some(END) {
            return;
        }
        let first = first_of(request.input_token_ids.iter().map(|token| *token as u8));
        let sequences = 0..request.sampling_config.num_return_sequences.max(1);
        let sequences = sequences.map(|sequence| {
            let before = request.generated.get(sequence as usize);
            let produced = match before {
                Some(Some(tokens)) => tokens.len() as u32,
                _ => 0,
            };
            let own_end = own_end(first, sequence);
            Sequence {
                produced,
                own_end: own_end.filter(|end| produced <= *end && *end < request.max_tokens),
                has_ended: before == Some(&None),
            }
        });
        let sequences: Vec<Sequence> = sequences.collect();
        if sequences.iter().any(|sequence| sequence.own_end.is_some()) {
            self.0.insert(request.client_id, sequences);
        }
    }

    /// Ends sequences where they end by themselves. Returns the rows, and requests that end so, whose rest is not wanted.
    pub(super) fn apply(
        &mut self,
        rows: StepBatch<ClientId>,
    ) -> (StepBatch<ClientId>, Vec<ClientId>) {
        let mut over = Vec::new();
        if rows.ids.iter().all(|id| !self.0.contains_key(id)) {
            return (rows, over);
        }
        let mut kept = StepBatch::default();
        for row in rows.rows() {
            let Some(sequences) = self.0.get_mut(&row.id) else {
                kept.push(&row);
                continue;
            };
            let place = usize::try_from(row.sequence_index).unwrap_or(0);
            let sequence = sequences.get_mut(place);
            if let Some(sequence) = sequence.filter(|sequence| !sequence.has_ended) {
                let (tokens, reason) = sequence.take(&row);
                let is_final = sequences.iter().all(|sequence| sequence.has_ended);
                kept.push(&Row {
                    tokens: &tokens,
                    finish_reason: reason,
                    is_final: is_final || row.error.is_some(),
                    ..row
                });
                if is_final && !row.is_final {
                    over.push(row.id);
                }
            }
            if row.is_final {
                self.0.remove(&row.id);
            }
        }
        (kept, over)
    }
}

impl Sequence {
    /// The tokens of a row up to the sequence's own end, and how it ends.
    fn take(&mut self, row: &Row<'_, ClientId>) -> (Vec<i32>, FinishReason) {
        let left = self.own_end.map(|end| end.saturating_sub(self.produced));
        let left = left.and_then(|left| row.tokens.get(..left as usize));
        match left {
            Some(tokens) if tokens.len() < row.tokens.len() => {
                self.has_ended = true;
                let tokens = tokens.iter().copied().chain([END]);
                (tokens.collect(), FinishReason::EndId)
            }
            _ => {
                self.produced += row.tokens.len() as u32;
                self.has_ended = row.finish_reason != FinishReason::NotFinished;
                (row.tokens.to_vec(), row.finish_reason)
            }
        }
    }
}
