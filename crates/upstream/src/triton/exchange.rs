//! One request, one stream: how a plain Triton server is asked. Owns the open streams, and that dropping
//! one cancels its work; what the messages say is `answer`'s.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use inflight_kserve::client::InferenceClient;
use inflight_kserve::inference::{ModelInferRequest, ModelStreamInferResponse};
use inflight_models::dialect::TritonModel;
use inflight_models::served::ServedModel;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_stream::Once;
use tonic::{Code, Request, Status};

use super::answer::{Expected, Reader, RepeatedPrompt};
use super::request::{Sequence, triton_request};
use crate::classify::classify;
use crate::connection::Transport;
use crate::handles::Handle;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::prompt_request::PromptRequest;
use crate::pulse::Pulse;
use crate::registry::Registry;
use crate::request_queue::NotSent;
use crate::rpc;
use crate::trace::write_context;

/// The open requests of one model at a server.
#[derive(Debug)]
pub(super) struct Exchanges {
    model: Arc<TritonModel>,
    served: Arc<ServedModel>,
    pool: Arc<Pool>,
    registry: Arc<Registry>,
    pulse: Arc<Pulse>,
    tokens_out: Counter,
    /// By handle; dropping a sender ends its stream.
    open: Arc<Mutex<HashMap<Handle, oneshot::Sender<()>>>>,
}

impl Exchanges {
    /// No request is open yet. Answers go to `registry`'s handles and are signs of life to `pulse`. `served`
    /// describes the same `model`.
    pub(super) fn new(
        model: Arc<TritonModel>,
        served: Arc<ServedModel>,
        pool: Arc<Pool>,
        registry: Arc<Registry>,
        pulse: Arc<Pulse>,
        metrics: &Metrics,
    ) -> Self {
        let tokens_out = metrics.tokens_out(&served.description.served_model_name);
        Self {
            model,
            served,
            pool,
            registry,
            pulse,
            tokens_out,
            open: Arc::default(),
        }
    }

    /// Ends after `timeout` here: Triton's models have no deadlines.
    fn start(
        &self,
        handle: Handle,
        request: Request<Once<ModelInferRequest>>,
        reader: Reader,
        timeout: Option<Duration>,
    ) {
        let client = self.pool.client();
        let (stop, stopped) = oneshot::channel();
        self.open.lock().insert(handle, stop);
        let registry = Arc::clone(&self.registry);
        let pulse = Arc::clone(&self.pulse);
        let tokens_out = self.tokens_out.clone();
        let open = Arc::clone(&self.open);
        tokio::spawn(async move {
            let exchange = Exchange {
                handle,
                registry: &registry,
                pulse: &pulse,
                tokens_out,
                reader,
            };
            let run = async {
                // Dropping what runs resets the stream, which cancels the work.
                let run = exchange.run(client, request);
                match timeout {
                    Some(timeout) => tokio::time::timeout(timeout, run).await.is_err(),
                    None => {
                        run.await;
                        false
                    }
                }
            };
            let is_late = tokio::select! {
                _ = stopped => false,
                is_late = run => is_late,
            };
            if is_late {
                let why = Status::deadline_exceeded("the request's time has run out");
                registry.handles.fail(handle, &why, Instant::now());
            }
            open.lock().remove(&handle);
        });
    }
}

impl Transport for Exchanges {
    /// Needs a tokio runtime.
    fn send(&self, handle: Handle, prompt: &PromptRequest<'_>, choice: u32) -> Result<(), NotSent> {
        let params = prompt.params;
        let sequence = Sequence {
            // Each choice draws differently, and again the same for the same seed.
            seed: params.seed.wrapping_add(u64::from(choice)),
            request_id: &format!("{}-{:x}", prompt.request_id, handle.number()),
            vocabulary: self.served.description.vocab_size,
        };
        let request = triton_request(&self.model, prompt, sequence);
        let text = self.served.text.as_ref();
        // Streamed answers never repeat it.
        let repeats = self.model.repeats_prompt && !self.model.decoupled;
        let expected = Expected {
            limit: params.max_tokens,
            end_ids: params.end_ids(),
            streaming: params.streaming,
            log_probs: params.log_probs.is_some(),
            tokenizer: text.map(|text| Arc::clone(text.tokenizer())),
            repeated: repeats.then(|| RepeatedPrompt {
                tokens: prompt.tokens.into(),
                text: prompt.text.to_owned(),
            }),
            prompt_tokens: !prompt.is_counted && choice == 0,
        };
        let reader = Reader::new(Arc::clone(&self.model), expected);
        let mut request = Request::new(tokio_stream::once(request));
        if let Some(trace) = prompt.trace {
            // Where Triton itself looks for it.
            write_context(trace, request.metadata_mut());
        }
        self.start(handle, request, reader, prompt.timeout);
        Ok(())
    }

    fn stop(&self, handle: Handle) {
        self.open.lock().remove(&handle);
    }

    fn close(&self) {
        self.open.lock().clear();
    }
}

struct Exchange<'a> {
    handle: Handle,
    registry: &'a Registry,
    pulse: &'a Pulse,
    tokens_out: Counter,
    reader: Reader,
}

impl Exchange<'_> {
    async fn run(mut self, mut client: InferenceClient, request: Request<Once<ModelInferRequest>>) {
        let opened = client.model_stream_infer(request).await;
        let mut stream = match opened {
            Ok(stream) => stream.into_inner(),
            Err(status) => return self.fail(rpc::lost_code(&status), &status.to_string()),
        };
        loop {
            match stream.message().await {
                Ok(Some(message)) => {
                    self.pulse.hear();
                    if self.take(message) {
                        break;
                    }
                }
                Ok(None) => {
                    return self.fail(
                        Code::Unavailable,
                        "the stream ended before its last response",
                    );
                }
                Err(status) => return self.fail(rpc::lost_code(&status), &status.to_string()),
            }
        }
        rpc::read_to_end(stream).await;
    }

    /// Passes a response on; true when it was the last.
    fn take(&mut self, message: ModelStreamInferResponse) -> bool {
        if !message.error_message.is_empty() {
            let (code, text) = classify(&message.error_message);
            self.fail(code, text);
            return true;
        }
        let Some(response) = message.infer_response else {
            return false;
        };
        let answer = match self.reader.read(&response) {
            Ok(answer) => answer,
            Err(error) => {
                let text = format!("the server sent an invalid response: {error}");
                self.fail(Code::Internal, &text);
                return true;
            }
        };
        let last = answer.last;
        let delivered = self.registry.deliver(self.handle, answer, Instant::now());
        self.tokens_out.inc_by(delivered);
        last
    }

    fn fail(&self, code: Code, text: &str) {
        let why = Status::new(code, rpc::abbreviated(text));
        let handles = &self.registry.handles;
        handles.fail(self.handle, &why, Instant::now());
    }
}
