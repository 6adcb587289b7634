//! Calls between tags with attributes: `<invoke name="f"><parameter name="key">value</parameter></invoke>` within an
//! outer tag. MiniMax M2 writes them so; DeepSeek V3.2 and V4 do with `｜DSML｜` in each tag. Which tags is a table.
//!
//! DeepSeek says of each value whether it is a string: `string="true"`, or JSON. The schema counts where it says
//! otherwise. Values are exact. The outer tag may be missing, and so may the tag that closes a parameter, where
//! another parameter of the tool starts or the call closes. DeepSeek may write one JSON object instead of parameters.

use crate::MAX_NAME;
use crate::arguments::{Arguments, Step};
use crate::formats::{Header, before_marker, header_until, space, text_until};
use crate::marker::{Look, look};
use crate::sink::Sink;
use crate::values::{ObjectWriter, ValueWriter};

/// The tags of a format.
#[derive(Debug)]
pub(crate) struct Tags {
    /// What announces a call: the outer tags, the last one being the start of a call without one.
    starts: &'static [&'static str],
    /// The end of a call, then the closing outer tags.
    ends: &'static [&'static str],
    call: &'static str,
    parameter: &'static str,
    /// What ends a value: its closing tag, then what may end it where that is missing. A line end there is
    /// formatting.
    value_ends: [&'static str; 5],
}

pub(crate) const DEEPSEEK: Tags = Tags {
    starts: &[
        "<｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "<｜DSML｜invoke name=",
    ],
    ends: &[
        "</｜DSML｜invoke>",
        "</｜DSML｜function_calls>",
        "</｜DSML｜tool_calls>",
    ],
    call: "<｜DSML｜invoke name=",
    parameter: "<｜DSML｜parameter name=",
    value_ends: [
        "</｜DSML｜parameter>",
        "\n<｜DSML｜parameter name=",
        "<｜DSML｜parameter name=",
        "\n</｜DSML｜invoke>",
        "</｜DSML｜invoke>",
    ],
};

pub(crate) const MINIMAX: Tags = Tags {
    starts: &["<minimax:tool_call>", "<invoke name="],
    ends: &["</invoke>", "</minimax:tool_call>"],
    call: "<invoke name=",
    parameter: "<parameter name=",
    value_ends: [
        "</parameter>",
        "\n<parameter name=",
        "<parameter name=",
        "\n</invoke>",
        "</invoke>",
    ],
};

pub(crate) const DEEPSEEK_SPECIAL: &[&str] = &["｜DSML｜"];
pub(crate) const MINIMAX_SPECIAL: &[&str] = &["<minimax:tool_call>", "</minimax:tool_call>"];

/// What announces calls.
pub(crate) const DEEPSEEK_STARTS: &[&str] = DEEPSEEK.starts;
pub(crate) const MINIMAX_STARTS: &[&str] = MINIMAX.starts;

#[derive(Clone, Debug)]
pub(crate) struct Invoke {
    tags: &'static Tags,
    state: State,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Text,
    /// Behind the outer tag, or behind a call.
    Open {
        is_first: bool,
    },
    Name,
    /// Behind the name: parameters, or an object.
    Body(String),
    Object(Arguments),
    /// Behind an object.
    ObjectEnd,
    /// Between parameters.
    Parameters(ObjectWriter),
    Key(ObjectWriter),
    Value(ObjectWriter, ValueWriter),
    /// Within a value, behind what ends it if the closing tag is missing.
    Doubt(ObjectWriter, ValueWriter, &'static str),
}

impl Invoke {
    pub(crate) fn new(tags: &'static Tags) -> Self {
        Self {
            tags,
            state: State::Text,
        }
    }

