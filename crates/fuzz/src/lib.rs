//! Fuzz targets: each takes bytes that a peer or a file could send to one parser. A target returns whatever
//! the bytes are; a panic, a crash or a broken promise of the parser is the finding. Owns no way of finding
//! such bytes: `fuzz/` gives the targets to libFuzzer, and `tests/replay.rs` gives them the corpora.

mod zeromq;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use inflight_anthropic::request;
use inflight_blocks::Seed;
use inflight_ext_proc::messages::body_mutation::Mutation;
use inflight_ext_proc::messages::processing_request::Request as Sent;
use inflight_ext_proc::messages::processing_response::Response as Reply;
use inflight_ext_proc::messages::{ProcessingRequest, ProcessingResponse};
use inflight_ext_proc::{Exchange, Step};
use inflight_kserve::cache_state::CacheUpdate;
use inflight_kserve::inference::model_metadata_response::TensorMetadata;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse, ModelMetadataResponse};
use inflight_kserve::step::StepBatch;
use inflight_kserve::streamed::{self, StreamedResponse};
use inflight_kserve::tensor::{DataType, Tensors};
use inflight_kv_events::Form;
use inflight_openai::responses::{self, InputItem, Item};
use inflight_openai::{chat, completions, rerank};
use inflight_parsers::{
    AnswerParser, Delta, Deltas, Format, ParserOptions, ReasoningFormat, ToolFormat, Tools,
};
use inflight_rest::{ModelRef, RestError, generate, infer};
use inflight_text::{
    ChatTemplate, ModelFiles, TemplateError, TemplateInput, TemplateLimits, TemplateSource,
    TextModel,
};
use inflight_upstream::metrics::Placements;
use inflight_upstream::placement::{CacheQuery, Next, Placement};
use prost::Message;
use serde_json::value::RawValue;
use serde_json::{Map, json};

pub use self::zeromq::{kv_event_listener, kv_event_publisher};

/// A target: bytes in, nothing out.
pub type Target = fn(&[u8]);

/// Every target by the name of its corpus and of its libFuzzer binary.
pub const TARGETS: [(&str, Target); 25] = [
    ("chat_body", chat_body),
    ("messages_body", messages_body),
    ("batch_lines", batch_lines),
    ("completion_body", completion_body),
    ("rerank_body", rerank_body),
    ("tensors", tensors),
    ("step_message", step_message),
    ("template", template),
    ("history_template", history_template),
    ("tokenizer", tokenizer),
    ("sse", sse),
    ("kserve_infer", kserve_infer),
    ("kserve_generate", kserve_generate),
    ("answer", answer),
    ("streamed_response", streamed_response),
    ("response_body", response_body),
    ("transcription_form", transcription_form),
    ("clip", clip),
    ("object_answer", object_answer),
    ("option_file", option_file),
    ("cache_updates", cache_updates),
    ("proxy_messages", proxy_messages),
    ("kv_event_batch", kv_event_batch),
    ("kv_event_listener", kv_event_listener),
    ("kv_event_publisher", kv_event_publisher),
];

/// The body of `POST /v1/chat/completions`.
pub fn chat_body(data: &[u8]) {
    if let Err(error) = chat::parse(data) {
        assert!((400..500).contains(&error.status()), "{error:?}");
    }
}

/// A file of requests for a batch, and the body of `POST /v1/messages/batches`.
pub fn batch_lines(data: &[u8]) {
    let wrong = inflight_batches::check_lines(data, "/v1/messages", "params", 1 << 12);
    assert!(wrong.data.len() <= 20, "{}", wrong.data.len());
    match inflight_anthropic::batches::lines(data) {
        Err(error) => assert!((400..500).contains(&error.status()), "{error:?}"),
        Ok(lines) => {
            let lines = lines.split(|byte| *byte == b'\n');
            for line in lines.filter(|line| !line.is_empty()) {
                let read = serde_json::from_slice::<&RawValue>(line);
                assert!(read.is_ok(), "each request is one line of JSON");
            }
        }
    }
}

