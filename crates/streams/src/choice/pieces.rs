//! How the text of a choice came: token by token, so that a stream has one event for each. Owns how many are kept
//! apart; knows nothing of text.

/// Pieces kept apart while nobody takes them. A client that is this far behind gets the rest in one piece.
pub(crate) const MAX_PIECES: usize = 256;

/// What one token brought: one event of a stream. Each piece begins where the one before it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In the choice's text that is ready.
    pub(crate) text_end: usize,
    /// Among the released log probabilities.
    pub(crate) log_probs_end: usize,
    /// Among the generated tokens, where the answer reports them; else 0.
    pub(crate) tokens_end: usize,
}

/// Adds a piece that ends here, unless it is empty.
pub(super) fn push_piece(
    pieces: &mut Vec<Piece>,
    text_end: usize,
    log_probs_end: usize,
    tokens_end: usize,
) {
    let last = pieces.last().copied().unwrap_or_default();
    let piece = Piece {
        text_end: text_end.max(last.text_end),
        log_probs_end,
        tokens_end,
    };
    if (piece.text_end, piece.log_probs_end) == (last.text_end, last.log_probs_end) {
        return;
    }
    if pieces.len() >= MAX_PIECES {
        pieces.pop();
    }
    pieces.push(piece);
}
