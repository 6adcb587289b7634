//! The calls of one transcription: the language, then a window after another. Owns their tensors and their order; which
//! worker answers is `upstream`'s, and where a window ends `window`'s.

use std::sync::Arc;

use inflight_audio::RATE;
use inflight_clients::admission::{Admitted, BodyMemory};
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::tensor::{RequestBuilder, Tensors};
use inflight_openai::ApiError;
use inflight_openai::transcription::{Language, Task, Transcript, TranscriptSegment};
use inflight_streams::error::from_worker;
use inflight_upstream::forward::ForwardCall;

use super::super::arrival::Arrival;
use super::window::{Part, cut};
use super::{PreparedClip, token_of};
use crate::state::AppState;

/// The part of a window that the next one is behind it at least.
const LEAST_PART: usize = 30;

/// One request's calls, and what they have given so far.
pub(super) struct Hearing {
    state: Arc<AppState>,
    prepared: PreparedClip,
    call: ForwardCall,
    place: Arc<Admitted>,
    /// Of the samples.
    _held: BodyMemory,
    /// What each window's transcript begins with; empty until the first one.
    start: Vec<i32>,
    language: Option<Language>,
    has_times: bool,
    /// The first sample of the next window.
    begin: usize,
    segments: Vec<TranscriptSegment>,
}

/// What a call gave.
struct Heard {
    tokens: Vec<u32>,
    /// The sum of the tokens' log probabilities.
    log_prob: f32,
}

impl Hearing {
    pub(super) fn new(
        state: &Arc<AppState>,
        prepared: PreparedClip,
        arrival: Arrival,
    ) -> Result<Self, ApiError> {
        let mut held = BodyMemory::of(arrival.client.as_ref());
        let bytes = size_of_val(&*prepared.samples);
        state.admission.hold(&mut held, bytes)?;
        let (context, place) = arrival.call();
        let forward = Arc::clone(&state.forward);
        let is_long = prepared.samples.len() > prepared.window();
        Ok(Self {
            state: Arc::clone(state),
            call: ForwardCall { forward, context },
            place,
            _held: held,
            start: Vec::new(),
            language: None,
            // What is longer than a window is cut where the model says that something ends.
            has_times: prepared.request.wants_times() || is_long,
            begin: 0,
            segments: Vec::new(),
            prepared,
        })
    }

    /// Hears the next window; its text, or `None` after the last one.
    ///
    /// # Errors
    /// What the worker answers.
    pub(super) async fn next_window(&mut self) -> Result<Option<String>, ApiError> {
        let window = self.prepared.window();
        let samples = Arc::clone(&self.prepared.samples);
        let Some(rest) = samples.get(self.begin..).filter(|rest| !rest.is_empty()) else {
            return Ok(None);
        };
        let clip = rest.get(..window).unwrap_or(rest);
        let mut tokens = Vec::new();
        if self.begin == 0 {
            self.language = self.find_language(clip).await?;
            self.start = self.first_tokens();
            tokens.clone_from(&self.prepared.before);
        }
        tokens.extend(&self.start);
        let heard = self.hear(&tokens, clip, None).await?;
        let seconds = clip.len() as f64 / f64::from(RATE);
        let average = heard.log_prob / (heard.tokens.len() + 1) as f32;
        let (parts, next) = match self.has_times {
            true => cut(&heard.tokens, &self.prepared.marks, seconds),
            false => (vec![Part::whole(heard.tokens, seconds)], seconds),
        };
        let mut written = String::new();
        for part in parts {
            let segment = self.segment(part, average)?;
            written.push_str(&segment.text);
            self.segments.push(segment);
        }
        // Onwards, whatever the model writes: a second of thirty, so that a clip has a bound of calls.
        let least = (window / LEAST_PART).clamp(1, clip.len());
        self.begin += ((next * f64::from(RATE)).round() as usize).clamp(least, clip.len());
        Ok(Some(written))
    }

    /// All that was heard.
    pub(super) fn transcript(self) -> Transcript {
        let text: String = self.segments.iter().map(|one| one.text.as_str()).collect();
        Transcript {
            task: self.prepared.task,
            language: self.language,
            seconds: self.prepared.samples.len() as f64 / f64::from(RATE),
            text: text.trim().to_owned(),
            segments: self.segments,
        }
    }

    fn segment(&self, part: Part, average: f32) -> Result<TranscriptSegment, ApiError> {
        let marks = &self.prepared.marks;
        let said = part.tokens.iter().copied();
        let said: Vec<u32> = said.filter(|token| marks.is_text(*token)).collect();
        let text = self.prepared.text.tokenizer().decode(&said, true);
        let text = text.map_err(|error| {
            tracing::error!(%error, "a transcript cannot be written");
            ApiError::internal()
        })?;
        let offset = self.begin as f64 / f64::from(RATE);
        Ok(TranscriptSegment {
            id: self.segments.len(),
            seek: (offset * 100.0).round() as u64,
            start: hundredths(offset + part.start),
            end: hundredths(offset + part.end),
            text,
            tokens: part.tokens,
            temperature: self.prepared.request.temperature,
            avg_logprob: average,
        })
    }

