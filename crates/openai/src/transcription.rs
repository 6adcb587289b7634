//! The request and the answer of `/v1/audio/transcriptions` and `/v1/audio/translations`. Owns the form's fields and the
//! answer's forms; knows nothing of files, models and tokens.

mod language;

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

pub use self::language::Language;
use crate::error::ApiError;
use crate::words::shortened;

/// What becomes of the clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Written down in its language.
    Transcribe,
    /// Written down in English.
    Translate,
}

impl Task {
    /// As `verbose_json` and the model's tokens have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// `response_format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TranscriptFormat {
    #[default]
    Json,
    Text,
    VerboseJson,
    Srt,
    Vtt,
}

const FORMATS: [(&str, TranscriptFormat); 5] = [
    ("json", TranscriptFormat::Json),
    ("text", TranscriptFormat::Text),
    ("verbose_json", TranscriptFormat::VerboseJson),
    ("srt", TranscriptFormat::Srt),
    ("vtt", TranscriptFormat::Vtt),
];

impl TranscriptFormat {
    /// All of them, as requests have them.
    pub fn names() -> [&'static str; 5] {
        FORMATS.map(|(name, _)| name)
    }
}

/// Fields that would change the answer, and what to do.
const REFUSED: [(&str, &str); 5] = [
    ("include[]", "Log probabilities are not reported."),
    ("include", "Log probabilities are not reported."),
    (
        "chunking_strategy",
        "Long clips are cut by the model's own timestamps.",
    ),
    ("known_speaker_names[]", "Speakers are not distinguished."),
    (
        "known_speaker_references[]",
        "Speakers are not distinguished.",
    ),
];

/// What the form says besides the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranscriptionRequest {
    /// Empty: the only one that is served.
    pub model: String,
    /// `None`: the model is asked.
    pub language: Option<Language>,
    /// What the transcript is written in the style of.
    pub prompt: Option<String>,
    pub format: TranscriptFormat,
    /// 0: the likeliest tokens.
    pub temperature: f32,
    /// Whether `timestamp_granularities[]` was sent.
    pub segments: bool,
    pub stream: bool,
}

impl TranscriptionRequest {
    /// Takes a field of the form.
    ///
    /// # Errors
    /// 400 for a field that is unknown or not supported, or a value that cannot be.
    pub fn take(&mut self, task: Task, name: &str, text: &str) -> Result<(), ApiError> {
        match name {
            "model" => text.clone_into(&mut self.model),
            "language" if task == Task::Translate => {
                return Err(ApiError::unsupported(
                    "language",
                    "`language` is not a parameter of translations: they are in English. Leave it out.",
                ));
            }
            "language" => {
                let found = Language::of_code(text);
                self.language = Some(found.ok_or_else(|| {
                    bad(
                        name,
                        text,
                        "Send the ISO 639-1 code of a language, such as `en`",
                    )
                })?);
            }
            "prompt" => self.prompt = Some(text.to_owned()).filter(|text| !text.is_empty()),
            "response_format" => {
                let found = FORMATS.iter().find(|(known, _)| *known == text);
                let (_, format) = found.ok_or_else(|| {
                    let known = FORMATS.map(|(known, _)| format!("`{known}`"));
                    bad(name, text, &format!("Send one of {}", known.join(", ")))
                })?;
                self.format = *format;
            }
            "temperature" => {
                let number = text.parse().ok();
                let number = number.filter(|value: &f32| (0.0..=1.0).contains(value));
                self.temperature =
                    number.ok_or_else(|| bad(name, text, "Send a number from 0 to 1"))?;
            }
            "timestamp_granularities[]" | "timestamp_granularities" => match text {
                "segment" => self.segments = true,
                "word" => {
                    return Err(ApiError::unsupported(
                        "timestamp_granularities",
                        "Timestamps of words are not supported. Send `segment`.",
                    ));
                }
                _ => return Err(bad("timestamp_granularities", text, "Send `segment`")),
            },
            "stream" => {
                let stream = match text {
                    "true" => true,
                    "false" => false,
                    _ => return Err(bad(name, text, "Send `true` or `false`")),
                };
                self.stream = stream;
            }
            name => {
                let name = shortened(name);
                let hint = REFUSED.iter().find(|(refused, _)| *refused == name);
                let message = match hint {
                    Some((_, hint)) => format!("`{name}` is not supported: {hint} Leave it out."),
                    None => format!("Unknown parameter: `{name}`."),
                };
                return Err(ApiError::unsupported(name, message));
            }
        }
        Ok(())
    }

