//! What the responses to one request have said, so that another server's can continue after them. Pure: owns which
//! outputs that is, and how a response that repeats a part is cut; knows nothing of servers.
//!
//! Tokens and text are compared as they grow, because servers may cut them into responses in different ways. Where each
//! response has the text so far, only the longest is kept, and what brings no more text is left out.

use bytes::Bytes;
use inflight_kserve::inference::ModelInferResponse;
use inflight_kserve::streamed::{EncodedResponse, ResponseView};
use inflight_kserve::tensor::{DataType, ResponseBuilder, Tensor, TensorError, Tensors};
use inflight_models::dialect::output;
use tonic::Status;

use crate::transcript::{Differs, Old, Transcript};

const SUM: &str = "cum_log_probs";
/// The place of a response among the sequences of its request.
const PLACE: [&str; 2] = ["batch_index", "sequence_index"];

/// What a response brings.
#[derive(Debug)]
pub(super) enum Novelty {
    /// Something for the client.
    New,
    /// The same, without what was said before; see [`cut`].
    Partly(Repeated),
    /// Nothing that was not said before.
    Repeated,
    /// Something else than what was said before.
    Differs,
}

/// Most text of a request that is kept to be compared; one that has more ends with its server.
const MOST_TEXT: usize = 4 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Said {
    sequences: Vec<Sequence>,
    /// Whether each response has the text so far.
    accumulates: bool,
    /// Whether a response had outputs that nobody here can compare.
    is_unknown: bool,
}

/// One sequence of the request.
#[derive(Debug, Default)]
struct Sequence {
    place: [i32; 2],
    transcript: Transcript,
    /// The text so far, where responses have that.
    whole: Bytes,
    /// How much of it the server that has the request has sent.
    reached: usize,
    total: Counts,
    /// How many of these the server that has the request has sent.
    said: Counts,
    /// The last sum of its log probabilities.
    sum: Option<f32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    responses: usize,
    log_probs: usize,
    /// By the server's own count.
    tokens: usize,
}

/// What a response says of one sequence.
#[derive(Debug, Default)]
struct Piece {
    place: [i32; 2],
    tokens: Vec<i32>,
    text: Bytes,
    counts: Counts,
    sum: Option<f32>,
}

/// What of a response was said before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repeated {
    old: Old,
    log_probs: usize,
    /// What remains of the server's own count of tokens.
    counted: usize,
}

impl Said {
    /// Nothing yet. `accumulates`: each response has the text so far.
    pub(super) fn new(accumulates: bool) -> Self {
        Self {
            accumulates,
            ..Self::default()
        }
    }

    /// Whether another server's responses can continue after these.
    pub(super) fn can_continue(&self) -> bool {
        !self.is_unknown
    }

    /// The tokens and the sum of log probabilities of a request with one sequence.
    pub(super) fn only(&self) -> (&[i32], Option<f32>) {
        let first = self.sequences.first();
        first.map_or((&[], None), |own| (own.transcript.tokens(), own.sum))
    }

    /// Whether no response has come.
    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Tokens so far, as far as they are known.
    pub(super) fn tokens(&self) -> usize {
        let counts = self.sequences.iter().map(|own| {
            let known = own.transcript.tokens().len();
            known.max(own.total.tokens)
        });
        counts.sum()
    }

    /// Another server begins from the beginning.
    pub(super) fn replay(&mut self) {
        for own in &mut self.sequences {
            own.transcript.replay();
            own.reached = 0;
            own.said = Counts::default();
        }
    }

