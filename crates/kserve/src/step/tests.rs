//! Round trips of valid batches, tables of broken ones, and mutations of messages.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::inference::ModelInferResponse;
use crate::streamed::StreamedResponse;
use crate::tensor::Tensors;

/// The batch as a message whose parts can be changed.
fn message(batch: &StepBatch) -> ModelInferResponse {
    let message = batch.encode("tensorrt_llm").decode().unwrap();
    message.infer_response.unwrap()
}

/// What one generated row carries.
#[derive(Clone, Debug)]
struct RowSpec {
    handle: u64,
    tokens: Vec<i32>,
    finish: u8,
    is_final: bool,
    error: Option<String>,
    has_log_probs: bool,
    top: Option<u32>,
    cached: Option<u32>,
    prompt: Option<(usize, u32)>,
}

fn row() -> impl Strategy<Value = RowSpec> {
    (
        any::<u64>(),
        prop::collection::vec(any::<i32>(), 0..4),
        0..=5_u8,
        any::<bool>(),
        prop::option::weighted(0.2, ".{0,8}"),
        any::<bool>(),
        prop::option::weighted(0.3, 0..4_u32),
        prop::option::weighted(0.3, any::<u32>()),
        prop::option::weighted(0.3, (0..4_usize, 0..3_u32)),
    )
        .prop_map(
            |(handle, tokens, finish, is_final, error, has_log_probs, top, cached, prompt)| {
                RowSpec {
                    handle,
                    tokens,
                    finish,
                    is_final: is_final || error.is_some(),
                    error,
                    has_log_probs,
                    top,
                    cached,
                    prompt,
                }
            },
        )
}

fn batch(rows: &[RowSpec]) -> StepBatch {
    let mut batch = StepBatch {
        token_offsets: vec![0],
        ..Default::default()
    };
    for (index, row) in rows.iter().enumerate() {
        let number = index as u32;
        let tokens = row.tokens.len();
        batch.ids.push(Handle(row.handle));
        batch.sequence_index.push(number as i32 % 3);
        batch.token_ids.extend(&row.tokens);
        batch.token_offsets.push(batch.token_ids.len() as u32);
        batch.finish_reasons.push(row.finish);
        batch.finals.push(row.is_final.into());
        if let Some(text) = &row.error {
            batch.errors.push(RowError {
                row: number,
                code: Code::Internal,
                text: text.clone(),
                retry_after_ms: number * 7,
            });
        }
        if row.has_log_probs {
            batch.log_prob_rows.push(number);
            batch
                .log_probs
                .extend((0..tokens).map(|token| -(token as f32) - index as f32));
        }
        if let Some(width) = row.top {
            batch.top_log_prob_rows.push(number);
            batch.top_log_prob_widths.push(width);
            let values = tokens * width as usize;
            batch
                .top_log_prob_ids
                .extend((0..values).map(|id| id as i32 + number as i32));
            batch
                .top_log_probs
                .extend((0..values).map(|value| -(value as f32)));
        }
        if let Some(cached) = row.cached {
            batch.cached_tokens.push((number, cached));
        }
        if row.finish == 3 {
            let params = Bytes::from(vec![0xff; index]);
            batch.context_phases.push(ContextPhase {
                row: number,
                params,
            });
        }
        if let Some((positions, width)) = row.prompt {
            let alternatives = positions * width as usize;
            batch.prompt_log_probs.push(PromptLogProbs {
                row: number,
                values: vec![-0.5; positions],
                width,
                top_ids: vec![number as i32; alternatives],
                top_values: vec![-1.5; alternatives],
            });
        }
    }
    batch
}

fn two_rows() -> StepBatch {
    StepBatch {
        ids: vec![Handle(7), Handle(8)],
        sequence_index: vec![0, 1],
        token_offsets: vec![0, 2, 3],
        token_ids: vec![10, 11, 12],
        finish_reasons: vec![0, 1],
        finals: vec![0, 1],
        ..Default::default()
    }
}

#[test]
fn rows_make_a_batch() {
    let batch = two_rows();
    assert_eq!(batch.rows().collect::<StepBatch>(), batch);
    let handles: Vec<String> = batch.ids.iter().map(ToString::to_string).collect();
    assert_eq!(handles, ["7", "8"]);
}

#[test]
fn an_empty_batch_means_nothing_moved() {
    let empty = StepBatch::default();
    assert_eq!(StepBatch::decode(&message(&empty)), Ok(empty));
}

