//! One ModelStreamInfer call per request.

use std::cell::RefCell;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{ModelInferResponse, ModelStreamInferResponse};
use inflight_kserve::names;
use tokio::runtime::Runtime;

use super::{Client, Template, connect, runtime};
use crate::load::{LoadError, Phase, Streams, Target, Workload, ending, ramp_start};
use crate::measure::{Ending, Timer};

pub(in crate::load) struct RequestStreams {
    runtime: Runtime,
    /// One per connection; stream i uses client i modulo their number.
    clients: Vec<Client>,
    template: Template,
    streams: usize,
}

impl RequestStreams {
    pub(in crate::load) fn new(target: &Target, workload: &Workload) -> Result<Self, LoadError> {
        let runtime = runtime()?;
        let clients = (0..target.connections.max(1))
            .map(|_| runtime.block_on(connect(target)))
            .collect::<Result<_, _>>()?;
        let template = Template::new(target, workload);
        Ok(Self {
            runtime,
            clients,
            template,
            streams: workload.streams,
        })
    }
}

impl Streams for RequestStreams {
    fn run(&mut self, phase: &mut Phase) -> Result<(), LoadError> {
        let (now, ramp, deadline) = (Instant::now(), phase.ramp, phase.deadline);
        let phase = RefCell::new(phase);
        let mut running: FuturesUnordered<_> = self
            .clients
            .iter()
            .cycle()
            .take(self.streams)
            .enumerate()
            .map(|(index, client)| {
                let start = ramp_start(now, ramp, index, self.streams);
                requests(client.clone(), &self.template, index, start, &phase)
            })
            .collect();
        let all = async { while running.next().await.is_some() {} };
        let in_time = async { tokio::time::timeout_at(deadline.into(), all).await.is_ok() };
        if self.runtime.block_on(in_time) {
            return Ok(());
        }
        let left = running.len();
        drop(running);
        let ended = phase.borrow().recorder.ended();
        Err(LoadError::TimedOut {
            ended,
            running: left,
        })
    }
}

/// One stream's requests, one after another.
async fn requests(
    mut client: Client,
    template: &Template,
    index: usize,
    start: Instant,
    phase: &RefCell<&mut Phase>,
) {
    tokio::time::sleep_until(start.into()).await;
    let mut count = 0_u64;
    while phase.borrow_mut().budget.take(Instant::now()) {
        count += 1;
        let mut timer = Timer::start(Instant::now());
        let id = format!("{index}-{count}");
        let (tokens, ending) = one_request(&mut client, template, id, &mut timer, phase).await;
        phase.borrow_mut().recorder.end(&timer, tokens, ending);
    }
}

async fn one_request(
    client: &mut Client,
    template: &Template,
    id: String,
    timer: &mut Timer,
    phase: &RefCell<&mut Phase>,
) -> (u64, Ending) {
    let request = template.build(id, |request| {
        request.bool_parameter(names::ENABLE_EMPTY_FINAL_RESPONSE, true);
    });
    let mut tokens = 0;
    let mut responses = match client.model_stream_infer(tokio_stream::once(request)).await {
        Ok(responses) => responses.into_inner(),
        Err(status) => return (tokens, Ending::Errored(status.to_string())),
    };
    loop {
        let message = match responses.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return (tokens, Ending::Truncated),
            Err(status) => return (tokens, Ending::Errored(status.to_string())),
        };
        let ModelStreamInferResponse {
            error_message,
            infer_response,
        } = message;
        if !error_message.is_empty() {
            return (tokens, Ending::Errored(error_message));
        }
        let Some(response) = infer_response else {
            continue;
        };
        let new = token_count(&response);
        if new > 0 {
            tokens += new;
            phase.borrow_mut().recorder.event(timer, Instant::now());
        }
        if is_final(&response) {
            // The trailers too: leaving before them resets the stream, and HTTP/2 ends a connection
            // on which too many frames arrive for streams that were reset.
            while let Ok(Some(_)) = responses.message().await {}
            return (tokens, ending(tokens, u64::from(template.tokens)));
        }
    }
}

/// Ids in a response: a worker that is behind puts several into one.
fn token_count(response: &ModelInferResponse) -> u64 {
    response
        .outputs
        .iter()
        .position(|output| output.name == names::OUTPUT_IDS)
        .and_then(|at| response.raw_output_contents.get(at))
        .map_or(0, |data| data.len() as u64 / size_of::<i32>() as u64)
}

fn is_final(response: &ModelInferResponse) -> bool {
    response
        .parameters
        .get(names::FINAL_RESPONSE)
        .is_some_and(|value| value.parameter_choice == Some(ParameterChoice::BoolParam(true)))
}

#[cfg(test)]
mod tests {
    use inflight_kserve::tensor::ResponseBuilder;

    use super::*;

    #[test]
    fn tokens_are_ids_not_messages() {
        let mut out = ResponseBuilder::new("m", "1", 0);
        out.push("sequence_length", &[1, 1], &[3])
            .push("output_ids", &[1, 1, 3], &[7, 8, 9]);
        out.bool_parameter(names::FINAL_RESPONSE, true);
        let response = out.build();
        assert_eq!((token_count(&response), is_final(&response)), (3, true));

        let empty = ResponseBuilder::new("m", "1", 0).build();
        assert_eq!((token_count(&empty), is_final(&empty)), (0, false));
    }
}
