use inflight_kserve::inference::ModelStreamInferResponse;
use inflight_kserve::names;
use inflight_kserve::streamed::StreamedResponse;

use super::*;

/// A response of the core model, with a log probability for each token.
fn core(sequence: i32, tokens: &[i32], sum: f32, is_final: bool) -> EncodedResponse {
    let width = tokens.len() as i64;
    let log_probs: Vec<f32> = tokens.iter().map(|token| -*token as f32).collect();
    let mut out = ResponseBuilder::new("tensorrt_llm", "1", 64);
    out.version("1")
        .bool_parameter(names::FINAL_RESPONSE, is_final)
        .push(output::IDS, &[1, 1, width], tokens)
        .push(output::LENGTH, &[1, 1], &[tokens.len() as i32])
        .push(SUM, &[1, 1], &[sum])
        .push(output::LOG_PROBS, &[1, 1, width], &log_probs)
        .push(PLACE[1], &[1, 1], &[sequence]);
    encoded(out)
}

/// A response of a text model.
fn text(text: &str, count: i32, is_final: bool) -> EncodedResponse {
    let mut out = ResponseBuilder::new("ensemble", "1", 64);
    out.bool_parameter(names::FINAL_RESPONSE, is_final)
        .push_bytes(output::TEXT, &[1], [text])
        .push(output::OUTPUT_TOKENS, &[1, 1], &[count]);
    encoded(out)
}

fn encoded(mut out: ResponseBuilder) -> EncodedResponse {
    EncodedResponse::from(&ModelStreamInferResponse {
        infer_response: Some(out.build()),
        ..ModelStreamInferResponse::default()
    })
}

/// What of the response its client gets; `None`: nothing.
fn take(said: &mut Said, response: EncodedResponse) -> Option<EncodedResponse> {
    let taken = said.take(&response.view().unwrap(), false).unwrap();
    match taken {
        Novelty::New => Some(response),
        Novelty::Partly(repeated) => Some(cut(response, repeated).unwrap()),
        Novelty::Repeated => None,
        Novelty::Differs => panic!("it is the same"),
    }
}

fn differs(said: &mut Said, response: &EncodedResponse) -> bool {
    matches!(
        said.take(&response.view().unwrap(), false).unwrap(),
        Novelty::Differs
    )
}

#[test]
fn responses_that_are_cut_in_another_way_say_what_was_said_once() {
    let whole = [5, 6, 7, 8, 9];
    for heard in 0..=5 {
        for size in 1..=5 {
            let mut said = Said::default();
            let mut out: [Vec<i32>; 2] = Default::default();
            let mut note = |sequence: i32, response: Option<EncodedResponse>| {
                let Some(response) = response else { return };
                let view = response.view().unwrap();
                let outputs = view.outputs().unwrap();
                let tokens: Vec<i32> = outputs.values(output::IDS).unwrap().unwrap();
                let lengths: Vec<i32> = outputs.values(output::LENGTH).unwrap().unwrap();
                assert_eq!(lengths, [tokens.len() as i32]);
                let values = outputs.get(output::LOG_PROBS).unwrap().floats().unwrap();
                let expected: Vec<f32> = tokens.iter().map(|token| -*token as f32).collect();
                assert_eq!(values, expected);
                out[sequence as usize].extend(tokens);
            };
            for sequence in [0, 1] {
                for piece in whole[..heard].chunks(2) {
                    note(sequence, take(&mut said, core(sequence, piece, 0.0, false)));
                }
            }
            said.replay();
            for sequence in [1, 0] {
                let mut pieces = whole.chunks(size).peekable();
                while let Some(piece) = pieces.next() {
                    let is_final = sequence == 0 && pieces.peek().is_none();
                    note(
                        sequence,
                        take(&mut said, core(sequence, piece, 0.0, is_final)),
                    );
                }
            }
            assert_eq!(out, [whole.to_vec(), whole.to_vec()], "{heard} {size}");
        }
    }
}