#[test]
fn sparse_columns_travel_only_when_a_row_has_them() {
    let names = |batch: &StepBatch| -> Vec<String> {
        let outputs = message(batch).outputs.into_iter();
        outputs.map(|output| output.name).collect()
    };
    let always = [
        "inflight_handle",
        "inflight_sequence_index",
        "inflight_token_offsets",
        "output_ids",
        "inflight_finish_reason",
        "inflight_final",
    ];
    assert_eq!(names(&two_rows()), always);
    let errors = [
        "inflight_error_rows",
        "inflight_error_codes",
        "inflight_error_texts",
        "inflight_error_retry_after_ms",
    ];
    let prompts = [
        "inflight_prompt_log_prob_rows",
        "inflight_prompt_log_prob_offsets",
        "inflight_prompt_log_probs",
        "inflight_prompt_top_log_prob_widths",
        "inflight_prompt_top_log_prob_ids",
        "inflight_prompt_top_log_probs",
    ];
    // Without and with what not every error and every prompt has.
    for (more, error_columns, prompt_columns) in
        [(0, &errors[..3], &prompts[..3]), (1, &errors, &prompts)]
    {
        let error = RowError {
            row: 1,
            code: Code::Internal,
            text: "e".to_owned(),
            retry_after_ms: more,
        };
        let prompt = PromptLogProbs {
            row: 0,
            values: vec![-1.0],
            width: more,
            top_ids: vec![1; more as usize],
            top_values: vec![-1.0; more as usize],
        };
        let batch = StepBatch {
            errors: vec![error],
            prompt_log_probs: vec![prompt],
            ..two_rows()
        };
        let sent = [&always, error_columns, prompt_columns].concat();
        assert_eq!(names(&batch), sent);
    }
}

#[test]
fn every_broken_invariant_is_an_error() {
    type Breakage = fn(&mut StepBatch);
    let cases: [(Breakage, &str); 19] = [
        (
            |b| b.sequence_index.truncate(1),
            "column `inflight_sequence_index` has 1 values, expected 2",
        ),
        (
            |b| b.finals.push(0),
            "column `inflight_final` has 3 values, expected 2",
        ),
        (
            |b| b.token_offsets.truncate(2),
            "column `inflight_token_offsets` has 2 values, expected 3",
        ),
        (
            |b| b.token_offsets.clear(),
            "column `inflight_token_offsets` has 0 values, expected 3",
        ),
        (
            |b| b.token_offsets[0] = 1,
            "column `inflight_token_offsets` starts with 1 instead of 0",
        ),
        (
            |b| b.token_offsets[1] = 9,
            "column `inflight_token_offsets` goes from 9 to 3 at position 2",
        ),
        (
            |b| b.token_offsets[2] = 2,
            "column `inflight_token_offsets` ends with 2, but there are 3 values",
        ),
        (
            |b| b.sequence_index[1] = -1,
            "row 1 has the value -1 in column `inflight_sequence_index`",
        ),
        (
            |b| b.finish_reasons[0] = 6,
            "row 0 has the value 6 in column `inflight_finish_reason`",
        ),
        (
            |b| b.finals[1] = 2,
            "row 1 has the value 2 in column `inflight_final`",
        ),
        (
            |b| {
                b.errors.push(RowError {
                    row: 2,
                    code: Code::InvalidArgument,
                    text: String::new(),
                    retry_after_ms: 0,
                })
            },
            "column `inflight_error_rows` names row 2, but there are 2 rows",
        ),
        (
            |b| {
                b.errors.push(RowError {
                    row: 0,
                    code: Code::InvalidArgument,
                    text: String::new(),
                    retry_after_ms: 0,
                })
            },
            "row 0 carries an error and is not final",
        ),
        (
            |b| {
                b.errors.push(RowError {
                    row: 1,
                    code: Code::Ok,
                    text: String::new(),
                    retry_after_ms: 0,
                })
            },
            "row 1 has the value 0 in column `inflight_error_codes`",
        ),
        (
            |b| b.cached_tokens = vec![(1, 4), (1, 4)],
            "column `inflight_cached_tokens_rows` names row 1 after row 1; rows must ascend",
        ),
        (
            |b| {
                b.context_phases.push(ContextPhase {
                    row: 2,
                    params: Bytes::new(),
                })
            },
            "column `inflight_context_phase_rows` names row 2, but there are 2 rows",
        ),
        (
            |b| b.log_prob_rows.push(0),
            "column `output_log_probs` has 0 values, expected 2",
        ),
        (
            |b| b.top_log_prob_rows.push(0),
            "column `inflight_top_log_prob_widths` has 0 values, expected 1",
        ),
        (
            |b| {
                b.top_log_prob_rows.push(0);
                b.top_log_prob_widths.push(u32::MAX);
            },
            "column `inflight_top_log_prob_ids` has 0 values, expected 8589934590",
        ),
        (
            |b| {
                let values = vec![0.0];
                b.prompt_log_probs.push(PromptLogProbs {
                    values,
                    width: 2,
                    ..Default::default()
                });
            },
            "column `inflight_prompt_top_log_prob_ids` has 0 values, expected 2",
        ),
    ];
    for (breakage, expected) in cases {
        let mut batch = two_rows();
        breakage(&mut batch);
        assert_eq!(batch.validate().unwrap_err().to_string(), expected);
        assert_eq!(
            StepBatch::decode(&message(&batch)).unwrap_err().to_string(),
            expected
        );
    }
}

