//! One choice of an answer: tokens or text in, text that is safe to show out. Owns the order of detokenizer and
//! stop strings, the finish reason and the count of tokens; knows nothing of bodies.
//!
//! A body reads what has come since the last `Choice::clear_ready`: `Choice::events` are the same for every
//! choice, one for each token that brought something, whether it is plain text or an `Answer`.
//!
//! A token counts if it was generated for the choice: the token that completed a stop string counts, what came
//! after it does not. The token that ended the sequence, be it the end token or one of `stop_token_ids`, has no
//! text but counts, and has its entry among the log probabilities, as in vLLM: clients that score a text ask
//! for one token more and drop the last entry.

mod pieces;
mod token_ids;

use std::sync::Arc;

use inflight_kserve::step::{FinishReason as WorkerReason, PromptLogProbs};
use inflight_openai::{ApiError, FinishReason, StopReason};
use inflight_parsers::Delta;
use inflight_text::{Detokenizer, StopMatcher, Tokenizer};
use inflight_upstream::inbox::OutputDetails;
use pieces::push_piece;
pub(super) use pieces::{MAX_PIECES, Piece};
pub(crate) use token_ids::TokenIds;

use super::answer::{Answer, AnswerOptions, Event};
use super::logprobs::LogProbs;

/// An echoed prompt: what a completion's text starts with.
#[derive(Debug)]
pub struct Echo {
    pub text: String,
    pub tokens: Vec<i32>,
}

/// What ended a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The request's stop string of this index.
    Text(usize),
    Token(i32),
}

impl Stopped {
    /// For an answer to a request with these stop strings.
    pub(crate) fn stop_reason(self, stop: &[String]) -> StopReason {
        match self {
            Self::Text(index) => StopReason::Text(stop.get(index).cloned().unwrap_or_default()),
            Self::Token(token) => StopReason::Token(token),
        }
    }
}

/// The state of one choice.
#[derive(Debug)]
pub struct Choice {
    /// `None`: the model answers in text.
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    /// Tokens that end a sequence and are no part of its text.
    end_ids: Arc<[i32]>,
    /// The model's own end token, which some executors do not report.
    end_id: Option<i32>,
    /// Only the prompt is of interest: what is generated is dropped.
    only_prompt: bool,
    /// Decoded text on its way to the stop matcher.
    decoded: String,
    /// Text that may be shown and has not been.
    pub(crate) ready: String,
    /// How `ready` and the released log probabilities came; all of both.
    pub(crate) pieces: Vec<Piece>,
    /// Generated tokens so far.
    pub(crate) tokens: u64,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) log_probs: Option<LogProbs>,
    /// Until it has been put before the text.
    echo: Option<Arc<Echo>>,
    /// Whether what ended the choice is part of its text.
    shows_stops: bool,
    /// The token that ended the choice, where it is not the model's own end token.
    stop_token: Option<i32>,
    /// Whether pieces report their tokens.
    counts_tokens: bool,
    /// All generated tokens, where the answer lists them.
    pub(crate) ids: Option<TokenIds>,
    /// Where the answer may be more than text.
    answer: Option<Box<Answer>>,
}

impl Choice {
    /// A choice that has generated nothing yet, of a model that answers in tokens of `tokenizer`, or in
    /// text without one.
    pub fn new(
        tokenizer: Option<&Arc<Tokenizer>>,
        skip_special_tokens: bool,
        stops: StopMatcher,
        end_ids: Arc<[i32]>,
        end_id: Option<i32>,
        log_probs: Option<LogProbs>,
        echo: Option<Arc<Echo>>,
    ) -> Self {
        let detokenizer =
            tokenizer.map(|tokenizer| Detokenizer::new(Arc::clone(tokenizer), skip_special_tokens));
        Self {
            detokenizer,
            stops,
            end_ids,
            end_id,
            only_prompt: false,
            decoded: String::new(),
            ready: String::new(),
            pieces: Vec::new(),
            tokens: 0,
            finish: None,
            log_probs,
            echo,
            shows_stops: false,
            stop_token: None,
            counts_tokens: false,
            ids: None,
            answer: None,
        }
    }

    /// Reads the text as an answer that may be more. `is_guided`: a grammar holds it.
    pub fn with_answer(mut self, options: &Arc<AnswerOptions>, is_guided: bool) -> Self {
        self.detokenizer = self
            .detokenizer
            .map(|detokenizer| detokenizer.showing(Arc::clone(&options.markers)));
        self.counts_tokens = true;
        self.answer = Some(Box::new(Answer::new(options, is_guided)));
        self
    }

