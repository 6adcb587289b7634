//! What an answer reports beyond text and usage, where its request asks for it. Plain values.

use std::sync::Arc;

use inflight_kserve::step::PromptLogProbs;
use inflight_openai::chunk::{AnswerKind, FrameExtras};
use inflight_openai::{FinishReason, PromptLogprob, PromptLogprobs, ReasoningField, Usage};
use inflight_text::Tokenizer;

use super::choice::TokenIds;

/// Tokens of the prompt, where they are counted, and those of them that were in the cache.
pub(crate) type PromptCounts = (Option<u64>, u64);

/// See the module.
#[derive(Debug)]
pub struct AnswerDetails {
    /// The request's stop strings.
    pub stop: Vec<String>,
    /// The tokens of each prompt, where the answer lists tokens.
    pub prompts: Option<Vec<Vec<i32>>>,
    /// Choices of each prompt.
    pub n: usize,
    /// Whether the request demands a call of one function, by its name.
    pub names_function: bool,
    /// What the answer calls the model's reasoning.
    pub reasoning_field: ReasoningField,
    /// Usage in every event.
    pub usage: bool,
    /// `Some(k)`: log probabilities of the prompts in this form, with k alternatives, and what names tokens.
    pub prompt_logprobs: Option<(usize, Arc<Tokenizer>)>,
    /// Each prompt, for its log probabilities.
    pub scored: Vec<Vec<i32>>,
}

impl AnswerDetails {
    /// The prompt of a choice, where the answer lists tokens.
    pub(crate) fn prompt(&self, choice: usize) -> Option<&[i32]> {
        let prompts = self.prompts.as_ref()?;
        prompts.get(choice / self.n.max(1)).map(Vec::as_slice)
    }

    /// Why a choice ended, as chat reports it. The call that `tool_choice` names ends with `stop`, as in OpenAI's API
    /// and in vLLM: `tool_calls` is for calls that the model chose.
    pub(crate) fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::ToolCalls if self.names_function => FinishReason::Stop,
            other => other,
        }
    }

    /// The usage of a choice after `tokens`, where every event has it; as in vLLM, of that choice alone.
    pub(crate) fn usage_after(
        &self,
        tokens: usize,
        (prompt, cached): PromptCounts,
    ) -> Option<Usage> {
        let prompt = prompt.filter(|_| self.usage)?;
        Some(Usage::new(prompt, tokens as u64, cached))
    }

    /// What an event of a choice has beyond the usual, `tokens` into it.
    pub(crate) fn extras<'a>(
        &'a self,
        kind: AnswerKind,
        choice: usize,
        tokens: usize,
        ids: Option<&'a mut TokenIds>,
        counts: PromptCounts,
    ) -> FrameExtras<'a> {
        let usage = self.usage_after(tokens, counts);
        let Some(ids) = ids else {
            return FrameExtras {
                usage,
                ..FrameExtras::default()
            };
        };
        // Chat has them in the frame of the role.
        let is_first = ids.begins() && kind == AnswerKind::Completion;
        FrameExtras {
            prompt_token_ids: self.prompt(choice).filter(|_| is_first),
            token_ids: Some(ids.report(tokens)),
            usage,
        }
    }

    /// Whether events have something that most do not.
    pub(crate) fn has_extras(&self) -> bool {
        self.usage || self.prompts.is_some()
    }

    /// The log probabilities of a choice's prompt, where they are asked for.
    pub(crate) fn prompt_logprobs(
        &self,
        choice: usize,
        values: Option<&PromptLogProbs>,
    ) -> Option<PromptLogprobs> {
        let (top, tokenizer) = self.prompt_logprobs.as_ref()?;
        let tokens = self.scored.get(choice / self.n.max(1))?;
        Some(prompt_logprobs(tokens, values?, *top, tokenizer))
    }
}

/// vLLM's form of a prompt's log probabilities, with at most `top` alternatives.
fn prompt_logprobs(
    tokens: &[i32],
    values: &PromptLogProbs,
    top: usize,
    tokenizer: &Tokenizer,
) -> PromptLogprobs {
    let width = values.width as usize;
    let positions = tokens.iter().enumerate().map(|(position, &token)| {
        // Nothing precedes the first.
        let own = *values.values.get(position).filter(|_| position > 0)?;
        let range = position * width..(position + 1) * width;
        let ids = values.top_ids.get(range.clone()).unwrap_or_default();
        let tops = values.top_values.get(range).unwrap_or_default();
        let told = |id: i32, logprob: f32, rank: Option<u32>| {
            let text = u32::try_from(id)
                .ok()
                .and_then(|id| tokenizer.token_text(id));
            PromptLogprob {
                id,
                logprob,
                rank,
                decoded_token: text.map_or_else(String::new, |text| text.text().into_owned()),
            }
        };
        let ranked = ids.iter().zip(tops).zip(1u32..).take(top);
        let mut all: Vec<PromptLogprob> = ranked
            .map(|((id, value), rank)| told(*id, *value, Some(rank)))
            .collect();
        if !all.iter().any(|told| told.id == token) {
            all.insert(0, told(token, own, None));
        }
        Some(all)
    });
    PromptLogprobs(positions.collect())
}

#[cfg(test)]
mod tests {
    use inflight_testkit::model::{byte_model_files, tokens};
    use inflight_text::{ModelFiles, TextModel};

    use super::*;

    #[test]
    fn a_prompts_token_is_told_with_its_rank_where_that_is_known() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        let (ids, tops) = (tokens("abc"), tokens("xxbxxy"));
        let values = PromptLogProbs {
            row: 0,
            values: vec![f32::NAN, -0.5, -3.0],
            width: 2,
            top_ids: tops,
            top_values: vec![f32::NAN, f32::NAN, -0.5, -1.0, -0.25, -2.0],
        };
        let told = prompt_logprobs(&ids, &values, 2, model.tokenizer());
        let told = serde_json::to_value(told).unwrap();
        assert_eq!(told[0], serde_json::Value::Null);
        assert_eq!(told[1]["98"]["rank"], 1);
        assert_eq!(told[2]["99"]["rank"], serde_json::Value::Null);
        assert_eq!(told[2]["99"]["decoded_token"], "c");
        assert_eq!(told[2]["121"]["logprob"], -2.0);
    }
}