#[test]
fn a_missing_column_is_named() {
    let mut response = message(&two_rows());
    response.outputs.remove(3);
    response.raw_output_contents.remove(3);
    let error = StepBatch::decode(&response).unwrap_err();
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "tensor `output_ids` is missing");
}

#[test]
fn rows_of_a_batch_nobody_validated_read_as_empty() {
    let batch = StepBatch {
        ids: vec![Handle(1), Handle(2)],
        token_offsets: vec![5, 2],
        log_prob_rows: vec![0],
        ..Default::default()
    };
    let rows: Vec<_> = batch.rows().collect();
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter()
            .all(|row| row.tokens.is_empty() && !row.is_final)
    );
}

#[test]
fn requests_join_and_leave_by_handle() {
    let stop = stop_request("tensorrt_llm", Handle(42));
    let inputs = Tensors::inputs(&stop).unwrap();
    assert_eq!(Handle::of(&inputs), Ok(Some(Handle(42))));
    assert_eq!(is_stop(&inputs), Ok(true));

    let plain = crate::tensor::RequestBuilder::new("m", "", 0)
        .vector("input_ids", &[1, 2])
        .build();
    let inputs = Tensors::inputs(&plain).unwrap();
    assert_eq!(Handle::of(&inputs), Ok(None));
    assert_eq!(is_stop(&inputs), Ok(false));
}

