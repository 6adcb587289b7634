//! Rows of a plain request to Triton responses: which tensors, in which shapes, and which is final.
//!
//! Follows Triton's `tensorrt_llm` backend: a streaming response carries only its step's new tokens;
//! the others repeat the prompt unless it was excluded; the last token response is itself final. The end token is
//! not among `output_ids` and has no log probability there, as in TensorRT-LLM's C++ runtime.

use std::sync::Arc;

use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::names;
use inflight_kserve::step::{FinishReason, Row, RowError, TopLogProbs};
use inflight_kserve::tensor::{DataType, ResponseBuilder};

use crate::executor::{ClientId, NamedTensor, Request};
use crate::model::CORE_MODEL_VERSION;
use crate::request::PlainRequest;
use crate::response::{FailedRow, empty, is_final, no_context};
use crate::shared_memory::Placements;

/// Fills beams that are shorter than the longest, in ids and log probabilities, as Triton does.
const PADDING: i32 = -1;

/// What responses depend on of one executor request.
#[derive(Clone, Debug)]
pub(crate) struct RequestFacts {
    prompt_tokens: usize,
    end_id: Option<i32>,
    log_probs: bool,
    /// Where the sums of log probabilities begin, by sequence.
    sums: Vec<f32>,
}

impl RequestFacts {
    /// What `request` asks for.
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            prompt_tokens: request.input_token_ids.len(),
            end_id: request.end_id,
            log_probs: request.output_config.return_log_probs,
            sums: request.generated_sums.clone(),
        }
    }
}

/// Answers one executor request: one row of a batch.
#[derive(Debug)]
pub(crate) struct Responder {
    request: Arc<PlainRequest>,
    batch_index: i32,
    asked: RequestFacts,
    /// What responses repeat; empty where they do not.
    prompt: Vec<i32>,
    /// Sum of the log probabilities so far, by sequence.
    cumulative: Vec<f32>,
    /// Beams so far: they are one response, sent when the last has ended.
    beams: Vec<Beam>,
}

impl PlainRequest {
    /// A response without outputs, in the name of the model that was asked.
    fn empty(&self, is_final: bool) -> ModelInferResponse {
        let text = self.text.as_ref().map(|text| text.model());
        empty(text.unwrap_or(&self.model), &self.id, is_final)
    }
}

/// One beam, or the one sequence that a response is about.
#[derive(Debug, Default)]
struct Beam {
    sequence: i32,
    tokens: Vec<i32>,
    log_probs: Option<Vec<f32>>,
    cumulative: f32,
    finish_reason: i32,
}

impl Responder {
    pub(crate) fn new(
        request: Arc<PlainRequest>,
        batch_index: usize,
        mut asked: RequestFacts,
        prompt: Vec<i32>,
    ) -> Self {
        Self {
            cumulative: std::mem::take(&mut asked.sums),
            request,
            batch_index: batch_index as i32,
            asked,
            prompt,
            beams: Vec::new(),
        }
    }

    /// The response of a row; none while beams are gathered, or where a text model has nothing to say.
    ///
    /// # Errors
    /// The row's error.
    pub(crate) fn respond(
        &mut self,
        row: &Row<'_, ClientId>,
        tensors: &[NamedTensor],
    ) -> Result<Option<ModelInferResponse>, Box<FailedRow>> {
        let response = self.respond_with_ids(row, tensors);
        let response = match &self.request.text {
            None => response,
            Some(text) => text.answer(response),
        };
        match &self.request.placements {
            None => response,
            Some(placements) => self.placed(response, placements),
        }
    }

    /// The executor requests to stop, because stop words have ended their text. Once.
    pub(crate) fn take_stopped(&self) -> Option<Vec<ClientId>> {
        self.request.text.as_ref()?.take_stopped()
    }

