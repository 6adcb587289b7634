//! Speculative decoding of `tensorrt_llm_bls` between two workers: asks the draft worker and this one's core model in
//! turn. What is asked, and what the answers mean, is `text_models::speculation`'s.

use std::net::SocketAddr;
use std::sync::Arc;

use inflight_base::error_chain;
use inflight_kserve::client::{self, ConnectError, TransportOptions};
use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use tokio::sync::Semaphore;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Shared;
use super::plain::infer_plain;
use crate::request::Incoming;
use crate::shared_memory::Placements;
use crate::text_models::{Speculation, TextAnswer};
use crate::trace::RequestTrace;

/// Requests in rounds at once; each waits for one worker or the other.
const AT_ONCE: usize = 256;

/// The worker whose core model guesses.
#[derive(Clone, Debug)]
pub(crate) struct DraftWorker {
    address: String,
    client: GrpcInferenceServiceClient<Channel>,
    places: Arc<Semaphore>,
}

impl DraftWorker {
    /// Connects when it is first asked, and again whenever it must.
    ///
    /// # Errors
    /// An invalid address.
    pub(crate) fn new(address: &str, max_message_bytes: usize) -> Result<Self, ConnectError> {
        let options = TransportOptions {
            max_message_bytes,
            ..TransportOptions::default()
        };
        let channel = client::Target::new(address, &options)?.connect_lazy();
        Ok(Self {
            address: address.to_owned(),
            client: client::inference_client(channel, &options),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }
}

/// A request in rounds, and the text that its answer becomes.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) speculation: Speculation,
    pub(crate) answer: TextAnswer,
    pub(crate) placements: Option<Placements>,
    pub(crate) trace: Option<Arc<RequestTrace>>,
}

/// Runs a request to its end. Dropping it cancels what is being asked.
pub(super) async fn run(
    shared: &Arc<Shared>,
    rounds: Rounds,
    peer: Option<SocketAddr>,
) -> Result<ModelInferResponse, Status> {
    let Some(draft) = &shared.draft else {
        return Err(Status::internal("there is no draft worker"));
    };
    let _place = draft.places.try_acquire().map_err(|_| {
        Status::resource_exhausted(format!(
            "`{AT_ONCE}` requests are decoded speculatively already; retry later"
        ))
    })?;
    let Rounds {
        mut speculation,
        mut answer,
        placements,
        trace,
    } = rounds;
    let malformed = |error: &dyn std::error::Error| Status::internal(error.to_string());
    // Its rounds at the core model are stopped there.
    let series = shared.engine.begin_series(speculation.id(), peer);
    while !series.is_stopped() {
        if let Some(request) = speculation.draft() {
            let mut client = draft.client.clone();
            let guessed = tokio::select! {
                biased;
                guessed = client.model_infer(request) => guessed,
                () = series.stopped() => break,
            };
            let guessed = guessed.map_err(|status| {
                Status::new(
                    match status.code() {
                        Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted => {
                            status.code()
                        }
                        _ => Code::Unavailable,
                    },
                    format!(
                        "the draft worker `{}` returned no tokens: {}",
                        draft.address,
                        error_chain(&status)
                    ),
                )
            })?;
            speculation
                .take_drafts(&guessed.into_inner())
                .map_err(|error| malformed(&error))?;
        }
        let mut plain = match shared.parse(&speculation.target())? {
            Incoming::Plain(plain) => *plain,
            _ => return Err(Status::internal("a round made no request of tokens")),
        };
        plain.trace.clone_from(&trace);
        let response = infer_plain(shared, plain, peer).await?;
        if speculation
            .advance(response)
            .map_err(|error| malformed(&error))?
        {
            break;
        }
    }
    let text = answer
        .push(&speculation.answer())
        .map_err(|error| malformed(&error))?;
    let mut text = text.unwrap_or_default();
    if let Some(placements) = placements {
        placements.place(&mut text)?;
    }
    Ok(text)
}
