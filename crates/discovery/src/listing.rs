//! What a source says at one moment.

/// The addresses of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// In the source's order.
    pub listed: Vec<String>,
    /// Those of which the source says that they are about to end.
    pub leaving: Vec<String>,
    /// Of addresses that were listed before.
    pub missing: Missing,
}

/// What it means that an address is listed no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Somebody took it out.
    TakenOut,
    /// That, or the source does not know what it should.
    Doubtful,
}

impl Listing {
    /// Addresses of which none is leaving.
    pub fn new(listed: Vec<String>, missing: Missing) -> Self {
        Self {
            listed,
            leaving: Vec::new(),
            missing,
        }
    }
}