    /// A response whose outputs are in shared memory.
    fn placed(
        &self,
        response: Result<Option<ModelInferResponse>, Box<FailedRow>>,
        placements: &Placements,
    ) -> Result<Option<ModelInferResponse>, Box<FailedRow>> {
        let Some(mut response) = response? else {
            return Ok(None);
        };
        match placements.place(&mut response) {
            Ok(()) => Ok(Some(response)),
            Err(status) => Err(Box::new(FailedRow {
                error: RowError {
                    row: 0,
                    code: status.code(),
                    text: status.message().to_owned(),
                    retry_after_ms: 0,
                },
                response: self.request.empty(is_final(&response)),
            })),
        }
    }

    /// The core model's own response.
    fn respond_with_ids(
        &mut self,
        row: &Row<'_, ClientId>,
        tensors: &[NamedTensor],
    ) -> Result<Option<ModelInferResponse>, Box<FailedRow>> {
        let is_final = row.is_final && self.request.finish_one();
        if let Some(error) = row.error {
            let response = self.request.empty(is_final);
            return Err(Box::new(FailedRow {
                error: error.clone(),
                response,
            }));
        }
        if self.lacks_context(row, tensors) {
            return Err(Box::new(FailedRow {
                error: no_context(),
                response: self.request.empty(is_final),
            }));
        }
        let row = &without_end(row, self.asked.end_id);
        let beam = self.beam(row);
        if self.request.beam_width > 1 {
            self.beams.push(beam);
            if !row.is_final {
                return Ok(None);
            }
            let beams = std::mem::take(&mut self.beams);
            return Ok(Some(self.build(row, &beams, tensors, is_final)));
        }
        Ok(Some(self.build(
            row,
            std::slice::from_ref(&beam),
            tensors,
            is_final,
        )))
    }

    /// Whether a context phase ended by itself and left nothing to generate from.
    fn lacks_context(&self, row: &Row<'_, ClientId>, tensors: &[NamedTensor]) -> bool {
        self.request.context_only
            && row.is_final
            && row.finish_reason != FinishReason::Cancelled
            && row.context_phase.is_none()
            && !tensors
                .iter()
                .any(|tensor| tensor.name == names::CONTEXT_PHASE_PARAMS)
    }

    fn beam(&mut self, row: &Row<'_, ClientId>) -> Beam {
        let place = usize::try_from(row.sequence_index).unwrap_or(0);
        if self.cumulative.len() <= place {
            self.cumulative.resize(place + 1, 0.0);
        }
        // One after another, so that the sum is the same however tokens are put into rows.
        let sum = &mut self.cumulative[place];
        for new in row.log_probs.unwrap_or_default() {
            *sum += new;
        }
        let cumulative = *sum;
        let mut tokens = Vec::with_capacity(self.prompt.len() + row.tokens.len());
        tokens.extend_from_slice(&self.prompt);
        tokens.extend_from_slice(row.tokens);
        Beam {
            sequence: row.sequence_index,
            tokens,
            log_probs: row.log_probs.map(<[f32]>::to_vec).or_else(|| {
                // A sequence that ends by its end token has a last row without tokens. Triton's clients
                // read the log probabilities of every response.
                (self.request.return_log_probs && row.tokens.is_empty()).then(Vec::new)
            }),
            cumulative,
            finish_reason: row.finish_reason as i32,
        }
    }

