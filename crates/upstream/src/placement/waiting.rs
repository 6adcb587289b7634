//! The prompts that a worker reports as waiting, of all gateways. Owns those of one stream; they count like those that this
//! gateway has sent.

use std::collections::HashMap;
use std::sync::Arc;

use inflight_kserve::cache_state::CacheUpdate;
use inflight_routing::coming::Coming;

use super::trust::Fault;

/// Prompts of one worker, and their keys together, that are still believed: twice what a worker names.
const MOST_PROMPTS: usize = 2048;
const MOST_KEYS: usize = 131_072;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    prompts: HashMap<u64, Arc<[u64]>>,
    keys: usize,
}

impl Waiting {
    /// Counts what a message of a worker says.
    ///
    /// # Errors
    /// [`Fault`]: no worker sends this.
    pub(super) fn take(
        &mut self,
        update: &CacheUpdate,
        server: u32,
        coming: &mut Coming,
    ) -> Result<(), Fault> {
        for number in &update.no_longer_waiting {
            let keys = self.prompts.remove(number).ok_or(Fault::Impossible)?;
            self.keys -= keys.len();
            coming.ended(server, &keys);
        }
        for prompt in &update.waiting {
            self.keys += prompt.keys.len();
            if self.keys > MOST_KEYS || self.prompts.len() == MOST_PROMPTS {
                return Err(Fault::Impossible);
            }
            let keys: Arc<[u64]> = prompt.keys.as_slice().into();
            coming.sent(server, &keys);
            if let Some(before) = self.prompts.insert(prompt.number, keys) {
                coming.ended(server, &before);
                return Err(Fault::Impossible);
            }
        }
        Ok(())
    }

    /// Nothing is known any more.
    pub(super) fn forget(&mut self, server: u32, coming: &mut Coming) {
        for (_, keys) in self.prompts.drain() {
            coming.ended(server, &keys);
        }
        self.keys = 0;
    }
}

#[cfg(test)]
mod tests {
    use inflight_kserve::cache_state::WaitingPrompt;
    use inflight_routing::index::{Held, Index};

    use super::*;

    #[test]
    fn what_waits_is_coming_until_it_left_and_nonsense_is_a_fault() {
        let mut coming = Coming::default();
        let mut waiting = Waiting::default();
        let depth = |coming: &Coming| {
            let mut held = Held::default();
            Index::new(1).find(&[1, 2, 3], &mut held);
            coming.find(&[1, 2, 3], &mut held);
            held.of(7).coming
        };
        let mut take = |came: &[(u64, &[u64])], left: &[u64], coming: &mut Coming| {
            let prompts = came.iter().map(|(number, keys)| WaitingPrompt {
                number: *number,
                keys: keys.to_vec(),
            });
            let update = CacheUpdate {
                waiting: prompts.collect(),
                no_longer_waiting: left.to_vec(),
                ..CacheUpdate::default()
            };
            waiting.take(&update, 7, coming)
        };
        assert_eq!(take(&[(1, &[1]), (2, &[1, 2])], &[], &mut coming), Ok(()));
        assert_eq!(depth(&coming), 2);
        assert_eq!(take(&[(3, &[1, 2, 3])], &[2], &mut coming), Ok(()));
        assert_eq!(depth(&coming), 3);
        assert_eq!(take(&[], &[3], &mut coming), Ok(()));
        assert_eq!(depth(&coming), 1);
        // As many keys as there may be, twice, and then one more.
        let half = [6; MOST_KEYS / 2];
        assert_eq!(
            take(&[(4, &half), (5, &half[1..])], &[], &mut coming),
            Ok(())
        );
        assert_eq!(take(&[(6, &half)], &[4], &mut coming), Ok(()));
        assert_eq!(take(&[], &[6], &mut coming), Ok(()));
        let more = [6; MOST_KEYS / 2 + 1];
        for (came, left) in [
            (vec![(7, &more[..])], vec![]),
            (vec![], vec![3]),
            (vec![(1, &[5][..])], vec![]),
        ] {
            assert_eq!(take(&came, &left, &mut coming), Err(Fault::Impossible));
        }
        let many: Vec<(u64, &[u64])> = (10..10 + MOST_PROMPTS as u64)
            .map(|n| (n, &[][..]))
            .collect();
        assert_eq!(take(&many, &[], &mut coming), Err(Fault::Impossible));
        waiting.forget(7, &mut coming);
        assert_eq!(depth(&coming), 0);
    }
}
