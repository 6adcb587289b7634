//! What of an answer has been read: its text, its usage, and how it ended. Knows the answers of each API; what they should
//! be is the oracle's.

use std::time::Duration;

use inflight_testkit::sse::SseReader;
use serde_json::Value;

use crate::oracle::{Answer, End, Usage};
use crate::question::{ChoiceEnd, Question, Surface};

pub(super) struct Read {
    surface: Surface,
    texts: Vec<String>,
    /// Why each choice must end, in the words of its API.
    expected: Vec<&'static str>,
    finished: Vec<Option<String>>,
    usage: Option<Usage>,
    events: SseReader,
    taken: usize,
    is_done: bool,
    error: Option<String>,
    pub(super) was_resumed: bool,
    /// When it was asked for, and when something was read of it.
    times: Vec<Duration>,
}

impl Read {
    pub(super) fn new(question: &Question, now: Duration) -> Self {
        let choices = 0..question.all_choices();
        let expected =
            choices
                .clone()
                .map(|choice| match (question.surface, question.end(choice)) {
                    (Surface::Messages, ChoiceEnd::Stop) => "stop_sequence",
                    (Surface::Messages, ChoiceEnd::Own) => "end_turn",
                    (Surface::Messages, ChoiceEnd::Length) => "max_tokens",
                    (_, ChoiceEnd::Length) => "length",
                    (_, ChoiceEnd::Stop | ChoiceEnd::Own) => "stop",
                });
        Self {
            surface: question.surface,
            texts: vec![String::new(); choices.len()],
            expected: expected.collect(),
            finished: vec![None; choices.len()],
            usage: None,
            events: SseReader::default(),
            taken: 0,
            is_done: false,
            error: None,
            was_resumed: false,
            times: vec![now],
        }
    }

    pub(super) fn note_time(&mut self, now: Duration) {
        self.times.push(now);
    }

    pub(super) fn answer(mut self, end: End, now: Duration) -> Answer {
        self.times.push(now);
        Answer {
            texts: self.texts,
            end,
            usage: self.usage,
            was_resumed: self.was_resumed,
            times: self.times,
        }
    }

    pub(super) fn take_stream(&mut self, data: &[u8]) {
        self.events.push(data);
        let events = self.events.events()[self.taken..].to_vec();
        self.taken += events.len();
        for event in events {
            if event == "[DONE]" {
                self.is_done = true;
                continue;
            }
            let event: Value = serde_json::from_str(&event).unwrap_or_default();
            if event.get("error").is_some() {
                self.error = Some(message(&event));
            }
            match self.surface {
                Surface::Chat | Surface::Completion => self.take_choices(&event, "delta"),
                Surface::Messages => self.take_message_event(&event),
                Surface::Generate | Surface::Grpc => self.take_outputs(&event),
            }
        }
    }

    fn take_choices(&mut self, value: &Value, part: &str) {
        for choice in value["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or_default() as usize;
            let text = match self.surface {
                Surface::Chat => choice[part]["content"].as_str(),
                _ => choice["text"].as_str(),
            };
            self.text(index).push_str(text.unwrap_or_default());
            if let Some(reason) = choice["finish_reason"].as_str() {
                self.finished[index] = Some(reason.to_owned());
            }
        }
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            let tokens = |name| usage[name].as_u64().unwrap_or(u64::MAX);
            let cached = &usage["prompt_tokens_details"]["cached_tokens"];
            self.usage = Some(Usage {
                prompt: tokens("prompt_tokens"),
                completion: tokens("completion_tokens"),
                cached: cached.as_u64().unwrap_or(0),
            });
        }
    }

    /// Anthropic's events have types.
    fn take_message_event(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("content_block_delta") => {
                let text = event["delta"]["text"].as_str().unwrap_or_default();
                self.text(0).push_str(text);
            }
            Some("message_delta") => {
                let reason = event["delta"]["stop_reason"].as_str();
                self.finished[0] = reason.map(str::to_owned);
                self.take_message_usage(&event["usage"]);
            }
            Some("message_stop" | "error") => self.is_done = true,
            _ => {}
        }
    }

    fn take_message_usage(&mut self, usage: &Value) {
        let tokens = |name| usage[name].as_u64();
        let cached = tokens("cache_read_input_tokens").unwrap_or(0);
        self.usage = Some(Usage {
            prompt: tokens("input_tokens")
                .unwrap_or(u64::MAX)
                .saturating_add(cached),
            completion: tokens("output_tokens").unwrap_or(u64::MAX),
            cached,
        });
    }

    fn take_outputs(&mut self, event: &Value) {
        let sequence = event["sequence_index"].as_u64().unwrap_or(0) as usize;
        let ids = &event["output_ids"];
        let tokens = match ids.as_array() {
            Some(tokens) => tokens.iter().filter_map(Value::as_i64).collect(),
            None => ids.as_i64().into_iter().collect::<Vec<_>>(),
        };
        self.take_tokens(sequence, tokens.into_iter());
    }

    /// The model's tokens are bytes.
    pub(super) fn take_tokens(&mut self, sequence: usize, tokens: impl Iterator<Item = i64>) {
        let letters = tokens.map(|token| u8::try_from(token).map_or('\u{fffd}', char::from));
        self.text(sequence).extend(letters);
    }

    fn text(&mut self, choice: usize) -> &mut String {
        if self.texts.len() <= choice {
            self.texts.resize(choice + 1, String::new());
            self.finished.resize(choice + 1, None);
        }
        &mut self.texts[choice]
    }

    pub(super) fn end_of_stream(&self) -> End {
        // `generate_stream` has no mark for its end.
        let is_marked = self.is_done || self.surface == Surface::Generate;
        if let Some(text) = &self.error {
            return match is_marked {
                true => End::Error {
                    status: None,
                    text: text.clone(),
                },
                false => End::Unfinished("an error without an end".to_owned()),
            };
        }
        match is_marked && self.is_finished() {
            true => End::Whole,
            false => End::Unfinished(format!(
                "end: {}, finished: {:?}, and it should be {:?}",
                self.is_done, self.finished, self.expected
            )),
        }
    }

    fn is_finished(&self) -> bool {
        let mut ends = self.finished.iter().zip(&self.expected);
        self.surface == Surface::Generate
            || ends.all(|(finished, expected)| finished.as_deref() == Some(*expected))
    }

    pub(super) fn take_whole(&mut self, whole: &[u8]) -> End {
        let value: Value = serde_json::from_slice(whole).unwrap_or_default();
        match self.surface {
            Surface::Chat | Surface::Completion => self.take_choices(&value, "message"),
            Surface::Messages => {
                for block in value["content"].as_array().into_iter().flatten() {
                    let text = block["text"].as_str().unwrap_or_default();
                    self.text(0).push_str(text);
                }
                self.finished[0] = value["stop_reason"].as_str().map(str::to_owned);
                self.take_message_usage(&value["usage"]);
            }
            Surface::Generate | Surface::Grpc => self.take_outputs(&value),
        }
        match self.is_finished() {
            true => End::Whole,
            false => End::Unfinished(String::from_utf8_lossy(whole).into_owned()),
        }
    }
}

/// What an error says: an object, or Triton's text.
pub(super) fn message(value: &Value) -> String {
    let error = &value["error"];
    let text = error.as_str().or_else(|| error["message"].as_str());
    text.unwrap_or_default().to_owned()
}
