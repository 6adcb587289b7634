//! Responses in, rows out: each dialect, cut in every way, and what is malformed.

use inflight_kserve::inference::{DataType, ModelConfig, ModelInput, ModelOutput};
use inflight_kserve::tensor::ResponseBuilder;
use inflight_models::dialect::{Surroundings, describe};
use inflight_testkit::model::{byte_model_files, tokens};
use inflight_text::{ModelFiles, TextModel};

use super::*;

const END: i32 = 256;

type Named = &'static [(&'static str, DataType)];

fn model(kind: &str) -> Arc<TritonModel> {
    use DataType::*;
    let (inputs, outputs): (Named, Named) = match kind {
        "tokens" => (
            &[
                ("input_ids", TypeInt32),
                ("input_lengths", TypeInt32),
                ("request_output_len", TypeInt32),
                ("streaming", TypeBool),
                ("return_log_probs", TypeBool),
            ],
            &[("output_ids", TypeInt32), ("output_log_probs", TypeFp32)],
        ),
        "llmapi" => (
            &[
                ("text_input", TypeString),
                ("sampling_param_max_tokens", TypeInt32),
                ("streaming", TypeBool),
                ("return_finish_reason", TypeBool),
            ],
            &[("text_output", TypeString), ("finish_reason", TypeString)],
        ),
        "counting" => (
            &[
                ("text_input", TypeString),
                ("max_tokens", TypeInt32),
                ("stream", TypeBool),
                ("return_num_input_tokens", TypeBool),
                ("return_num_output_tokens", TypeBool),
            ],
            &[
                ("text_output", TypeString),
                ("num_input_tokens", TypeInt32),
                ("num_output_tokens", TypeInt32),
            ],
        ),
        _ => (
            &[
                ("text_input", TypeString),
                ("max_tokens", TypeInt32),
                ("stream", TypeBool),
            ],
            &[("text_output", TypeString)],
        ),
    };
    let config = ModelConfig {
        name: kind.to_owned(),
        input: inputs
            .iter()
            .map(|(name, kind)| ModelInput {
                name: (*name).to_owned(),
                data_type: *kind as i32,
                dims: vec![-1],
                ..ModelInput::default()
            })
            .collect(),
        output: outputs
            .iter()
            .map(|(name, kind)| ModelOutput {
                name: (*name).to_owned(),
                data_type: *kind as i32,
                ..ModelOutput::default()
            })
            .collect(),
        ..ModelConfig::default()
    };
    let surroundings = Surroundings {
        decoupled: true,
        excludes_prompt: false,
        adds_special_tokens: true,
    };
    Arc::new(describe(&config, surroundings).unwrap().unwrap())
}

fn expected(limit: u32) -> Expected {
    Expected {
        limit,
        end_ids: Arc::from([END]),
        streaming: true,
        log_probs: false,
        tokenizer: None,
        repeated: None,
        prompt_tokens: true,
    }
}

fn reader(kind: &str, expected: Expected) -> Reader {
    Reader::new(model(kind), expected)
}

fn response(last: bool, write: impl FnOnce(&mut ResponseBuilder)) -> ModelInferResponse {
    let mut builder = ResponseBuilder::new("m", "id", 0);
    write(&mut builder);
    builder.bool_parameter(FINAL_RESPONSE, last).build()
}

fn ids(last: bool, tokens: &[i32]) -> ModelInferResponse {
    response(last, |builder| {
        builder.push("output_ids", &[1, 1, tokens.len() as i64], tokens);
    })
}

fn text(last: bool, text: &str) -> ModelInferResponse {
    response(last, |builder| {
        builder.push_bytes("text_output", &[1], [text]);
    })
}