    /// Checks what belongs together.
    ///
    /// # Errors
    /// 400 for timestamps in an answer that has none, and for a stream of another form than `json`.
    pub fn check(&self) -> Result<(), ApiError> {
        if self.segments && self.format != TranscriptFormat::VerboseJson {
            return Err(ApiError::invalid_request(
                "timestamp_granularities",
                "`timestamp_granularities` needs `response_format` `verbose_json`. Send both or neither.",
            ));
        }
        if self.stream && self.format != TranscriptFormat::Json {
            return Err(ApiError::invalid_request(
                "stream",
                "A stream has the `response_format` `json`. Leave out one of them.",
            ));
        }
        Ok(())
    }

    /// Whether the answer shows when what is said.
    pub fn wants_times(&self) -> bool {
        !matches!(self.format, TranscriptFormat::Json | TranscriptFormat::Text)
    }
}

fn bad(name: &str, text: &str, hint: &str) -> ApiError {
    let text = shortened(text);
    let message = format!("Invalid value for `{name}`: `{text}`. {hint}.");
    ApiError::invalid_request(name, message)
}

/// What is counted: the clip's length, in whole seconds that were begun.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct DurationUsage {
    #[serde(rename = "type")]
    kind: &'static str,
    seconds: u64,
}

impl DurationUsage {
    /// Of a clip of so many seconds.
    pub fn of(seconds: f64) -> Self {
        Self {
            kind: "duration",
            seconds: seconds.ceil() as u64,
        }
    }
}

/// A part of a transcript, with what is known of it.
#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct TranscriptSegment {
    pub id: usize,
    /// Where the window that it was heard in begins, in hundredths of a second.
    pub seek: u64,
    pub start: f64,
    pub end: f64,
    pub text: String,
    pub tokens: Vec<u32>,
    pub temperature: f32,
    /// Of the tokens of its window.
    pub avg_logprob: f32,
}

/// A whole transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    pub task: Task,
    /// `None`: the model has one.
    pub language: Option<Language>,
    pub seconds: f64,
    pub text: String,
    pub segments: Vec<TranscriptSegment>,
}

/// `response_format` `json`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TranscriptJson {
    text: String,
    usage: DurationUsage,
}

/// An event of a stream: text that was heard since the one before.
#[derive(Clone, Debug, Serialize)]
pub struct TranscriptDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: String,
}

impl TranscriptDelta {
    /// Of a text.
    pub fn of(text: String) -> Self {
        Self {
            kind: "transcript.text.delta",
            delta: text,
        }
    }
}

/// The last event of a stream: all of it.
#[derive(Clone, Debug, Serialize)]
pub struct TranscriptDone {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    whole: TranscriptJson,
}

impl TranscriptDone {
    /// Of a transcript.
    pub fn of(transcript: Transcript) -> Self {
        Self {
            kind: "transcript.text.done",
            whole: transcript.json(),
        }
    }
}

/// `response_format` `verbose_json`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct TranscriptVerboseJson {
    task: &'static str,
    language: &'static str,
    duration: f64,
    text: String,
    segments: Vec<TranscriptSegment>,
    usage: DurationUsage,
}

impl Transcript {
    /// As `json`.
    pub fn json(self) -> TranscriptJson {
        TranscriptJson {
            usage: DurationUsage::of(self.seconds),
            text: self.text,
        }
    }

    /// As `verbose_json`.
    pub fn verbose_json(self) -> TranscriptVerboseJson {
        TranscriptVerboseJson {
            task: self.task.as_str(),
            language: self.language.unwrap_or(Language::ENGLISH).name(),
            duration: self.seconds,
            usage: DurationUsage::of(self.seconds),
            text: self.text,
            segments: self.segments,
        }
    }

    /// As `srt`: SubRip's numbered parts.
    pub fn srt(&self) -> String {
        let mut out = String::new();
        for (number, segment) in (1..).zip(&self.segments) {
            let (start, end) = (clock(segment.start, ','), clock(segment.end, ','));
            let text = segment.text.trim();
            let _ = write!(out, "{number}\n{start} --> {end}\n{text}\n\n");
        }
        out
    }

