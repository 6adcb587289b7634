//! What servers will hold once the prompts are computed that were sent to them. Owns the prompts of open requests, and those
//! that servers report as waiting, of all gateways; what they hold already is [`Index`](crate::index::Index)'s.
//!
//! A server reports a prompt's blocks when it has computed them. A request that comes before that is better placed behind
//! the first one than computed elsewhere, so a lookup adds what is coming to what is held.
//!
//! Prompts are a tree. A node is a run of blocks that the same prompts have, however long, with the servers that they were
//! sent to; it divides where a prompt differs. So what a request costs here grows with how often prompts like it fork, and
//! not with their blocks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::index::Held;

type NodeId = u32;
/// What is above the first blocks.
const ROOT: NodeId = NodeId::MAX;

/// See the module.
#[derive(Debug, Default)]
pub struct Coming {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// By the node above and the key of the first block.
    places: HashMap<(NodeId, u64), NodeId>,
}

#[derive(Debug, Default)]
struct Node {
    /// Those of a prompt that has this run.
    keys: Arc<[u64]>,
    run: Range<usize>,
    /// Servers and how many prompts that have this run were sent to each, by server.
    servers: Vec<(u32, u32)>,
}

impl Coming {
    /// A prompt whose blocks have these keys was sent to a server.
    pub fn sent(&mut self, server: u32, keys: &Arc<[u64]>) {
        let (mut above, mut from) = (ROOT, 0);
        while let Some(first) = keys.get(from) {
            let node = match self.places.get(&(above, *first)) {
                Some(&node) => {
                    let end = self.shared(node, keys);
                    self.divide(above, node, end)
                }
                None => {
                    let keys = Arc::clone(keys);
                    let run = from..keys.len();
                    self.insert(above, keys, run, Vec::new())
                }
            };
            let one = &mut self.nodes[node as usize];
            match one.servers.binary_search_by_key(&server, |(one, _)| *one) {
                Ok(place) => one.servers[place].1 += 1,
                Err(place) => one.servers.insert(place, (server, 1)),
            }
            (above, from) = (node, one.run.end);
        }
    }

    /// A request that was [`sent`](Self::sent) with these keys ended: its blocks are reported by now, or never come.
    pub fn ended(&mut self, server: u32, keys: &[u64]) {
        let (mut above, mut from) = (ROOT, 0);
        while let Some(first) = keys.get(from) {
            let Some(&node) = self.places.get(&(above, *first)) else {
                return;
            };
            let one = &mut self.nodes[node as usize];
            from = one.run.end;
            if let Ok(place) = one.servers.binary_search_by_key(&server, |(one, _)| *one) {
                one.servers[place].1 -= 1;
                if one.servers[place].1 == 0 {
                    one.servers.remove(place);
                }
            }
            if one.servers.is_empty() {
                *one = Node::default();
                self.places.remove(&(above, *first));
                self.free.push(node);
            }
            above = node;
        }
    }

    /// Adds to what servers hold of a prompt what they will hold of it.
    pub fn find(&self, keys: &[u64], held: &mut Held) {
        let (mut above, mut from) = (ROOT, 0);
        while let Some(first) = keys.get(from)
            && let Some(&node) = self.places.get(&(above, *first))
        {
            let end = self.shared(node, keys);
            let one = &self.nodes[node as usize];
            for (server, _) in &one.servers {
                if (held.of(*server).coming as usize) < end {
                    held.at(*server).coming = end as u32;
                }
            }
            // From amid a run nothing is found.
            (above, from) = (node, end);
        }
    }