    fn build(
        &self,
        row: &Row<'_, ClientId>,
        beams: &[Beam],
        tensors: &[NamedTensor],
        is_final: bool,
    ) -> ModelInferResponse {
        let request = &*self.request;
        let wants = |name: &str| request.outputs.has(name);
        let width = beams.len() as i64;
        let mut out = ResponseBuilder::new(&*request.model, request.id.as_str(), 64);
        out.version(CORE_MODEL_VERSION)
            .bool_parameter(names::FINAL_RESPONSE, is_final);
        if wants(names::OUTPUT_IDS) {
            let longest = beams
                .iter()
                .map(|beam| beam.tokens.len())
                .max()
                .unwrap_or(0);
            let ids = padded(
                beams.iter().map(|beam| beam.tokens.as_slice()),
                longest,
                PADDING,
            );
            out.push(names::OUTPUT_IDS, &[1, width, longest as i64], &ids);
        }
        if wants("sequence_length") {
            let lengths: Vec<i32> = beams.iter().map(|beam| beam.tokens.len() as i32).collect();
            out.push("sequence_length", &[1, width], &lengths);
        }
        // On the last response too, which may have no tokens: NVIDIA's client reads them from every response.
        if self.asked.log_probs || beams.iter().any(|beam| beam.log_probs.is_some()) {
            let given = tensors.iter().any(|tensor| tensor.name == "cum_log_probs");
            if wants("cum_log_probs") && !given {
                let sums: Vec<f32> = beams.iter().map(|beam| beam.cumulative).collect();
                out.push("cum_log_probs", &[1, width], &sums);
            }
            if wants(names::OUTPUT_LOG_PROBS) {
                let each = || {
                    beams
                        .iter()
                        .map(|beam| beam.log_probs.as_deref().unwrap_or_default())
                };
                let longest = each().map(<[f32]>::len).max().unwrap_or(0);
                let values = padded(each(), longest, PADDING as f32);
                out.push(
                    names::OUTPUT_LOG_PROBS,
                    &[1, width, longest as i64],
                    &values,
                );
            }
        }
        if request.fills_outputs {
            self.fill(beams, tensors, &mut out);
        }
        if request.batch > 1 && wants("batch_index") {
            out.push("batch_index", &[1, 1], &[self.batch_index]);
        }
        if request.sequences > 1 && wants("sequence_index") {
            let index = beams.first().map_or(0, |beam| beam.sequence);
            out.push("sequence_index", &[1, 1], &[index]);
        }
        if request.return_num_input_tokens && wants("num_input_tokens") {
            out.push(
                "num_input_tokens",
                &[1, 1],
                &[self.asked.prompt_tokens as i32],
            );
        }
        if request.return_num_output_tokens && wants("num_output_tokens") {
            let repeated = self.prompt.len();
            let new = beams
                .iter()
                .map(|beam| (beam.tokens.len() - repeated) as i32)
                .sum::<i32>();
            out.push("num_output_tokens", &[1, 1], &[new]);
        }
        self.extras(row, beams, &mut out);
        for tensor in tensors.iter().filter(|tensor| wants(&tensor.name)) {
            let Some(datatype) = DataType::from_name(&tensor.datatype) else {
                tracing::warn!(
                    "the executor's output `{}` has the unknown datatype `{}` and is not sent",
                    tensor.name,
                    tensor.datatype
                );
                continue;
            };
            let shape = [&[1], tensor.shape.as_slice()].concat();
            out.push_raw(tensor.name.as_str(), datatype, &shape, tensor.data.clone());
        }
        out.build()
    }

    /// What was not asked for, as zeros, in the shapes that NVIDIA's backend gave them.
    fn fill(&self, beams: &[Beam], tensors: &[NamedTensor], out: &mut ResponseBuilder) {
        let wants = |name: &str| {
            self.request.outputs.has(name) && !tensors.iter().any(|tensor| tensor.name == name)
        };
        let width = beams.len() as i64;
        let has_log_probs =
            self.asked.log_probs || beams.iter().any(|beam| beam.log_probs.is_some());
        if wants("cum_log_probs") && !has_log_probs {
            out.push("cum_log_probs", &[1, width], &vec![0_f32; beams.len()]);
        }
        if wants(names::OUTPUT_LOG_PROBS) && !has_log_probs {
            // One for each generated token, and at least one.
            let lengths = beams.iter().map(|beam| beam.tokens.len());
            let longest = lengths.max().unwrap_or(0);
            let longest = longest.saturating_sub(self.prompt.len()).max(1);
            let zeros = vec![0_f32; beams.len() * longest];
            out.push(names::OUTPUT_LOG_PROBS, &[1, width, longest as i64], &zeros);
        }
        if wants("context_logits") {
            out.push("context_logits", &[1, 1, 1], &[0_f32]);
        }
        if wants("generation_logits") {
            out.push("generation_logits", &[1, 1, 1, 1], &[0_f32]);
        }
    }

