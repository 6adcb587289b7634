//! One choice of an answer: tokens or text in, text that is safe to show out. Owns the order of detokenizer and
//! stop strings, the finish reason and the count of tokens; knows nothing of events or bodies.
//!
//! A token counts if it was generated for the choice: the token that completed a stop string counts, what came
//! after it does not. The token that ended the sequence, be it the end token or one of `stop_token_ids`, has no
//! text but counts, and has its entry among the log probabilities, as in vLLM: clients that score a text ask
//! for one token more and drop the last entry.

use std::sync::Arc;

use inflight_kserve::step::{FinishReason as WorkerReason, PromptLogProbs};
use inflight_openai::{ApiError, FinishReason, StopReason};
use inflight_text::{Detokenizer, StopMatcher, Tokenizer};

use super::logprobs::LogProbs;
use crate::upstream::inbox::DeltaDetails;

/// An echoed prompt: what a completion's text starts with.
#[derive(Debug)]
pub(crate) struct Echo {
    pub text: String,
    pub tokens: Vec<i32>,
}

/// Pieces kept apart while nobody takes them. A client that is this far behind gets the rest in one piece.
const MAX_PIECES: usize = 256;

/// What one token brought: one event of a stream. Each piece begins where the one before it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In [`Choice::ready`].
    pub text_end: usize,
    /// Among the released log probabilities.
    pub log_probs_end: usize,
    /// Among the generated tokens, where the answer tells of them; else 0.
    pub tokens_end: usize,
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
    pub(crate) fn told(self, stop: &[String]) -> StopReason {
        match self {
            Self::Text(index) => StopReason::Text(stop.get(index).cloned().unwrap_or_default()),
            Self::Token(token) => StopReason::Token(token),
        }
    }
}

/// The generated tokens of a choice that lists them.
#[derive(Debug, Default)]
pub(crate) struct TokenIds {
    pub all: Vec<i32>,
    /// How many are told.
    told: usize,
    /// Whether anything of the choice was told.
    has_begun: bool,
}

impl TokenIds {
    /// The tokens up to `end` that are not told yet.
    pub(crate) fn tell(&mut self, end: usize) -> &[i32] {
        let from = self.told;
        self.told = end.min(self.all.len()).max(from);
        self.all.get(from..self.told).unwrap_or_default()
    }

    /// Whether this is the first that is told of the choice.
    pub(crate) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }
}

/// The state of one choice.
#[derive(Debug)]
pub(crate) struct Choice {
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
    pub ready: String,
    /// How `ready` and the released log probabilities came; all of both.
    pub pieces: Vec<Piece>,
    /// Generated tokens so far.
    pub tokens: u64,
    pub finish: Option<FinishReason>,
    pub log_probs: Option<LogProbs>,
    /// Until it has been put before the text.
    echo: Option<Arc<Echo>>,
    /// Whether what ended the choice is part of its text.
    shows_stops: bool,
    /// The token that ended the choice, where it is not the model's own end token.
    stop_token: Option<i32>,
    /// Whether pieces tell of their tokens.
    counts_tokens: bool,
    /// All generated tokens, where the answer lists them.
    pub ids: Option<TokenIds>,
}