    /// As `vtt`: WebVTT's parts.
    pub fn vtt(&self) -> String {
        let mut out = String::from("WEBVTT\n\n");
        for segment in &self.segments {
            let (start, end) = (clock(segment.start, '.'), clock(segment.end, '.'));
            // What would end the part or begin another one.
            let text = segment.text.trim().replace("-->", "->");
            let _ = write!(out, "{start} --> {end}\n{text}\n\n");
        }
        out
    }
}

/// Hours, minutes, seconds and milliseconds.
fn clock(seconds: f64, point: char) -> String {
    let all = (seconds * 1000.0).round() as u64;
    let (rest, milliseconds) = (all / 1000, all % 1000);
    format!(
        "{:02}:{:02}:{:02}{point}{milliseconds:03}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(task: Task, fields: &[(&str, &str)]) -> Result<TranscriptionRequest, ApiError> {
        let mut request = TranscriptionRequest::default();
        for (name, text) in fields {
            request.take(task, name, text)?;
        }
        request.check()?;
        Ok(request)
    }

    #[test]
    fn fields_are_read() {
        let read = read(
            Task::Transcribe,
            &[
                ("model", "m"),
                ("language", "de"),
                ("prompt", "Guten Tag"),
                ("response_format", "verbose_json"),
                ("temperature", "0.5"),
                ("timestamp_granularities[]", "segment"),
                ("stream", "false"),
            ],
        )
        .unwrap();
        assert_eq!(read.language.map(Language::name), Some("german"));
        assert_eq!(read.format, TranscriptFormat::VerboseJson);
        assert!((read.temperature - 0.5).abs() < f32::EPSILON && read.wants_times());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (task, fields, param) in [
            (Task::Transcribe, &[("language", "xx")][..], "language"),
            (Task::Translate, &[("language", "de")], "language"),
            (
                Task::Transcribe,
                &[("response_format", "xml")],
                "response_format",
            ),
            (Task::Transcribe, &[("temperature", "2")], "temperature"),
            (Task::Transcribe, &[("temperature", "NaN")], "temperature"),
            (
                Task::Transcribe,
                &[("timestamp_granularities[]", "word")],
                "timestamp_granularities",
            ),
            (
                Task::Transcribe,
                &[("timestamp_granularities[]", "segment")],
                "timestamp_granularities",
            ),
            (Task::Transcribe, &[("stream", "yes")], "stream"),
            (
                Task::Transcribe,
                &[("stream", "true"), ("response_format", "srt")],
                "stream",
            ),
            (
                Task::Transcribe,
                &[("chunking_strategy", "auto")],
                "chunking_strategy",
            ),
            (Task::Transcribe, &[("languge", "de")], "languge"),
        ] {
            let error = read(task, fields).unwrap_err();
            assert_eq!((error.status(), error.param.as_deref()), (400, Some(param)));
        }
    }

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| TranscriptSegment {
            id,
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: vec![1],
            temperature: 0.0,
            avg_logprob: -0.5,
        };
        Transcript {
            task: Task::Transcribe,
            language: Language::of_code("en"),
            seconds: 3661.2,
            text: "One. Two --> three.".to_owned(),
            segments: vec![
                segment(0, 0.0, 1.5, " One."),
                segment(1, 3660.0, 3661.24, " Two --> three."),
            ],
        }
    }

    #[test]
    fn subtitles_have_their_forms() {
        assert_eq!(
            transcript().srt(),
            "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n01:01:00,000 --> 01:01:01,240\nTwo --> three.\n\n"
        );
        assert_eq!(
            transcript().vtt(),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n\
             01:01:00.000 --> 01:01:01.240\nTwo -> three.\n\n"
        );
    }

    #[test]
    fn json_has_the_text_and_what_is_counted() {
        let json = serde_json::to_value(transcript().json()).unwrap();
        let usage = serde_json::json!({"type": "duration", "seconds": 3662});
        assert_eq!(
            json,
            serde_json::json!({"text": "One. Two --> three.", "usage": usage})
        );
        let json = serde_json::to_value(transcript().verbose_json()).unwrap();
        assert_eq!(json["language"], "english");
        assert_eq!(json["segments"][1]["start"], 3660.0);
        assert_eq!(json["usage"], usage);
    }
}
