//! Where the state machines put what they found. Owns the rules that all formats share: which white space is
//! formatting, what an undecided or broken call becomes, the numbers of calls and the bound on them.

use std::sync::Arc;

use crate::deltas::Deltas;
use crate::marker::{Found, find};
use crate::tools::Tools;
use crate::{MAX_SPACE, MAX_UNDECIDED, is_space, skip_space};

/// The part of the sink that lives as long as the answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerState {
    tools: Option<Arc<Tools>>,
    max_calls: usize,
    edge: Edge,
    /// White space that waits to know whether it is formatting.
    space: String,
    /// What was read of a call that has not begun yet.
    undecided: String,
    /// Whether reasoning continues unless a call begins.
    attempt: Attempt,
    calls: usize,
    is_call_open: bool,
    /// Whether calls are held until they are whole.
    holds_calls: bool,
    /// Whether an open call goes out as far as it came.
    is_cut: bool,
    /// The open call, where it is withheld.
    withheld: Option<Box<WithheldCall>>,
    /// The text of a held call that turned out malformed; the present step's text is still missing.
    broken: Option<String>,
    /// Whether what is held follows a whole call and belongs to it.
    is_behind_call: bool,
    has_content: bool,
    has_reasoning: bool,
    /// What closes the answer, if a tag opened it.
    wrapper: Option<&'static [&'static str]>,
    /// Content that may be the start of what closes the answer.
    closing: String,
}

/// What was written last, which decides what white space means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// Nothing yet.
    Start,
    /// Reasoning started, and only white space came.
    ReasoningStart,
    Reasoning,
    /// A run of white space within reasoning that is too long to be formatting.
    ReasoningSpace,
    /// Reasoning ended.
    ReasoningEnd,
    Content,
    /// Content ended, and other content may follow.
    ContentEnd,
    Call,
}

/// What became of a mark within reasoning that may start a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// There is none, or a call has begun, which ended the reasoning.
    None,
    /// Not decided.
    Open,
    /// No call came.
    Failed,
}

/// A call that is withheld until it is whole, and what there was before it.
#[derive(Clone, Debug)]
struct WithheldCall {
    id: Option<String>,
    name: String,
    arguments: String,
    /// All of the call as the model wrote it.
    text: String,
    edge: Edge,
    space: String,
}

impl AnswerState {
    pub(crate) fn new(tools: Option<Arc<Tools>>, max_calls: usize, holds_calls: bool) -> Self {
        Self {
            tools,
            max_calls,
            edge: Edge::Start,
            space: String::new(),
            undecided: String::new(),
            attempt: Attempt::None,
            calls: 0,
            is_call_open: false,
            holds_calls,
            is_cut: false,
            withheld: None,
            broken: None,
            is_behind_call: false,
            has_content: false,
            has_reasoning: false,
            wrapper: None,
            closing: String::new(),
        }
    }
}

impl AnswerState {
    /// The answer is cut: an open call goes out as far as it came, even if it is held.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }
}

