//! A request of ensemble or BLS: what the core model is asked, and what its answers become.
//!
//! Follows Triton's models of these names, with one difference: text is kept for each sequence as it grows, so
//! that a stream's pieces put together are the whole text.

use std::collections::BTreeMap;
use std::sync::Arc;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::{RequestBuilder, ResponseBuilder, TensorError, Tensors};
use inflight_text::Tokenizer;

use super::error::TextRequestError;
use super::inputs::Inputs;
use super::llmapi::form::Form;
use super::prepare::{PreparedRows, pack_words, pad, prepare};
use super::sequence::SequenceText;
use super::source::TextSource;
use super::spec::{Role, TEXT_OUTPUT};
use super::speculation::DraftPlan;
use super::table::TextModelKind;
use super::wanted::Wanted;
use crate::model::CORE_MODEL_VERSION;
use crate::response::is_final;

/// Outputs of the core model that every answer is made from.
const NEEDED: [&str; 5] = [
    names::OUTPUT_IDS,
    "sequence_length",
    "batch_index",
    "sequence_index",
    names::FINISH_REASON,
];

/// One request of ensemble or BLS.
#[derive(Debug)]
pub struct Generation {
    /// For the core model.
    pub request: ModelInferRequest,
    pub answer: TextAnswer,
    /// What is asked of a draft model.
    pub(crate) plan: Option<DraftPlan>,
}

impl Generation {
    pub(super) fn read(
        kind: TextModelKind,
        message: &ModelInferRequest,
        source: &TextSource,
    ) -> Result<Self, TextRequestError> {
        let inputs = Inputs::read(kind, message, source.options.max_batch_size)?;
        let wanted = Wanted::read(kind, message)?;
        let plan = match &source.options.draft_model {
            Some(_) => DraftPlan::read(&inputs)?,
            None => refuse_drafts(&inputs)?,
        };
        let made = prepare(&inputs, source)?;
        let stream = inputs.flag(Role::Core("streaming"))?.unwrap_or(false);
        let exclude = inputs
            .flag(Role::ExcludeInput)?
            .unwrap_or(source.options.exclude_input_in_output);
        let is_bls = kind == TextModelKind::Bls;
        let sequences = match inputs.named("num_return_sequences") {
            Some(given) => given.scalar::<i32>(0)?.unwrap_or(1),
            None => 1,
        };
        let mut answer = TextAnswer {
            kind,
            model: kind.asked_as(message).into(),
            id: message.id.clone(),
            tokenizer: Arc::clone(source.tokenizer()),
            skip_special_tokens: source.options.skip_special_tokens,
            accumulates: is_bls && stream && source.options.accumulate_tokens,
            streams: stream,
            expected: inputs.rows * usize::try_from(sequences).unwrap_or(1),
            rows: Vec::with_capacity(inputs.rows),
            sequences: BTreeMap::new(),
            wanted,
            form: None,
        };
        for row in 0..inputs.rows {
            let mut text = RowText::default();
            if is_bls {
                let stops = inputs.texts("STOP_WORDS_DICT", row)?;
                text.stops = stops.into_iter().map(str::to_owned).collect();
                if !stream && !exclude {
                    text.before = inputs.texts("QUERY", row)?.concat();
                }
            }
            answer.rows.push(text);
        }
        let request = ask(
            &inputs,
            made,
            source,
            message,
            &answer.wanted,
            is_bls || exclude,
        );
        Ok(Self {
            request,
            answer,
            plan,
        })
    }
}

/// Without a draft model nothing can be asked of one.
fn refuse_drafts(inputs: &Inputs<'_>) -> Result<Option<DraftPlan>, TextRequestError> {
    for tensor in ["num_draft_tokens", "use_draft_logits"] {
        if inputs.named(tensor).is_some() {
            return Err(TextRequestError::NoDraftModel { tensor });
        }
    }
    Ok(None)
}