impl Choice {
    /// A choice that has generated nothing yet, of a model that answers in tokens of `tokenizer`, or in
    /// text where there is none.
    pub(crate) fn new(
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
        }
    }

    /// Makes the stop string or token that ends the choice a part of its text.
    pub(crate) fn with_stops(mut self) -> Self {
        self.shows_stops = true;
        self
    }

    /// Makes pieces tell how many tokens there were, and keeps the tokens if they are to be listed.
    pub(crate) fn with_tokens(mut self, lists_them: bool) -> Self {
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
    pub(crate) fn with_only_prompt(mut self) -> Self {
        self.only_prompt = true;
        self
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
        let ended_in_text = self.shows_stops && tokens.len() < tokens_and_end.len();
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

    /// Forgets what was shown; `ready` and the log probabilities were taken.
    pub(crate) fn clear_ready(&mut self) {
        self.ready.clear();
        self.pieces.clear();
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

    /// Ends a piece here. Log probabilities that were released together each get a piece of their own: clients
    /// expect one an event.
    fn end_piece(&mut self) {
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

    /// Counts the token that ended the sequence, which stands at `position` of the row if it is there.
    fn take_end(
        &mut self,
        end: Option<i32>,
        reason: WorkerReason,
        position: usize,
        details: Option<&DeltaDetails>,
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

/// Adds a piece that ends here, unless it is empty.
fn push_piece(pieces: &mut Vec<Piece>, text_end: usize, log_probs_end: usize, tokens_end: usize) {
    let last = pieces.last().copied().unwrap_or_default();
    let piece = Piece {
        text_end: text_end.max(last.text_end),
        log_probs_end,
        tokens_end,
    };
    if (piece.text_end, piece.log_probs_end) == (last.text_end, last.log_probs_end) {
        return;
    }
    if pieces.len() >= MAX_PIECES {
        pieces.pop();
    }
    pieces.push(piece);
}

fn is_failure(reason: WorkerReason) -> bool {
    matches!(reason, WorkerReason::TimedOut | WorkerReason::Cancelled)
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
            Some(END),
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
            .map(|log_probs| log_probs.take_completion(usize::MAX).tokens);
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
        let cases: [Case; 9] = [
            ("abcdef", &[], WorkerReason::Length, "abcdef", 6, length),
            ("abENDxy", &["END"], WorkerReason::Length, "ab", 5, stop),
            ("abEN", &["END"], WorkerReason::Length, "abEN", 4, length),
            ("abcd", &["x"], WorkerReason::EndId, "abcd", 5, stop),
            ("abEND", &["END"], WorkerReason::EndId, "ab", 5, stop),
            ("a€b", &["€"], WorkerReason::Length, "a", 4, stop),
            ("aé€", &["€€"], WorkerReason::EndId, "aé€", 7, stop),
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
                        let end = usize::from(count > text.len() as u64);
                        assert_eq!(
                            told.len(),
                            shown.len() + end,
                            "{text} {cuts:b}: a byte is a token, and so is the end"
                        );
                    }
                }
            }
        }
    }

    /// Text and log probabilities of each piece.
    fn pieces(choice: &mut Choice) -> Vec<(String, Vec<String>)> {
        let mut from = Piece::default();
        let mut list = Vec::new();
        for piece in std::mem::take(&mut choice.pieces) {
            let text = choice.ready[from.text_end..piece.text_end].to_owned();
            let count = piece.log_probs_end - from.log_probs_end;
            let log_probs = choice.log_probs.as_mut();
            let told = log_probs.map(|log_probs| log_probs.take_completion(count).tokens);
            list.push((text, told.unwrap_or_default()));
            from = piece;
        }
        choice.clear_ready();
        list
    }

    #[test]
    fn each_token_is_a_piece_of_its_own_however_rows_are_cut() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        type Texts = &'static [&'static str];
        // Text generated and stop strings; the pieces' texts without and with log probabilities.
        let cases: [(&str, Texts, Texts, Texts); 4] = [
            ("abc", &[], &["a", "b", "c"], &["a", "b", "c", ""]),
            // Two bytes: the first is told with no text, so that no event has two log probabilities.
            ("aéb", &[], &["a", "é", "b"], &["a", "", "é", "b", ""]),
            ("aENx", &["END"], &["a", "ENx"], &["a", "E", "N", "x", ""]),
            ("aEN", &["END"], &["a", "EN"], &["a", "E", "N", ""]),
        ];
        for (text, stops, plain, told) in cases {
            for log_probs in [false, true] {
                let tokens = tokens(text);
                let mut whole = choice(&model, stops, log_probs);
                whole
                    .take(&tokens, WorkerReason::EndId, None, None)
                    .unwrap();
                let list = pieces(&mut whole);
                let texts: Vec<&str> = list.iter().map(|(text, _)| text.as_str()).collect();
                assert_eq!(texts, if log_probs { told } else { plain }, "{text}");
                if log_probs {
                    assert!(list.iter().all(|(_, told)| told.len() == 1), "{list:?}");
                }
                let mut one_by_one = choice(&model, stops, log_probs);
                let mut seen = Vec::new();
                for token in &tokens {
                    let row = std::slice::from_ref(token);
                    let going_on = WorkerReason::NotFinished;
                    one_by_one.take(row, going_on, None, None).unwrap();
                    seen.extend(pieces(&mut one_by_one));
                }
                one_by_one
                    .take(&[END], WorkerReason::EndId, None, None)
                    .unwrap();
                seen.extend(pieces(&mut one_by_one));
                assert_eq!(seen, list, "{text}");
            }
        }
    }

    #[test]
    fn a_client_far_behind_gets_the_rest_in_one_piece() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        let mut choice = choice(&model, &[], false);
        let many = tokens(&"x".repeat(1_000));
        choice
            .take(&many, WorkerReason::Length, None, None)
            .unwrap();
        let list = pieces(&mut choice);
        assert_eq!(list.len(), MAX_PIECES);
        assert_eq!(list.last().unwrap().0.len(), 1_000 - (MAX_PIECES - 1));
    }

    #[test]
    fn the_token_that_ends_a_sequence_counts_and_has_no_text() {
        let files: ModelFiles = byte_model_files()
            .into_iter()
            .map(|(name, data)| (name, data.to_vec()))
            .collect();
        let model = TextModel::load(&files).unwrap();
        for (reason, count) in [
            (WorkerReason::EndId, 2),
            (WorkerReason::StopWords, 2),
            (WorkerReason::Length, 2),
        ] {
            let choice = choice(&model, &[], false);
            let outcome = feed(choice, &[97, END], 0, reason);
            assert_eq!((outcome.0.as_str(), outcome.1), ("a", count), "{reason:?}");
        }
        // Reported with its value, and not reported at all: the entry is there, its value unknown.
        let details = DeltaDetails {
            log_probs: vec![-0.5, -0.25],
            ..DeltaDetails::default()
        };
        let reported: (&[i32], Option<&DeltaDetails>) = (&[97, END], Some(&details));
        for ((row, details), values) in [
            (reported, [Some(-0.5), Some(-0.25)]),
            ((&[97], None), [Some(f32::NAN), None]),
        ] {
            let mut choice = choice(&model, &[], true);
            choice
                .take(row, WorkerReason::EndId, details, None)
                .unwrap();
            assert_eq!(choice.tokens, 2);
            let told = choice.log_probs.unwrap().take_completion(usize::MAX);
            assert_eq!(format!("{:?}", told.token_logprobs), format!("{values:?}"));
            assert_eq!(told.text_offset, [0, 1]);
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
