//! One choice of an answer: tokens or text in, text that is safe to show out. Owns the order of detokenizer and
//! stop strings, the finish reason and the count of tokens; knows nothing of events or bodies.
//!
//! A token counts as generated if it came from the worker and took part in the text: the token that
//! completed a stop string counts, what came after it does not, and neither does the token that ended
//! the sequence, be it the end token or one of `stop_token_ids`.

use std::sync::Arc;

use inflight_kserve::step::{FinishReason as WorkerReason, PromptLogProbs};
use inflight_openai::{ApiError, FinishReason};
use inflight_text::{Detokenizer, StopMatcher, Tokenizer};

use super::logprobs::LogProbs;
use crate::upstream::inbox::DeltaDetails;

/// An echoed prompt: what a completion's text starts with.
#[derive(Debug)]
pub(crate) struct Echo {
    pub text: String,
    pub tokens: Vec<i32>,
}

/// The state of one choice.
#[derive(Debug)]
pub(crate) struct Choice {
    /// `None`: the model answers in text.
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    /// Tokens that end a sequence and are no part of its text.
    end_ids: Arc<[i32]>,
    /// Decoded text on its way to the stop matcher.
    decoded: String,
    /// Text that may be shown and has not been.
    pub ready: String,
    /// Generated tokens so far.
    pub tokens: u64,
    pub finish: Option<FinishReason>,
    pub log_probs: Option<LogProbs>,
    /// Until it has been put before the text.
    echo: Option<Arc<Echo>>,
}

impl Choice {
    /// A choice that has generated nothing yet, of a model that answers in tokens of `tokenizer`, or in
    /// text where there is none.
    pub(crate) fn new(
        tokenizer: Option<&Arc<Tokenizer>>,
        skip_special_tokens: bool,
        stops: StopMatcher,
        end_ids: Arc<[i32]>,
        log_probs: Option<LogProbs>,
        echo: Option<Arc<Echo>>,
    ) -> Self {
        let detokenizer =
            tokenizer.map(|tokenizer| Detokenizer::new(Arc::clone(tokenizer), skip_special_tokens));
        Self {
            detokenizer,
            stops,
            end_ids,
            decoded: String::new(),
            ready: String::new(),
            tokens: 0,
            finish: None,
            log_probs,
            echo,
        }
    }

    /// Takes a row's tokens, and its end if it is the sequence's last. Rows after the choice has
    /// finished change nothing. `prompt`: log probabilities of the prompt, if they were asked for.
    ///
    /// # Errors
    /// The worker gave the sequence up: its time ran out, or it was cancelled there.
    pub(crate) fn take(
        &mut self,
        tokens: &[i32],
        reason: WorkerReason,
        details: Option<&DeltaDetails>,
        prompt: Option<&PromptLogProbs>,
    ) -> Result<(), ApiError> {
        if self.finish.is_some() {
            return Ok(());
        }
        if let Some(echo) = self.echo.take() {
            self.ready.push_str(&echo.text);
            if let Some((log_probs, values)) = self.log_probs.as_mut().zip(prompt) {
                log_probs.echo(&echo.tokens, values, &echo.text);
            }
        }
        let ended_by_token = matches!(reason, WorkerReason::EndId | WorkerReason::StopWords);
        let tokens = match tokens.split_last() {
            Some((last, rest)) if ended_by_token && self.end_ids.contains(last) => rest,
            _ => tokens,
        };
        match &mut self.detokenizer {
            Some(detokenizer) if self.stops.is_empty() && self.log_probs.is_none() => {
                for &token in tokens {
                    detokenizer.push(token_id(token), &mut self.ready);
                }
                self.tokens += tokens.len() as u64;
            }
            Some(_) => {
                for (position, &token) in tokens.iter().enumerate() {
                    self.take_token(token, position, details);
                    if self.finish.is_some() {
                        return Ok(());
                    }
                }
            }
            None => {
                self.take_text(details);
                if self.finish.is_some() {
                    return Ok(());
                }
            }
        }
        self.finish = match reason {
            WorkerReason::NotFinished => return Ok(()),
            WorkerReason::EndId | WorkerReason::StopWords => Some(FinishReason::Stop),
            WorkerReason::Length => Some(FinishReason::Length),
            WorkerReason::TimedOut => {
                return Err(ApiError::timeout("The request timed out."));
            }
            WorkerReason::Cancelled => {
                return Err(ApiError::unavailable(
                    "The worker cancelled the request. Retry later.",
                ));
            }
        };
        self.end_text();
        Ok(())
    }

    fn take_text(&mut self, details: Option<&DeltaDetails>) {
        let Some(details) = details else {
            return;
        };
        self.tokens += u64::from(details.generated);
        self.decoded.clear();
        self.decoded
            .push_str(details.text.as_deref().unwrap_or_default());
        self.show_decoded();
    }

    fn take_token(&mut self, token: i32, position: usize, details: Option<&DeltaDetails>) {
        self.decoded.clear();
        if let Some(detokenizer) = &mut self.detokenizer {
            detokenizer.push(token_id(token), &mut self.decoded);
        }
        self.tokens += 1;
        if let Some(log_probs) = &mut self.log_probs {
            log_probs.push(token, position, details, &self.decoded);
        }
        self.show_decoded();
    }