/// An answer and the events of the present push.
pub(crate) struct Sink<'a> {
    answer: &'a mut AnswerState,
    out: &'a mut Deltas,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(answer: &'a mut AnswerState, out: &'a mut Deltas) -> Self {
        Self { answer, out }
    }

    /// The request's tools, if they are known.
    pub(crate) fn tools(&self) -> Option<&Arc<Tools>> {
        self.answer.tools.as_ref()
    }

    /// Adds content.
    pub(crate) fn content(&mut self, text: &str) {
        if self.answer.attempt != Attempt::None {
            return self.reasoning(text);
        }
        let Some(close) = self.answer.wrapper else {
            return self.write_content(text);
        };
        let mut held = std::mem::take(&mut self.answer.closing);
        held.push_str(text);
        match find(&held, close) {
            Found::Nowhere => self.write_content(&held),
            Found::Partial { at } => {
                self.write_content(crate::split(&held, at).0);
                held.drain(..at);
                self.answer.closing = held;
            }
            Found::Whole { at, marker } => {
                let length = close.get(marker).map_or(0, |close| close.len());
                self.answer.wrapper = None;
                self.write_content(crate::split(&held, at).0);
                self.write_content(crate::split(&held, at + length).1);
            }
        }
    }

    /// What follows is between tags: the closing one of these is not content.
    pub(crate) fn wrap_answer(&mut self, close: &'static [&'static str]) {
        self.answer.wrapper = Some(close);
    }

    /// Writes what could have been the start of what closes the answer.
    fn flush(&mut self) {
        let held = std::mem::take(&mut self.answer.closing);
        self.write_content(&held);
    }

    fn write_content(&mut self, text: &str) {
        let answer = &mut *self.answer;
        if answer.edge == Edge::Content {
            return self.out.content(text);
        }
        let rest = skip_space(text);
        if matches!(answer.edge, Edge::ReasoningEnd | Edge::ContentEnd) {
            if !rest.is_empty() {
                if answer.edge == Edge::ContentEnd {
                    self.out.content("\n");
                }
                self.out.content(rest);
                answer.edge = Edge::Content;
                answer.has_content = true;
            }
            return;
        }
        if rest.is_empty() && answer.space.len() + text.len() <= MAX_SPACE {
            answer.space.push_str(text);
            return;
        }
        self.out.content(&answer.space);
        self.out.content(text);
        answer.space.clear();
        answer.edge = Edge::Content;
        answer.has_content = true;
    }

    /// Separates what follows from earlier content, if there is any, by a line end.
    pub(crate) fn break_content(&mut self) {
        if self.answer.has_content {
            self.answer.edge = Edge::ContentEnd;
        }
    }

    /// Starts reasoning; white space before it was formatting. A line end separates it from earlier reasoning.
    pub(crate) fn begin_reasoning(&mut self) {
        self.answer.space.clear();
        self.answer.edge = Edge::ReasoningStart;
    }

    /// Adds reasoning.
    pub(crate) fn reasoning(&mut self, text: &str) {
        let answer = &mut *self.answer;
        let body = text.trim_end_matches(is_space);
        let space = text.get(body.len()..).unwrap_or_default();
        if !body.is_empty() {
            if answer.edge == Edge::ReasoningStart {
                if std::mem::replace(&mut answer.has_reasoning, true) {
                    self.out.reasoning("\n");
                }
                self.out.reasoning(skip_space(body));
            } else {
                self.out.reasoning(&answer.space);
                self.out.reasoning(body);
            }
            answer.space.clear();
            answer.edge = Edge::Reasoning;
        }
        match answer.edge {
            Edge::Reasoning if answer.space.len() + space.len() <= MAX_SPACE => {
                answer.space.push_str(space);
            }
            Edge::Reasoning | Edge::ReasoningSpace => {
                self.out.reasoning(&answer.space);
                self.out.reasoning(space);
                answer.space.clear();
                answer.edge = Edge::ReasoningSpace;
            }
            _ => {}
        }
    }

    /// Ends the reasoning; white space before and behind this is formatting.
    pub(crate) fn end_reasoning(&mut self) {
        self.answer.space.clear();
        self.answer.edge = Edge::ReasoningEnd;
    }

    /// From here on the text is read for a call, and is reasoning unless one begins.
    pub(crate) fn begin_attempt(&mut self) {
        self.answer.attempt = Attempt::Open;
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.answer.attempt
    }

    /// The text is read for reasoning again.
    pub(crate) fn end_attempt(&mut self) {
        self.answer.attempt = Attempt::None;
    }

    /// Keeps a marker, a name or a header of a call that has not begun; these are short.
    pub(crate) fn keep_undecided_token(&mut self, token: &str) {
        self.answer.undecided.push_str(token);
        self.answer.is_behind_call = false;
    }

    /// Keeps what was read of a call that has not begun, or of what is between calls.
    ///
    /// # Errors
    ///
    /// How many bytes of the text still fit within the bound, and were kept.
    pub(crate) fn keep_undecided(&mut self, text: &str) -> Result<(), usize> {
        let room = MAX_UNDECIDED.saturating_sub(self.answer.undecided.len());
        let (kept, rest) = crate::split_near(text, room);
        self.answer.undecided.push_str(kept);
        if rest.is_empty() {
            Ok(())
        } else {
            Err(kept.len())
        }
    }

    /// Forgets what was held: it belonged to the call before, which ends here with all that belongs to it.
    pub(crate) fn forget(&mut self) {
        self.answer.undecided.clear();
        self.answer.is_behind_call = false;
    }

    /// Ends what is malformed here: an open call is over, and what was held is content.
    pub(crate) fn give_up(&mut self) {
        self.end(false);
        self.answer.is_behind_call = false;
        let held = std::mem::take(&mut self.answer.undecided);
        self.content(&held);
        self.answer.undecided = held;
        self.answer.undecided.clear();
        if self.answer.attempt == Attempt::Open {
            self.answer.attempt = Attempt::Failed;
        }
    }

    /// Ends a step that read this text. It belongs to a held call if one is open, or if one broke within it.
    pub(crate) fn settle(&mut self, step: &str) {
        if let Some(mut text) = self.answer.broken.take() {
            text.push_str(step);
            self.content(&text);
        } else if let Some(held) = &mut self.answer.withheld {
            held.text.push_str(step);
        }
    }

    /// Whether a call of this name may begin.
    pub(crate) fn may_call(&self, name: &str) -> bool {
        !name.is_empty()
            && name.len() <= crate::MAX_NAME
            && self.answer.calls < self.answer.max_calls
            && match &self.answer.tools {
                Some(tools) => tools.contains(name),
                None => name.chars().all(is_name_character),
            }
    }

    /// Begins a call; what was held was part of it, and so is what this step reads. An open call ends first.
    pub(crate) fn begin(&mut self, id: Option<&str>, name: &str) {
        self.end(false);
        self.flush();
        if self.answer.attempt != Attempt::None {
            self.answer.attempt = Attempt::None;
            self.end_reasoning();
        }
        let answer = &mut *self.answer;
        if answer.holds_calls {
            answer.withheld = Some(Box::new(WithheldCall {
                id: id.map(str::to_owned),
                name: name.to_owned(),
                arguments: String::new(),
                text: std::mem::take(&mut answer.undecided),
                edge: answer.edge,
                space: std::mem::take(&mut answer.space),
            }));
        } else {
            self.out.begin(answer.calls, id, name);
        }
        answer.space.clear();
        answer.undecided.clear();
        answer.edge = Edge::Call;
        answer.is_call_open = true;
        answer.calls += 1;
    }

    /// Adds to the arguments of the open call.
    pub(crate) fn arguments(&mut self, json: &str) {
        if let Some(held) = &mut self.answer.withheld {
            held.arguments.push_str(json);
        } else if self.answer.is_call_open {
            self.out.arguments(self.answer.calls - 1, json);
        }
    }

    /// Ends the open call, if there is one.
    pub(crate) fn end(&mut self, is_complete: bool) {
        let answer = &mut *self.answer;
        if !std::mem::take(&mut answer.is_call_open) {
            return;
        }
        answer.is_behind_call = is_complete;
        match answer.withheld.take() {
            Some(held) if !is_complete && !answer.is_cut => {
                // It was never a call.
                answer.calls -= 1;
                answer.space = held.space;
                if answer.edge != Edge::ContentEnd {
                    answer.edge = held.edge;
                }
                answer.broken = Some(held.text);
                return;
            }
            Some(held) => {
                let index = answer.calls - 1;
                self.out.begin(index, held.id.as_deref(), &held.name);
                self.out.arguments(index, &held.arguments);
            }
            None => {}
        }
        self.out.end(answer.calls - 1, is_complete);
    }

    /// Whether a whole call came last, and what may still belong to it has not all come.
    pub(crate) fn is_behind_call(&self) -> bool {
        self.answer.is_behind_call
    }

    pub(crate) fn is_call_open(&self) -> bool {
        self.answer.is_call_open
    }

    /// Ends the answer: white space that waits is formatting only behind a call.
    pub(crate) fn finish(&mut self) {
        self.flush();
        let space = std::mem::take(&mut self.answer.space);
        match self.answer.edge {
            Edge::Start | Edge::Content => self.out.content(&space),
            Edge::Reasoning => self.out.reasoning(&space),
            _ => {}
        }
    }
}

/// What a function's name may be made of, where the tools are not known.
pub(crate) fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/')
}
