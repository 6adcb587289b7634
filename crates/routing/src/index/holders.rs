//! The numbers under which servers appear in sets. Owns which are in use. A server that is cleared gets new ones at
//! once, and its old ones are used again only after they have been swept out of all sets.

/// Which of a server's memories a number is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    Device,
    /// The device's or the host's.
    Any,
}

/// The numbers of a server. It has the second only once it reported blocks in the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) device: Option<u32>,
    pub(super) any: Option<u32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Holders {
    servers: Vec<Numbers>,
    /// Whom a number is of; `None`: nobody's, or nobody's any more.
    owners: Vec<Option<(u32, Memory)>>,
    free: Vec<u32>,
    /// Given up before the present sweep began, and since.
    sweeping: Vec<u32>,
    given_up: Vec<u32>,
}

impl Holders {
    pub(super) fn of(&self, server: u32) -> Numbers {
        self.servers
            .get(server as usize)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn owner(&self, holder: u32) -> Option<(u32, Memory)> {
        self.owners[holder as usize]
    }

    /// The number of a server's memory, a new one if it has none.
    pub(super) fn number(&mut self, server: u32, memory: Memory) -> u32 {
        let place = server as usize;
        if place >= self.servers.len() {
            self.servers.resize(place + 1, Numbers::default());
        }
        let numbers = &mut self.servers[place];
        let number = match memory {
            Memory::Device => &mut numbers.device,
            Memory::Any => &mut numbers.any,
        };
        *number.get_or_insert_with(|| {
            let owner = Some((server, memory));
            match self.free.pop() {
                Some(holder) => {
                    self.owners[holder as usize] = owner;
                    holder
                }
                None => {
                    self.owners.push(owner);
                    (self.owners.len() - 1) as u32
                }
            }
        })
    }

    /// Takes a server's numbers away.
    pub(super) fn give_up(&mut self, server: u32) {
        let Some(numbers) = self.servers.get_mut(server as usize) else {
            return;
        };
        let numbers = std::mem::take(numbers);
        for holder in [numbers.device, numbers.any].into_iter().flatten() {
            self.owners[holder as usize] = None;
            self.given_up.push(holder);
        }
    }

    /// Whether there is anything to sweep out of the sets.
    pub(super) fn is_sweeping(&mut self) -> bool {
        if self.sweeping.is_empty() {
            std::mem::swap(&mut self.sweeping, &mut self.given_up);
        }
        !self.sweeping.is_empty()
    }

    /// No set has them any more.
    pub(super) fn swept(&mut self) {
        self.free.append(&mut self.sweeping);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_once_it_was_swept() {
        let mut holders = Holders::default();
        let [device, any] = [Memory::Device, Memory::Any].map(|memory| holders.number(3, memory));
        assert!(!holders.is_sweeping());
        holders.give_up(3);
        assert!(holders.is_sweeping());
        assert_eq!((holders.owner(device), holders.owner(any)), (None, None));
        let fresh = holders.number(3, Memory::Device);
        assert!(fresh != device && fresh != any);
        // What is given up during a sweep waits for the next one.
        holders.give_up(3);
        holders.swept();
        let again = [0, 1].map(|server| holders.number(server, Memory::Device));
        assert!(again.contains(&device) && again.contains(&any), "{again:?}");
        assert!(holders.is_sweeping());
        holders.swept();
        assert!(!holders.is_sweeping());
        assert_eq!(holders.number(2, Memory::Any), fresh);
    }
}
