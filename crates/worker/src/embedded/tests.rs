use bytes::Bytes;
use inflight_kserve::step::{Code, FinishReason, RowError, StepBatch};
use inflight_kserve::tensor::{RequestBuilder, Tensors};

use super::*;
use crate::executor::NamedTensor;

fn core(excludes_input: bool) -> CoreRequests {
    let info = ModelInfo {
        executor: "test".to_owned(),
        vocab_size: 100,
        max_seq_len: 64,
        max_input_len: 32,
        max_batch_size: 4,
        max_num_tokens: 64,
        max_beam_width: 1,
        tokens_per_block: 8,
        capabilities: Vec::new(),
        adapters: Vec::new(),
        weights: String::new(),
    };
    CoreRequests::new(info, 1 << 20, excludes_input)
}

/// Two rows, with their scalars as Triton's backends see them: the batch dimension alone.
fn two_rows() -> RequestBuilder {
    let mut builder = RequestBuilder::new("tensorrt_llm", "id", 64);
    builder
        .push("input_ids", &[2, 2], &[1, 2, 3, 0])
        .push("input_lengths", &[2], &[2, 1])
        .push("request_output_len", &[2], &[8, 4]);
    builder
}

fn work(core: &CoreRequests, message: ModelInferRequest) -> Vec<Request> {
    match core.parse(message) {
        Ok(Parsed::Work { requests, .. }) => requests,
        other => panic!("{other:?}"),
    }
}

/// Final rows with one token each.
fn finals(client_ids: &[ClientId]) -> ResponseBatch {
    let rows = client_ids.len();
    ResponseBatch {
        rows: StepBatch {
            ids: client_ids.to_vec(),
            sequence_index: vec![0; rows],
            token_offsets: (0..=rows as u32).collect(),
            token_ids: vec![7; rows],
            finish_reasons: vec![FinishReason::Length as u8; rows],
            finals: vec![1; rows],
            ..StepBatch::default()
        },
        tensors: Vec::new(),
    }
}

fn output(answer: &RowResponse, name: &str) -> Vec<i32> {
    let response = answer.result.as_ref().unwrap().as_ref().unwrap();
    let outputs = Tensors::outputs(response).unwrap();
    outputs.get(name).unwrap().values().unwrap()
}

#[test]
fn squeezed_scalars_have_their_rows() {
    let core = core(false);
    let requests = work(&core, two_rows().build());
    let prompts: Vec<_> = requests.iter().map(|one| &one.input_token_ids).collect();
    assert_eq!(prompts, [&vec![1, 2], &vec![3]]);
    let ids: Vec<ClientId> = requests.iter().map(|one| one.client_id).collect();
    assert_ne!(ids[0], ids[1]);
    let answers = core.respond(&finals(&ids)).unwrap();
    assert_eq!(output(&answers[0], "output_ids"), [1, 2, 7]);
    assert_eq!(output(&answers[1], "output_ids"), [3, 7]);
    assert_eq!(output(&answers[1], "batch_index"), [1]);
}

#[test]
fn the_prompt_is_left_out_by_default_or_by_request() {
    for (excludes_input, sent, expected) in [
        (true, None, vec![7]),
        (true, Some(false), vec![1, 2, 7]),
        (false, Some(true), vec![7]),
    ] {
        let core = core(excludes_input);
        let mut message = two_rows();
        if let Some(sent) = sent {
            message.push("exclude_input_in_output", &[2], &[sent, sent]);
        }
        let requests = work(&core, message.build());
        let answers = core.respond(&finals(&[requests[0].client_id])).unwrap();
        assert_eq!(
            output(&answers[0], "output_ids"),
            expected,
            "{excludes_input} {sent:?}"
        );
    }
}

#[test]
fn a_row_is_answered_until_its_last_or_until_it_is_forgotten() {
    let core = core(false);
    let ids: Vec<ClientId> = work(&core, two_rows().build())
        .iter()
        .map(|one| one.client_id)
        .collect();
    core.forget(&ids[1..]);
    let answers = core
        .respond(&finals(&[ids[0], ids[1], ClientId(4711)]))
        .unwrap();
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].client_id, answers[0].is_final), (ids[0], true));
    assert!(core.respond(&finals(&ids)).unwrap().is_empty());
}

#[test]
fn tensors_go_to_their_rows_in_any_order() {
    let core = core(true);
    let ids: Vec<ClientId> = work(&core, two_rows().build())
        .iter()
        .map(|one| one.client_id)
        .collect();
    let mut batch = finals(&ids);
    batch.tensors = [1_u32, 0]
        .map(|row| {
            let tensor = NamedTensor {
                name: "total_draft_tokens".to_owned(),
                datatype: "INT32".to_owned(),
                shape: vec![1],
                data: Bytes::copy_from_slice(&(row as i32 + 5).to_le_bytes()),
            };
            (row, tensor)
        })
        .into();
    let answers = core.respond(&batch).unwrap();
    for (answer, expected) in answers.iter().zip([5, 6]) {
        assert_eq!(output(answer, "total_draft_tokens"), [expected]);
    }
}

#[test]
fn refusals_and_failed_rows_keep_their_status() {
    let core = core(false);
    let mut message = two_rows();
    message.push("beam_width", &[2], &[2, 2]);
    let refused = core.parse(message.build()).unwrap_err();
    assert_eq!(refused.status, tonic::Code::Unimplemented as i32);
    let mut message = two_rows();
    message.push("inflight_handle", &[2, 1], &[1_u64, 1]);
    assert!(
        core.parse(message.build())
            .unwrap_err()
            .text
            .contains("inflight_handle")
    );

    let requests = work(&core, two_rows().build());
    let mut batch = finals(&[requests[0].client_id]);
    batch.rows.errors.push(RowError {
        row: 0,
        code: Code::ResourceExhausted,
        text: "full".to_owned(),
        retry_after_ms: 0,
    });
    let answers = core.respond(&batch).unwrap();
    assert_eq!(
        answers[0].result.as_ref().unwrap().as_ref().unwrap_err(),
        &Refusal {
            status: 8,
            text: "full".to_owned()
        }
    );
    batch.rows.finals.clear();
    assert!(core.respond(&batch).is_err());
}

#[test]
fn a_stop_is_told_from_work() {
    let mut message = RequestBuilder::new("tensorrt_llm", "id", 16);
    message.push("stop", &[1], &[true]);
    assert!(matches!(
        core(false).parse(message.build()),
        Ok(Parsed::Stop)
    ));
}