    fn show_decoded(&mut self) {
        let before = self.ready.len();
        let hit = self.stops.push(&self.decoded, &mut self.ready);
        if let Some(log_probs) = &mut self.log_probs {
            log_probs.shown(self.ready.len() - before);
        }
        if hit.is_some() {
            self.finish = Some(FinishReason::Stop);
            if let Some(log_probs) = &mut self.log_probs {
                log_probs.cut();
            }
        }
    }

    fn end_text(&mut self) {
        self.decoded.clear();
        if let Some(detokenizer) = &mut self.detokenizer {
            detokenizer.finish(&mut self.decoded);
        }
        let reason = self.finish;
        self.show_decoded();
        if self.stops.hit().is_some() {
            return;
        }
        self.finish = reason;
        self.stops.finish(&mut self.ready);
        if let Some(log_probs) = &mut self.log_probs {
            log_probs.release_all();
        }
    }
}

/// Negative ids are in no vocabulary, and neither is this.
fn token_id(token: i32) -> u32 {
    u32::try_from(token).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use inflight_testkit::model::{END, byte_model_files, tokens};
    use inflight_text::{ModelFiles, TextModel};

    use super::*;

    fn choice(model: &TextModel, stop: &[&str], log_probs: bool) -> Choice {
        let stops: Vec<String> = stop.iter().map(|text| (*text).to_owned()).collect();
        let tokenizer = model.tokenizer();
        let log_probs = log_probs.then(|| LogProbs::new(Arc::clone(tokenizer), 0));
        Choice::new(
            Some(tokenizer),
            true,
            StopMatcher::new(&stops),
            Arc::from([END]),
            log_probs,
            None,
        )
    }

    /// Text generated, stop strings, why the worker ended it; text, tokens and reason told.
    type Case = (
        &'static str,
        &'static [&'static str],
        WorkerReason,
        &'static str,
        u64,
        FinishReason,
    );

    /// Text, tokens, finish reason and tokens with log probabilities.
    type Outcome = (String, u64, Option<FinishReason>, Vec<String>);

    /// Feeds `tokens` cut where `cuts` has a bit, then the end.
    fn feed(mut choice: Choice, tokens: &[i32], cuts: usize, reason: WorkerReason) -> Outcome {
        let mut start = 0;
        for end in 1..=tokens.len() {
            if end < tokens.len() && cuts & (1 << (end - 1)) == 0 {
                continue;
            }
            let reason = if end == tokens.len() {
                reason
            } else {
                WorkerReason::NotFinished
            };
            choice
                .take(&tokens[start..end], reason, None, None)
                .unwrap();
            start = end;
        }
        let told = choice
            .log_probs
            .as_mut()
            .map(|log_probs| log_probs.take_completion().tokens);
        (
            choice.ready,
            choice.tokens,
            choice.finish,
            told.unwrap_or_default(),
        )
    }

    #[test]
    fn the_outcome_does_not_depend_on_how_rows_are_cut() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        let stop = FinishReason::Stop;
        let length = FinishReason::Length;
        let cases: [Case; 8] = [
            ("abcdef", &[], WorkerReason::Length, "abcdef", 6, length),
            ("abENDxy", &["END"], WorkerReason::Length, "ab", 5, stop),
            ("abEN", &["END"], WorkerReason::Length, "abEN", 4, length),
            ("abEND", &["END"], WorkerReason::EndId, "ab", 5, stop),
            ("a€b", &["€"], WorkerReason::Length, "a", 4, stop),
            ("aé€", &["€€"], WorkerReason::EndId, "aé€", 6, stop),
            ("aaab", &["aab", "b"], WorkerReason::Length, "a", 4, stop),
            ("xy", &["xy"], WorkerReason::Length, "", 2, stop),
        ];
        for (text, stops, reason, shown, count, finish) in cases {
            let tokens = tokens(text);
            for log_probs in [false, true] {
                for cuts in 0..1 << (tokens.len() - 1) {
                    let choice = choice(&model, stops, log_probs);
                    let (ready, counted, finished, told) = feed(choice, &tokens, cuts, reason);
                    assert_eq!(
                        (ready.as_str(), counted, finished),
                        (shown, count, Some(finish))
                    );
                    if log_probs {
                        assert_eq!(
                            told.len(),
                            shown.len(),
                            "{text} {cuts:b}: a byte is a token"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_token_that_ends_a_sequence_is_no_part_of_it() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        for (reason, count) in [
            (WorkerReason::EndId, 1),
            (WorkerReason::StopWords, 1),
            (WorkerReason::Length, 2),
        ] {
            let choice = choice(&model, &[], false);
            let outcome = feed(choice, &[97, END], 0, reason);
            assert_eq!((outcome.0.as_str(), outcome.1), ("a", count), "{reason:?}");
        }
        for reason in [WorkerReason::TimedOut, WorkerReason::Cancelled] {
            assert!(
                choice(&model, &[], false)
                    .take(&[97], reason, None, None)
                    .is_err()
            );
        }
    }
}
