//! What a parser reports: the events of an answer, in a buffer that is reused. Owns how they are stored.

/// One event of an answer. The text belongs to the [`Deltas`] that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// The next piece of reasoning; never empty.
    Reasoning(&'a str),
    /// The next piece of the answer's text; never empty.
    Content(&'a str),
    /// A call starts.
    CallBegin {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// The id that the model wrote, in formats that have one; otherwise the caller makes one.
        id: Option<&'a str>,
        /// The function's name.
        name: &'a str,
    },
    /// The next piece of a call's arguments as JSON; never empty.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// A piece of JSON text.
        json: &'a str,
    },
    /// A call ends. Every call that began ends.
    CallEnd {
        /// Number of the call.
        index: usize,
        /// Whether the arguments are one whole JSON object.
        is_complete: bool,
    },
}

/// The events of one or more pushes, in order. Consecutive pieces of one kind are one event. Clear and reuse it: its
/// memory stays.
#[derive(Clone, Debug, Default)]
pub struct Deltas {
    text: String,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    /// Where this entry's text ends; it starts where the one before ends.
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Content,
    /// The text is the id, of this length if there is one, and the name.
    Begin {
        index: usize,
        id_length: Option<usize>,
    },
    Arguments {
        index: usize,
    },
    End {
        index: usize,
        is_complete: bool,
    },
}

impl Deltas {
    /// Removes all events and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// The events in order.
    pub fn iter(&self) -> impl Iterator<Item = Delta<'_>> {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let text = self.text.get(start..entry.end).unwrap_or_default();
            start = entry.end;
            match entry.kind {
                Kind::Reasoning => Delta::Reasoning(text),
                Kind::Content => Delta::Content(text),
                Kind::Begin { index, id_length } => {
                    let (id, name) = crate::split(text, id_length.unwrap_or(0));
                    let id = id_length.map(|_| id);
                    Delta::CallBegin { index, id, name }
                }
                Kind::Arguments { index } => Delta::CallArguments { index, json: text },
                Kind::End { index, is_complete } => Delta::CallEnd { index, is_complete },
            }
        })
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        self.append(Kind::Reasoning, text);
    }

    pub(crate) fn content(&mut self, text: &str) {
        self.append(Kind::Content, text);
    }

    pub(crate) fn arguments(&mut self, index: usize, json: &str) {
        self.append(Kind::Arguments { index }, json);
    }

    pub(crate) fn begin(&mut self, index: usize, id: Option<&str>, name: &str) {
        let id_length = id.map(str::len);
        self.text.push_str(id.unwrap_or_default());
        self.text.push_str(name);
        self.put(Kind::Begin { index, id_length });
    }

    pub(crate) fn end(&mut self, index: usize, is_complete: bool) {
        self.put(Kind::End { index, is_complete });
    }

    /// Adds text to the last event if it is of this kind; otherwise as a new one.
    fn append(&mut self, kind: Kind, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        match self.entries.last_mut() {
            Some(last) if last.kind == kind => last.end = self.text.len(),
            _ => self.put(kind),
        }
    }

    fn put(&mut self, kind: Kind) {
        let end = self.text.len();
        self.entries.push(Entry { kind, end });
    }
}