/// The body of `POST /v1/messages` and of `/v1/messages/count_tokens`.
pub fn messages_body(data: &[u8]) {
    for parsed in [request::parse(data), request::parse_count(data)] {
        if let Err(error) = parsed {
            let status = inflight_anthropic::error::status(&error);
            assert!((400..500).contains(&status), "{error:?}");
        }
    }
}

/// The body of `POST /v1/completions`.
pub fn completion_body(data: &[u8]) {
    if let Err(error) = completions::parse(data) {
        assert!((400..500).contains(&error.status()), "{error:?}");
    }
}

/// The body of `POST /v1/rerank`.
pub fn rerank_body(data: &[u8]) {
    if let Err(error) = rerank::parse(data) {
        assert!((400..500).contains(&error.status()), "{error:?}");
    }
}

/// The body of `POST /v1/responses`. Its items, as a response lists them, are read as the same items.
pub fn response_body(data: &[u8]) {
    let parsed = match responses::parse(data) {
        Ok(parsed) => parsed,
        Err(error) => return assert!((400..500).contains(&error.status()), "{error:?}"),
    };
    let items = |input: Vec<InputItem>| -> Vec<Item> {
        let items = input.into_iter().filter_map(|item| match item {
            InputItem::Item(item) => Some(item),
            InputItem::Reference { .. } => None,
        });
        items.collect()
    };
    let mut first = items(parsed.request.input);
    for item in &mut first {
        // As every item of a response has.
        item.name_with(|prefix| format!("{prefix}_1"));
    }
    if first.is_empty() {
        return;
    }
    let body = json!({"model": "m", "input": first});
    let again = responses::parse(body.to_string().as_bytes());
    let again = again.map(|parsed| json!({"model": "m", "input": items(parsed.request.input)}));
    assert_eq!(again, Ok(body));
}

/// The form of `POST /v1/audio/transcriptions`, with the boundary `b`.
pub fn transcription_form(data: &[u8]) {
    inflight_gateway::check_form(data);
}

/// The file of a clip: WAV, FLAC, MP3, MP4 or Ogg.
pub fn clip(data: &[u8]) {
    inflight_audio::check_clip(data);
}

/// The XML of an S3 server.
pub fn object_answer(data: &[u8]) {
    inflight_objects::check_answer(data);
}

/// A file of the gateway's options.
pub fn option_file(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let known = ["port", "worker", "max-connections"].map(str::to_owned);
        inflight_gateway::check_option_file(text, &known);
    }
}

/// What two workers report of their caches, in turn: messages, each behind its length. Whatever they say, a request is
/// placed, and with the workers goes what they said.
pub fn cache_updates(mut data: &[u8]) {
    let placement = Arc::new(Placement::new(Placements::default()));
    let seats: Vec<_> = (0..2).filter_map(|_| placement.join()).collect();
    for seat in seats.iter().cycle() {
        let Ok(update) = CacheUpdate::decode_length_delimited(&mut data) else {
            break;
        };
        match seat.take(&update) {
            Ok(Next::Message) => {}
            Ok(Next::Snapshot) => seat.begin(),
            Err(fault) => seat.doubt(fault),
        }
        if data.is_empty() {
            break;
        }
    }
    let block_tokens = placement.block_tokens().unwrap_or_default();
    let seed = Some(Seed::new(None, b""));
    let ask = CacheQuery::of_one(&[1; 64], seed, false, block_tokens);
    assert!(placement.assign(&ask, seats.iter()).is_some());
    drop(seats);
    assert_eq!(placement.block_tokens(), None);
}