    /// Takes a response. `is_stopped`: its client has asked for its end, which may come before all is repeated.
    ///
    /// # Errors
    /// INTERNAL: it is malformed.
    pub(super) fn take(
        &mut self,
        response: &ResponseView<'_>,
        is_stopped: bool,
    ) -> Result<Novelty, Status> {
        let is_final = response.is_final();
        let Some(piece) = Piece::read(response).map_err(malformed)? else {
            self.is_unknown |= response.has_outputs();
            return Ok(match is_final && !is_stopped && self.is_behind() {
                true => Novelty::Differs,
                false => Novelty::New,
            });
        };
        let accumulates = self.accumulates;
        let own = self.sequence(piece.place);
        let taken = match accumulates {
            true => own.take_whole(piece),
            false => own.take(piece),
        };
        self.is_unknown |= self.kept() > MOST_TEXT;
        Ok(match taken {
            Err(Differs) => Novelty::Differs,
            Ok(_) if is_final && !is_stopped && self.is_behind() => Novelty::Differs,
            Ok((_, has_news)) if !has_news && !is_final => Novelty::Repeated,
            Ok((repeated, _)) if repeated.old == Old::default() => Novelty::New,
            Ok((repeated, _)) => Novelty::Partly(repeated),
        })
    }

    /// Bytes of text that are kept.
    fn kept(&self) -> usize {
        let kept = |own: &Sequence| own.whole.len() + own.transcript.text_bytes();
        self.sequences.iter().map(kept).sum()
    }

    /// Whether the server has yet to repeat something.
    fn is_behind(&self) -> bool {
        let is_behind =
            |own: &Sequence| own.reached < own.whole.len() || own.transcript.is_behind();
        self.sequences.iter().any(is_behind)
    }

    fn sequence(&mut self, place: [i32; 2]) -> &mut Sequence {
        let found = self.sequences.iter().position(|own| own.place == place);
        let index = found.unwrap_or_else(|| {
            self.sequences.push(Sequence {
                place,
                ..Sequence::default()
            });
            self.sequences.len() - 1
        });
        &mut self.sequences[index]
    }
}

impl Sequence {
    /// Takes a piece with the text so far: nothing is cut from it, and it is news if it is longer.
    fn take_whole(&mut self, piece: Piece) -> Result<(Repeated, bool), Differs> {
        let Piece { text, counts, .. } = piece;
        let (long, short) = match text.len() < self.whole.len() {
            true => (&self.whole, &text),
            false => (&text, &self.whole),
        };
        if !long.starts_with(short) {
            return Err(Differs);
        }
        self.reached = text.len();
        self.said.responses += 1;
        let is_further = self.said.responses > self.total.responses;
        let has_news =
            text.len() > self.whole.len() || (text.len() == self.whole.len() && is_further);
        self.total.responses = self.total.responses.max(self.said.responses);
        self.total.tokens = self.total.tokens.max(counts.tokens);
        if text.len() > self.whole.len() {
            self.whole = text;
        }
        Ok((Repeated::default(), has_news))
    }

    /// What of a piece was said before, and whether there is more to it.
    fn take(&mut self, piece: Piece) -> Result<(Repeated, bool), Differs> {
        let Piece {
            tokens,
            text,
            counts,
            sum,
            ..
        } = piece;
        let old = self.transcript.take(&tokens, &text, false)?;
        // A response of neither counts too: servers send one for a token that ends no character.
        let has_news = old.tokens < tokens.len()
            || old.text < text.len()
            || self.said.responses >= self.total.responses;
        let before = self.total;
        self.said.responses += 1;
        self.said.log_probs += counts.log_probs;
        self.said.tokens += counts.tokens;
        self.total.responses = before.responses.max(self.said.responses);
        self.total.log_probs = before.log_probs.max(self.said.log_probs);
        self.total.tokens = before.tokens.max(self.said.tokens);
        self.sum = sum.or(self.sum);
        let new_log_probs = self.total.log_probs - before.log_probs;
        let repeated = Repeated {
            old,
            log_probs: counts.log_probs - new_log_probs.min(counts.log_probs),
            counted: self.total.tokens - before.tokens,
        };
        Ok((repeated, has_news))
    }
}

