//! A request over KServe's gRPC: one stream, whose requests end with the first, as Triton's clients do it.

use inflight_kserve::client::{TransportOptions, connect, inference_client};
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{ModelInferResponse, ModelStreamInferResponse};
use inflight_kserve::names;
use inflight_kserve::tensor::Tensors;
use tokio::time::sleep;
use tonic::Request;

use super::read::Read;
use super::{Caller, KEY};
use crate::determinism::elapsed;
use crate::history::note;
use crate::network::network;
use crate::oracle::{End, PATIENCE};
use crate::plan::Ask;

pub(super) async fn exchange(caller: &Caller, ask: &Ask, read: &mut Read) -> Result<End, String> {
    let options = TransportOptions {
        connect_timeout: PATIENCE,
        keep_alive_interval: PATIENCE,
        network: Some(network()),
        ..TransportOptions::default()
    };
    let options = TransportOptions {
        stream_window_bytes: ask.window.unwrap_or(options.stream_window_bytes),
        ..options
    };
    let channel = connect(&caller.grpc, &options).await;
    let channel = channel.map_err(|error| format!("cannot connect: {error}"))?;
    let mut client = inference_client(channel, &options);
    let mut message = ask.question.message("mine");
    let last = inflight_kserve::inference::InferParameter {
        parameter_choice: Some(ParameterChoice::BoolParam(true)),
    };
    let name = names::ENABLE_EMPTY_FINAL_RESPONSE.to_owned();
    message.parameters.insert(name, last);
    if let Some(level) = ask.question.priority {
        let level = inflight_kserve::inference::InferParameter {
            parameter_choice: Some(ParameterChoice::Int64Param(level.into())),
        };
        message.parameters.insert(names::PRIORITY.to_owned(), level);
    }
    if let Some(deadline) = ask.deadline {
        let timeout = inflight_kserve::inference::InferParameter {
            parameter_choice: Some(ParameterChoice::Int64Param(deadline.as_micros() as i64)),
        };
        message
            .parameters
            .insert(names::TIMEOUT.to_owned(), timeout);
    }
    let mut request = Request::new(tokio_stream::once(message));
    if caller.has_key {
        let key = format!("Bearer {KEY}").parse();
        let key = key.map_err(|_| "the key is not valid as metadata".to_owned())?;
        request.metadata_mut().insert("authorization", key);
    }
    let called = client.model_stream_infer(request).await;
    let mut responses = match called {
        Ok(called) => called.into_inner(),
        Err(status) => {
            return Ok(End::Error {
                status: Some(http_status(i64::from(i32::from(status.code())))),
                text: status.message().to_owned(),
            });
        }
    };
    let mut is_final = false;
    loop {
        let message = responses.message().await;
        let Some(message) = message.map_err(|status| format!("{status:?}"))? else {
            break;
        };
        read.note_time(elapsed());
        note(&caller.host, "read", format!("{message:?}").as_bytes());
        if !message.error_message.is_empty() {
            return Ok(failed(&message));
        }
        let response = message.infer_response.unwrap_or_default();
        is_final |=
            parameter(&response, names::FINAL_RESPONSE) == Some(&ParameterChoice::BoolParam(true));
        take(&response, read)?;
        if let Some(pause) = ask.reads_every {
            sleep(pause).await;
        }
    }
    Ok(match is_final {
        true => End::Whole,
        false => End::Unfinished("the stream ended before its last response".to_owned()),
    })
}

fn parameter<'a>(response: &'a ModelInferResponse, name: &str) -> Option<&'a ParameterChoice> {
    response.parameters.get(name)?.parameter_choice.as_ref()
}

fn take(response: &ModelInferResponse, read: &mut Read) -> Result<(), String> {
    let outputs = Tensors::outputs(response).map_err(|error| error.to_string())?;
    let values = |name| {
        let values = outputs.values::<i32>(name);
        values
            .map(Option::unwrap_or_default)
            .map_err(|error| error.to_string())
    };
    let sequence = values("sequence_index")?.first().copied().unwrap_or(0);
    let tokens = values("output_ids")?;
    let length = values("sequence_length")?.first().copied();
    let length = length.map_or(tokens.len(), |length| usize::try_from(length).unwrap_or(0));
    read.take_tokens(
        usize::try_from(sequence).unwrap_or(0),
        tokens.into_iter().take(length).map(i64::from),
    );
    Ok(())
}

fn failed(message: &ModelStreamInferResponse) -> End {
    let response = message.infer_response.as_ref();
    let code = response.and_then(|response| parameter(response, names::ERROR_CODE));
    let code = match code {
        Some(ParameterChoice::Int64Param(code)) => *code,
        _ => 2,
    };
    End::Error {
        status: Some(http_status(code)),
        text: message.error_message.clone(),
    }
}

/// The status that says the same over HTTP.
fn http_status(code: i64) -> u16 {
    match code {
        3 | 9 | 11 => 400,
        4 => 504,
        5 => 404,
        8 => 429,
        1 | 10 | 14 => 503,
        _ => 500,
    }
}
