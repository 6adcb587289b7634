//! Requests of the text models: tokenized here, answered at once or by the core model.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use tonic::{Code, Status};

use super::Shared;
use super::plain::infer_plain;
use super::refusal::Refusal;
use super::speculative::{self, Rounds};
use crate::catalog::{INLINE_BYTES, Known};
use crate::model_counters::Ended;
use crate::outbox::Outbox;
use crate::request::{self, Incoming, Plain};
use crate::response;
use crate::shared_memory;
use crate::text_models::{Generation, TextModelKind, TextWork, llmapi};
use crate::text_stream::TextStream;
use crate::trace::RequestTrace;

/// What a request became.
enum Work {
    Answer(ModelInferResponse),
    Plain(Box<Plain>),
    Rounds(Box<Rounds>),
}

impl Shared {
    /// Handles one request of a stream for a text model. The stream's next request is read afterwards, which
    /// bounds what waits to be tokenized.
    pub(super) async fn receive_text(
        self: &Arc<Self>,
        kind: TextModelKind,
        message: ModelInferRequest,
        outbox: &Arc<Outbox>,
        peer: Option<SocketAddr>,
        trace: Option<Arc<RequestTrace>>,
    ) {
        let id = message.id.clone();
        let refusal = match self.text_work(kind, message).await {
            Ok(Work::Answer(answer)) => {
                let mut answer = answer;
                answer
                    .parameters
                    .extend(response::empty(self.name_of(kind), &id, true).parameters);
                return outbox.reply(response::message(answer));
            }
            Ok(Work::Plain(mut plain)) => {
                plain.trace = trace;
                match self.start_plain(outbox, peer, *plain) {
                    Ok(()) => return,
                    Err(refusal) => refusal,
                }
            }
            Ok(Work::Rounds(mut rounds)) => {
                rounds.trace = trace;
                // In a separate task, so that the stream's next requests are read meanwhile.
                outbox.hold();
                let (shared, outbox) = (Arc::clone(self), Arc::clone(outbox));
                tokio::spawn(async move {
                    tokio::select! {
                        answer = shared.run_rounds(*rounds, peer) => match answer {
                            Ok(answer) => outbox.reply(response::message(answer)),
                            Err(status) => {
                                let name = shared.name_of(kind);
                                shared.fail(&outbox, name, &id, status.into());
                            }
                        },
                        () = outbox.closed() => {}
                    }
                    outbox.release();
                });
                return;
            }
            Err(refusal) => {
                if let Some(trace) = trace {
                    trace.failed(refusal.code);
                }
                refusal
            }
        };
        self.fail(outbox, self.name_of(kind), &id, refusal);
    }

    fn name_of(&self, kind: TextModelKind) -> &str {
        self.catalog.name(Known::Text(kind))
    }

    async fn text_work(
        &self,
        kind: TextModelKind,
        message: ModelInferRequest,
    ) -> Result<Work, Refusal> {
        let received = Instant::now();
        let work = self.prepare_text(kind, message, received).await;
        if let Some(counters) = self.catalog.counters(kind) {
            match &work {
                Err(_) => counters.count(Ended::Failed, received.elapsed()),
                Ok(Work::Answer(_)) => counters.count(Ended::Succeeded, received.elapsed()),
                // Counted at its end.
                Ok(Work::Plain(_) | Work::Rounds(_)) => {}
            }
        }
        work
    }

    async fn prepare_text(
        &self,
        kind: TextModelKind,
        message: ModelInferRequest,
        received: Instant,
    ) -> Result<Work, Refusal> {
        self.catalog
            .find(&message.model_name, &message.model_version)
            .map_err(|text| refusal(Code::NotFound, text))?;
        let models = self
            .catalog
            .loaded()
            .map_err(|text| refusal(Code::Unavailable, text))?;
        let (message, placements) = if shared_memory::is_used(&message) {
            let (message, placements) = self.common.regions.resolve(&message)?;
            (message, Some(placements))
        } else {
            (message, None)
        };
        let adapter = self.adapter_of(kind, &message).await?;
        let work = match self.catalog.tokenizing().filter(|_| is_long(&message)) {
            None => models.work(kind, &message, adapter),
            Some(places) => {
                let place = places.acquire_owned().await;
                let made = inflight_base::blocking::run(move || {
                    let made = models.work(kind, &message, adapter);
                    drop(place);
                    made
                });
                made.await
                    .map_err(|_| refusal(Code::Internal, "the tokenizer failed".to_owned()))?
            }
        };
        match work.map_err(|error| refusal(error.code(), error.to_string()))? {
            TextWork::Answer(mut answer) => {
                if let Some(placements) = placements {
                    placements.place(&mut answer)?;
                }
                Ok(Work::Answer(answer))
            }
            TextWork::Speculation(speculation, answer) => Ok(Work::Rounds(Box::new(Rounds {
                speculation: *speculation,
                answer: *answer,
                placements,
                trace: None,
            }))),
            TextWork::Generation(generation) => {
                self.plain_of(kind, *generation, received).map(|mut plain| {
                    plain.answer.placements = placements;
                    Work::Plain(Box::new(plain))
                })
            }
        }
    }