#[test]
fn text_is_cut_and_counted_once() {
    let mut said = Said::default();
    for (piece, count) in [("gr", 1), ("", 1), ("ün", 1)] {
        assert!(take(&mut said, text(piece, count, false)).is_some());
    }
    assert_eq!(said.tokens(), 3);
    said.replay();
    assert!(take(&mut said, text("grü", 2, false)).is_none());
    let rest = take(&mut said, text("n is", 2, false)).unwrap();
    let view = rest.view().unwrap();
    let outputs = view.outputs().unwrap();
    assert_eq!(
        outputs.require(output::TEXT).unwrap().string().unwrap(),
        " is"
    );
    assert_eq!(
        outputs.scalar::<i32>(output::OUTPUT_TOKENS).unwrap(),
        Some(1)
    );
    let last = take(&mut said, text("t", 1, true)).unwrap();
    assert!(last.view().unwrap().is_final());
    assert_eq!(said.tokens(), 5);
}

#[test]
fn responses_without_text_are_not_repeated_either() {
    let mut said = Said::default();
    for piece in ["a", "", ""] {
        assert!(take(&mut said, text(piece, 1, false)).is_some());
    }
    said.replay();
    for piece in ["a", "", ""] {
        assert!(take(&mut said, text(piece, 1, false)).is_none());
    }
    assert!(take(&mut said, text("", 1, false)).is_some());
}

#[test]
fn another_answer_or_a_shorter_one_differs() {
    let begun = || {
        let mut said = Said::default();
        take(&mut said, core(0, &[5, 6], -1.5, false));
        take(&mut said, core(0, &[7], -2.5, false));
        said
    };
    assert_eq!(begun().only(), (&[5, 6, 7][..], Some(-2.5)));
    for (response, expected) in [
        (core(0, &[5, 9], 0.0, false), true),
        (core(0, &[5, 6], 0.0, true), true),
        (core(0, &[5, 6, 7], 0.0, true), false),
        (core(0, &[5, 6], 0.0, false), false),
    ] {
        let mut said = begun();
        said.replay();
        assert_eq!(differs(&mut said, &response), expected);
    }
}

#[test]
fn what_nobody_can_compare_cannot_continue() {
    let mut beams = ResponseBuilder::new("tensorrt_llm", "1", 64);
    beams
        .push(output::IDS, &[1, 2, 1], &[5, 6])
        .push(output::LENGTH, &[1, 2], &[1, 1]);
    let mut sum = ResponseBuilder::new("adder", "1", 4);
    sum.push("sum", &[1], &[3.5_f32]);
    let empty = ResponseBuilder::new("tensorrt_llm", "1", 0);
    for (response, expected) in [(beams, false), (sum, false), (empty, true)] {
        let mut said = Said::default();
        assert!(take(&mut said, encoded(response)).is_some());
        assert_eq!(said.can_continue(), expected);
    }
}

#[test]
fn where_responses_have_the_text_so_far_only_longer_ones_are_news() {
    let mut said = Said::new(true);
    for so_far in ["Hel", "Hello", "Hello"] {
        let shown = take(&mut said, text(so_far, 0, false)).unwrap();
        assert_eq!(written(&shown), so_far);
    }
    said.replay();
    for repeated in ["H", "Hell", "Hello"] {
        assert!(
            take(&mut said, text(repeated, 0, false)).is_none(),
            "{repeated}"
        );
    }
    let shown = take(&mut said, text("Hello wor", 0, false)).unwrap();
    assert_eq!(written(&shown), "Hello wor");
    // One that ends says so, even if it brings nothing.
    let shown = take(&mut said, text("Hello wor", 0, true)).unwrap();
    assert_eq!(written(&shown), "Hello wor");

    let begun = || {
        let mut said = Said::new(true);
        take(&mut said, text("Hello", 0, false));
        said.replay();
        said
    };
    assert!(differs(&mut begun(), &text("Help", 0, false)));
    assert!(
        differs(&mut begun(), &text("Hell", 0, true)),
        "it ended earlier"
    );
}

