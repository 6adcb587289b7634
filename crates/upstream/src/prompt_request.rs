//! What a server needs to know to generate from one prompt, whichever protocol it speaks.

use std::time::Duration;

use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_models::sampling_params::SamplingParams;
use inflight_traces::TraceContext;

use crate::phases::Phases;
use crate::trace::context_parameters;

/// One prompt and how to generate from it.
#[derive(Clone, Copy, Debug)]
pub struct PromptRequest<'a> {
    pub params: &'a SamplingParams,
    /// For a model that takes token ids.
    pub tokens: &'a [i32],
    /// For a model that takes text.
    pub text: &'a str,
    /// Texts that end the answer. A hint to the server: the gateway looks for them itself.
    pub stop: &'a [String],
    /// Whether the gateway has counted the prompt's tokens; otherwise the server is asked for the count.
    pub is_counted: bool,
    /// The client's request, which may have several prompts.
    pub request_id: &'a str,
    pub trace: Option<&'a TraceContext>,
    /// How long the answer may take from now.
    pub timeout: Option<Duration>,
    /// What each sequence generated before at another worker; empty: nothing. `None`: it has ended.
    pub generated: &'a [Option<&'a [i32]>],
    /// What the server is to do of it.
    pub phases: Phases<'a>,
}

impl PromptRequest<'_> {
    /// The request parameters that carry its trace context.
    pub fn trace_parameters(&self) -> impl Iterator<Item = (&'static str, ParameterChoice)> {
        self.trace.into_iter().flat_map(context_parameters)
    }
}

/// The tensor `bad_words_list` for `words`: all tokens, then where each word ends, padded with -1. Also its width.
pub fn words_list(words: &[Vec<i32>]) -> (i64, Vec<i32>) {
    let mut ids: Vec<i32> = words.iter().flatten().copied().collect();
    let width = ids.len();
    let mut end = 0;
    let ends = words.iter().map(|word| {
        end += i32::try_from(word.len()).unwrap_or(i32::MAX);
        end
    });
    ids.extend(ends);
    ids.resize(2 * width, -1);
    (width as i64, ids)
}

/// The tensor `embedding_bias` that allows these tokens alone, `vocabulary` long.
pub fn only_tokens(ids: &[i32], vocabulary: u32) -> Vec<f32> {
    let mut bias = vec![f32::NEG_INFINITY; vocabulary as usize];
    for id in ids {
        if let Some(slot) = usize::try_from(*id).ok().and_then(|id| bias.get_mut(id)) {
            *slot = 0.0;
        }
    }
    bias
}

/// The tensor `stop_words_list` for words of one token each: the words, then where each ends.
pub fn stop_words_list(ids: &[i32]) -> Vec<i32> {
    let ends = 1..=i32::try_from(ids.len()).unwrap_or(i32::MAX);
    ids.iter().copied().chain(ends).collect()
}
