//! A request and its answer, which is known before it is asked: the simulated executor's text is a function of the
//! prompt. Knows the JSON of each API, and nothing of connections.

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::tensor::RequestBuilder;
use inflight_testkit::model::END;
use serde_json::{Value, json};

use crate::answer::{first_of, letter, own_end};

/// What clients call the model.
pub(crate) const MODEL: &str = "m";
/// What KServe's clients call it: it takes token ids.
const CORE_MODEL: &str = "tensorrt_llm";

/// Where a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    Chat,
    Completion,
    /// Anthropic's `/v1/messages`.
    Messages,
    /// `/v2/models/MODEL/generate` and `generate_stream`.
    Generate,
    /// KServe's `ModelStreamInfer`, over gRPC.
    Grpc,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) surface: Surface,
    pub(crate) is_streamed: bool,
    /// One prompt, or several of a completion.
    pub(crate) contents: Vec<String>,
    /// Of each prompt.
    pub(crate) choices: u32,
    pub(crate) max_tokens: u32,
    pub(crate) stop: Option<Stop>,
    /// Whether the model may end the answer by itself; the APIs of text always let it.
    pub(crate) may_end: bool,
    /// KServe's level, where it asks for one.
    pub(crate) priority: Option<u32>,
}

/// How a choice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChoiceEnd {
    /// With its last token.
    Length,
    /// With a stop string.
    Stop,
    /// By itself.
    Own,
}

/// A stop string, by where the first choice's answer has its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) at: u32,
    pub(crate) length: u32,
    /// Whether it has one letter more than the answer, so that it never completes.
    pub(crate) is_longer: bool,
}

impl Question {
    /// A small one.
    pub(crate) fn small() -> Self {
        Self {
            surface: Surface::Completion,
            is_streamed: false,
            contents: vec!["a".to_owned()],
            choices: 1,
            max_tokens: 2,
            stop: None,
            may_end: true,
            priority: None,
        }
    }

    pub(crate) fn path(&self) -> String {
        let generate = |what| format!("/v2/models/{CORE_MODEL}/{what}");
        match self.surface {
            Surface::Chat => "/v1/chat/completions".to_owned(),
            Surface::Completion => "/v1/completions".to_owned(),
            Surface::Messages => "/v1/messages".to_owned(),
            Surface::Generate if self.is_streamed => generate("generate_stream"),
            Surface::Generate | Surface::Grpc => generate("generate"),
        }
    }

    pub(crate) fn body(&self) -> Value {
        let content = self.contents.first().cloned().unwrap_or_default();
        let messages = json!([{"role": "user", "content": content}]);
        let mut body = match self.surface {
            Surface::Chat => json!({"messages": messages, "n": self.choices}),
            Surface::Completion if self.contents.len() > 1 => {
                json!({"prompt": self.contents, "n": self.choices})
            }
            Surface::Completion => json!({"prompt": content, "n": self.choices}),
            Surface::Messages => json!({"messages": messages}),
            Surface::Generate | Surface::Grpc => {
                let ids: Vec<u8> = content.bytes().collect();
                let mut body = json!({
                    "input_ids": ids,
                    "input_lengths": ids.len(),
                    "request_output_len": self.max_tokens,
                    "num_return_sequences": self.choices,
                    "exclude_input_in_output": true,
                    "streaming": self.is_streamed,
                });
                if self.may_end {
                    body["end_id"] = json!(END);
                }
                if let Some(level) = self.priority {
                    body["priority"] = json!(level);
                }
                return body;
            }
        };
        body["model"] = json!(MODEL);
        body["max_tokens"] = json!(self.max_tokens);
        let stop = match self.surface {
            Surface::Messages => "stop_sequences",
            _ => "stop",
        };
        if let Some(text) = self.stop_text() {
            body[stop] = json!([text]);
        }
        if self.is_streamed {
            body["stream"] = json!(true);
            if self.surface != Surface::Messages {
                body["stream_options"] = json!({"include_usage": true});
            }
        }
        body
    }