#[test]
fn why_token_answers_end_is_told_by_the_last_token_or_the_count() {
    // Responses, limit; all tokens, reason.
    type Case = (&'static [(&'static [i32], bool)], u32, usize, FinishReason);
    let cases: [Case; 6] = [
        (&[(&[1], false), (&[2], true)], 2, 2, FinishReason::Length),
        (&[(&[1, 2], true)], 3, 2, FinishReason::EndId),
        (&[(&[1, END], true)], 2, 2, FinishReason::EndId),
        (
            &[(&[1], false), (&[END], false), (&[], true)],
            2,
            2,
            FinishReason::EndId,
        ),
        (
            &[(&[1], false), (&[2], false), (&[], true)],
            2,
            2,
            FinishReason::Length,
        ),
        (&[(&[], true)], 4, 0, FinishReason::EndId),
    ];
    for (responses, limit, count, reason) in cases {
        let mut reader = reader("tokens", expected(limit));
        let answers: Vec<SequenceOutput> = responses
            .iter()
            .map(|(tokens, last)| reader.read(&ids(*last, tokens)).unwrap())
            .collect();
        let (last, before) = answers.split_last().unwrap();
        assert!(last.last && last.finish == reason, "{responses:?}");
        assert!(
            before
                .iter()
                .all(|one| !one.last && one.finish == FinishReason::NotFinished)
        );
        let total: usize = answers.iter().map(|one| one.tokens.len()).sum();
        assert_eq!(total, count);
    }
}

#[test]
fn a_reason_in_numbers_is_believed_over_the_count() {
    for (number, reason) in [
        (1, FinishReason::EndId),
        (3, FinishReason::Length),
        (5, FinishReason::Cancelled),
        (0, FinishReason::EndId),
        (99, FinishReason::EndId),
    ] {
        let told = response(true, |builder| {
            builder.push("output_ids", &[1, 1, 1], &[7i32]);
            builder.push("inflight_finish_reason", &[1, 1], &[number]);
        });
        let answer = reader("tokens", expected(9)).read(&told).unwrap();
        assert_eq!(answer.finish, reason, "{number}");
        let mut early = told;
        let parameter = ParameterChoice::BoolParam(false);
        let flag = early.parameters.get_mut(FINAL_RESPONSE).unwrap();
        flag.parameter_choice = Some(parameter);
        let mut reader = reader("tokens", expected(9));
        assert_eq!(
            reader.read(&early).unwrap().finish,
            FinishReason::NotFinished
        );
        assert_eq!(
            reader.read(&ids(true, &[])).unwrap().finish,
            reason,
            "{number}"
        );
    }
}

#[test]
fn an_end_token_is_no_part_of_the_answer_wherever_the_mark_is() {
    // Responses, the last of them the last; tokens and log probabilities that each passes on.
    type Case = (&'static [&'static [i32]], &'static [&'static [i32]]);
    let cases: [Case; 4] = [
        (&[&[1], &[END], &[]], &[&[1], &[], &[END]]),
        (&[&[1, END], &[]], &[&[1], &[END]]),
        // The token did not end the answer: the request made the server continue, e.g. by `min_tokens`.
        (&[&[END], &[2], &[END]], &[&[], &[END, 2], &[END]]),
        (&[&[END], &[END], &[]], &[&[], &[END], &[END]]),
    ];
    for (responses, passed) in cases {
        let asked = Expected {
            log_probs: true,
            ..expected(9)
        };
        let mut reader = reader("tokens", asked);
        let count = responses.len();
        for (position, (tokens, passed)) in responses.iter().zip(passed).enumerate() {
            let values: Vec<f32> = tokens.iter().map(|id| -(*id as f32)).collect();
            let told = response(position + 1 == count, |builder| {
                let shape = [1, 1, tokens.len() as i64];
                builder.push("output_ids", &shape, tokens);
                builder.push("output_log_probs", &shape, &values);
            });
            let answer = reader.read(&told).unwrap();
            assert_eq!(answer.tokens, *passed, "{responses:?}");
            let told = answer.details.map(|details| details.log_probs);
            let expected: Vec<f32> = passed.iter().map(|id| -(*id as f32)).collect();
            assert_eq!(told.unwrap_or_default(), expected, "{responses:?}");
            let reason = match answer.last {
                true => FinishReason::EndId,
                false => FinishReason::NotFinished,
            };
            assert_eq!(answer.finish, reason);
        }
    }
}

