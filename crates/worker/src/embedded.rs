//! The core model inside a server that is not ours, such as Triton: its requests parsed, remembered until
//! their last row, and answered, with the code that the worker itself uses.
//!
//! Knows nothing of sockets, executors and threads; the host owns those.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::step::StepError;
use parking_lot::Mutex;

use crate::executor::{ClientId, ModelInfo, Request, ResponseBatch};
use crate::model;
use crate::request::{self, Incoming, Limits, Plain, RequestError};
use crate::respond::{RequestFacts, Responder};

/// Why a request or one of its rows gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A gRPC status code.
    pub status: i32,
    pub text: String,
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self {
            status: error.code() as i32,
            text: error.to_string(),
        }
    }
}

/// A request that was understood.
#[derive(Debug)]
pub enum Parsed {
    /// Ends the requests with this request's id.
    Stop,
    /// One executor request for each row of the batch, with client ids that no other request has.
    Work {
        requests: Vec<Request>,
        streaming: bool,
        /// Sequences of each row.
        sequences: u32,
    },
}

/// What one row of the executor became.
#[derive(Debug)]
pub struct RowResponse {
    pub client_id: ClientId,
    /// Whether it was the last row of this client id.
    pub is_final: bool,
    /// `None` while beams are gathered.
    pub result: Option<Result<ModelInferResponse, Refusal>>,
}

/// The requests of one core model that have not ended.
#[derive(Debug)]
pub struct CoreRequests {
    limits: Limits,
    last_id: AtomicU64,
    live: Mutex<HashMap<ClientId, Responder>>,
}

impl CoreRequests {
    /// `info.max_batch_size` bounds the rows of a request, `max_message_bytes` an answer; `excludes_input` holds
    /// for a request without `exclude_input_in_output`.
    pub fn new(info: ModelInfo, max_message_bytes: usize, excludes_input: bool) -> Self {
        Self {
            limits: Limits {
                core_model: model::CORE_MODEL.into(),
                info,
                max_message_bytes,
                excludes_input,
                fills_outputs: false,
                wraps_token_ids: false,
            },
            last_id: AtomicU64::new(0),
            live: Mutex::default(),
        }
    }

    /// Reads a request and remembers how to answer it, until its last row or [`forget`](Self::forget).
    ///
    /// Scalars may lack the dimension that Triton squeezes.
    ///
    /// # Errors
    /// The worker's own refusals.
    pub fn parse(&self, mut message: ModelInferRequest) -> Result<Parsed, Refusal> {
        for input in &mut message.inputs {
            let squeezed = model::input(&input.name).is_some_and(|spec| spec.squeezed);
            if squeezed && input.shape.len() == 1 {
                input.shape.push(1);
            }
        }
        // The host enforces its own timeouts.
        let Plain {
            mut requests,
            prompts,
            answer,
            timeout: _,
            trace: _,
        } = match request::parse(&message, &self.limits)? {
            Incoming::StopId(_) => return Ok(Parsed::Stop),
            Incoming::Plain(plain) => *plain,
            Incoming::StopHandle(_) | Incoming::Step { .. } => {
                // Step batching is a protocol of Inflight's server.
                return Err(RequestError::UnknownInput {
                    tensor: names::HANDLE.to_owned(),
                }
                .into());
            }
        };
        let (streaming, sequences) = (answer.streaming, answer.sequences);
        let answer = Arc::new(answer);
        let mut live = self.live.lock();
        for (index, (request, prompt)) in requests.iter_mut().zip(prompts).enumerate() {
            request.client_id = ClientId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1);
            let asked = RequestFacts::of(request);
            let responder = Responder::new(Arc::clone(&answer), index, asked, prompt);
            live.insert(request.client_id, responder);
        }
        Ok(Parsed::Work {
            requests,
            streaming,
            sequences,
        })
    }

    /// Answers the rows of one iteration, in order; rows of unknown client ids have no answer.
    ///
    /// # Errors
    /// Columns that do not fit together.
    pub fn respond(&self, batch: &ResponseBatch) -> Result<Vec<RowResponse>, StepError> {
        batch.rows.validate()?;
        let mut answers = Vec::with_capacity(batch.rows.ids.len());
        let mut live = self.live.lock();
        for row in batch.rows.rows() {
            let Some(responder) = live.get_mut(&row.id) else {
                continue;
            };
            let own: Vec<_> = batch
                .tensors
                .iter()
                .filter(|(place, _)| *place as usize == row.index)
                .map(|(_, tensor)| tensor.clone())
                .collect();
            let result = match responder.respond(&row, &own) {
                Ok(response) => response.map(Ok),
                Err(failed) => Some(Err(Refusal {
                    status: failed.error.code as i32,
                    text: failed.error.text,
                })),
            };
            if row.is_final {
                live.remove(&row.id);
            }
            answers.push(RowResponse {
                client_id: row.id,
                is_final: row.is_final,
                result,
            });
        }
        Ok(answers)
    }

    /// Requests that the executor will not answer.
    pub fn forget(&self, client_ids: &[ClientId]) {
        let mut live = self.live.lock();
        for client_id in client_ids {
            live.remove(client_id);
        }
    }
}

#[cfg(test)]
mod tests;
