//! One choice of an answer: tokens in, text that is safe to show out. Owns the order of detokenizer and
//! stop strings, the finish reason and the count of tokens; knows nothing of events or bodies.
//!
//! A token counts as generated if it came from the worker and took part in the text: the token that
//! completed a stop string counts, what came after it does not, and neither does the token that ended
//! the sequence, be it the end token or one of `stop_token_ids`.

use std::sync::Arc;

use inflight_kserve::step::{FinishReason as WorkerReason, PromptLogProbs};
use inflight_openai::{ApiError, FinishReason};
use inflight_text::{Detokenizer, StopMatcher, Tokenizer};

use super::inbox::RowDetails;
use super::logprobs::LogProbs;

/// An echoed prompt: what a completion's text starts with.
#[derive(Debug)]
pub struct Echo {
    pub text: String,
    pub tokens: Vec<i32>,
}

/// The state of one choice.
#[derive(Debug)]
pub struct Choice {
    detokenizer: Detokenizer,
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
    /// A choice that has generated nothing yet.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        skip_special_tokens: bool,
        stops: StopMatcher,
        end_ids: Arc<[i32]>,
        log_probs: Option<LogProbs>,
        echo: Option<Arc<Echo>>,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), skip_special_tokens),
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
    pub fn take(
        &mut self,
        tokens: &[i32],
        reason: WorkerReason,
        details: Option<&RowDetails>,
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
        if self.stops.is_empty() && self.log_probs.is_none() {
            for &token in tokens {
                self.detokenizer.push(token_id(token), &mut self.ready);
            }
            self.tokens += tokens.len() as u64;
        } else {
            for (position, &token) in tokens.iter().enumerate() {
                self.take_token(token, position, details);
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
                return Err(ApiError::timeout(
                    "The time allowed for the request ran out.",
                ));
            }
            WorkerReason::Cancelled => {
                return Err(ApiError::unavailable(
                    "The worker cancelled the request. Send it again.",
                ));
            }
        };
        self.end_text();
        Ok(())
    }

    fn take_token(&mut self, token: i32, position: usize, details: Option<&RowDetails>) {
        self.decoded.clear();
        self.detokenizer.push(token_id(token), &mut self.decoded);
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
        self.detokenizer.finish(&mut self.decoded);
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
