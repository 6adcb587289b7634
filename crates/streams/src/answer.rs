//! An answer that is more than text: reasoning, content and tool calls, event by event. Owns the ids of calls, how
//! many events are kept apart, the count of reasoning tokens, and which answers fail (502) since a call is broken or
//! was demanded and is missing; how a model writes each is `inflight-parsers`'.
//!
//! Only choices of requests with tools, and of models that reason, have one.

mod custom;
mod demand;

use std::sync::Arc;

use custom::CustomInput;
use demand::malformed_call;
pub use demand::{BegunCall, CallDemand};
use inflight_openai::{ApiError, FinishReason};
use inflight_parsers::{
    AnswerParser, CallIdForm, Delta, Deltas, Format, ParserOptions, ToolFormat,
};

use super::choice::MAX_PIECES;

/// How the choices of a request are read.
#[derive(Debug)]
pub struct AnswerOptions {
    pub format: Format,
    pub parser: ParserOptions,
    /// The format's markers that are special tokens of the model, and would be skipped.
    pub markers: Arc<[u32]>,
    /// Whether the answer leaves the reasoning out.
    pub hides_reasoning: bool,
    /// Whether the first call ends the choice.
    pub single_call: bool,
    /// What the request demands of the calls.
    pub demand: Option<CallDemand>,
}

impl AnswerOptions {
    fn begun(&self) -> Option<&BegunCall> {
        self.demand.as_ref()?.begun.as_ref()
    }

    /// The form of the calls' ids that the model's template expects.
    fn id_form(&self) -> CallIdForm {
        let tools = self.format.tools;
        tools.map_or(CallIdForm::Any, ToolFormat::call_id_form)
    }
}

/// What a choice has reported since its last clear, as a stream has it: one event for each token that brought
/// something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    /// A call has its id here, whatever the format.
    pub(crate) delta: Delta<'a>,
    /// Whether the call is one of a custom tool, whose arguments are a text.
    pub(crate) is_custom: bool,
    /// Among the released log probabilities.
    pub(crate) log_probs_end: usize,
    /// Among the generated tokens.
    pub(crate) tokens_end: usize,
}

/// The state of one choice's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    options: Arc<AnswerOptions>,
    /// Whether a grammar ends the answer, and with it a call that the prompt has begun.
    is_guided: bool,
    parser: AnswerParser,
    /// Of one push.
    fresh: Deltas,
    /// The text of all events, one after another.
    text: String,
    entries: Vec<Entry>,
    is_reasoning: bool,
    /// Tokens that have been read.
    tokens: usize,
    reasoning_tokens: u64,
    complete_calls: usize,
    incomplete_calls: usize,
    last_call: LastCall,
    /// The text next to the calls, where that is checked.
    content: String,
    failure: Option<ApiError>,
}

/// The call that came last, as far as something is demanded of it.
#[derive(Debug, Default)]
struct LastCall {
    name: String,
    arguments: String,
    /// Where it is one of a custom tool.
    custom: Option<CustomInput>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    text_end: usize,
    log_probs_end: usize,
    tokens_end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// The text is the id, of this length, and the name.
    Begin {
        index: usize,
        id_length: usize,
        is_custom: bool,
    },
    Arguments {
        index: usize,
        is_custom: bool,
    },
    End {
        index: usize,
        is_complete: bool,
    },
}

impl Kind {
    /// Whether two of it in a row may be one.
    fn joins(self) -> bool {
        matches!(
            self,
            Self::Reasoning | Self::Content | Self::Arguments { .. }
        )
    }
}

impl Answer {
    /// An answer of which there is nothing yet.
    pub(crate) fn new(options: &Arc<AnswerOptions>, is_guided: bool) -> Self {
        let mut answer = Self {
            options: Arc::clone(options),
            is_guided,
            parser: AnswerParser::new(options.format, options.parser.clone()),
            fresh: Deltas::default(),
            text: String::new(),
            entries: Vec::new(),
            is_reasoning: options.parser.is_reasoning_open,
            tokens: 0,
            reasoning_tokens: 0,
            complete_calls: 0,
            incomplete_calls: 0,
            last_call: LastCall::default(),
            content: String::new(),
            failure: None,
        };
        if let Some(call) = options.begun() {
            answer.read(&call.prefix, 0, 0);
        }
        answer
    }