    pub(crate) fn take(&mut self, text: &str, sink: &mut Sink<'_>) -> Option<usize> {
        // An empty text decides nothing, and no state may be lost over it.
        if text.is_empty() {
            return None;
        }
        let tags = self.tags;
        match std::mem::take(&mut self.state) {
            State::Text => {
                let (marker, taken) = text_until(text, tags.starts, sink)?;
                if let Some(start) = marker.and_then(|marker| tags.starts.get(marker)) {
                    sink.keep_undecided_token(start);
                    self.state = if *start == tags.call {
                        State::Name
                    } else {
                        State::Open { is_first: true }
                    };
                }
                Some(taken)
            }
            State::Open { is_first } => self.open(text, is_first, sink),
            State::Name => match header_until(text, &[">"], MAX_NAME) {
                Header::More => self.wait(State::Name),
                Header::Whole(header, _, length) => {
                    let (name, _) = attribute(header);
                    if !sink.may_call(name) {
                        return self.leave(0, sink);
                    }
                    sink.keep_undecided_token(crate::split(text, length).0);
                    self.go(State::Body(name.to_owned()), length)
                }
                Header::Bad => self.leave(0, sink),
            },
            State::Body(name) => self.body(text, name, sink),
            State::Object(mut arguments) => match arguments.take(text, sink) {
                Step::More => self.wait(State::Object(arguments)),
                Step::Took(taken) => self.go(State::Object(arguments), taken),
                Step::Done(taken) => self.go(State::ObjectEnd, taken),
                Step::Bad(taken) => self.leave(taken, sink),
            },
            State::ObjectEnd => match self.space(text, sink) {
                Ok(0) => match look(text.as_bytes(), &[tags.call_end()]) {
                    Look::Partial => self.wait(State::ObjectEnd),
                    Look::Whole(_) => {
                        sink.forget();
                        self.go(State::Open { is_first: false }, tags.call_end().len())
                    }
                    // The inner closing tag is missing.
                    Look::Other => self.go(State::Open { is_first: false }, 0),
                },
                Ok(space) => self.go(State::ObjectEnd, space),
                Err(kept) => self.leave(kept, sink),
            },
            State::Parameters(object) => self.parameters(text, object, sink),
            State::Key(mut object) => match header_until(text, &[">"], MAX_NAME) {
                Header::More => self.wait(State::Key(object)),
                Header::Whole(header, _, length) => {
                    let value = start(&mut object, header, sink);
                    self.go(State::Value(object, value), length)
                }
                Header::Bad => self.leave(0, sink),
            },
            State::Value(object, mut value) => {
                let Some((before, end)) = before_marker(text, &tags.value_ends) else {
                    return self.wait(State::Value(object, value));
                };
                value.push(crate::split(text, before).0, sink);
                match end.map(|end| (end, tags.value_ends.get(end).copied().unwrap_or_default())) {
                    Some((0, end)) => {
                        value.end(sink);
                        self.go(State::Parameters(object), before + end.len())
                    }
                    Some((_, end)) => self.go(State::Doubt(object, value, end), before + end.len()),
                    None => self.go(State::Value(object, value), before),
                }
            }
            State::Doubt(object, value, end) => self.doubt(text, object, value, end, sink),
        }
    }

    fn open(&mut self, text: &str, is_first: bool, sink: &mut Sink<'_>) -> Option<usize> {
        let tags = self.tags;
        match self.space(text, sink) {
            Ok(0) => {}
            Ok(space) => return self.go(State::Open { is_first }, space),
            Err(kept) => return self.leave(kept, sink),
        }
        let (call, close) = (
            look(text.as_bytes(), &[tags.call]),
            look(text.as_bytes(), tags.closes()),
        );
        match (call, close) {
            (Look::Whole(_), _) => {
                sink.keep_undecided_token(tags.call);
                self.go(State::Name, tags.call.len())
            }
            (_, Look::Whole(close)) if !is_first => {
                sink.forget();
                let length = tags.closes().get(close).map_or(0, |close| close.len());
                self.go(State::Text, length)
            }
            (Look::Partial, _) | (_, Look::Partial) => self.wait(State::Open { is_first }),
            _ => self.leave(0, sink),
        }
    }

    fn body(&mut self, text: &str, name: String, sink: &mut Sink<'_>) -> Option<usize> {
        match self.space(text, sink) {
            Ok(0) => {}
            Ok(space) => return self.go(State::Body(name), space),
            Err(kept) => return self.leave(kept, sink),
        }
        if text.starts_with('{') {
            sink.begin(None, &name);
            return self.go(State::Object(Arguments::default()), 0);
        }
        let parameter = look(text.as_bytes(), &[self.tags.parameter]);
        match (parameter, look(text.as_bytes(), self.tags.ends)) {
            (Look::Whole(_), _) | (_, Look::Whole(_)) => {
                let object = ObjectWriter::begin(&name, sink);
                self.go(State::Parameters(object), 0)
            }
            (Look::Partial, _) | (_, Look::Partial) => self.wait(State::Body(name)),
            _ => self.leave(0, sink),
        }
    }