    /// The same as a message of KServe's. `id` is the request's.
    pub(crate) fn message(&self, id: &str) -> ModelInferRequest {
        let content = self.contents.first().cloned().unwrap_or_default();
        let ids: Vec<i32> = content.bytes().map(i32::from).collect();
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let mut message = RequestBuilder::new(CORE_MODEL, id, 64 + 4 * ids.len());
        message.vector("input_ids", &ids);
        message.scalar("input_lengths", number(ids.len() as u32));
        message.scalar("request_output_len", number(self.max_tokens));
        message.scalar("num_return_sequences", number(self.choices));
        message.scalar("exclude_input_in_output", true);
        message.scalar("streaming", self.is_streamed);
        if self.may_end {
            message.scalar("end_id", END);
        }
        message.build()
    }

    /// What the model reads for a choice: a token for each byte.
    fn prompt(&self, choice: u32) -> String {
        let place = choice / self.choices.max(1);
        let content = self.contents.get(place as usize).cloned();
        let content = content.unwrap_or_default();
        match self.surface {
            Surface::Chat | Surface::Messages => format!("user:{content}\nassistant:"),
            _ => content,
        }
    }

    /// Choices of all prompts.
    pub(crate) fn all_choices(&self) -> u32 {
        self.choices * self.contents.len() as u32
    }

    pub(crate) fn prompt_tokens(&self) -> u64 {
        let prompts =
            (0..self.contents.len() as u32).map(|place| self.prompt(place * self.choices));
        prompts.map(|prompt| prompt.len() as u64).sum()
    }

    pub(crate) fn completion_tokens(&self) -> u64 {
        (0..self.all_choices())
            .map(|choice| self.ended(choice).1)
            .sum()
    }

    /// How the choice ends.
    pub(crate) fn end(&self, choice: u32) -> ChoiceEnd {
        self.ended(choice).2
    }

    /// Whether a stop string ends any choice: its worker is asked to stop then.
    pub(crate) fn is_stopped(&self) -> bool {
        (0..self.all_choices()).any(|choice| self.end(choice) == ChoiceEnd::Stop)
    }

    /// The whole text of a choice: printable characters in their order, beginning at one that the prompt decides, up to
    /// a stop string.
    pub(crate) fn answer(&self, choice: u32) -> String {
        self.ended(choice).0
    }

    /// The text of a choice, its tokens, and how it ends.
    fn ended(&self, choice: u32) -> (String, u64, ChoiceEnd) {
        let first = first_of(self.prompt(choice).bytes());
        let own = own_end(first, choice % self.choices.max(1));
        let own = own.filter(|end| self.may_end && *end < self.max_tokens);
        let mut text = self.generated(choice, own.unwrap_or(self.max_tokens));
        let stop = self.stop_text();
        if let Some((start, length)) = stop.and_then(|stop| Some((text.find(&stop)?, stop.len()))) {
            text.truncate(start);
            // The token that completes a stop string counts.
            return (text, (start + length) as u64, ChoiceEnd::Stop);
        }
        let letters = text.len() as u64;
        match own {
            // So does the one that ends it.
            Some(_) => (text, letters + 1, ChoiceEnd::Own),
            None => (text, letters, ChoiceEnd::Length),
        }
    }

    /// What the model says if nothing ends it.
    fn generated(&self, choice: u32, tokens: u32) -> String {
        let first = first_of(self.prompt(choice).bytes());
        let sequence = choice % self.choices.max(1);
        let letters = (0..tokens).map(|index| letter(first, sequence, index));
        letters.collect()
    }

    fn stop_text(&self) -> Option<String> {
        let stop = self.stop?;
        let text = self.generated(0, stop.at.saturating_add(stop.length));
        let mut text = text.get(stop.at as usize..)?.to_owned();
        if stop.is_longer {
            text.push('é');
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_ends_the_choices_that_have_it() {
        let question = |stop| Question {
            choices: 2,
            max_tokens: 9,
            stop,
            may_end: false,
            ..Question::small()
        };
        let whole = question(None);
        let stop = |at, is_longer| {
            Some(Stop {
                at,
                length: 2,
                is_longer,
            })
        };
        let stopped = question(stop(3, false));
        assert_eq!(stopped.answer(0), whole.answer(0)[..3]);
        // The second choice begins one letter later.
        assert_eq!(stopped.answer(1), whole.answer(1)[..2]);
        assert_eq!(stopped.completion_tokens(), 5 + 4);
        let longer = question(stop(7, true));
        assert_eq!(longer.answer(0), whole.answer(0));
        assert!(!longer.is_stopped());
    }
}
