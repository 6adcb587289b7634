use bytes::Bytes;
use inflight_kserve::inference::infer_parameter::ParameterChoice;
use inflight_kserve::tensor::{DataType, RequestBuilder};
use proptest::prelude::*;

use super::*;
use crate::executor::capability;

fn limits(capabilities: &[&str]) -> Limits {
    Limits {
        core_model: model::CORE_MODEL.into(),
        excludes_input: false,
        fills_outputs: false,
        wraps_token_ids: false,
        info: ModelInfo {
            executor: "test".to_owned(),
            vocab_size: 100,
            max_seq_len: 64,
            max_input_len: 32,
            max_batch_size: 4,
            max_num_tokens: 64,
            max_beam_width: 4,
            tokens_per_block: 8,
            capabilities: capabilities.iter().map(|name| (*name).to_owned()).collect(),
            adapters: Vec::new(),
            weights: String::new(),
        },
        max_message_bytes: 1 << 20,
    }
}

const EVERYTHING: [&str; 28] = [
    capability::LOG_PROBS,
    capability::TOP_LOG_PROBS,
    capability::PROMPT_LOG_PROBS,
    capability::MIN_P,
    capability::PENALTIES,
    capability::MIN_TOKENS,
    capability::BAD_WORDS,
    capability::EMBEDDING_BIAS,
    capability::NUM_RETURN_SEQUENCES,
    capability::BEAM_SEARCH,
    capability::TOP_P_DECAY,
    capability::NO_REPEAT_NGRAM,
    capability::CONTEXT_LOGITS,
    capability::GENERATION_LOGITS,
    capability::PERF_METRICS,
    capability::PROMPT_TUNING,
    capability::LORA,
    capability::DRAFT_TOKENS,
    capability::GUIDED_DECODING,
    capability::LOOKAHEAD,
    capability::KV_CACHE_RETENTION,
    capability::CONTEXT_PHASE,
    capability::ENCODER,
    capability::MROPE,
    capability::CROSS_ATTENTION,
    capability::IMAGES,
    capability::PRIORITY,
    capability::RESUME,
];

fn base() -> RequestBuilder {
    let mut builder = RequestBuilder::new("tensorrt_llm", "id", 64);
    builder
        .vector("input_ids", &[1, 2, 3])
        .scalar("input_lengths", 3)
        .scalar("request_output_len", 8);
    builder
}

/// An input of the table with data of zeros, two elements where any number goes.
fn zeros(spec: &model::InputSpec) -> ModelInferRequest {
    let mut shape = vec![1];
    shape.extend(
        spec.dims
            .iter()
            .map(|dim| if *dim == -1 { 2 } else { *dim }),
    );
    let count: i64 = shape.iter().product();
    let mut builder = base();
    if spec.datatype == DataType::Bytes {
        builder.push_bytes(spec.name, &shape, vec![""; count as usize]);
    } else {
        let size = spec.datatype.size().unwrap() * count as usize;
        builder.push_raw(spec.name, spec.datatype, &shape, Bytes::from(vec![0; size]));
    }
    builder.build()
}