    /// Whether the token is one of the format's markers, even where it ends a sequence.
    pub(super) fn reads(&self, token: i32) -> bool {
        u32::try_from(token).is_ok_and(|token| self.options.markers.contains(&token))
    }

    /// Takes text that stop strings let through. Returns whether this ends the choice; see
    /// [`Answer::finish`] for why.
    pub(super) fn read(&mut self, text: &str, log_probs_end: usize, tokens_end: usize) -> bool {
        let was_reasoning = self.is_reasoning;
        self.parser.push(text, &mut self.fresh);
        self.record(log_probs_end, tokens_end, true);
        if was_reasoning || self.is_reasoning {
            self.reasoning_tokens += tokens_end.saturating_sub(self.tokens) as u64;
        }
        self.tokens = tokens_end.max(self.tokens);
        self.failure.is_some() || self.options.single_call && self.complete_calls > 0
    }

    /// Ends the answer, which ended for `reason` as text; `by_itself`: not by a stop string.
    ///
    /// # Errors
    /// 502: the calls are not what the request demands.
    pub(super) fn finish(
        &mut self,
        reason: FinishReason,
        by_itself: bool,
        log_probs_end: usize,
        tokens_end: usize,
    ) -> Result<FinishReason, ApiError> {
        let ended_by_model = reason == FinishReason::Stop && by_itself;
        if let Some(call) = self.options.begun()
            && ended_by_model
            && self.is_guided
        {
            self.parser.push(call.suffix, &mut self.fresh);
        }
        match ended_by_model {
            true => self.parser.finish(&mut self.fresh),
            // The model would have continued: a call goes out as far as it came.
            false => self.parser.cut(&mut self.fresh),
        }
        self.record(log_probs_end, tokens_end, ended_by_model);
        let reported = self.entries.last().map_or(0, |entry| entry.log_probs_end);
        if reported < log_probs_end {
            // Log probabilities of what brought no event.
            self.put(Kind::Content, log_probs_end, tokens_end);
        }
        let calls = self.complete_calls > 0 && self.incomplete_calls == 0;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if ended_by_model && let Some(demand) = &self.options.demand {
            demand.end(self.complete_calls, self.incomplete_calls, &self.content)?;
        }
        Ok(match reason {
            FinishReason::Stop if calls => FinishReason::ToolCalls,
            other => other,
        })
    }