    /// What has come since the last clear.
    pub(crate) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let answered = self.answer.iter().flat_map(|answer| answer.events());
        let mut start = 0;
        let plain = self.pieces.iter().map(move |piece| {
            let text = self.ready.get(start..piece.text_end).unwrap_or_default();
            start = piece.text_end;
            Event {
                delta: Delta::Content(text),
                is_custom: false,
                log_probs_end: piece.log_probs_end,
                tokens_end: piece.tokens_end,
            }
        });
        answered.chain(plain)
    }

    /// Generated tokens that were reasoning.
    pub(crate) fn reasoning_tokens(&self) -> u64 {
        self.answer
            .as_ref()
            .map_or(0, |answer| answer.reasoning_tokens())
    }

    /// Makes the stop string or token that ends the choice a part of its text.
    pub fn with_stops(mut self) -> Self {
        self.shows_stops = true;
        self
    }

    /// Makes pieces report how many tokens there were, and keeps the tokens if they are to be listed.
    pub fn with_tokens(mut self, lists_them: bool) -> Self {
        self.counts_tokens = true;
        self.ids = lists_them.then(TokenIds::default);
        self
    }

    /// What ended the choice, where that was something the request or the model's configuration names: the
    /// index of a stop string, or a token other than the end token.
    pub(crate) fn stop_reason(&self) -> Option<Stopped> {
        match self.stops.hit() {
            Some(hit) => Some(Stopped::Text(hit.index)),
            None => self.stop_token.map(Stopped::Token),
        }
    }

    /// Makes the choice end with its prompt: no token is shown or counted. Executors generate at least one.
    pub fn with_only_prompt(mut self) -> Self {
        self.only_prompt = true;
        self
    }

    /// Takes a row's tokens, and its end if it is the sequence's last. Rows after the choice has
    /// finished change nothing. `prompt`: log probabilities of the prompt, if they were asked for.
    ///
    /// # Errors
    /// The worker gave the sequence up: its time ran out, or it was cancelled there. Or the calls of the answer
    /// are not what the request demands.
    pub(crate) fn take(
        &mut self,
        tokens: &[i32],
        reason: WorkerReason,
        details: Option<&OutputDetails>,
        prompt: Option<&PromptLogProbs>,
    ) -> Result<(), ApiError> {
        if self.finish.is_some() {
            return Ok(());
        }
        self.take_row(tokens, reason, details, prompt)?;
        if let Some(finish) = self.finish
            && let Some(answer) = &mut self.answer
        {
            let log_probs_end = self.log_probs.as_ref().map_or(0, LogProbs::released);
            let by_itself = self.stops.hit().is_none();
            let finish = answer.finish(finish, by_itself, log_probs_end, self.tokens as usize)?;
            self.finish = Some(finish);
        }
        Ok(())
    }

    fn take_row(
        &mut self,
        tokens: &[i32],
        reason: WorkerReason,
        details: Option<&OutputDetails>,
        prompt: Option<&PromptLogProbs>,
    ) -> Result<(), ApiError> {
        if let Some(echo) = self.echo.take() {
            self.ready.push_str(&echo.text);
            if let Some((log_probs, values)) = self.log_probs.as_mut().zip(prompt) {
                log_probs.echo(&echo.tokens, values, &echo.text);
            }
            let all = self.all();
            self.push_piece(all);
        }
        if self.only_prompt && !is_failure(reason) {
            self.finish = Some(FinishReason::Length);
            return Ok(());
        }
        let ended_by_token = matches!(reason, WorkerReason::EndId | WorkerReason::StopWords);
        let tokens_and_end = tokens;
        let (tokens, end) = match tokens.split_last() {
            Some((last, rest)) if ended_by_token && self.end_ids.contains(last) => {
                (rest, Some(*last))
            }
            _ => (
                tokens,
                self.end_id.filter(|_| reason == WorkerReason::EndId),
            ),
        };
        self.stop_token = end.filter(|_| end != self.end_id);
        // Then it is a token like the others.
        let shows_end = self.shows_stops
            || self
                .answer
                .as_ref()
                .zip(end)
                .is_some_and(|(answer, end)| answer.reads(end));
        let ended_in_text = shows_end && tokens.len() < tokens_and_end.len();
        let tokens = if ended_in_text {
            tokens_and_end
        } else {
            tokens
        };
        match &mut self.detokenizer {
            Some(detokenizer)
                if self.stops.is_empty() && self.log_probs.is_none() && !self.counts_tokens =>
            {
                for &token in tokens {
                    detokenizer.push(token_id(token), &mut self.ready);
                    push_piece(&mut self.pieces, self.ready.len(), 0, 0);
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
        if self.detokenizer.is_some() && self.stops.hit().is_none() && !ended_in_text {
            self.take_end(end, reason, tokens.len(), details);
        }
        Ok(())
    }

    /// Whether it should see tokens as they come: a stop string may end it before its worker does, and log
    /// probabilities that wait take far more memory than tokens.
    pub(crate) fn wants_each_token(&self) -> bool {
        !self.stops.is_empty() || self.log_probs.is_some()
    }

    /// Forgets what was shown; `ready` and the log probabilities were taken.
    pub(crate) fn clear_ready(&mut self) {
        self.ready.clear();
        self.pieces.clear();
        if let Some(answer) = &mut self.answer {
            answer.clear();
        }
    }

    /// Everything up to here.
    fn all(&self) -> Piece {
        Piece {
            text_end: self.ready.len(),
            log_probs_end: self.log_probs.as_ref().map_or(0, LogProbs::released),
            tokens_end: match self.counts_tokens {
                true => self.tokens as usize,
                false => 0,
            },
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        push_piece(
            &mut self.pieces,
            piece.text_end,
            piece.log_probs_end,
            piece.tokens_end,
        );
    }

    /// Ends a piece here. Log probabilities that were released together each get a separate piece: clients
    /// expect one an event.
    fn end_piece(&mut self) {
        if let Some(answer) = &mut self.answer {
            let log_probs_end = self.log_probs.as_ref().map_or(0, LogProbs::released);
            if answer.read(&self.ready, log_probs_end, self.tokens as usize) {
                self.finish = Some(FinishReason::Stop);
            }
            self.ready.clear();
            return;
        }
        if let Some(log_probs) = &self.log_probs {
            let last = self.pieces.last().copied().unwrap_or_default();
            let (told, tokens) = (last.log_probs_end, last.tokens_end);
            let shown = self.ready.len();
            for index in told + 1..log_probs.released() {
                let text_end = shown - log_probs.shown_from(index).min(shown);
                push_piece(&mut self.pieces, text_end, index, tokens);
            }
        }
        let all = self.all();
        self.push_piece(all);
    }

    /// Counts the token that ended the sequence, which is at `position` of the row if the row has it.
    fn take_end(
        &mut self,
        end: Option<i32>,
        reason: WorkerReason,
        position: usize,
        details: Option<&OutputDetails>,
    ) {
        if end.is_some() || reason == WorkerReason::EndId {
            self.tokens += 1;
        }
        if let (Some(ids), Some(end)) = (&mut self.ids, end) {
            ids.all.push(end);
        }
        if let Some((log_probs, token)) = self.log_probs.as_mut().zip(end) {
            log_probs.push_end(token, position, details);
            self.end_piece();
        }
    }

    fn take_text(&mut self, details: Option<&OutputDetails>) {
        let Some(details) = details else {
            return;
        };
        self.tokens += u64::from(details.generated);
        self.decoded.clear();
        self.decoded
            .push_str(details.text.as_deref().unwrap_or_default());
        self.show_decoded();
    }

    fn take_token(&mut self, token: i32, position: usize, details: Option<&OutputDetails>) {
        self.decoded.clear();
        if let Some(detokenizer) = &mut self.detokenizer {
            detokenizer.push(token_id(token), &mut self.decoded);
        }
        self.tokens += 1;
        if let Some(ids) = &mut self.ids {
            ids.all.push(token);
        }
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
        self.end_piece();
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
        let before = self.ready.len();
        self.stops.finish(&mut self.ready);
        if let Some(log_probs) = &mut self.log_probs {
            log_probs.shown(self.ready.len() - before);
            log_probs.release_all();
        }
        self.end_piece();
    }
}

fn is_failure(reason: WorkerReason) -> bool {
    matches!(reason, WorkerReason::TimedOut | WorkerReason::Cancelled)
}

/// Negative ids are in no vocabulary, and neither is this.
fn token_id(token: i32) -> u32 {
    u32::try_from(token).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