/// The core model's request.
fn ask(
    inputs: &Inputs<'_>,
    made: PreparedRows,
    source: &TextSource,
    message: &ModelInferRequest,
    wanted: &Wanted,
    exclude: bool,
) -> ModelInferRequest {
    let rows = inputs.rows as i64;
    let core_model = source.options.core_model.as_str();
    let mut out = RequestBuilder::new(core_model, message.id.as_str(), 1024);
    let lengths = |rows: &[Vec<i32>]| rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
    for (name, (width, values)) in [
        ("input_ids", pad(&made.prompts, source.fill_id())),
        ("input_lengths", (1, lengths(&made.prompts))),
        (
            "decoder_input_ids",
            pad(&made.decoder_prompts, source.fill_id()),
        ),
        ("decoder_input_lengths", (1, lengths(&made.decoder_prompts))),
        ("request_output_len", (1, made.max_tokens)),
        ("end_id", (1, made.end_ids)),
        ("pad_id", (1, made.pad_ids)),
    ] {
        out.push(name, &[rows, width as i64], &values);
    }
    for (name, words) in [
        ("stop_words_list", &made.stop_words),
        ("bad_words_list", &made.bad_words),
    ] {
        let (width, values) = pack_words(words);
        if width > 0 {
            out.push(name, &[rows, 2, width as i64], &values);
        }
    }
    let (width, values) = pad(&made.embedding_bias, 0.0);
    if width > 0 {
        out.push("embedding_bias", &[rows, width as i64], &values);
    }
    let (width, values) = pad(&made.prompt_table_extra_ids, 0);
    if width > 0 {
        out.push("prompt_table_extra_ids", &[rows, width as i64], &values);
    }
    out.push(
        "exclude_input_in_output",
        &[rows, 1],
        &vec![exclude; inputs.rows],
    );
    for given in inputs.iter() {
        if let Role::Core(name) = given.spec.role {
            let tensor = &given.tensor;
            let squeezed = [tensor.shape, &[1]].concat();
            let shape = if tensor.shape.len() == 1 {
                squeezed.as_slice()
            } else {
                tensor.shape
            };
            out.push_raw(name, tensor.datatype, shape, tensor.data.clone());
        }
    }
    for name in NEEDED {
        out.output(name);
    }
    let all = inputs.kind.outputs().iter().map(|output| output.name);
    let named = wanted.names().map(|names| names.iter().copied());
    let passed = |name: &str| name != TEXT_OUTPUT && !NEEDED.contains(&name);
    match named {
        Some(names) => names.filter(|name| passed(name)).for_each(|name| {
            out.output(name);
        }),
        None => all.filter(|name| passed(name)).for_each(|name| {
            out.output(name);
        }),
    }
    let mut request = out.build();
    request.parameters.clone_from(&message.parameters);
    request
}

/// What belongs to one row of the batch.
#[derive(Clone, Debug, Default)]
struct RowText {
    stops: Vec<String>,
    /// Text that an answer begins with.
    before: String,
}

/// Makes text of the core model's answers to one request.
#[derive(Debug)]
pub struct TextAnswer {
    kind: TextModelKind,
    /// The name that it was asked by.
    model: Arc<str>,
    id: String,
    tokenizer: Arc<Tokenizer>,
    skip_special_tokens: bool,
    accumulates: bool,
    streams: bool,
    /// Sequences that the answers are about in all.
    expected: usize,
    rows: Vec<RowText>,
    /// By row of the batch, sequence and beam.
    sequences: BTreeMap<(i32, i32, usize), SequenceText>,
    wanted: Wanted,
    /// That of `llmapi`, where it was asked so.
    form: Option<Form>,
}