    fn parameters(
        &mut self,
        text: &str,
        object: ObjectWriter,
        sink: &mut Sink<'_>,
    ) -> Option<usize> {
        let space = space(text);
        if space > 0 {
            return self.go(State::Parameters(object), space);
        }
        let tags = self.tags;
        let parameter = look(text.as_bytes(), &[tags.parameter]);
        match (parameter, look(text.as_bytes(), tags.ends)) {
            (Look::Whole(_), _) => self.go(State::Key(object), tags.parameter.len()),
            (_, Look::Whole(end)) => {
                object.end(sink);
                // An outer tag closes the inner one, which is missing.
                let length = if end == 0 { tags.call_end().len() } else { 0 };
                self.go(State::Open { is_first: false }, length)
            }
            (Look::Partial, _) | (_, Look::Partial) => self.wait(State::Parameters(object)),
            _ => self.leave(0, sink),
        }
    }

    /// Decides whether a value whose closing tag may be missing has ended.
    fn doubt(
        &mut self,
        text: &str,
        mut object: ObjectWriter,
        mut value: ValueWriter,
        end: &'static str,
        sink: &mut Sink<'_>,
    ) -> Option<usize> {
        let tags = self.tags;
        if end.ends_with(tags.parameter) {
            match header_until(text, &[">"], MAX_NAME) {
                Header::More => return self.wait(State::Doubt(object, value, end)),
                Header::Whole(header, _, length)
                    if object.may_follow(attribute(header).0, end.starts_with('\n'), sink) =>
                {
                    value.end(sink);
                    let value = start(&mut object, header, sink);
                    return self.go(State::Value(object, value), length);
                }
                _ => {}
            }
        } else {
            let rest = crate::skip_space(text);
            let is_near = text.len() - rest.len() <= MAX_NAME;
            let call = look(rest.as_bytes(), &[tags.call]);
            let close = look(rest.as_bytes(), tags.closes());
            match (call, close) {
                (Look::Whole(_), _) | (_, Look::Whole(_)) if is_near => {
                    value.end(sink);
                    object.end(sink);
                    return self.go(State::Open { is_first: false }, 0);
                }
                (Look::Partial, _) | (_, Look::Partial) if is_near => {
                    return self.wait(State::Doubt(object, value, end));
                }
                _ => {}
            }
        }
        value.push(end, sink);
        self.go(State::Value(object, value), 0)
    }

    /// Holds the white space at the start of the text: its length.
    ///
    /// # Errors
    ///
    /// How much was kept, where it does not all fit.
    fn space(&self, text: &str, sink: &mut Sink<'_>) -> Result<usize, usize> {
        let space = space(text);
        sink.keep_undecided(crate::split(text, space).0)?;
        Ok(space)
    }

    fn go(&mut self, state: State, taken: usize) -> Option<usize> {
        self.state = state;
        Some(taken)
    }

    fn wait(&mut self, state: State) -> Option<usize> {
        self.state = state;
        None
    }

    /// What comes is text.
    fn leave(&mut self, taken: usize, sink: &mut Sink<'_>) -> Option<usize> {
        sink.give_up();
        self.go(State::Text, taken)
    }
}

impl Tags {
    fn call_end(&self) -> &'static str {
        self.ends.first().copied().unwrap_or_default()
    }

    /// The outer closing tags.
    fn closes(&self) -> &'static [&'static str] {
        self.ends.get(1..).unwrap_or_default()
    }
}

/// The value of an attribute at the start of a text, with or without quotes, and what follows it.
fn attribute(text: &str) -> (&str, &str) {
    for quote in ['"', '\''] {
        if let Some(text) = text.strip_prefix(quote) {
            return text.split_once(quote).unwrap_or((text, ""));
        }
    }
    text.split_once(crate::is_space).unwrap_or((text, ""))
}

/// Writes the key of a parameter, of which this is the tag's text behind `name=`.
fn start(object: &mut ObjectWriter, header: &str, sink: &mut Sink<'_>) -> ValueWriter {
    let (key, attributes) = attribute(header);
    let value = object.key(key, sink);
    match attributes.trim().strip_prefix("string=").map(attribute) {
        Some(("true", _)) => value.prefer_string(true),
        Some(("false", _)) => value.prefer_string(false),
        _ => value,
    }
}