/// What a proxy sends of one request and its answer. Whatever it is, what is passed on is what came: of the request's body, and of
/// the answer's where the proxy waits for it.
pub fn proxy_messages(mut data: &[u8]) {
    const LIMIT: usize = 1 << 12;
    let mut exchange = Exchange::new(LIMIT);
    while !data.is_empty() {
        let Ok(message) = ProcessingRequest::decode_length_delimited(&mut data) else {
            break;
        };
        let came = match &message.request {
            Some(Sent::ResponseBody(body)) => body.body.clone(),
            _ => Bytes::new(),
        };
        let replies = match exchange.take(message) {
            Ok(Step::Reply(replies)) => replies,
            Ok(Step::Choose(request)) => {
                assert!(request.body.len() <= LIMIT);
                let replies = exchange.chosen("10.0.0.7:8000");
                assert!(!replies.is_empty());
                let body = passed(&replies, true);
                assert!(body.is_empty() || body == request.body);
                replies
            }
            Err(_) => break,
        };
        assert!(exchange.held() <= LIMIT);
        let went = passed(&replies, false);
        assert!(went.is_empty() || went == came);
    }
}

/// What replies send of a request's body, or of an answer's.
fn passed(replies: &[ProcessingResponse], is_request: bool) -> Vec<u8> {
    let mut passed = Vec::new();
    for reply in replies {
        let body = match &reply.response {
            Some(Reply::RequestBody(body)) if is_request => body,
            Some(Reply::ResponseBody(body)) if !is_request => body,
            _ => continue,
        };
        let mutation = body.response.as_ref();
        let mutation = mutation.and_then(|response| response.body_mutation.as_ref());
        if let Some(Mutation::StreamedResponse(piece)) =
            mutation.and_then(|body| body.mutation.as_ref())
        {
            passed.extend_from_slice(&piece.body);
        }
    }
    passed
}

/// A batch of another server's KV cache events: what is read is written, and reads as the same.
pub fn kv_event_batch(data: &[u8]) {
    let Ok(batch) = inflight_kv_events::read(data) else {
        return;
    };
    for form in [Form::Maps, Form::Arrays] {
        let written = inflight_kv_events::write(&batch, form);
        let again = inflight_kv_events::read(&written);
        // Bytes, because NaN is not equal to itself.
        let again = again.map(|batch| inflight_kv_events::write(&batch, form));
        assert_eq!(again, Ok(written));
    }
}

/// A KServe request: its tensors, read as every type.
pub fn tensors(data: &[u8]) {
    let Ok(request) = ModelInferRequest::decode(data) else {
        return;
    };
    let Ok(inputs) = Tensors::inputs(&request) else {
        return;
    };
    for tensor in inputs.iter() {
        let _ = tensor.values::<i32>();
        let _ = tensor.values::<u64>();
        let _ = tensor.scalar::<i32>();
        let _ = tensor.floats();
        let _ = tensor.strings();
    }
}

/// A worker's step message: what decodes must encode and decode to the same.
pub fn step_message(data: &[u8]) {
    let Ok(response) = ModelInferResponse::decode(data) else {
        return;
    };
    let Ok(batch) = StepBatch::decode(&response) else {
        return;
    };
    for row in batch.rows() {
        let _ = format!("{row:?}");
    }
    let encoded = batch.encode("model");
    let view = encoded.view().expect("what is encoded is a response");
    let again = StepBatch::decode(view).map(|batch| batch.encode("model").decode().ok());
    // Messages, because NaN is not equal to itself.
    assert_eq!(again, Ok(encoded.decode().ok()));
}

/// A response of a stream: read in place, it says what it says decoded.
pub fn streamed_response(data: &[u8]) {
    streamed::check_same(data);
}