#[test]
fn more_text_than_is_kept_ends_with_its_server() {
    let part = "x".repeat(MOST_TEXT / 4);
    for (accumulates, parts) in [(false, 5), (true, 5)] {
        let mut said = Said::new(accumulates);
        for count in 1..=parts {
            assert!(said.can_continue(), "{count}");
            let shown = match accumulates {
                true => part.repeat(count),
                false => part.clone(),
            };
            take(&mut said, text(&shown, 1, false)).unwrap();
        }
        assert!(!said.can_continue());
    }
    // What is repeated is not kept again.
    let mut said = Said::new(false);
    for _ in 0..64 {
        take(&mut said, text(&part, 1, false));
        said.replay();
    }
    assert!(said.can_continue());
    // Of texts so far, only the last one counts.
    let mut said = Said::new(true);
    for _ in 0..64 {
        take(&mut said, text(&part, 1, false)).unwrap();
    }
    assert!(said.can_continue());
}

fn written(response: &EncodedResponse) -> String {
    let message = response.clone().decode().unwrap();
    let message = message.infer_response.unwrap();
    let outputs = Tensors::outputs(&message).unwrap();
    let element = outputs
        .get(output::TEXT)
        .unwrap()
        .elements()
        .unwrap()
        .next();
    String::from_utf8(element.unwrap().to_vec()).unwrap()
}

#[test]
fn a_stop_ends_what_was_not_repeated_to_its_end() {
    let empty = || {
        let mut out = ResponseBuilder::new("ensemble", "1", 64);
        out.bool_parameter(names::FINAL_RESPONSE, true);
        encoded(out)
    };
    // What the last response says; and whether it is said again of what was "Hello".
    for (last, is_stopped, differs) in [
        (empty(), false, true),
        (empty(), true, false),
        (text("He", 1, true), false, true),
        (text("He", 1, true), true, false),
        (text("Ha", 1, true), true, true),
    ] {
        let mut said = Said::default();
        assert!(take(&mut said, text("Hello", 1, false)).is_some());
        said.replay();
        let taken = said.take(&last.view().unwrap(), is_stopped).unwrap();
        assert_eq!(matches!(taken, Novelty::Differs), differs, "{is_stopped}");
        if let Novelty::Partly(repeated) = taken {
            let rest = cut(last, repeated).unwrap();
            let view = rest.view().unwrap();
            let outputs = view.outputs().unwrap();
            assert_eq!(outputs.require(output::TEXT).unwrap().string().unwrap(), "");
        }
    }
}

#[test]
fn what_is_new_passes_as_it_came() {
    let mut said = Said::default();
    assert!(said.is_empty());
    for (sequence, tokens) in [(0, &[5, 6][..]), (1, &[5]), (0, &[7])] {
        let response = core(sequence, tokens, 0.0, false);
        let taken = said.take(&response.view().unwrap(), false).unwrap();
        assert!(matches!(taken, Novelty::New), "{tokens:?}");
        assert!(!said.is_empty());
    }
}

#[test]
fn a_count_of_another_type_is_left_as_it_came() {
    let mut out = ResponseBuilder::new("ensemble", "1", 64);
    out.push_bytes(output::TEXT, &[1], ["ab"])
        .push(output::OUTPUT_TOKENS, &[1, 1], &[7_i64]);
    let old = Old { tokens: 0, text: 1 };
    let repeated = Repeated {
        old,
        ..Repeated::default()
    };
    let rest = cut(encoded(out), repeated).unwrap();
    let view = rest.view().unwrap();
    let outputs = view.outputs().unwrap();
    assert_eq!(
        outputs.require(output::TEXT).unwrap().string().unwrap(),
        "b"
    );
    let counts: Vec<i64> = outputs.values(output::OUTPUT_TOKENS).unwrap().unwrap();
    assert_eq!(counts, [7]);
}
