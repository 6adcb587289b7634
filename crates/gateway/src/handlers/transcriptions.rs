//! `/v1/audio/transcriptions` and `/v1/audio/translations`: a form becomes samples and the tokens that a transcript begins
//! with, and what is heard an answer. The calls between are `hearing`'s.

mod events;
mod form;
mod hearing;
mod window;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderValue, header};
use inflight_audio::RATE;
use inflight_clients::admission::{INLINE_BYTES, Work};
use inflight_models::capability::{Capability, lacks};
use inflight_models::served::ServedModel;
use inflight_openai::ApiError;
use inflight_openai::transcription::{
    Language, Task, Transcript, TranscriptFormat, TranscriptionRequest,
};
use inflight_text::Scope;
use inflight_text::{TextModel, Transcribing};
use tokio::time::Instant;

pub use self::form::check_form;
use self::hearing::Hearing;
use super::asking::Asking;
use super::generate;
use super::locate::{Located, locate_or_only};
use super::{answering, prompt};
use crate::error::HttpError;
use crate::middleware::Timing;
use crate::state::AppState;

/// Of a client's prompt, the latest tokens that are used: half of what a model has room for, as OpenAI's own code.
const fn most_before(context: usize) -> usize {
    (context / 2).saturating_sub(1)
}

/// A clip, and the model that hears it.
#[derive(Debug)]
struct PreparedClip {
    request: TranscriptionRequest,
    task: Task,
    samples: Arc<[f32]>,
    name: String,
    /// What calls name the model by.
    model: String,
    text: Arc<TextModel>,
    marks: Transcribing,
    /// Of the client's prompt.
    before: Vec<i32>,
    /// Tokens that a sequence has at most, its prompt among them.
    context: usize,
}

impl PreparedClip {
    /// The samples of a window.
    fn window(&self) -> usize {
        (self.marks.window_s() * f64::from(RATE)) as usize
    }
}

/// `POST /v1/audio/transcriptions`.
pub(crate) async fn create_transcription(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    Ok(answer(&state, request, Task::Transcribe).await?)
}

/// `POST /v1/audio/translations`.
pub(crate) async fn create_translation(
    State(state): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, HttpError> {
    Ok(answer(&state, request, Task::Translate).await?)
}

async fn answer(state: &Arc<AppState>, request: Request, task: Task) -> Result<Response, ApiError> {
    let boundary = form::boundary(request.headers());
    let received = generate::receive(state, request).await?;
    let boundary = boundary?;
    let prepare = move |state: &Asking<'_>, body: &[u8]| prepare(state, body, boundary, task);
    // Decoding and resampling is more than reading: never where streams are served.
    let received = received.at_least(INLINE_BYTES + 1);
    let (prepared, arrival) = received.work(state, Work::Computes, prepare).await?;
    let (format, stream) = (prepared.request.format, prepared.request.stream);
    let mut hearing = Hearing::new(state, prepared, arrival)?;
    let sent = Instant::now();
    // The status of a stream is sent with its first window, so that an earlier failure has its own.
    let first = hearing.next_window().await?;
    let upstream = sent.elapsed();
    let (mut response, first_token) = match stream {
        true => (events::response(hearing, first), Some(upstream)),
        false => {
            while hearing.next_window().await?.is_some() {}
            (written(hearing.transcript(), format)?, None)
        }
    };
    response.extensions_mut().insert(Timing {
        upstream: sent.elapsed(),
        first_token,
    });
    Ok(response)
}

fn written(transcript: Transcript, format: TranscriptFormat) -> Result<Response, ApiError> {
    let (content_type, text) = match format {
        TranscriptFormat::Json => return answering::json(&transcript.json()),
        TranscriptFormat::VerboseJson => return answering::json(&transcript.verbose_json()),
        TranscriptFormat::Text => ("text/plain; charset=utf-8", transcript.text + "\n"),
        TranscriptFormat::Srt => ("text/plain; charset=utf-8", transcript.srt()),
        TranscriptFormat::Vtt => ("text/vtt; charset=utf-8", transcript.vtt()),
    };
    let mut response = Response::new(Body::from(text));
    let content_type = HeaderValue::from_static(content_type);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

fn prepare(
    state: &AppState,
    body: &[u8],
    boundary: String,
    task: Task,
) -> Result<PreparedClip, ApiError> {
    let (mut request, file) = form::read(body, boundary, task)?;
    let Located {
        entry,
        served,
        adapter,
    } = locate_or_only(state, &mut request.model)?;
    if let Some(reason) = lacks(&served, Capability::Transcription) {
        return Err(ApiError::no_transcription(&request.model, &reason));
    }
    if adapter.is_some() {
        let reason = "does not support adapters";
        return Err(ApiError::no_transcription(&request.model, reason));
    }
    let text = served.text.as_ref();
    let marks = text.and_then(|text| text.transcribing());
    let (Some(text), Some(marks)) = (text, marks) else {
        let reason = "needs a tokenizer with Whisper's tokens, which this model does not have";
        return Err(ApiError::no_transcription(&request.model, reason));
    };
    check_language(text, marks, &request, task)?;
    let context = served.context().unwrap_or(0);
    let before = before(&served, text, marks, request.prompt.as_deref(), context)?;
    let started = Instant::now();
    let samples = inflight_audio::decode(&file)
        .map_err(|error| ApiError::invalid_request("file", format!("The file {error}.")))?;
    tracing::debug!(
        samples = samples.len(),
        decode_ms = started.elapsed().as_millis(),
        "decoded"
    );
    // Each worker's own model has this name among the models of all.
    let model = format!("{}:{}", entry.name, served.description.core_model_name);
    Ok(PreparedClip {
        task,
        samples: samples.into(),
        name: entry.name.clone(),
        model,
        text: Arc::clone(text),
        marks: marks.clone(),
        before,
        context,
        request,
    })
}

/// A model of one language writes that one.
fn check_language(
    text: &TextModel,
    marks: &Transcribing,
    request: &TranscriptionRequest,
    task: Task,
) -> Result<(), ApiError> {
    let is_several = marks.transcribe.is_some();
    if task == Task::Translate && marks.translate.is_none() {
        return Err(ApiError::invalid_request(
            "model",
            "The model writes only the language that it hears. Name a model that translates.",
        ));
    }
    let Some(language) = request.language else {
        return Ok(());
    };
    let is_known = match is_several {
        true => text.tokenizer().token_id(&token_of(language)).is_some(),
        false => language == Language::ENGLISH,
    };
    if is_known {
        return Ok(());
    }
    let code = language.code();
    let message =
        format!("The model does not write `{code}`. Leave `language` out, or name another model.");
    Err(ApiError::invalid_request("language", message))
}

fn token_of(language: Language) -> String {
    format!("<|{}|>", language.code())
}

/// What comes before a transcript: the mark, and the end of the client's prompt.
fn before(
    served: &ServedModel,
    text: &TextModel,
    marks: &Transcribing,
    given: Option<&str>,
    context: usize,
) -> Result<Vec<i32>, ApiError> {
    let (Some(given), Some(mark)) = (given, marks.before) else {
        return Ok(Vec::new());
    };
    // A space before it, as in what the model reads otherwise.
    let given = format!(" {}", given.trim());
    let tokens = prompt::tokenize(served, text, "prompt", &given, false, Scope::default())?;
    let tokens = tokens.into_iter().filter(|token| marks.is_text(*token));
    let mut tokens: Vec<i32> = tokens.map(|token| token as i32).collect();
    let kept = tokens.len().saturating_sub(most_before(context));
    tokens.drain(..kept);
    tokens.insert(0, mark as i32);
    Ok(tokens)
}
