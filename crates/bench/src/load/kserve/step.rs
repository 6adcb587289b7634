//! All requests on one step-batching stream, distinguished by handle.

use std::time::Instant;

use inflight_kserve::inference::{ModelInferRequest, ModelStreamInferResponse};
use inflight_kserve::step::{Handle, Row, StepBatch};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use super::{Template, connect, runtime};
use crate::load::{LoadError, Phase, Streams, Target, Workload, ending, ramp_start};
use crate::measure::{Ending, Timer};

pub(in crate::load) struct StepStreams {
    runtime: Runtime,
    address: String,
    /// Never holds more than one request per slot, so it needs no separate bound.
    requests: UnboundedSender<ModelInferRequest>,
    responses: Streaming<ModelStreamInferResponse>,
    template: Template,
    slots: Vec<Slot>,
    next_handle: u64,
}

/// One of the N streams. Its handles are its number modulo N.
#[derive(Debug, Default)]
struct Slot {
    running: Option<Running>,
    starts: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    handle: u64,
    timer: Timer,
    tokens: u64,
}

impl StepStreams {
    pub(in crate::load) fn new(target: &Target, workload: &Workload) -> Result<Self, LoadError> {
        let runtime = runtime()?;
        let (requests, receiver) = mpsc::unbounded_channel();
        let responses = runtime.block_on(async {
            let mut client = connect(target).await?;
            let receiver = UnboundedReceiverStream::new(receiver);
            client
                .model_stream_infer(receiver)
                .await
                .map_err(|status| LoadError::StreamEnded {
                    address: target.address.clone(),
                    reason: status.to_string(),
                })
        })?;
        Ok(Self {
            runtime,
            address: target.address.clone(),
            requests,
            responses: responses.into_inner(),
            template: Template::new(target, workload),
            slots: (0..workload.streams).map(|_| Slot::default()).collect(),
            next_handle: 0,
        })
    }
}

impl Streams for StepStreams {
    fn run(&mut self, phase: &mut Phase) -> Result<(), LoadError> {
        let Self {
            runtime,
            address,
            requests,
            responses,
            template,
            slots,
            next_handle,
        } = self;
        let mut slots = Slots {
            requests,
            template,
            slots,
            next_handle,
        };
        let deadline = phase.deadline;
        let finished = runtime.block_on(async {
            tokio::time::timeout_at(deadline.into(), slots.run(responses, phase)).await
        });
        match finished {
            Ok(result) => result.map_err(|reason| LoadError::StreamEnded {
                address: address.clone(),
                reason,
            }),
            Err(_) => Err(LoadError::TimedOut {
                ended: phase.recorder.ended(),
                running: slots.slots.iter().filter(|slot| slot.is_busy()).count(),
            }),
        }
    }
}

impl Slot {
    fn is_busy(&self) -> bool {
        self.running.is_some() || self.starts.is_some()
    }
}

struct Slots<'a> {
    requests: &'a UnboundedSender<ModelInferRequest>,
    template: &'a Template,
    slots: &'a mut [Slot],
    next_handle: &'a mut u64,
}

impl Slots<'_> {
    async fn run(
        &mut self,
        responses: &mut Streaming<ModelStreamInferResponse>,
        phase: &mut Phase,
    ) -> Result<(), String> {
        let (now, count) = (Instant::now(), self.slots.len());
        // Handles of this phase start at a multiple of N, which keeps handle modulo N the slot.
        *self.next_handle = self.next_handle.next_multiple_of(count.max(1) as u64);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.starts = Some(ramp_start(now, phase.ramp, index, count));
        }
        let mut next_start = self.start_due(phase);
        let mut busy = self.slots.iter().filter(|slot| slot.is_busy()).count();
        while busy > 0 {
            let message = match next_start {
                None => responses.message().await,
                Some(at) => match tokio::time::timeout_at(at.into(), responses.message()).await {
                    Ok(message) => message,
                    Err(_) => {
                        next_start = self.start_due(phase);
                        busy = self.slots.iter().filter(|slot| slot.is_busy()).count();
                        continue;
                    }
                },
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => return Err("the server closed it".to_owned()),
                Err(status) => return Err(status.to_string()),
            };
            if !message.error_message.is_empty() {
                return Err(message.error_message);
            }
            let Some(response) = message.infer_response else {
                continue;
            };
            let batch = StepBatch::decode(&response).map_err(|error| error.to_string())?;
            let now = Instant::now();
            for row in batch.rows() {
                busy -= usize::from(self.take(&row, now, phase));
            }
            if next_start.is_some_and(|at| at <= now) {
                next_start = self.start_due(phase);
                busy = self.slots.iter().filter(|slot| slot.is_busy()).count();
            }
        }
        Ok(())
    }

    /// Takes a row in; true when its slot has nothing more to do.
    fn take(&mut self, row: &Row<'_>, now: Instant, phase: &mut Phase) -> bool {
        let count = self.slots.len().max(1) as u64;
        let index = (row.id.0 % count) as usize;
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        // A handle that is not running here is a late row of an earlier, errored request.
        let Some(running) = slot
            .running
            .as_mut()
            .filter(|running| running.handle == row.id.0)
        else {
            return false;
        };
        if !row.tokens.is_empty() {
            running.tokens += row.tokens.len() as u64;
            phase.recorder.event(&mut running.timer, now);
        }
        if !row.is_final {
            return false;
        }
        let ending = match row.error {
            Some(error) => Ending::Errored(format!("code {}: {}", error.code as i32, error.text)),
            None => ending(running.tokens, u64::from(self.template.tokens)),
        };
        phase.recorder.end(&running.timer, running.tokens, ending);
        slot.running = None;
        !self.start(index, phase)
    }

    /// Starts a request in a slot, if the budget allows.
    fn start(&mut self, index: usize, phase: &mut Phase) -> bool {
        let now = Instant::now();
        if !phase.budget.take(now) {
            return false;
        }
        let count = self.slots.len().max(1) as u64;
        let handle = *self.next_handle + index as u64;
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        // Each start takes a separate round of N handles; 2^64 last for any run.
        *self.next_handle += count;
        slot.running = Some(Running {
            handle,
            timer: Timer::start(now),
            tokens: 0,
        });
        let request = self.template.build(String::new(), |request| {
            request.handle(Handle(handle));
        });
        // A closed channel means a lost stream, which the reading side reports.
        let _ = self.requests.send(request);
        true
    }

    /// Starts the slots whose turn in the ramp has come; when the next one's is.
    fn start_due(&mut self, phase: &mut Phase) -> Option<Instant> {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            match self
                .slots
                .get_mut(index)
                .and_then(|slot| slot.starts.take_if(|at| *at <= now))
            {
                Some(_) => {
                    self.start(index, phase);
                }
                None => {
                    // Starts ascend with the index: the first that is left is the next.
                    if let Some(at) = self.slots.get(index).and_then(|slot| slot.starts) {
                        return Some(at);
                    }
                }
            }
        }
        None
    }
}
