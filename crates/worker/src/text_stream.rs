//! A text model's request while the core model works on it: whose answers become text, what is stopped when
//! stop words have ended it, and how it counts in the statistics.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::step::RowError;
use parking_lot::Mutex;
use tonic::Code;

use crate::executor::ClientId;
use crate::model_counters::{Ended, ModelCounters};
use crate::response::{self, FailedRow};
use crate::text_models::TextAnswer;

/// One request of ensemble or BLS.
#[derive(Debug)]
pub(crate) struct TextStream {
    /// The name that it was asked by.
    model: Arc<str>,
    state: Mutex<State>,
    client_ids: OnceLock<Vec<ClientId>>,
    counters: Arc<ModelCounters>,
    received: Instant,
}

#[derive(Debug)]
struct State {
    answer: TextAnswer,
    stopped: bool,
    failed: bool,
    ended: bool,
}

impl TextStream {
    pub(crate) fn new(answer: TextAnswer, counters: Arc<ModelCounters>, received: Instant) -> Self {
        Self {
            model: Arc::clone(answer.model()),
            state: Mutex::new(State {
                answer,
                stopped: false,
                failed: false,
                ended: false,
            }),
            client_ids: OnceLock::new(),
            counters,
            received,
        }
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The executor requests that it became.
    pub(crate) fn set_client_ids(&self, client_ids: &[ClientId]) {
        // Set once, when they are submitted.
        let _ = self.client_ids.set(client_ids.to_vec());
    }

    /// The text of the core model's answer.
    pub(crate) fn answer(
        &self,
        core: Result<Option<ModelInferResponse>, Box<FailedRow>>,
    ) -> Result<Option<ModelInferResponse>, Box<FailedRow>> {
        let mut state = self.state.lock();
        let answer = match core {
            Ok(None) => return Ok(None),
            Ok(Some(response)) => state.answer.push(&response).map_err(|malformed| {
                Box::new(FailedRow {
                    error: RowError {
                        row: 0,
                        code: Code::Internal,
                        text: malformed.to_string(),
                        retry_after_ms: 0,
                    },
                    response: response::empty(&self.model, &response.id, true),
                })
            }),
            Err(failed) => Err(failed),
        };
        let last = match &answer {
            Ok(Some(response)) => response::is_final(response),
            Ok(None) => false,
            Err(failed) => {
                state.failed = true;
                response::is_final(&failed.response)
            }
        };
        if last && !state.ended {
            state.ended = true;
            let ended = if state.failed {
                Ended::Failed
            } else {
                Ended::Succeeded
            };
            self.counters.count(ended, self.received.elapsed());
        }
        answer
    }

    /// The executor requests to stop, once stop words have ended every sequence; none the second time.
    pub(crate) fn take_stopped(&self) -> Option<Vec<ClientId>> {
        let mut state = self.state.lock();
        if state.stopped || !state.answer.is_stopped() {
            return None;
        }
        state.stopped = true;
        self.client_ids.get().cloned()
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        // The client left before the end.
        if !self.state.get_mut().ended {
            self.counters.count(Ended::Failed, self.received.elapsed());
        }
    }
}