/// A chat template and, behind a zero byte, the messages as JSON. A template that could take the stack or
/// the memory is not this target's: those run in helper processes, whose tests are in `crates/text`.
pub fn template(data: &[u8]) {
    const LIMITS: TemplateLimits = TemplateLimits {
        fuel: 2_000,
        output_bytes: 1 << 20,
        recursion: 100,
        memory_bytes: 1 << 30,
        cpu_time: std::time::Duration::from_secs(1),
    };
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let messages = parts
        .next()
        .and_then(|json| serde_json::from_slice(json).ok());
    let template = ChatTemplate::with_limits(
        vec![("default".to_owned(), source.into_owned())],
        Map::new(),
        LIMITS,
    );
    let rendered = template.render(&TemplateInput {
        messages: messages.unwrap_or_default(),
        add_generation_prompt: true,
        ..TemplateInput::default()
    });
    match rendered {
        Ok(text) => assert!(text.len() <= LIMITS.output_bytes),
        Err(error) => assert!(error.to_string().len() < 2000, "{error}"),
    }
}

/// A history template of openai_trtllm, which an operator gives.
pub fn history_template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(source) = TemplateSource::from_history(text) else {
        return;
    };
    let Ok(template) = ChatTemplate::from_source(&source, Map::new()) else {
        panic!("it parsed before");
    };
    // What parses fails on a conversation at most.
    let rendered = template.render(&TemplateInput {
        messages: json!([{"role": "user", "content": "Hi", "name": "Ada"}, {"role": "assistant"}]),
        ..TemplateInput::default()
    });
    if let Err(error) = rendered {
        assert!(!matches!(error, TemplateError::Syntax { .. }), "{error}");
    }
}

/// A `tokenizer.json`, and what it does with a text.
pub fn tokenizer(data: &[u8]) {
    let files = ModelFiles::from([("tokenizer.json".to_owned(), data.to_vec())]);
    let Ok(model) = TextModel::load(&files) else {
        return;
    };
    if let Ok(ids) = model.tokenizer().encode("Hello, wörld 1+1\n", true) {
        let _ = model.tokenizer().decode(&ids, true);
    }
}

/// A streamed HTTP response, as the load generator reads it.
pub fn sse(data: &[u8]) {
    inflight_bench::check_reader(data);
}

/// The body of `POST /v2/models/MODEL/infer`: JSON and, behind a zero byte, packed tensors. What is read has all its
/// data, and a response of the same tensors is written as JSON.
pub fn kserve_infer(data: &[u8]) {
    let model = ModelRef::default();
    let zero = data.iter().position(|byte| *byte == 0);
    let whole = Bytes::copy_from_slice(data);
    check_refused(infer::parse(&model, &whole, None).err());
    let head = zero.unwrap_or(data.len());
    let packed = data.get(head + 1..).unwrap_or_default();
    let body = Bytes::from([data.get(..head).unwrap_or_default(), packed].concat());
    let (request, form) = match infer::parse(&model, &body, Some(head)) {
        Ok(read) => read,
        Err(error) => return check_refused(Some(error)),
    };
    assert!(request.raw_input_contents.len() <= request.inputs.len());
    let response = ModelInferResponse {
        outputs: ModelInferResponse::decode(request.encode_to_vec().as_slice())
            .map(|response| response.outputs)
            .unwrap_or_default(),
        raw_output_contents: request.raw_input_contents,
        ..ModelInferResponse::default()
    };
    if let Ok(encoded) = infer::write(&response, &form) {
        let head = encoded.json_length.unwrap_or(encoded.body.len());
        let json = encoded.body.get(..head).unwrap_or_default();
        assert!(serde_json::from_slice::<serde_json::Value>(json).is_ok());
    }
}

/// The body of `POST /v2/models/MODEL/generate`, for a model with an input of each type: `BYTES`, `INT32`, ….
pub fn kserve_generate(data: &[u8]) {
    let inputs = DataType::ALL.map(|datatype| TensorMetadata {
        name: datatype.name().to_owned(),
        datatype: datatype.name().to_owned(),
        shape: vec![-1, 2, -1],
    });
    let metadata = ModelMetadataResponse {
        inputs: inputs.to_vec(),
        ..ModelMetadataResponse::default()
    };
    match generate::parse(&ModelRef::default(), &metadata, data) {
        Ok(request) => {
            let inputs = Tensors::inputs(&request);
            assert!(inputs.is_ok_and(|inputs| inputs.len() == request.inputs.len()));
        }
        Err(error) => check_refused(Some(error)),
    }
}