#[test]
fn an_answer_without_end_is_an_error() {
    let endless = |kind: &str, asked: Expected, response: ModelInferResponse| {
        let mut reader = reader(kind, asked);
        let read = (0..100_000).find_map(|_| reader.read(&response).err());
        assert!(
            matches!(read, Some(AnswerError::TooLong { limit: 9 })),
            "{kind}: {read:?}"
        );
    };
    endless("tokens", expected(9), ids(false, &[7]));
    endless("tokens", expected(9), ids(false, &[]));
    endless("text", expected(9), text(false, ""));
    endless("llmapi", expected(9), text(false, "a"));
    let long = "a".repeat(1 << 20);
    endless("text", expected(9), text(false, &long));
    let longer = "a".repeat(2 << 20);
    endless("llmapi", expected(9), text(false, &longer));
    // As many as were asked for are no more, and a prompt before them is.
    assert!(
        reader("tokens", expected(2))
            .read(&ids(true, &[7, 8]))
            .is_ok()
    );
    let with_prompt = ids(true, &[1, 7, 8]);
    assert!(reader("tokens", expected(2)).read(&with_prompt).is_err());
}

#[test]
fn padding_behind_the_sequence_is_left_out() {
    let mut reader = reader("tokens", expected(9));
    let padded = response(true, |builder| {
        builder.push("output_ids", &[1, 1, 4], &[7i32, 8, 0, 0]);
        builder.push("sequence_length", &[1, 1], &[2i32]);
    });
    assert_eq!(reader.read(&padded).unwrap().tokens, [7, 8]);
}

#[test]
fn log_probabilities_are_the_newest_values() {
    let with = |values: &[f32]| {
        response(false, |builder| {
            builder.push("output_ids", &[1, 1, 2], &[7i32, 8]);
            builder.push("output_log_probs", &[1, 1, values.len() as i64], values);
        })
    };
    let asked = Expected {
        log_probs: true,
        ..expected(9)
    };
    let mut reader = reader("tokens", asked);
    for values in [&[-1.0f32, -2.0][..], &[-9.0, -1.0, -2.0]] {
        let answer = reader.read(&with(values)).unwrap();
        assert_eq!(answer.details.unwrap().log_probs, [-1.0, -2.0]);
    }
    let error = reader.read(&with(&[-1.0])).unwrap_err();
    assert!(matches!(error, AnswerError::LogProbs { .. }), "{error}");
}

#[test]
fn text_answers_count_their_steps() {
    // Responses, limit; tokens counted, reason.
    type Case = (&'static [(&'static str, bool)], u32, u32, FinishReason);
    let cases: [Case; 4] = [
        (&[("a", false), ("b", true)], 2, 2, FinishReason::Length),
        (&[("a", false), ("", true)], 2, 1, FinishReason::EndId),
        (
            &[("a", false), ("", false), ("", true)],
            2,
            2,
            FinishReason::Length,
        ),
        (&[("ab", true)], 5, 1, FinishReason::EndId),
    ];
    for (responses, limit, count, reason) in cases {
        let mut reader = reader("text", expected(limit));
        let mut total = 0;
        let mut finish = FinishReason::NotFinished;
        for (piece, last) in responses {
            let answer = reader.read(&text(*last, piece)).unwrap();
            let details = answer.details.unwrap();
            assert_eq!(details.text.as_deref(), Some(*piece));
            total += details.generated;
            finish = answer.finish;
        }
        assert_eq!((total, finish), (count, reason), "{responses:?}");
    }
}

#[test]
fn a_text_in_one_piece_is_counted_by_the_tokenizer() {
    let files: ModelFiles = byte_model_files()
        .into_iter()
        .map(|(name, data)| (name, data.to_vec()))
        .collect();
    let files = TextModel::load(&files).unwrap();
    for (limit, reason) in [(3, FinishReason::Length), (4, FinishReason::EndId)] {
        let asked = Expected {
            streaming: false,
            tokenizer: Some(Arc::clone(files.tokenizer())),
            ..expected(limit)
        };
        let answer = reader("text", asked).read(&text(true, "abc")).unwrap();
        assert_eq!(answer.finish, reason);
        assert_eq!(
            answer.details.unwrap().generated as usize,
            tokens("abc").len()
        );
    }
}

