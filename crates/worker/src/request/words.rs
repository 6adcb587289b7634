//! Word lists as Triton packs them: row 0 all ids end to end, row 1 each word's end offset, then -1.

use super::RequestError;

/// The words of a `[2, n]` tensor. Ids after the last offset are padding.
pub(super) fn words(
    tensor: &'static str,
    values: &[i32],
    vocab_size: u32,
) -> Result<Vec<Vec<i32>>, RequestError> {
    let wrong = |reason: String| RequestError::Words { tensor, reason };
    let (ids, offsets) = values.split_at(values.len() / 2);
    let mut words = Vec::new();
    let mut start = 0_usize;
    for (place, offset) in offsets.iter().enumerate() {
        if *offset < 0 {
            if let Some(later) = offsets.iter().skip(place).find(|offset| **offset >= 0) {
                return Err(wrong(format!("offset `{later}` follows the padding")));
            }
            break;
        }
        let end = usize::try_from(*offset).unwrap_or(usize::MAX);
        let word = ids
            .get(start..end)
            .filter(|word| !word.is_empty())
            .ok_or_else(|| {
                wrong(format!(
                    "offset `{offset}` after `{start}` with `{}` ids",
                    ids.len()
                ))
            })?;
        if let Some(id) = word.iter().find(|id| {
            u32::try_from(**id)
                .is_ok_and(|id| id < vocab_size)
                .eq(&false)
        }) {
            return Err(wrong(format!(
                "token id `{id}` is outside the vocabulary of `{vocab_size}`"
            )));
        }
        words.push(word.to_vec());
        start = end;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_words() {
        for (values, expected) in [
            (&[][..], vec![]),
            (&[0, -1], vec![]),
            (&[5, 6, 7, 1, 3, -1], vec![vec![5], vec![6, 7]]),
            (&[5, 6, 0, 0, 2, -1, -1, -1], vec![vec![5, 6]]),
        ] {
            assert_eq!(
                words("stop_words_list", values, 10),
                Ok(expected),
                "{values:?}"
            );
        }
    }

    #[test]
    fn malformed_words_are_refused_by_name() {
        for values in [
            &[5, 6, 3, -1][..],
            &[5, 6, 1, 1],
            &[5, 6, 2, 1],
            &[5, 6, 0, -1],
            &[5, 6, -1, 2],
            &[5, 10, 1, 2],
            &[-5, 1, 1, 2],
            &[5, 6, i32::MAX, -1],
        ] {
            let error = words("stop_words_list", values, 10).unwrap_err();
            assert!(error.to_string().contains("`stop_words_list`"), "{error}");
        }
    }
}
