//! `postprocessing`: token ids to text. Stateless: every request is decoded by itself.

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::tensor::ResponseBuilder;

use super::error::TextRequestError;
use super::inputs::Inputs;
use super::source::TextSource;
use super::spec::Role;
use super::table::TextModelKind;
use super::wanted::Wanted;
use crate::model::CORE_MODEL_VERSION;

const KIND: TextModelKind = TextModelKind::Postprocessing;

/// The answer to one request, all rows of its batch and their beams.
pub(super) fn answer(
    message: &ModelInferRequest,
    source: &TextSource,
) -> Result<ModelInferResponse, TextRequestError> {
    let inputs = Inputs::read(KIND, message, source.options.max_batch_size)?;
    let wanted = Wanted::read(KIND, message)?;
    let mut out = ResponseBuilder::new(KIND.asked_as(message), message.id.as_str(), 256);
    out.version(CORE_MODEL_VERSION);
    if wanted.has("OUTPUT") {
        let texts = decode(&inputs, source)?;
        // All rows and beams in a line, as NVIDIA's model has it and its clients read it.
        out.push_bytes("OUTPUT", &[texts.len() as i64], texts);
    }
    for given in inputs.iter() {
        if let Role::Returned(name) = given.spec.role
            && wanted.has(name)
        {
            let tensor = &given.tensor;
            out.push_raw(name, tensor.datatype, tensor.shape, tensor.data.clone());
        }
    }
    Ok(out.build())
}

/// The text of each beam of each row.
fn decode(inputs: &Inputs<'_>, source: &TextSource) -> Result<Vec<String>, TextRequestError> {
    const IDS: &str = "TOKENS_BATCH";
    const LENGTHS: &str = "SEQUENCE_LENGTH";
    let (Some(ids), Some(lengths)) = (inputs.named(IDS), inputs.named(LENGTHS)) else {
        return Err(TextRequestError::Missing { tensor: IDS });
    };
    let [_, beams, width] = *ids.tensor.shape else {
        return Err(TextRequestError::Missing { tensor: IDS });
    };
    let (beams, width) = (beams as usize, width as usize);
    let mut texts = Vec::new();
    for row in 0..inputs.rows {
        let ids: Vec<i32> = ids.values(row)?;
        let lengths: Vec<i32> = lengths.values(row)?;
        for beam in 0..beams {
            let held = ids
                .get(beam * width..(beam + 1) * width)
                .unwrap_or_default();
            let length = lengths.get(beam).copied().unwrap_or(-1);
            let beam = usize::try_from(length)
                .ok()
                .and_then(|length| held.get(..length))
                .ok_or(TextRequestError::SequenceLength {
                    tensor: LENGTHS,
                    length,
                    held: width,
                })?;
            // Ids below 0 fill beams that ended earlier.
            let beam: Vec<u32> = beam
                .iter()
                .filter_map(|id| u32::try_from(*id).ok())
                .collect();
            let text = source
                .tokenizer()
                .decode(&beam, source.options.skip_special_tokens)
                .map_err(|error| TextRequestError::decode(IDS, &error))?;
            texts.push(text);
        }
    }
    Ok(texts)
}