#[test]
fn every_input_is_taken_passed_on_or_refused_by_name() {
    for spec in model::INPUTS {
        if ["input_ids", "input_lengths", "request_output_len"].contains(&spec.name) {
            continue;
        }
        let message = zeros(spec);
        // With everything possible, a zero is taken or named; what is unread arrives.
        match parse(&message, &limits(&EVERYTHING)) {
            Ok(Incoming::Plain(plain)) => {
                let requests = plain.requests;
                let passed = requests[0]
                    .tensors
                    .iter()
                    .any(|tensor| tensor.name == spec.name);
                assert_eq!(
                    passed,
                    matches!(spec.role.field, model::Field::Passed),
                    "{}",
                    spec.name
                );
            }
            Ok(_) => assert_eq!(spec.name, names::HANDLE),
            // One half of the sparse bias is named by the other, and so are tokens and their lengths.
            Err(error) => {
                let name = spec
                    .name
                    .trim_end_matches("_ids")
                    .trim_end_matches("_lengths")
                    .trim_end_matches("_values");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        // With nothing possible, what needs a capability is neutral or named.
        if let Err(error) = parse(&message, &limits(&[]))
            && spec.role.capability.is_some()
        {
            assert!(error.to_string().contains(spec.name), "{error}");
            assert_eq!(error.code(), tonic::Code::Unimplemented, "{error}");
        }
    }
}

#[test]
fn fields_arrive_where_they_belong() {
    let mut builder = base();
    builder
        .scalar("streaming", true)
        .scalar("end_id", 9)
        .scalar("pad_id", -1)
        .scalar("temperature", 0.5_f32)
        .scalar("runtime_top_k", 7)
        .scalar("runtime_top_p", 0_f32)
        .scalar("seed", 11_u64)
        .scalar("min_tokens", 2)
        .scalar("repetition_penalty", 1.5_f32)
        .scalar("return_log_probs", true)
        .scalar("num_return_sequences", 2)
        .scalar(names::MIN_P, 0.25_f32)
        .scalar(names::NUM_TOP_LOG_PROBS, 5)
        .scalar(names::NUM_PROMPT_LOG_PROBS, 0)
        .vector(names::LOGIT_BIAS_IDS, &[4, 5])
        .vector(names::LOGIT_BIAS_VALUES, &[-100_f32, 1.0])
        .push("stop_words_list", &[1, 2, 3], &[4, 5, 6, 1, 3, -1]);
    let Ok(Incoming::Plain(plain)) = parse(&builder.build(), &limits(&EVERYTHING)) else {
        panic!("a plain request");
    };
    let request = &plain.requests[0];
    assert_eq!(request.input_token_ids, [1, 2, 3]);
    assert_eq!((request.max_tokens, request.streaming), (8, true));
    assert_eq!((request.end_id, request.pad_id), (Some(9), None));
    assert_eq!(request.stop_words, [vec![4], vec![5, 6]]);
    assert_eq!(request.logit_bias, [(4, -100.0), (5, 1.0)]);
    let config = &request.sampling_config;
    assert_eq!(
        (config.temperature, config.top_k, config.top_p),
        (Some(0.5), Some(7), None)
    );
    assert_eq!(
        (config.seed, config.min_p, config.min_tokens),
        (Some(11), Some(0.25), Some(2))
    );
    assert_eq!((config.beam_width, config.num_return_sequences), (1, 2));
    assert!(request.output_config.return_log_probs);
    assert_eq!(request.output_config.num_top_log_probs, 5);
    assert_eq!(request.output_config.num_prompt_log_probs, Some(0));
    // Streaming responses do not repeat the prompt.
    assert_eq!(plain.prompts, [Vec::<i32>::new()]);
    assert_eq!((plain.answer.sequences, plain.answer.batch), (2, 1));
}

#[test]
fn a_batch_of_texts_is_split_by_row() {
    let mut builder = RequestBuilder::new("tensorrt_llm", "", 64);
    builder
        .push("input_ids", &[2, 1], &[1, 2])
        .push("input_lengths", &[2, 1], &[1, 1])
        .push("request_output_len", &[2, 1], &[3, 3])
        .push_bytes("guided_decoding_guide", &[2, 1], ["one", "three"]);
    let Ok(Incoming::Plain(plain)) = parse(&builder.build(), &limits(&EVERYTHING)) else {
        panic!("a plain request");
    };
    let texts: Vec<&[u8]> = plain
        .requests
        .iter()
        .map(|request| &request.tensors[0].data[4..])
        .collect();
    assert_eq!(texts, [&b"one"[..], b"three"]);
}

#[test]
fn parameters_that_would_change_the_answer_are_refused() {
    use ParameterChoice::{BoolParam, Int64Param, StringParam};
    for (name, value, taken) in [
        ("sequence_id", Int64Param(5), false),
        ("sequence_id", Int64Param(0), true),
        ("timeout", Int64Param(1000), true),
        ("timeout", Int64Param(0), true),
        ("timeout", Int64Param(-1), false),
        ("timeout", StringParam("1s".to_owned()), false),
        ("sequence_start", BoolParam(true), false),
        ("inflight_may_wait", BoolParam(true), true),
        ("inflight_may_wait", Int64Param(1), false),
        ("traceparent", StringParam("00-0-0-00".to_owned()), true),
    ] {
        let mut builder = base();
        builder.parameter(name, value);
        let parsed = parse(&builder.build(), &limits(&[]));
        assert_eq!(parsed.is_ok(), taken, "{name}");
        if let Err(error) = parsed {
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

/// What of a parameter reaches the executor: its tensors, as text and number.
fn handed_over(
    name: &str,
    value: ParameterChoice,
    capabilities: &[&str],
) -> Result<Vec<(String, Vec<u8>)>, RequestError> {
    let mut builder = base();
    builder.parameter(name, value);
    let Incoming::Plain(mut plain) = parse(&builder.build(), &limits(capabilities))? else {
        panic!("a plain request");
    };
    let tensors = plain.requests.remove(0).tensors;
    Ok(tensors
        .into_iter()
        .map(|tensor| {
            assert_eq!(tensor.name, name);
            assert_eq!(tensor.shape, [1]);
            (tensor.datatype, tensor.data.to_vec())
        })
        .collect())
}

#[test]
fn a_priority_becomes_the_executors_scale() {
    use ParameterChoice::{DoubleParam, Int64Param, StringParam, Uint64Param};
    for (level, scaled) in [(1, 0.99_f32), (50, 0.5), (100, 0.0)] {
        for value in [Int64Param(level), Uint64Param(level as u64)] {
            assert_eq!(
                handed_over("priority", value, &EVERYTHING),
                Ok(vec![("FP32".to_owned(), scaled.to_le_bytes().to_vec())]),
            );
        }
    }
    for capabilities in [&[][..], &EVERYTHING] {
        assert_eq!(
            handed_over("priority", Int64Param(0), capabilities),
            Ok(vec![])
        );
        for (value, shown) in [
            (Int64Param(-1), "`-1`"),
            (Uint64Param(101), "`101`"),
            (Uint64Param(u64::MAX), "`18446744073709551615`"),
            (DoubleParam(0.5), "`0.5`"),
            (StringParam("high".to_owned()), "`high`"),
        ] {
            let error = handed_over("priority", value, capabilities).unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            let text = error.to_string();
            assert!(
                text.contains("`priority`") && text.contains(shown),
                "{text}"
            );
        }
    }
    let error = handed_over("priority", Int64Param(1), &[]).unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unimplemented);
    assert!(error.to_string().contains("`priority`"), "{error}");
}

#[test]
fn a_request_type_reaches_an_executor_that_can() {
    use ParameterChoice::{Int64Param, StringParam};
    for (kind, needs) in [
        ("context_and_generation", false),
        ("context_only", true),
        ("generation_only", true),
    ] {
        let value = || StringParam(kind.to_owned());
        let element = [&(kind.len() as u32).to_le_bytes(), kind.as_bytes()].concat();
        assert_eq!(
            handed_over("request_type", value(), &EVERYTHING),
            Ok(vec![("BYTES".to_owned(), element)]),
        );
        match handed_over("request_type", value(), &[]) {
            Ok(tensors) => assert!(!needs && tensors.is_empty(), "{kind}"),
            Err(error) => {
                assert!(
                    needs && error.to_string().contains("`context_phase`"),
                    "{error}"
                );
                assert_eq!(error.code(), tonic::Code::Unimplemented);
            }
        }
    }
    let long = "x".repeat(1000);
    for (value, shown) in [
        (StringParam("prefill".to_owned()), "`prefill`"),
        (StringParam(String::new()), "``"),
        (StringParam(long.clone()), &long[..64]),
        (Int64Param(1), "`1`"),
    ] {
        let error = handed_over("request_type", value, &EVERYTHING).unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        let text = error.to_string();
        for word in [
            shown,
            "`context_and_generation`",
            "`context_only`",
            "`generation_only`",
        ] {
            assert!(text.contains(word), "{text}");
        }
        assert!(text.len() < 300);
    }
}

#[test]
fn what_does_not_fit_step_messages_is_refused_by_name() {
    for name in [
        "return_context_logits",
        "return_generation_logits",
        "return_perf_metrics",
    ] {
        let mut builder = base();
        builder.handle(Handle(5)).scalar("streaming", false);
        builder.scalar(name, true);
        let message = builder.build();
        let error = parse(&message, &limits(&EVERYTHING)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(handle_of_malformed(&message), Some(Handle(5)));
    }
    for kind in ["context_only", "generation_only"] {
        let mut builder = base();
        builder.handle(Handle(5)).parameter(
            "request_type",
            ParameterChoice::StringParam(kind.to_owned()),
        );
        let taken = parse(&builder.build(), &limits(&EVERYTHING));
        assert!(matches!(taken, Ok(Incoming::Step { .. })), "{kind}");
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Name(usize, usize),
    Datatype(usize, usize),
    Shape(usize, Vec<i64>),
    Raw(usize, Vec<u8>),
    Number(usize, i64),
    DropRaw(usize),
    DropInput(usize),
    Duplicate(usize),
    Model,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let dimension = prop_oneof![-2..4_i64, Just(i64::MAX), Just(i64::MIN), Just(1 << 40)];
    let number = prop_oneof![-2..200_i64, any::<i64>()];
    prop_oneof![
        (0..8_usize, 0..model::INPUTS.len()).prop_map(|(at, spec)| Mutation::Name(at, spec)),
        (0..8_usize, 0..DataType::ALL.len()).prop_map(|(at, kind)| Mutation::Datatype(at, kind)),
        (0..8_usize, prop::collection::vec(dimension, 0..4))
            .prop_map(|(at, shape)| Mutation::Shape(at, shape)),
        (0..8_usize, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(at, raw)| Mutation::Raw(at, raw)),
        (0..8_usize, number).prop_map(|(at, number)| Mutation::Number(at, number)),
        (0..8_usize).prop_map(Mutation::DropRaw),
        (0..8_usize).prop_map(Mutation::DropInput),
        (0..8_usize).prop_map(Mutation::Duplicate),
        Just(Mutation::Model),
    ]
}

fn mutate(message: &mut ModelInferRequest, mutation: Mutation) {
    let inputs = message.inputs.len();
    match mutation {
        Mutation::Name(at, spec) if at < inputs => {
            let spec = &model::INPUTS[spec];
            message.inputs[at].name = spec.name.to_owned();
            message.inputs[at].datatype = spec.datatype.name().to_owned();
        }
        Mutation::Datatype(at, kind) if at < inputs => {
            message.inputs[at].datatype = DataType::ALL[kind].name().to_owned();
        }
        Mutation::Shape(at, shape) if at < inputs => message.inputs[at].shape = shape,
        Mutation::Raw(at, raw) if at < message.raw_input_contents.len() => {
            message.raw_input_contents[at] = raw.into();
        }
        Mutation::Number(at, number) if at < message.raw_input_contents.len() => {
            let length = message.raw_input_contents[at].len();
            let bytes = number.to_le_bytes().repeat(length.div_ceil(8));
            message.raw_input_contents[at] = Bytes::from(bytes).slice(..length);
        }
        Mutation::DropRaw(at) if at < message.raw_input_contents.len() => {
            message.raw_input_contents.remove(at);
        }
        Mutation::DropInput(at) if at < inputs => {
            message.inputs.remove(at);
            if at < message.raw_input_contents.len() {
                message.raw_input_contents.remove(at);
            }
        }
        Mutation::Duplicate(at) if at < inputs && at < message.raw_input_contents.len() => {
            message.inputs.push(message.inputs[at].clone());
            message
                .raw_input_contents
                .push(message.raw_input_contents[at].clone());
        }
        Mutation::Model => message.model_name = "other".to_owned(),
        _ => {}
    }
}

proptest! {
    /// Whatever a peer sends is a request within the model's limits, or a refusal with a text.
    #[test]
    fn mutated_requests_never_panic(
        mutations in prop::collection::vec(mutation(), 0..6),
        step: bool,
        capable: bool,
    ) {
        let mut builder = base();
        builder
            .push("stop_words_list", &[1, 2, 2], &[4, 5, 2, -1])
            .scalar("temperature", 1_f32)
            .push_bytes("guided_decoding_guide", &[1, 1], ["{}"])
            .scalar("seed", 3_u64);
        if step {
            builder.handle(Handle(7));
        }
        let mut message = builder.build();
        for mutation in mutations {
            mutate(&mut message, mutation);
        }
        handle_of_malformed(&message);
        let limits = limits(if capable { &EVERYTHING } else { &[] });
        let requests = match parse(&message, &limits) {
            Ok(Incoming::Plain(plain)) => plain.requests,
            Ok(Incoming::Step { request, .. }) => vec![*request],
            Ok(_) => Vec::new(),
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                Vec::new()
            }
        };
        for request in requests {
            let prompt = request.input_token_ids.len();
            prop_assert!(prompt <= 32 && prompt + request.max_tokens as usize <= 64);
            prop_assert!(request.max_tokens > 0);
            prop_assert!((1..=4).contains(&request.sampling_config.beam_width));
            prop_assert!(request.stop_words.iter().flatten().all(|id| (0..100).contains(id)));
        }
    }
}

#[test]
fn what_was_generated_before_is_taken_by_sequence_or_refused() {
    // Tokens, lengths, sequences and what becomes of them.
    type Case<'a> = (
        &'a [i32],
        Option<&'a [i32]>,
        i32,
        Result<Vec<Option<Vec<i32>>>, &'a str>,
    );
    let cases: [Case<'_>; 10] = [
        (&[7, 8], None, 1, Ok(vec![Some(vec![7, 8])])),
        (
            &[7, 8, 9],
            Some(&[1, -1, 2]),
            3,
            Ok(vec![Some(vec![7]), None, Some(vec![8, 9])]),
        ),
        (&[], Some(&[0]), 1, Ok(vec![Some(Vec::new())])),
        (
            &[7, 100],
            None,
            1,
            Err("`inflight_generated_ids` has value `100`"),
        ),
        (
            &[7],
            Some(&[1]),
            2,
            Err("`inflight_generated_lengths` has `1` values, expected `2`"),
        ),
        (
            &[7],
            Some(&[2]),
            1,
            Err("`inflight_generated_ids` has `1` values, expected `2`"),
        ),
        (
            &[7, 8],
            Some(&[1]),
            1,
            Err("`inflight_generated_ids` has `2` values, expected `1`"),
        ),
        (
            &[7; 8],
            None,
            1,
            Err("`inflight_generated_lengths` has value `8`, expected `-1`, or `0` to `7`"),
        ),
        (&[], Some(&[-2]), 1, Err("has value `-2`")),
        (
            &[],
            Some(&[-1]),
            1,
            Err("expected a sequence that continues"),
        ),
    ];
    for (ids, lengths, sequences, expected) in cases {
        let mut builder = base();
        builder
            .vector(names::GENERATED_IDS, ids)
            .scalar("num_return_sequences", sequences);
        if let Some(lengths) = lengths {
            builder.vector(names::GENERATED_LENGTHS, lengths);
        }
        let message = builder.build();
        match (parse(&message, &limits(&EVERYTHING)), expected) {
            (Ok(Incoming::Plain(plain)), Ok(generated)) => {
                assert_eq!(plain.requests[0].generated, generated)
            }
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (parsed, expected) => panic!("{parsed:?}, expected {expected:?}"),
        }
    }
    let mut beams = base();
    beams
        .vector(names::GENERATED_IDS, &[7])
        .scalar("beam_width", 2)
        .scalar("streaming", false);
    let error = parse(&beams.build(), &limits(&EVERYTHING)).unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unimplemented, "{error}");
}