    /// Tokens up to where the answer itself begins.
    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.reasoning_tokens
    }

    /// The events since the last clear.
    pub(super) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let text = self.text.get(start..entry.text_end).unwrap_or_default();
            start = entry.text_end;
            let is_custom = matches!(
                entry.kind,
                Kind::Begin { is_custom, .. } | Kind::Arguments { is_custom, .. } if is_custom
            );
            let delta = match entry.kind {
                Kind::Reasoning => Delta::Reasoning(text),
                Kind::Content => Delta::Content(text),
                Kind::Begin {
                    index, id_length, ..
                } => {
                    let (id, name) = text.split_at_checked(id_length).unwrap_or(("", text));
                    let id = Some(id);
                    Delta::CallBegin { index, id, name }
                }
                Kind::Arguments { index, .. } => Delta::CallArguments { index, json: text },
                Kind::End { index, is_complete } => Delta::CallEnd { index, is_complete },
            };
            Event {
                delta,
                is_custom,
                log_probs_end: entry.log_probs_end,
                tokens_end: entry.tokens_end,
            }
        })
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// Makes events of what a push found. `ended_by_model`: the model itself ended what ends here.
    fn record(&mut self, log_probs_end: usize, tokens_end: usize, ended_by_model: bool) {
        let fresh = std::mem::take(&mut self.fresh);
        let options = Arc::clone(&self.options);
        let demand = options.demand.as_ref();
        for delta in fresh.iter() {
            let kind = match delta {
                Delta::Reasoning(text) => {
                    self.is_reasoning = true;
                    if self.options.hides_reasoning {
                        continue;
                    }
                    self.text.push_str(text);
                    Kind::Reasoning
                }
                Delta::Content(text) => {
                    self.is_reasoning = false;
                    self.text.push_str(text);
                    if demand.is_some_and(CallDemand::reads_content) {
                        self.content.push_str(text);
                    }
                    Kind::Content
                }
                Delta::CallBegin { index, id, name } => {
                    self.is_reasoning = false;
                    let before = self.text.len();
                    match id {
                        Some(id) => self.text.push_str(id),
                        None => {
                            let id = self.options.id_form().random(rand::random());
                            self.text.push_str(&id.unwrap_or_else(call_id));
                        }
                    }
                    let id_length = self.text.len() - before;
                    if let Some(demand) = demand {
                        let call = &mut self.last_call;
                        call.name.clear();
                        call.name.push_str(name);
                        call.arguments.clear();
                        call.custom = demand.custom_input(name);
                    }
                    self.text.push_str(name);
                    Kind::Begin {
                        index,
                        id_length,
                        is_custom: self.last_call.custom.is_some(),
                    }
                }
                Delta::CallArguments { index, json } => {
                    let before = self.text.len();
                    let call = &mut self.last_call;
                    let is_custom = call.custom.is_some();
                    if let Some(custom) = &mut call.custom {
                        if let Err(violation) = custom.push(json, &mut self.text) {
                            let name = &call.name;
                            self.failure.get_or_insert_with(|| violation.error(name));
                        }
                    } else {
                        self.text.push_str(json);
                        if demand.is_some() {
                            call.arguments.push_str(json);
                        }
                    }
                    if is_custom && self.text.len() == before {
                        // What is around the text.
                        continue;
                    }
                    Kind::Arguments { index, is_custom }
                }
                Delta::CallEnd { index, is_complete } => {
                    match is_complete {
                        true => {
                            self.complete_calls += 1;
                            self.check_call();
                        }
                        false => {
                            self.incomplete_calls += 1;
                            if ended_by_model {
                                self.failure.get_or_insert_with(malformed_call);
                            }
                        }
                    }
                    Kind::End { index, is_complete }
                }
            };
            self.put(kind, log_probs_end, tokens_end);
        }
        self.fresh = fresh;
        self.fresh.clear();
    }

    /// Checks the call that has ended; the first violation counts.
    fn check_call(&mut self) {
        if let Some(demand) = &self.options.demand
            && self.failure.is_none()
        {
            let call = &mut self.last_call;
            self.failure = match &mut call.custom {
                Some(custom) => custom.end().err().map(|broken| broken.error(&call.name)),
                None => demand.call(&call.name, &call.arguments).err(),
            };
        }
    }

    /// Ends an event here. A client that is far behind gets the rest of a kind in one.
    fn put(&mut self, kind: Kind, log_probs_end: usize, tokens_end: usize) {
        let is_behind = self.entries.len() >= MAX_PIECES;
        let last = self.entries.last().map(|entry| entry.kind);
        if is_behind && kind.joins() && last == Some(kind) {
            self.entries.pop();
        }
        self.entries.push(Entry {
            kind,
            text_end: self.text.len(),
            log_probs_end,
            tokens_end,
        });
    }
}

/// A new id of a call, in OpenAI's form.
fn call_id() -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut left = rand::random::<u128>();
    let mut id = String::with_capacity(29);
    id.push_str("call_");
    for _ in 0..20 {
        id.push(char::from(LETTERS[(left % 62) as usize]));
        left /= 62;
    }
    id
}