/// A model's answer. The first three bytes choose the format, the options and where the text is cut; whatever they
/// are, the cut must not matter, and what is called complete must be JSON.
pub fn answer(data: &[u8]) {
    let [kind, options, cut, text @ ..] = data else {
        return;
    };
    let tools: Vec<ToolFormat> = ToolFormat::all().collect();
    let reasoning: Vec<ReasoningFormat> = ReasoningFormat::all().collect();
    let format = Format {
        tools: tools.get(usize::from(kind % 32)).copied(),
        reasoning: reasoning
            .get(usize::from(kind / 32))
            .copied()
            .filter(|_| options & 32 == 0),
    };
    let schema = json!({"properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"},
    }});
    let known = Tools::new([("f", Some(&schema)), ("function", None)]);
    let options = ParserOptions {
        tools: (options & 1 == 1).then(|| known.into()),
        is_reasoning_open: options & 2 == 2,
        max_calls: usize::from(options / 4 % 4),
        holds_calls: options & 16 == 16,
    };
    let text = String::from_utf8_lossy(text);
    let whole = read_answer(format, &options, &text, usize::MAX);
    assert_eq!(read_answer(format, &options, &text, 1), whole);
    assert_eq!(
        read_answer(format, &options, &text, usize::from(cut % 32) + 1),
        whole
    );
    let is_harmony = format.tools == Some(ToolFormat::Harmony)
        || format.reasoning == Some(ReasoningFormat::Harmony);
    if format.reasoning.is_none() && !is_harmony && whole.2.is_empty() {
        assert_eq!(whole.1, text, "text without a call is content");
    }
}

/// Reasoning, content, and the names and arguments of calls.
type Answer = (String, String, Vec<(String, String, bool)>);

/// Parses a text in pieces of `size` characters.
fn read_answer(format: Format, options: &ParserOptions, text: &str, size: usize) -> Answer {
    let mut parser = AnswerParser::new(format, options.clone());
    let mut answer = Answer::default();
    let mut deltas = Deltas::default();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest
            .char_indices()
            .nth(size)
            .map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(at);
        parser.push(piece, &mut deltas);
        rest = behind;
    }
    parser.finish(&mut deltas);
    let mut ended = 0;
    for delta in deltas.iter() {
        match delta {
            Delta::Reasoning(text) => answer.0.push_str(text),
            Delta::Content(text) => answer.1.push_str(text),
            Delta::CallBegin { index, name, .. } => {
                assert_eq!((index, ended), (answer.2.len(), answer.2.len()));
                answer.2.push((name.to_owned(), String::new(), false));
            }
            Delta::CallArguments { json, .. } => {
                if let Some(call) = answer.2.last_mut() {
                    call.1.push_str(json);
                }
            }
            Delta::CallEnd { is_complete, .. } => {
                ended += 1;
                if let Some(call) = answer.2.last_mut() {
                    call.2 = is_complete;
                    // Values stay raw: a number may be larger than this machine's.
                    let arguments = serde_json::from_str::<BTreeMap<String, &RawValue>>(&call.1);
                    assert!(!is_complete || arguments.is_ok(), "{}", call.1);
                }
            }
        }
    }
    assert_eq!(ended, answer.2.len(), "every call ends");
    assert!(
        !options.holds_calls || answer.2.iter().all(|call| call.2),
        "a held call is whole"
    );
    assert!(answer.2.len() <= options.max_calls);
    answer
}

fn check_refused(error: Option<RestError>) {
    if let Some(error) = error {
        assert_eq!(error.status.as_u16(), 400, "{error}");
    }
}
