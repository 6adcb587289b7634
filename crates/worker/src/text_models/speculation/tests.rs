use super::*;

/// What the core model would say, token by token; 9 ends it.
const TRUTH: [i32; 6] = [5, 6, 7, 8, 1, 9];

fn base(max_tokens: i32) -> ModelInferRequest {
    let mut out = RequestBuilder::new("tensorrt_llm", "id", 64);
    out.vector("input_ids", &[2, 3])
        .scalar("input_lengths", 2)
        .scalar("request_output_len", max_tokens)
        .scalar("min_tokens", 3)
        .scalar("end_id", 9)
        .scalar("return_log_probs", true)
        .output(names::OUTPUT_IDS)
        .output("sequence_length")
        .output(names::FINISH_REASON);
    out.build()
}

fn speculation(num_draft_tokens: usize, max_tokens: i32) -> Speculation {
    let plan = DraftPlan {
        num_draft_tokens,
        use_draft_logits: true,
    };
    Speculation::new(plan, base(max_tokens), "draft").unwrap()
}

fn values(request: &ModelInferRequest, name: &str) -> Vec<i32> {
    let inputs = Tensors::inputs(request).unwrap();
    inputs.values(name).unwrap().unwrap_or_default()
}

fn guesses(ids: &[i32]) -> ModelInferResponse {
    ResponseBuilder::new("draft", "", 64)
        .push(names::OUTPUT_IDS, &[1, 1, ids.len() as i64], ids)
        .push("sequence_length", &[1, 1], &[ids.len() as i32])
        .push(
            "generation_logits",
            &[1, 1, ids.len() as i64, 2],
            &vec![0.5_f32; ids.len() * 2],
        )
        .build()
}

/// Checks the guesses as the core model does, and goes one token further.
fn checked(request: &ModelInferRequest) -> ModelInferResponse {
    let before = values(request, "input_ids").len() - 2;
    let most = values(request, "request_output_len")[0] as usize;
    let mut new = Vec::new();
    let mut guessed = values(request, "draft_input_ids").into_iter();
    let mut reason = FinishReason::Length;
    for token in &TRUTH[before..] {
        if *token == 9 {
            reason = FinishReason::EndId;
            break;
        }
        if new.len() == most {
            break;
        }
        new.push(*token);
        if guessed.next() != Some(*token) {
            break;
        }
    }
    let log_probs = vec![-1_f32; new.len()];
    ResponseBuilder::new("tensorrt_llm", "", 64)
        .push(names::OUTPUT_IDS, &[1, 1, new.len() as i64], &new)
        .push("sequence_length", &[1, 1], &[new.len() as i32])
        .push(
            names::OUTPUT_LOG_PROBS,
            &[1, 1, new.len() as i64],
            &log_probs,
        )
        .push(names::FINISH_REASON, &[1, 1], &[reason as i32])
        .push("total_draft_tokens", &[1, 1], &[0])
        .build()
}

#[test]
fn rounds_add_up_to_what_one_request_gives() {
    for (good, num_draft_tokens, max_tokens, expected) in [
        (true, 3, 10, &TRUTH[..5]),
        (false, 3, 10, &TRUTH[..5]),
        (true, 1, 10, &TRUTH[..5]),
        (true, 9, 3, &TRUTH[..3]),
        (false, 2, 1, &TRUTH[..1]),
    ] {
        let mut rounds = speculation(num_draft_tokens, max_tokens);
        let mut asked = 0;
        loop {
            asked += 1;
            assert!(asked < 20, "it does not end");
            if let Some(request) = rounds.draft() {
                assert_eq!(request.model_name, "draft");
                let done = values(&request, "input_ids").len() - 2;
                let count = values(&request, "request_output_len")[0];
                let must = count.min(3 - done as i32);
                let must: Vec<i32> = (must > 0).then_some(must).into_iter().collect();
                assert_eq!(values(&request, "min_tokens"), must);
                let ids: Vec<i32> = (0..count as usize)
                    .map(|place| {
                        let truth = TRUTH.get(done + place).copied().unwrap_or(0);
                        if good { truth } else { truth + 50 }
                    })
                    .collect();
                rounds.take_drafts(&guesses(&ids)).unwrap();
            }
            let request = rounds.target();
            assert_eq!(
                values(&request, "request_output_len")[0] as usize,
                values(&request, "draft_input_ids").len() + 1
            );
            let inputs = Tensors::inputs(&request).unwrap();
            if let Some(logits) = inputs.get("draft_logits") {
                let drafts = values(&request, "draft_input_ids").len() as i64;
                assert_eq!(logits.shape, [1, drafts, 2]);
            }
            if rounds.advance(checked(&request)).unwrap() {
                break;
            }
        }
        let answer = rounds.answer();
        let outputs = Tensors::outputs(&answer).unwrap();
        let ids: Vec<i32> = outputs.values(names::OUTPUT_IDS).unwrap().unwrap();
        assert_eq!(ids, expected, "{good} {num_draft_tokens} {max_tokens}");
        let log_probs: Vec<f32> = outputs.values(names::OUTPUT_LOG_PROBS).unwrap().unwrap();
        assert_eq!(log_probs.len(), expected.len());
        assert_eq!(
            outputs.scalar("cum_log_probs").unwrap(),
            Some(-(expected.len() as f32))
        );
        let drafted: Option<i32> = outputs.scalar("total_draft_tokens").unwrap();
        assert_eq!(drafted > Some(0), max_tokens > 1);
    }
}