    /// The client's language, or the one that the model hears first.
    async fn find_language(&mut self, first: &[f32]) -> Result<Option<Language>, ApiError> {
        if self.prepared.marks.transcribe.is_none() {
            return Ok(None);
        }
        if self.prepared.request.language.is_some() {
            return Ok(self.prepared.request.language);
        }
        // A worker that is given nothing else answers with a language.
        let start = [self.prepared.marks.start as i32];
        let heard = self.hear(&start, first, Some(1)).await?;
        let token = heard.tokens.first().copied();
        let tokenizer = self.prepared.text.tokenizer();
        let found = Language::all().find(|one| {
            let own = tokenizer.token_id(&token_of(*one));
            own.is_some() && own == token
        });
        found.map(Some).ok_or_else(|| {
            tracing::error!("a worker named no language");
            ApiError::internal()
        })
    }

    fn first_tokens(&self) -> Vec<i32> {
        let marks = &self.prepared.marks;
        let tokenizer = self.prepared.text.tokenizer();
        let language = self.language;
        let language = language.and_then(|language| tokenizer.token_id(&token_of(language)));
        let task = match self.prepared.task {
            Task::Transcribe => marks.transcribe,
            Task::Translate => marks.translate,
        };
        let no_times = (!self.has_times).then_some(marks.no_times);
        let tokens = [Some(marks.start), language, task, no_times];
        tokens
            .into_iter()
            .flatten()
            .map(|token| token as i32)
            .collect()
    }

    async fn hear(
        &self,
        tokens: &[i32],
        clip: &[f32],
        most: Option<usize>,
    ) -> Result<Heard, ApiError> {
        let prepared = &self.prepared;
        let room = prepared.context.saturating_sub(tokens.len());
        let most = most.unwrap_or(room).min(room).max(1);
        let message = infer_request(prepared, tokens, clip, most);
        let answer = self.call.model_infer(tonic::Request::new(message)).await;
        let answer = answer.map_err(|status| from_worker(status.code(), status.message(), 0))?;
        let heard = read(answer.get_ref()).ok_or_else(|| {
            tracing::error!("a worker answered without a transcript");
            ApiError::internal()
        })?;
        let count = tokens.len() as u64;
        let counted = self
            .state
            .metrics
            .streams
            .for_model(&prepared.name)
            .tokens_in;
        counted.inc_by(count);
        self.place.used(count + heard.tokens.len() as u64);
        Ok(heard)
    }
}

/// Times are in steps of two hundredths, and floating-point numbers are not.
fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

fn infer_request(
    prepared: &PreparedClip,
    tokens: &[i32],
    clip: &[f32],
    most: usize,
) -> ModelInferRequest {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let bytes = size_of_val(tokens) + size_of_val(clip) + 256;
    let mut request = RequestBuilder::new(&prepared.model, "", bytes);
    request
        .vector("input_ids", tokens)
        .scalar("input_lengths", number(tokens.len()))
        .scalar("request_output_len", number(most))
        .scalar("end_id", prepared.marks.end as i32)
        .scalar("exclude_input_in_output", true)
        .scalar("return_log_probs", true)
        .vector(names::AUDIO, clip);
    match prepared.request.temperature {
        temperature if temperature > 0.0 => request
            .scalar("temperature", temperature)
            .scalar("runtime_top_k", 0)
            .scalar("runtime_top_p", 1.0_f32)
            .scalar("seed", rand::random::<u64>()),
        _ => request.scalar("runtime_top_k", 1),
    };
    request
        .output(names::OUTPUT_IDS)
        .output("sequence_length")
        .output("cum_log_probs");
    request.build()
}

fn read(answer: &ModelInferResponse) -> Option<Heard> {
    let outputs = Tensors::outputs(answer).ok()?;
    let ids = outputs.values::<i32>(names::OUTPUT_IDS).ok().flatten()?;
    let lengths = outputs.values::<i32>("sequence_length").ok().flatten()?;
    let length = usize::try_from(*lengths.first()?).ok()?;
    let tokens = ids.get(..length)?;
    let tokens = tokens.iter().map(|id| u32::try_from(*id).ok());
    let sums = outputs.values::<f32>("cum_log_probs").ok().flatten();
    let log_prob = sums.and_then(|sums| sums.first().copied()).unwrap_or(0.0);
    Some(Heard {
        tokens: tokens.collect::<Option<Vec<u32>>>()?,
        log_prob,
    })
}