impl TextAnswer {
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.model
    }

    /// Answers in this form.
    pub(super) fn speak(&mut self, form: Form) {
        self.accumulates = self.streams;
        self.form = Some(form);
    }

    /// The answer to one response of the core model. `None`: stop words have ended the sequence before, and
    /// the response is not the last.
    ///
    /// # Errors
    /// A response that is not the core model's.
    pub fn push(
        &mut self,
        response: &ModelInferResponse,
    ) -> Result<Option<ModelInferResponse>, TensorError> {
        let outputs = Tensors::outputs(response)?;
        let is_final = is_final(response);
        let one = |name: &str| Ok(outputs.scalar::<i32>(name)?.unwrap_or(0));
        let (batch_index, sequence_index) = (one("batch_index")?, one("sequence_index")?);
        let mut out = ResponseBuilder::new(&*self.model, self.id.as_str(), 256);
        out.version(CORE_MODEL_VERSION);
        let (mut fresh, mut reason) = (false, FinishReason::NotFinished);
        let mut taken = None;
        if let Some(ids) = outputs.get(names::OUTPUT_IDS) {
            let lengths = outputs
                .values::<i32>("sequence_length")?
                .unwrap_or_default();
            let reasons = outputs
                .values::<i32>(names::FINISH_REASON)?
                .unwrap_or_default();
            let width = ids.shape.last().copied().unwrap_or(0).max(0) as usize;
            let values: Vec<i32> = ids.values()?;
            let mut texts = Vec::with_capacity(lengths.len());
            let mut count = 0;
            for (beam, length) in lengths.iter().enumerate() {
                let held = values.get(beam * width..).unwrap_or_default();
                let length = usize::try_from(*length).unwrap_or(0).min(width);
                let key = (batch_index, sequence_index, beam);
                let sequence = self.sequences.entry(key).or_insert_with(|| {
                    let row = usize::try_from(batch_index).ok();
                    let row = row.and_then(|row| self.rows.get(row));
                    let (stops, before) =
                        row.map_or((&[][..], ""), |row| (&row.stops, &row.before));
                    SequenceText::new(&self.tokenizer, self.skip_special_tokens, stops, before)
                });
                fresh |= !sequence.is_stopped();
                let (start, ids) = sequence.push(held.get(..length).unwrap_or_default());
                count += ids;
                let number = reasons
                    .get(beam)
                    .and_then(|number| u8::try_from(*number).ok());
                let known = number.and_then(FinishReason::from_number);
                reason = known.unwrap_or(FinishReason::NotFinished);
                if !self.streams || reason != FinishReason::NotFinished {
                    sequence.finish();
                }
                let start = if self.accumulates || !self.streams {
                    0
                } else {
                    start
                };
                texts.push(sequence.all.get(start..).unwrap_or_default().to_owned());
            }
            taken = Some(count);
            if self.wanted.has(TEXT_OUTPUT) {
                out.push_bytes(TEXT_OUTPUT, &[texts.len() as i64], texts);
            }
        }
        if !fresh && !is_final && taken.is_some() {
            return Ok(None);
        }
        for tensor in &outputs {
            if self.kind.output(tensor.name).is_none() || !self.wanted.has(tensor.name) {
                continue;
            }
            match taken
                .filter(|_| tensor.name == "num_output_tokens" && self.kind == TextModelKind::Bls)
            {
                // Without those behind a stop word.
                Some(count) => out.push(tensor.name, &[1, 1], &[count as i32]),
                None => out.push_raw(
                    tensor.name,
                    tensor.datatype,
                    tensor.shape,
                    tensor.data.clone(),
                ),
            };
        }
        let mut answer = out.build();
        answer.parameters.clone_from(&response.parameters);
        if let Some(form) = &self.form {
            return form.answer(&answer, reason, self.stop()).map(Some);
        }
        Ok(Some(answer))
    }

    /// The stop word that has ended the first sequence.
    fn stop(&self) -> Option<&str> {
        let place = self.sequences.values().next()?.stop()?;
        let stop = self.rows.first()?.stops.get(place)?;
        Some(stop)
    }

    /// Whether stop words have ended every sequence, so that the core model may stop.
    pub fn is_stopped(&self) -> bool {
        self.streams
            && self.sequences.len() >= self.expected
            && self.sequences.values().all(SequenceText::is_stopped)
    }

    /// What is still held back of sequences whose end no response showed: one response for each.
    pub fn finish(&mut self) -> Vec<ModelInferResponse> {
        let mut rest = Vec::new();
        for ((batch_index, sequence_index, _), sequence) in &mut self.sequences {
            let before = sequence.all.len();
            sequence.finish();
            if sequence.all.len() == before {
                continue;
            }
            let start = if self.accumulates { 0 } else { before };
            let text = sequence.all.get(start..).unwrap_or_default();
            let mut out = ResponseBuilder::new(&*self.model, self.id.as_str(), text.len() + 16);
            out.version(CORE_MODEL_VERSION);
            if self.wanted.has(TEXT_OUTPUT) {
                out.push_bytes(TEXT_OUTPUT, &[1], [text]);
            }
            for (name, index) in [
                ("batch_index", batch_index),
                ("sequence_index", sequence_index),
            ] {
                if self.wanted.has(name) {
                    out.push(name, &[1, 1], &[*index]);
                }
            }
            rest.push(out.build());
        }
        rest
    }
}