    /// The task id of the adapter that a request asks for by its files, which are read if they are new.
    async fn adapter_of(
        &self,
        kind: TextModelKind,
        message: &ModelInferRequest,
    ) -> Result<Option<u64>, Refusal> {
        if kind != TextModelKind::LlmApi {
            return Ok(None);
        }
        let asked = llmapi::asked_adapter(message);
        let asked = asked.map_err(|error| refusal(error.code(), error.to_string()))?;
        let Some(asked) = asked else { return Ok(None) };
        let Some(adapters) = &self.adapters else {
            let text = format!(
                "`{}` is for the first model of a worker; send the request without it",
                names::LORA_PATH
            );
            return Err(refusal(Code::Unimplemented, text));
        };
        Ok(Some(adapters.require(asked.name, asked.path).await?))
    }

    /// A request in rounds, counted at its end.
    async fn run_rounds(
        self: &Arc<Self>,
        rounds: Rounds,
        peer: Option<SocketAddr>,
    ) -> Result<ModelInferResponse, Status> {
        let received = Instant::now();
        let answer = speculative::run(self, rounds, peer).await;
        if let Some(counters) = self.catalog.counters(TextModelKind::Bls) {
            let ended = if answer.is_ok() {
                Ended::Succeeded
            } else {
                Ended::Failed
            };
            counters.count(ended, received.elapsed());
        }
        answer
    }

    /// The core model's request, whose answers become text.
    fn plain_of(
        &self,
        kind: TextModelKind,
        generation: Generation,
        received: Instant,
    ) -> Result<Plain, Refusal> {
        let Generation {
            request, answer, ..
        } = generation;
        let parsed = request::parse(&request, &self.limits)
            .map_err(|error| refusal(error.code(), error.to_string()))?;
        let counters = self.catalog.counters(kind).map(Arc::clone);
        match parsed {
            Incoming::Plain(mut plain) => {
                let counters = counters.unwrap_or_default();
                plain.answer.text = Some(TextStream::new(answer, counters, received));
                Ok(*plain)
            }
            // No text model has the tensors for these.
            _ => Err(refusal(
                Code::Internal,
                format!("`{}` made no request of tokens", self.name_of(kind)),
            )),
        }
    }
}

/// ModelInfer of a text model.
pub(super) async fn infer(
    shared: &Arc<Shared>,
    kind: TextModelKind,
    message: ModelInferRequest,
    peer: Option<SocketAddr>,
    trace: Option<Arc<RequestTrace>>,
) -> Result<ModelInferResponse, Status> {
    let work = shared.text_work(kind, message).await;
    let work = work.inspect_err(|refusal| {
        if let Some(trace) = &trace {
            trace.failed(refusal.code);
        }
    });
    match work? {
        Work::Answer(answer) => Ok(answer),
        Work::Plain(mut plain) => {
            plain.trace = trace;
            infer_plain(shared, *plain, peer).await
        }
        Work::Rounds(mut rounds) => {
            rounds.trace = trace;
            shared.run_rounds(*rounds, peer).await
        }
    }
}

/// Whether tokenizing would delay the streams of others.
fn is_long(message: &ModelInferRequest) -> bool {
    let raw: usize = message.raw_input_contents.iter().map(|raw| raw.len()).sum();
    let typed = message
        .inputs
        .iter()
        .filter_map(|input| input.contents.as_ref())
        .flat_map(|contents| &contents.bytes_contents)
        .map(|bytes| bytes.len())
        .sum::<usize>();
    raw + typed > INLINE_BYTES
}

fn refusal(code: Code, text: String) -> Refusal {
    Refusal {
        code,
        text,
        retry_after_ms: 0,
    }
}
