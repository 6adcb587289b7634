//! `preprocessing`: text to token ids. Stateless; owns the tensors of its answer.

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::tensor::ResponseBuilder;

use super::error::TextRequestError;
use super::inputs::Inputs;
use super::prepare::{PreparedRows, pack_words, pad, prepare};
use super::source::TextSource;
use super::table::TextModelKind;
use super::wanted::Wanted;
use crate::model::CORE_MODEL_VERSION;

const KIND: TextModelKind = TextModelKind::Preprocessing;

/// The answer to one request, all rows of its batch.
pub(super) fn answer(
    message: &ModelInferRequest,
    source: &TextSource,
) -> Result<ModelInferResponse, TextRequestError> {
    let inputs = Inputs::read(KIND, message, source.options.max_batch_size)?;
    let wanted = Wanted::read(KIND, message)?;
    let made = prepare(&inputs, source)?;
    let mut out = ResponseBuilder::new(KIND.asked_as(message), message.id.as_str(), 256);
    out.version(CORE_MODEL_VERSION);
    write(&made, source.fill_id(), &wanted, &mut out);
    Ok(out.build())
}

fn write(made: &PreparedRows, filler: i32, wanted: &Wanted, out: &mut ResponseBuilder) {
    let rows = made.prompts.len() as i64;
    let lengths = |rows: &[Vec<i32>]| rows.iter().map(|row| row.len() as i32).collect::<Vec<_>>();
    for (name, (width, values)) in [
        ("INPUT_ID", pad(&made.prompts, filler)),
        ("REQUEST_INPUT_LEN", (1, lengths(&made.prompts))),
        ("DECODER_INPUT_ID", pad(&made.decoder_prompts, filler)),
        (
            "REQUEST_DECODER_INPUT_LEN",
            (1, lengths(&made.decoder_prompts)),
        ),
        ("REQUEST_OUTPUT_LEN", (1, made.max_tokens.clone())),
        ("OUT_END_ID", (1, made.end_ids.clone())),
        ("OUT_PAD_ID", (1, made.pad_ids.clone())),
    ] {
        if wanted.has(name) {
            out.push(name, &[rows, width as i64], &values);
        }
    }
    for (name, words) in [
        ("STOP_WORDS_IDS", &made.stop_words),
        ("BAD_WORDS_IDS", &made.bad_words),
    ] {
        if wanted.has(name) {
            let (width, values) = pack_words(words);
            out.push(name, &[rows, 2, width as i64], &values);
        }
    }
    if wanted.has("EMBEDDING_BIAS") {
        let (width, values) = pad(&made.embedding_bias, 0.0);
        out.push("EMBEDDING_BIAS", &[rows, width as i64], &values);
    }
    if wanted.has("OUT_PROMPT_TABLE_EXTRA_IDS") {
        let (width, values) = pad(&made.prompt_table_extra_ids, 0);
        out.push("OUT_PROMPT_TABLE_EXTRA_IDS", &[rows, width as i64], &values);
    }
}