    /// Our own outputs: only for requests that named them.
    fn extras(&self, row: &Row<'_, ClientId>, beams: &[Beam], out: &mut ResponseBuilder) {
        let wants = |name: &str| self.request.outputs.has(name);
        if wants(names::FINISH_REASON) {
            let reasons: Vec<i32> = beams.iter().map(|beam| beam.finish_reason).collect();
            out.push(names::FINISH_REASON, &[1, reasons.len() as i64], &reasons);
        }
        if let Some(count) = row.cached_tokens.filter(|_| wants(names::CACHED_TOKENS)) {
            out.push(
                names::CACHED_TOKENS,
                &[1, 1],
                &[i32::try_from(count).unwrap_or(i32::MAX)],
            );
        }
        if let Some(params) = row
            .context_phase
            .filter(|_| wants(names::CONTEXT_PHASE_PARAMS))
        {
            let shape = [1, params.len() as i64];
            out.push::<u8>(names::CONTEXT_PHASE_PARAMS, &shape, params);
        }
        if let Some(top) = row.top_log_probs {
            let shape = [1, 1, row.tokens.len() as i64, top.width as i64];
            if wants(names::TOP_LOG_PROB_IDS) {
                out.push(names::TOP_LOG_PROB_IDS, &shape, top.ids);
            }
            if wants(names::TOP_LOG_PROBS) {
                out.push(names::TOP_LOG_PROBS, &shape, top.values);
            }
        }
        if let Some(prompt) = row.prompt_log_probs {
            let tokens = prompt.values.len() as i64;
            if wants(names::PROMPT_LOG_PROBS) {
                out.push(names::PROMPT_LOG_PROBS, &[1, tokens], &prompt.values);
            }
            let shape = [1, tokens, i64::from(prompt.width)];
            if prompt.width > 0 && wants(names::PROMPT_TOP_LOG_PROB_IDS) {
                out.push(names::PROMPT_TOP_LOG_PROB_IDS, &shape, &prompt.top_ids);
            }
            if prompt.width > 0 && wants(names::PROMPT_TOP_LOG_PROBS) {
                out.push(names::PROMPT_TOP_LOG_PROBS, &shape, &prompt.top_values);
            }
        }
    }
}

/// The row without the end token that ended its sequence, and without that token's values.
fn without_end<'a>(row: &Row<'a, ClientId>, end_id: Option<i32>) -> Row<'a, ClientId> {
    let mut row = *row;
    if let Some((last, rest)) = row.tokens.split_last()
        && row.finish_reason == FinishReason::EndId
        && Some(*last) == end_id
    {
        row.tokens = rest;
        row.log_probs = row.log_probs.map(|values| first(values, rest.len()));
        row.top_log_probs = row.top_log_probs.map(|top| TopLogProbs {
            width: top.width,
            ids: first(top.ids, rest.len() * top.width),
            values: first(top.values, rest.len() * top.width),
        });
    }
    row
}

fn first<T>(values: &[T], count: usize) -> &[T] {
    values.get(..count).unwrap_or(values)
}

/// Rows end to end, each filled up to `width`.
fn padded<'a, T: Copy + 'a>(
    rows: impl Iterator<Item = &'a [T]>,
    width: usize,
    padding: T,
) -> Vec<T> {
    let mut values = Vec::with_capacity(width);
    for row in rows {
        values.extend_from_slice(row);
        values.extend(std::iter::repeat_n(padding, width - row.len()));
    }
    values
}