impl Piece {
    /// `None`: it has neither tokens nor text, or those of several sequences.
    fn read(view: &ResponseView<'_>) -> Result<Option<Self>, TensorError> {
        let outputs = view.outputs()?;
        let (ids, text) = (outputs.get(output::IDS), outputs.get(output::TEXT));
        let lengths = outputs.values::<i32>(output::LENGTH)?.unwrap_or_default();
        let texts = text.map_or(0, Tensor::count);
        if (ids.is_none() && text.is_none()) || lengths.len() > 1 || texts > 1 {
            return Ok(None);
        }
        let mut tokens = outputs.values::<i32>(output::IDS)?.unwrap_or_default();
        if let Some(length) = lengths.first() {
            // What lies behind is padding.
            tokens.truncate(usize::try_from(*length).unwrap_or(0));
        }
        let text = match text {
            Some(tensor) => {
                let element = tensor.elements()?.next().unwrap_or_default();
                Bytes::copy_from_slice(element)
            }
            None => Bytes::new(),
        };
        let first = |name: &str| -> Result<i32, TensorError> {
            let values = outputs.values::<i32>(name)?.unwrap_or_default();
            Ok(values.first().copied().unwrap_or(0))
        };
        let sums = match outputs.get(SUM) {
            Some(tensor) => tensor.floats()?,
            None => Vec::new(),
        };
        let counted = first(output::OUTPUT_TOKENS)?;
        Ok(Some(Self {
            place: [first(PLACE[0])?, first(PLACE[1])?],
            tokens,
            text,
            counts: Counts {
                responses: 1,
                log_probs: outputs.get(output::LOG_PROBS).map_or(0, Tensor::count),
                tokens: usize::try_from(counted).unwrap_or(0),
            },
            sum: sums.first().copied(),
        }))
    }
}

/// The response without what was said before.
///
/// # Errors
/// INTERNAL: it is malformed.
pub(super) fn cut(
    response: EncodedResponse,
    repeated: Repeated,
) -> Result<EncodedResponse, Status> {
    let mut message = response.decode()?;
    if let Some(response) = &mut message.infer_response {
        *response = rest(response, repeated).map_err(malformed)?;
    }
    Ok(EncodedResponse::from(&message))
}

fn rest(
    response: &ModelInferResponse,
    repeated: Repeated,
) -> Result<ModelInferResponse, TensorError> {
    let Repeated {
        old,
        log_probs,
        counted,
    } = repeated;
    let mut out = ResponseBuilder::new(&*response.model_name, &*response.id, 256);
    out.version(&*response.model_version);
    for tensor in &Tensors::outputs(response)? {
        match tensor.name {
            output::IDS => push_rest(&mut out, tensor, old.tokens),
            output::LOG_PROBS => push_rest(&mut out, tensor, log_probs),
            output::LENGTH => {
                let lengths: Vec<i32> = tensor.values()?;
                let old = i32::try_from(old.tokens).unwrap_or(i32::MAX);
                let rest = lengths.iter().map(|length| (length - old).max(0));
                out.push(tensor.name, tensor.shape, &rest.collect::<Vec<_>>());
            }
            output::OUTPUT_TOKENS if tensor.datatype == DataType::Int32 => {
                let counted = i32::try_from(counted).unwrap_or(i32::MAX);
                out.push(tensor.name, tensor.shape, &vec![counted; tensor.count()]);
            }
            output::TEXT => {
                let texts = tensor.elements()?;
                let rest = texts.map(|text| text.get(old.text..).unwrap_or_default());
                out.push_bytes(tensor.name, tensor.shape, rest);
            }
            _ => {
                let data = tensor.data.clone();
                out.push_raw(tensor.name, tensor.datatype, tensor.shape, data);
            }
        }
    }
    let mut rest = out.build();
    rest.parameters.clone_from(&response.parameters);
    Ok(rest)
}

/// Pushes a tensor of one sequence without its first values.
fn push_rest(out: &mut ResponseBuilder, tensor: &Tensor<'_>, old: usize) {
    let count = tensor.count();
    let old = old.min(count);
    let size = tensor.data.len() / count.max(1);
    let mut shape = tensor.shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = (count - old) as i64;
    }
    let data = tensor.data.slice(old * size..);
    out.push_raw(tensor.name, tensor.datatype, &shape, data);
}

fn malformed(error: TensorError) -> Status {
    Status::internal(format!("a response was damaged: {error}"))
}

#[cfg(test)]
mod tests;
