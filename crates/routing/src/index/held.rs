//! What a lookup found: how many leading blocks of a prompt each server holds or will hold. Owns the table, which is used
//! again for the next prompt.

/// The leading blocks of a prompt that a server holds, without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// On the device.
    pub device: u32,
    /// On the device or in the host's memory; at least `device`.
    pub host: u32,
    /// On the device, or there once what was sent before is [computed](crate::coming); at least `device`.
    pub coming: u32,
}

/// See the module. Make one for each thread that picks, and keep it.
#[derive(Debug, Default)]
pub struct Held {
    depths: Vec<Depth>,
    servers: Vec<u32>,
    /// The sets along the prompt, each with the number of blocks up to which it counts.
    pub(super) along: Vec<(u32, super::sets::SetId)>,
}

impl Held {
    /// What `server` holds.
    pub fn of(&self, server: u32) -> Depth {
        self.depths
            .get(server as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The servers that hold or will hold at least the first block, in no order.
    pub fn servers(&self) -> &[u32] {
        &self.servers
    }

    pub(super) fn clear(&mut self) {
        for server in self.servers.drain(..) {
            self.depths[server as usize] = Depth::default();
        }
    }

    pub(crate) fn at(&mut self, server: u32) -> &mut Depth {
        let place = server as usize;
        if place >= self.depths.len() {
            self.depths.resize(place + 1, Depth::default());
        }
        let depth = &mut self.depths[place];
        if *depth == Depth::default() {
            self.servers.push(server);
        }
        depth
    }
}
