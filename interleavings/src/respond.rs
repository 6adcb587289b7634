//! Of a worker's `respond`.

#[derive(Debug)]
pub struct Responder;
