//! Reads a `text/event-stream` body, given in any chunks. Owns the framing; knows nothing of OpenAI.

/// Collects the `data` of events across chunk borders.
#[derive(Debug, Default)]
pub struct SseReader {
    pending: Vec<u8>,
    events: Vec<String>,
}

impl SseReader {
    /// Takes the next bytes of the body.
    ///
    /// # Panics
    /// On a line that is neither `data:`, `event:`, a comment nor empty, and on invalid UTF-8: a test wants to
    /// know.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.pending.drain(..end + 2).collect();
            let event = std::str::from_utf8(&event).expect("an event is UTF-8");
            let told = |line: &&str| !line.is_empty() && !line.starts_with(':');
            // Where events have names, their data says the same.
            let is_name = |line: &&str| line.starts_with("event: ");
            for line in event.lines().filter(told).filter(|line| !is_name(line)) {
                let data = line
                    .strip_prefix("data: ")
                    .expect("a line of an event is data");
                self.events.push(data.to_owned());
            }
        }
    }

    /// The data of the complete events so far.
    pub fn events(&self) -> &[String] {
        &self.events
    }

    /// True when no part of an event is left over.
    pub fn is_at_border(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_any_chunking() {
        let body = b"event: a\ndata: {\"a\":1}\n\n: comment\n\ndata: [DONE]\n\n";
        for size in 1..body.len() {
            let mut reader = SseReader::default();
            body.chunks(size).for_each(|chunk| reader.push(chunk));
            assert_eq!(reader.events(), ["{\"a\":1}", "[DONE]"]);
            assert!(reader.is_at_border());
        }
    }
}