proptest! {
    #[test]
    fn encoding_and_decoding_are_inverse(specs in prop::collection::vec(row(), 0..8)) {
        let batch = batch(&specs);
        prop_assert_eq!(batch.validate(), Ok(()));
        let encoded = batch.encode("tensorrt_llm");
        let decoded = StepBatch::decode(encoded.view().unwrap());
        prop_assert_eq!(decoded.as_ref(), Ok(&batch));
        prop_assert_eq!(StepBatch::decode(&message(&batch)), Ok(batch));
    }

    #[test]
    fn appending_batches_and_pushing_rows_come_to_the_same(
        history in prop::collection::vec(prop::collection::vec(row(), 0..4), 1..4),
    ) {
        let (mut appended, mut pushed) = (StepBatch::default(), StepBatch::default());
        for specs in &history {
            let batch = batch(specs);
            for row in batch.rows() {
                pushed.push(&row);
            }
            if !specs.is_empty() {
                appended.append(batch);
            }
        }
        prop_assert_eq!(appended.validate(), Ok(()));
        prop_assert_eq!(appended, pushed);
    }

    #[test]
    fn rows_carry_what_their_columns_hold(specs in prop::collection::vec(row(), 0..8)) {
        let batch = batch(&specs);
        let mut left = batch.rows();
        for count in (0..specs.len()).rev() {
            prop_assert!(left.next().is_some());
            prop_assert_eq!(left.size_hint(), (count, Some(count)));
        }
        let rows: Vec<_> = batch.rows().collect();
        prop_assert_eq!(rows.len(), specs.len());
        for (row, spec) in rows.iter().zip(&specs) {
            prop_assert_eq!(row.id, Handle(spec.handle));
            prop_assert_eq!(row.tokens, &spec.tokens);
            prop_assert_eq!(row.finish_reason as u8, spec.finish);
            prop_assert_eq!(row.is_final, spec.is_final);
            prop_assert_eq!(row.error.map(|error| error.text.clone()), spec.error.clone());
            let log_probs = spec.has_log_probs.then_some(spec.tokens.len());
            prop_assert_eq!(row.log_probs.map(<[f32]>::len), log_probs);
            if let Some(first) = row.log_probs.and_then(|values| values.first()) {
                prop_assert_eq!(*first, -(row.index as f32));
            }
            prop_assert_eq!(row.top_log_probs.map(|top| top.width as u32), spec.top);
            if let Some(top) = row.top_log_probs {
                for token in 0..spec.tokens.len() {
                    prop_assert_eq!(top.token(token).count(), top.width);
                }
            }
            prop_assert_eq!(row.cached_tokens, spec.cached);
            let phase = (spec.finish == 3).then_some(row.index);
            prop_assert_eq!(row.context_phase.map(Bytes::len), phase);
            prop_assert_eq!(
                row.prompt_log_probs.map(|prompt| (prompt.values.len(), prompt.width)),
                spec.prompt
            );
        }
    }

    #[test]
    fn a_mutated_message_decodes_to_a_valid_batch_or_an_error(
        specs in prop::collection::vec(row(), 0..6),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut wire = message(&batch(&specs)).encode_to_vec();
        for (at, byte) in mutations {
            let at = at.index(wire.len());
            wire[at] = byte;
        }
        if let Ok(response) = ModelInferResponse::decode(Bytes::from(wire))
            && let Ok(batch) = StepBatch::decode(&response)
        {
            prop_assert_eq!(batch.validate(), Ok(()));
            prop_assert_eq!(batch.rows().count(), batch.ids.len());
        }
    }

    #[test]
    fn mutated_columns_decode_to_a_valid_batch_or_an_error(
        specs in prop::collection::vec(row(), 1..6),
        which in any::<prop::sample::Index>(),
        value in any::<u32>(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut response = message(&batch(&specs));
        let column = which.index(response.raw_output_contents.len());
        let mut data = response.raw_output_contents[column].to_vec();
        if data.len() >= 4 {
            let at = at.index(data.len() - 3);
            data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        response.raw_output_contents[column] = Bytes::from(data);
        if let Ok(batch) = StepBatch::decode(&response) {
            prop_assert_eq!(batch.validate(), Ok(()));
            prop_assert_eq!(batch.rows().count(), batch.ids.len());
        }
    }
}

#[test]
fn the_size_that_is_set_aside_is_that_of_the_columns() {
    const ROWS: usize = 200;
    let plain = || RowSpec {
        handle: 7,
        tokens: vec![],
        finish: 0,
        is_final: false,
        error: None,
        has_log_probs: false,
        top: None,
        cached: None,
        prompt: None,
    };
    let tokens = |count: usize| vec![1; count];
    for (name, row) in [
        ("rows", plain()),
        (
            "tokens",
            RowSpec {
                tokens: tokens(9),
                ..plain()
            },
        ),
        (
            "errors",
            RowSpec {
                error: Some("why".repeat(9)),
                ..plain()
            },
        ),
        (
            "log probabilities",
            RowSpec {
                tokens: tokens(9),
                has_log_probs: true,
                ..plain()
            },
        ),
        (
            "rows of them",
            RowSpec {
                has_log_probs: true,
                ..plain()
            },
        ),
        (
            "alternatives",
            RowSpec {
                tokens: tokens(5),
                top: Some(8),
                ..plain()
            },
        ),
        (
            "rows of these",
            RowSpec {
                top: Some(8),
                ..plain()
            },
        ),
        (
            "cached tokens",
            RowSpec {
                cached: Some(5),
                ..plain()
            },
        ),
        (
            "context phases",
            RowSpec {
                finish: 3,
                ..plain()
            },
        ),
        (
            "prompts",
            RowSpec {
                prompt: Some((20, 0)),
                ..plain()
            },
        ),
        (
            "their alternatives",
            RowSpec {
                prompt: Some((5, 7)),
                ..plain()
            },
        ),
        (
            "rows of prompts",
            RowSpec {
                prompt: Some((0, 0)),
                ..plain()
            },
        ),
    ] {
        let batch = batch(&vec![row; ROWS]);
        let message = message(&batch);
        let needed: usize = message.raw_output_contents.iter().map(Bytes::len).sum();
        let size = batch.byte_size();
        assert!(
            (needed..needed + needed / 5 + 32).contains(&size),
            "{name}: {size} for {needed}"
        );
    }
}
