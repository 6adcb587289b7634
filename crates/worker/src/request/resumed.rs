//! What the sequences of a request have generated before, at another worker. Owns what such a request may say; what
//! becomes of the tokens is the executor's.

use inflight_kserve::names::{GENERATED_IDS, GENERATED_LENGTHS, GENERATED_SUMS};

use super::error::value;
use super::{Limits, RequestError};
use crate::executor::Request;

/// The length of a sequence that has ended.
const ENDED: i32 = -1;

/// The two tensors, as they were sent.
#[derive(Default)]
pub(super) struct Resumed {
    pub(super) ids: Vec<i32>,
    pub(super) lengths: Vec<i32>,
}

impl Resumed {
    /// What each sequence of the request has generated; empty where nothing was sent.
    ///
    /// # Errors
    /// The lengths are not those of the tokens or of as many sequences; a sequence has all its tokens; none continues.
    pub(super) fn sequences(
        self,
        request: &Request,
        limits: &Limits,
    ) -> Result<Vec<Option<Vec<i32>>>, RequestError> {
        let Self { ids, mut lengths } = self;
        if ids.is_empty() && lengths.is_empty() {
            return Ok(Vec::new());
        }
        if request.sampling_config.beam_width > 1 {
            return Err(RequestError::ResumedBeams);
        }
        let in_vocabulary =
            |id: &&i32| u32::try_from(**id).is_ok_and(|id| id < limits.info.vocab_size);
        if let Some(bad) = ids.iter().find(|id| !in_vocabulary(id)) {
            let expected = format!("a token id below `{}`", limits.info.vocab_size);
            return Err(value(GENERATED_IDS, bad, &expected));
        }
        if lengths.is_empty() {
            lengths.push(i32::try_from(ids.len()).unwrap_or(i32::MAX));
        }
        let sequences = request.sampling_config.num_return_sequences as usize;
        if lengths.len() != sequences {
            return Err(RequestError::Length {
                tensor: GENERATED_LENGTHS,
                actual: lengths.len(),
                expected: sequences,
            });
        }
        let mut rest = ids.as_slice();
        let mut generated = Vec::with_capacity(sequences);
        for length in lengths {
            if length == ENDED {
                generated.push(None);
                continue;
            }
            let own = usize::try_from(length).ok();
            let own = own.filter(|own| (*own as u64) < u64::from(request.max_tokens));
            let expected = || format!("`-1`, or `0` to `{}`", request.max_tokens.saturating_sub(1));
            let own = own.ok_or_else(|| value(GENERATED_LENGTHS, length, &expected()))?;
            let (tokens, others) = rest.split_at_checked(own).ok_or(RequestError::Length {
                tensor: GENERATED_IDS,
                actual: ids.len(),
                expected: ids.len() - rest.len() + own,
            })?;
            generated.push(Some(tokens.to_vec()));
            rest = others;
        }
        if !rest.is_empty() {
            return Err(RequestError::Length {
                tensor: GENERATED_IDS,
                actual: ids.len(),
                expected: ids.len() - rest.len(),
            });
        }
        if generated.iter().all(Option::is_none) {
            return Err(value(GENERATED_LENGTHS, ENDED, "a sequence that continues"));
        }
        Ok(generated)
    }
}

/// Checks the sums of log probabilities that responses add to.
///
/// # Errors
/// There are not as many as sequences, or one is not a number.
pub(super) fn check_sums(request: &Request) -> Result<(), RequestError> {
    let sums = &request.generated_sums;
    if !sums.is_empty() && sums.len() != request.generated.len() {
        return Err(RequestError::Length {
            tensor: GENERATED_SUMS,
            actual: sums.len(),
            expected: request.generated.len(),
        });
    }
    match sums.iter().find(|sum| sum.is_nan()) {
        Some(bad) => Err(value(GENERATED_SUMS, bad, "numbers")),
        None => Ok(()),
    }
}
