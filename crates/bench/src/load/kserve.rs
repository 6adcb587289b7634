//! The KServe clients: one call per request as any KServe client makes, or all requests on one
//! step-batching stream as the gateway makes them. One thread; the connection settings are those of
//! the gateway.

mod request;
mod step;

pub(super) use request::RequestStreams;
pub(super) use step::StepStreams;

use inflight_kserve::client::{self, TransportOptions};
use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use inflight_kserve::tensor::RequestBuilder;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

use super::{LoadError, Target, Workload};

type Client = GrpcInferenceServiceClient<Channel>;

/// A token id that every vocabulary has and none ends with.
const PROMPT_TOKEN: i32 = 5;

fn runtime() -> Result<Runtime, LoadError> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

async fn connect(target: &Target) -> Result<Client, LoadError> {
    let options = TransportOptions::default();
    let channel = client::connect(&target.address, &options).await?;
    Ok(client::inference_client(channel, &options))
}

/// The request of a stream, without what distinguishes it from the others: so many tokens, and no end token
/// that could stop it early.
#[derive(Clone, Debug)]
struct Template {
    model: String,
    prompt: Vec<i32>,
    tokens: u32,
}

impl Template {
    fn new(target: &Target, workload: &Workload) -> Self {
        Self {
            model: target.model.clone(),
            prompt: vec![PROMPT_TOKEN; workload.prompt_tokens as usize],
            tokens: workload.tokens,
        }
    }

    fn build(&self, id: String, finish: impl FnOnce(&mut RequestBuilder)) -> ModelInferRequest {
        let limit = i32::try_from(self.tokens).unwrap_or(i32::MAX);
        let length = i32::try_from(self.prompt.len()).unwrap_or(i32::MAX);
        let mut request = RequestBuilder::new(self.model.as_str(), id, 4 * self.prompt.len() + 32);
        request
            .vector("input_ids", &self.prompt)
            .scalar("input_lengths", length)
            .scalar("request_output_len", limit)
            .scalar("streaming", true);
        finish(&mut request);
        request.build()
    }
}