    /// Where a prompt that has the first block of a run differs from it, or ends.
    fn shared(&self, node: NodeId, keys: &[u64]) -> usize {
        let Node { keys: own, run, .. } = &self.nodes[node as usize];
        let (mut low, mut high) = (run.start, run.end.min(keys.len()));
        // Chain keys: where two are equal, so are all before them.
        while low < high {
            let middle = low.midpoint(high);
            if keys[middle] == own[middle] {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The node of a run up to `end`, above what follows of it.
    fn divide(&mut self, above: NodeId, node: NodeId, end: usize) -> NodeId {
        let one = &mut self.nodes[node as usize];
        if one.run.end == end {
            return node;
        }
        let (keys, servers) = (Arc::clone(&one.keys), one.servers.clone());
        let first = std::mem::replace(&mut one.run.start, end)..end;
        let next = keys[end];
        // The rest keeps its number, by which what is below is found.
        let upper = self.insert(above, keys, first, servers);
        self.places.insert((upper, next), node);
        upper
    }

    fn insert(
        &mut self,
        above: NodeId,
        keys: Arc<[u64]>,
        run: Range<usize>,
        servers: Vec<(u32, u32)>,
    ) -> NodeId {
        let first = keys[run.start];
        let node = Node { keys, run, servers };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        };
        self.places.insert((above, first), place);
        place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::{Index, Level};

    #[test]
    fn what_was_sent_is_expected_until_its_request_ends() {
        let mut index = Index::new(100);
        index.stored(0, None, &[1, 2, 3], Level::Device);
        index.stored(1, None, &[1], Level::Device);
        let mut coming = Coming::default();
        let long: Arc<[u64]> = [1, 2, 3, 4].into();
        let short: Arc<[u64]> = [1, 2, 8].into();
        coming.sent(1, &long);
        coming.sent(2, &short);
        // What is held counts, where less of it is coming.
        coming.sent(0, &short);
        let found = |coming: &Coming, keys: &[u64]| {
            let mut held = Held::default();
            index.find(keys, &mut held);
            coming.find(keys, &mut held);
            [0, 1, 2].map(|server| (held.of(server).device, held.of(server).coming))
        };
        let asked = [1, 2, 3, 4, 5];
        assert_eq!(found(&coming, &asked), [(3, 3), (1, 4), (0, 2)]);
        assert_eq!(found(&coming, &[1]), [(1, 1), (1, 1), (0, 1)]);
        assert_eq!(found(&coming, &[]), [(0, 0); 3]);
        coming.ended(1, &long);
        assert_eq!(found(&coming, &asked), [(3, 3), (1, 1), (0, 2)]);
    }

    /// Chain keys of a prompt of these words.
    fn chain(words: &[u8]) -> Arc<[u64]> {
        let keys = words.iter().scan(7_u64, |key, word| {
            *key = (*key ^ u64::from(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3;
            Some(*key)
        });
        keys.collect()
    }

    proptest! {
        /// Against all open prompts, one after another.
        #[test]
        fn the_longest_beginning_of_any_open_prompt_is_found(
            steps in proptest::collection::vec(
                (0_u32..3, proptest::collection::vec(0_u8..3, 0..7), any::<bool>(), 0_usize..8), 1..60,
            ),
        ) {
            let mut coming = Coming::default();
            let mut open: Vec<(u32, Arc<[u64]>)> = Vec::new();
            let mut held = Held::default();
            for (server, words, ends, place) in steps {
                if ends && !open.is_empty() {
                    let (server, keys) = open.swap_remove(place % open.len());
                    coming.ended(server, &keys);
                } else {
                    let keys = chain(&words);
                    coming.sent(server, &keys);
                    open.push((server, keys));
                }
                let asked = chain(&words);
                Index::new(1).find(&asked, &mut held);
                coming.find(&asked, &mut held);
                for server in 0..3 {
                    let shared = |keys: &[u64]| {
                        keys.iter().zip(&*asked).take_while(|(one, other)| one == other).count()
                    };
                    let own = open.iter().filter(|(one, _)| *one == server);
                    let most = own.map(|(_, keys)| shared(keys)).max().unwrap_or(0);
                    prop_assert_eq!(held.of(server).coming as usize, most);
                }
            }
            for (server, keys) in open {
                coming.ended(server, &keys);
            }
            prop_assert!(coming.places.is_empty());
            prop_assert_eq!(coming.free.len(), coming.nodes.len());
        }
    }
}
