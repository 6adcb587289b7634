//! What is done with guides before a compiler sees them. Bounds that it cannot keep by itself are checked: how deep a
//! schema is, and how many patterns apply to one text at once. Objects of schemas are closed. All of that is pure:
//! text in, a problem out. [`checks`] then compiles a guide to see whether it can be followed.
//!
//! llguidance bounds its work by fuel, which it counts between two steps. One step over an intersection of patterns
//! takes time and memory that grow exponentially with the patterns: 8 take 50 ms at most, 12 take 0.15 s and
//! 40 MB, 39 never end. Alternatives and repetitions within one pattern do not multiply.

pub mod checks;
mod close;
mod lark;
mod schema;

/// Levels of JSON, references followed: compilers follow them on their stacks, which overflow at a few thousand.
pub const MAX_DEPTH: usize = 200;
/// Patterns that may apply to one text at once.
pub const MAX_INTERSECTED: usize = 8;

/// Why a guide is not compiled, in one line without a final period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    #[error("it is more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("{count} patterns apply to one text at once; at most {MAX_INTERSECTED} may")]
    TooManyPatterns { count: usize },
}

pub use close::{close, open_objects};
pub use lark::check as check_lark;
pub use schema::check as check_schema;

fn intersected(count: usize) -> Result<(), Problem> {
    if count > MAX_INTERSECTED {
        return Err(Problem::TooManyPatterns { count });
    }
    Ok(())
}
