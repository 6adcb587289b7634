//! What error texts of servers mean: Triton's and the executors'. Pure.

use tonic::Code;

/// The gRPC status code that an error's words amount to, and the words that a client may read where
/// the request is at fault. Triton's stream carries words alone, its TensorRT-LLM models give INTERNAL
/// for nearly everything, and BLS puts a whole traceback around the line that matters.
pub fn classify(text: &str) -> (Code, &str) {
    use Code::{InvalidArgument, ResourceExhausted, Unavailable};
    /// Words, all in lower case, and what they mean; the first match counts.
    const MEANINGS: [(&str, Code); 13] = [
        ("exceeds maximum queue size", ResourceExhausted),
        ("queue is full", ResourceExhausted),
        ("exceeds maximum input length", InvalidArgument),
        ("exceeds the maximum", InvalidArgument),
        ("exceeds max", InvalidArgument),
        ("should not exceed max", InvalidArgument),
        ("unknown model", Unavailable),
        ("is not ready", Unavailable),
        // A Python model's process has ended. Triton starts another one.
        ("is not healthy", Unavailable),
        ("not at ready state", Unavailable),
        ("unavailable", Unavailable),
        ("cancelled", Unavailable),
        ("canceled", Unavailable),
    ];
    let lower = text.to_ascii_lowercase();
    let found = MEANINGS.iter().find(|(words, _)| lower.contains(words));
    let Some((words, code)) = found else {
        return (Code::Internal, text);
    };
    let mut lines = text.lines();
    let line = lines.find(|line| line.to_ascii_lowercase().contains(words));
    (*code, line.unwrap_or(text).trim())
}

/// What of a request a server refused, where its words say so and its code does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no weights for the id of the LoRA adapter.
    Adapter,
    /// The guide cannot be followed.
    Guide,
}

impl Refused {
    /// The words of TensorRT-LLM, which every executor uses.
    pub fn by(text: &str) -> Option<Self> {
        const WORDS: [(&str, Refused); 2] = [
            ("LoRA task ", Refused::Adapter),
            ("guided_decoding_guide", Refused::Guide),
        ];
        let found = WORDS.iter().find(|(words, _)| text.contains(words));
        found.map(|(_, refused)| *refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_known_by_its_words() {
        for (words, refused) in [
            (
                "LoRA task 7 not found in cache. Please send LoRA weights with request",
                Some(Refused::Adapter),
            ),
            (
                "`guided_decoding_guide` is not a valid `regex`: unclosed group",
                Some(Refused::Guide),
            ),
            ("Prompt length (9) exceeds maximum input length (8)", None),
        ] {
            assert_eq!(Refused::by(words), refused, "{words}");
        }
    }

    #[test]
    fn errors_are_classified_by_their_words() {
        let traceback = "Traceback (most recent call last):\n  File \"model.py\", line 3\nRuntimeError: \
                         Prompt length (9) exceeds maximum input length (8).\n";
        for (words, code, told) in [
            (
                traceback,
                Code::InvalidArgument,
                "RuntimeError: Prompt length (9) exceeds maximum input length (8).",
            ),
            (
                "Error generating request: The sum of prompt length (9.0), query length (0) should not \
                 exceed max_num_tokens (8)",
                Code::InvalidArgument,
                "Error generating request: The sum of prompt length (9.0), query length (0) should not \
                 exceed max_num_tokens (8)",
            ),
            (
                "Exceeds maximum queue size",
                Code::ResourceExhausted,
                "Exceeds maximum queue size",
            ),
            (
                "Request for unknown model: 'm' is not found",
                Code::Unavailable,
                "Request for unknown model: 'm' is not found",
            ),
            (
                "Request cancelled by client",
                Code::Unavailable,
                "Request cancelled by client",
            ),
            (
                "in ensemble 'ensemble', Stub process 'preprocessing_0_0' is not healthy.",
                Code::Unavailable,
                "in ensemble 'ensemble', Stub process 'preprocessing_0_0' is not healthy.",
            ),
            (
                "Encountered an error",
                Code::Internal,
                "Encountered an error",
            ),
            ("", Code::Internal, ""),
        ] {
            assert_eq!(classify(words), (code, told));
        }
    }
}
