//! One stream of a client of Triton's, with any number of requests. Each is sent separately, so that the requests
//! of one client are spread as well; their responses come in the order in which they are made. Dropping the answers
//! stops the work on all of them.

use std::sync::Arc;

use futures_util::StreamExt;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use inflight_kserve::names;
use inflight_kserve::streamed::{EncodedResponse, SentResponse, StreamedResponse};
use inflight_upstream::delivery::CallContext;
use inflight_upstream::survival::Report;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::LetIn;
use crate::state::AppState;

/// The method.
const MANY: &str = "ModelStreamInfer";
/// Responses of all requests that may wait for the client.
const WAITING: usize = 64;

type StreamResult = Result<SentResponse, Status>;
/// The responses of a stream's requests.
pub(super) type Responses = ReceiverStream<StreamResult>;

/// Reads requests until the client ends its side, and answers each.
pub(super) fn open(
    state: &Arc<AppState>,
    let_in: LetIn,
    incoming: Streaming<ModelInferRequest>,
) -> Responses {
    let (sender, answers) = mpsc::channel(WAITING);
    let reading = read(Arc::clone(state), let_in, incoming, sender.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = reading => {}
            // The client has gone; with the reading, all its requests end.
            () = sender.closed() => {}
        }
    });
    ReceiverStream::new(answers)
}

async fn read(
    state: Arc<AppState>,
    let_in: LetIn,
    mut incoming: Streaming<ModelInferRequest>,
    sender: mpsc::Sender<StreamResult>,
) {
    let mut requests = JoinSet::new();
    loop {
        let message = tokio::select! {
            biased;
            Some(_) = requests.join_next(), if !requests.is_empty() => continue,
            message = incoming.message() => message,
        };
        match message {
            Ok(Some(message)) => {
                let (id, model) = (message.id.clone(), message.model_name.clone());
                let mut context = match let_in.for_message(&state, MANY).work(&state, &model) {
                    Ok(context) => context,
                    Err(refused) => {
                        let _ = sender.send(Ok(failed(id, model, &refused).into())).await;
                        continue;
                    }
                };
                // Here, so that what stops it finds it even if it comes at once.
                state.forward.make_stoppable(&message, &mut context);
                let answering = answer(Arc::clone(&state), context, message, sender.clone());
                requests.spawn(answering);
            }
            Ok(None) => break,
            // Nothing after it can be read.
            Err(status) => {
                let _ = sender.send(Err(status)).await;
                return;
            }
        }
    }
    while requests.join_next().await.is_some() {}
}

/// Passes a request on, and its responses back.
async fn answer(
    state: Arc<AppState>,
    context: CallContext,
    message: ModelInferRequest,
    sender: mpsc::Sender<StreamResult>,
) {
    let (id, model) = (message.id.clone(), message.model_name.clone());
    let trace = context.trace.clone();
    let started = state.forward.stream(message, context);
    let mut responses = match started.await {
        Ok(responses) => responses,
        Err(status) => {
            trace.code(status.code());
            let _ = sender.send(Ok(failed(id, model, &status).into())).await;
            return;
        }
    };
    while let Some(response) = responses.next().await {
        let sent = response.and_then(|response| match responses.report() {
            None => Ok(response.into()),
            Some(report) => noted(response, report),
        });
        let sent = sent.unwrap_or_else(|status| failed(id.clone(), model.clone(), &status).into());
        if sender.send(Ok(sent)).await.is_err() {
            return;
        }
    }
}

/// Says in the last response that the request continued at other servers.
fn noted(response: EncodedResponse, report: Report) -> Result<SentResponse, Status> {
    if !response.view()?.is_final() {
        return Ok(response.into());
    }
    let mut message = response.decode()?;
    if let Some(response) = &mut message.infer_response {
        let choice = ParameterChoice::StringParam(report.to_string());
        let parameter = InferParameter {
            parameter_choice: Some(choice),
        };
        let name = names::RESUMED.to_owned();
        response.parameters.insert(name, parameter);
    }
    Ok(message.into())
}

/// A request's error, as Triton reports it in a stream, together with its code.
fn failed(id: String, model: String, status: &Status) -> ModelStreamInferResponse {
    let parameter = |choice| InferParameter {
        parameter_choice: Some(choice),
    };
    let code = ParameterChoice::Int64Param(i64::from(i32::from(status.code())));
    ModelStreamInferResponse {
        error_message: status.message().to_owned(),
        infer_response: Some(ModelInferResponse {
            model_name: model,
            id,
            parameters: [
                (names::ERROR_CODE.to_owned(), parameter(code)),
                (
                    names::FINAL_RESPONSE.to_owned(),
                    parameter(ParameterChoice::BoolParam(true)),
                ),
            ]
            .into(),
            ..ModelInferResponse::default()
        }),
    }
}
