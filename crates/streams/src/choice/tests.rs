//! Rows of tokens into a choice: text, pieces, counts and ends, however rows are cut.

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

/// Text generated, stop strings, why the worker ended it; text, tokens and reason reported.
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
        // Two bytes: the first is reported with no text, so that no event has two log probabilities.
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
    let details = OutputDetails {
        log_probs: vec![-0.5, -0.25],
        ..OutputDetails::default()
    };
    let reported: (&[i32], Option<&OutputDetails>) = (&[97, END], Some(&details));
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
