//! Text to what the core model takes: token ids, word lists, end and padding ids, biases. What
//! `preprocessing` answers and what ensemble and BLS hand on is all made here.

use super::error::TextRequestError;
use super::inputs::Inputs;
use super::source::TextSource;

/// The rows of a request, ready for the core model.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PreparedRows {
    pub(crate) prompts: Vec<Vec<i32>>,
    pub(crate) decoder_prompts: Vec<Vec<i32>>,
    pub(crate) max_tokens: Vec<i32>,
    pub(crate) stop_words: Vec<Vec<Vec<i32>>>,
    pub(crate) bad_words: Vec<Vec<Vec<i32>>>,
    /// Dense, one value for each id of the vocabulary; all empty where no row has any.
    pub(crate) embedding_bias: Vec<Vec<f32>>,
    pub(crate) end_ids: Vec<i32>,
    pub(crate) pad_ids: Vec<i32>,
    /// As long as the prompt; all empty where the request has none.
    pub(crate) prompt_table_extra_ids: Vec<Vec<u64>>,
}

/// Tokenizes. Takes time in proportion to the text.
///
/// # Errors
/// Text that is not UTF-8, has no encoding or is too long; biases that do not fit together.
pub(crate) fn prepare(
    inputs: &Inputs<'_>,
    source: &TextSource,
) -> Result<PreparedRows, TextRequestError> {
    let mut made = PreparedRows::default();
    for row in 0..inputs.rows {
        let prompt = text(inputs, "QUERY", row, source)?;
        let decoder = match text(inputs, "DECODER_QUERY", row, source)? {
            ids if ids.is_empty() => vec![source.fill_id()],
            ids => ids,
        };
        let mut stop_words = words(inputs, "STOP_WORDS_DICT", row, source)?;
        let end_id = scalar(inputs, "END_ID", row)?;
        if end_id.is_none() {
            // The core model takes one end id; a model's others end a sequence as stop words.
            stop_words.extend(source.other_end_ids().map(|id| vec![id]));
        }
        made.embedding_bias.push(bias(inputs, row, source)?);
        let extra = match inputs.preprocessing("PROMPT_TABLE_EXTRA_ID") {
            Some(given) => given.scalar::<u64>(row)?,
            None => None,
        };
        made.prompt_table_extra_ids
            .push(extra.map_or_else(Vec::new, |id| vec![id; prompt.len()]));
        made.max_tokens
            .push(scalar(inputs, "REQUEST_OUTPUT_LEN", row)?.unwrap_or(0));
        made.bad_words
            .push(words(inputs, "BAD_WORDS_DICT", row, source)?);
        made.end_ids.push(end_id.unwrap_or_else(|| source.end_id()));
        made.pad_ids
            .push(scalar(inputs, "PAD_ID", row)?.unwrap_or_else(|| source.pad_id()));
        made.prompts.push(prompt);
        made.decoder_prompts.push(decoder);
        made.stop_words.push(stop_words);
    }
    let lengths = |length: usize| made.embedding_bias.iter().all(|bias| bias.len() == length);
    if !lengths(made.embedding_bias.first().map_or(0, Vec::len)) {
        return Err(TextRequestError::BiasRows);
    }
    Ok(made)
}

fn scalar(inputs: &Inputs<'_>, name: &str, row: usize) -> Result<Option<i32>, TextRequestError> {
    inputs
        .preprocessing(name)
        .map_or(Ok(None), |given| given.scalar(row))
}

fn text(
    inputs: &Inputs<'_>,
    name: &str,
    row: usize,
    source: &TextSource,
) -> Result<Vec<i32>, TextRequestError> {
    let Some(given) = inputs.preprocessing(name) else {
        return Ok(Vec::new());
    };
    let text = given.texts(row)?.concat();
    source.encode(given.spec.name, &text)
}

/// Each word's ids, without special tokens.
fn words(
    inputs: &Inputs<'_>,
    name: &str,
    row: usize,
    source: &TextSource,
) -> Result<Vec<Vec<i32>>, TextRequestError> {
    let Some(given) = inputs.preprocessing(name) else {
        return Ok(Vec::new());
    };
    let mut words = Vec::new();
    for word in given.texts(row)? {
        let ids = source.encode_word(given.spec.name, word)?;
        if !ids.is_empty() {
            words.push(ids);
        }
    }
    Ok(words)
}

/// Each word's weight at its ids, once for each word.
fn bias(
    inputs: &Inputs<'_>,
    row: usize,
    source: &TextSource,
) -> Result<Vec<f32>, TextRequestError> {
    let words = inputs.texts("EMBEDDING_BIAS_WORDS", row)?;
    let weights = match inputs.preprocessing("EMBEDDING_BIAS_WEIGHTS") {
        Some(given) => given.values::<f32>(row)?,
        None => Vec::new(),
    };
    if words.len() != weights.len() {
        return Err(TextRequestError::BiasWeights {
            words: words.len(),
            weights: weights.len(),
        });
    }
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let mut bias = vec![0.0; source.vocab_size()];
    for (word, weight) in words.into_iter().zip(weights) {
        let mut ids = source.encode_word("embedding_bias_words", word)?;
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let place = usize::try_from(id).ok().and_then(|id| bias.get_mut(id));
            if let Some(value) = place {
                *value += weight;
            }
        }
    }
    Ok(bias)
}

/// Rows end to end, each filled up on the right to the longest; returns that length too.
pub(crate) fn pad<T: Copy>(rows: &[Vec<T>], filler: T) -> (usize, Vec<T>) {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut values = Vec::with_capacity(longest * rows.len());
    for row in rows {
        values.extend_from_slice(row);
        values.resize(values.len() + longest - row.len(), filler);
    }
    (longest, values)
}

/// Word lists as Triton packs them, `[rows, 2, n]`: all ids end to end, then each word's end offset, then -1.
/// Returns n too.
pub(crate) fn pack_words(rows: &[Vec<Vec<i32>>]) -> (usize, Vec<i32>) {
    let width = rows
        .iter()
        .map(|words| words.iter().map(Vec::len).sum())
        .max()
        .unwrap_or(0);
    let mut values = Vec::with_capacity(2 * width * rows.len());
    for words in rows {
        let start = values.len();
        values.extend(words.iter().flatten());
        values.resize(start + width, 0);
        let mut end = 0;
        values.extend(words.iter().map(|word| {
            end += word.len();
            i32::try_from(end).unwrap_or(i32::MAX)
        }));
        values.resize(start + 2 * width, -1);
    }
    (width, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_packed_as_triton_packs_them() {
        for (rows, width, values) in [
            (vec![vec![]], 0, vec![]),
            (vec![vec![vec![5], vec![6, 7]]], 3, vec![5, 6, 7, 1, 3, -1]),
            (
                vec![vec![vec![5]], vec![vec![6, 7]]],
                2,
                vec![5, 0, 1, -1, 6, 7, 2, -1],
            ),
        ] {
            assert_eq!(pack_words(&rows), (width, values), "{rows:?}");
        }
    }

    #[test]
    fn rows_are_filled_on_the_right() {
        assert_eq!(pad(&[vec![1, 2], vec![3]], 9), (2, vec![1, 2, 3, 9]));
        assert_eq!(pad::<i32>(&[vec![], vec![]], 9), (0, vec![]));
    }
}