#[test]
fn a_server_that_counts_is_believed() {
    let mut reader = reader("counting", expected(5));
    let counted = |last, made: i32| {
        response(last, |builder| {
            builder.push_bytes("text_output", &[1], ["x"]);
            builder.push("num_input_tokens", &[1], &[11i32]);
            builder.push("num_output_tokens", &[1], &[made]);
        })
    };
    let first = reader.read(&counted(false, 3)).unwrap().details.unwrap();
    assert_eq!((first.generated, first.prompt_tokens), (3, Some(11)));
    let second = reader.read(&counted(true, 2)).unwrap();
    assert_eq!(second.finish, FinishReason::Length);
    let second = second.details.unwrap();
    assert_eq!(
        (second.generated, second.prompt_tokens),
        (2, None),
        "told once"
    );
}

#[test]
fn a_repeated_text_is_passed_on_once_and_never_half_a_character() {
    // The text so far and whether it is the last; what is new.
    let cases: [&[(&str, bool, &str)]; 8] = [
        &[("a", false, "a"), ("ab", false, "b"), ("abc", true, "c")],
        // Spaces that a tokenizer cleans up when it knows what follows.
        &[("a ", false, "a"), ("a.", false, "."), ("a. ", true, " ")],
        &[
            ("do n", false, "do"),
            ("do n'", false, ""),
            ("don't", true, "n't"),
        ],
        &[
            ("a", false, "a"),
            ("a n", false, ""),
            ("a new", true, " new"),
        ],
        &[
            ("we '", false, "we"),
            ("we 'r", false, ""),
            ("we're", true, "'re"),
        ],
        &[
            ("a\u{fffd}", false, "a"),
            ("aé", false, "é"),
            ("aéx", true, "x"),
        ],
        &[("a\u{fffd}", false, "a"), ("a\u{fffd}", true, "\u{fffd}")],
        &[("a\u{fffd}", false, "a"), ("", true, "\u{fffd}")],
    ];
    for steps in cases {
        let mut reader = reader("llmapi", expected(9));
        for (so_far, last, news) in steps {
            let answer = reader.read(&text(*last, so_far)).unwrap();
            assert_eq!(
                answer.details.unwrap().text.as_deref(),
                Some(*news),
                "{steps:?}"
            );
        }
    }
    let mut reader = reader("llmapi", expected(9));
    reader.read(&text(false, "ab")).unwrap();
    let error = reader.read(&text(false, "xb")).unwrap_err();
    assert!(matches!(error, AnswerError::NotContinued));
}

#[test]
fn a_reason_that_is_told_is_believed() {
    let told = |reason: &str| {
        response(true, |builder| {
            builder.push_bytes("text_output", &[1], ["x"]);
            builder.push_bytes("finish_reason", &[1], [reason]);
        })
    };
    for (name, reason) in [
        ("stop", FinishReason::EndId),
        ("length", FinishReason::Length),
        ("timeout", FinishReason::TimedOut),
        ("cancelled", FinishReason::Cancelled),
        ("None", FinishReason::EndId),
    ] {
        let answer = reader("llmapi", expected(9)).read(&told(name)).unwrap();
        assert_eq!(answer.finish, reason, "{name}");
    }
    let error = reader("llmapi", expected(9))
        .read(&told("tired"))
        .unwrap_err();
    assert!(error.to_string().contains("`tired`"));
}

#[test]
fn a_last_repeated_text_counts_where_it_has_a_token() {
    for (last, reason, count) in [
        ("ab", "stop", 1),
        ("a", "stop", 0),
        // A token without text, e.g. half a character, used the last place.
        ("a", "length", 1),
    ] {
        let mut reader = reader("llmapi", expected(9));
        reader.read(&text(false, "a")).unwrap();
        let told = response(true, |builder| {
            builder.push_bytes("text_output", &[1], [last]);
            builder.push_bytes("finish_reason", &[1], [reason]);
        });
        let details = reader.read(&told).unwrap().details.unwrap();
        assert_eq!(details.generated, count, "{last} {reason}");
    }
}

#[test]
fn a_malformed_tensor_is_an_error() {
    let mut reader = reader("tokens", expected(9));
    let wrong_type = response(false, |builder| {
        builder.push("output_ids", &[1], &[1.0f32]);
    });
    assert!(matches!(
        reader.read(&wrong_type),
        Err(AnswerError::Tensor(_))
    ));
    let mut torn = ids(false, &[1, 2]);
    torn.raw_output_contents[0].truncate(3);
    assert!(matches!(reader.read(&torn), Err(AnswerError::Tensor(_))));
}
