"""What a sliding window leaves of a sequence's cache: its first tokens and its latest ones.

Pure arithmetic over positions, for models of which every layer has a window. Where layers differ, the widest
counts, since a block holds the keys and values of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """Which positions are still read."""

    #: The latest tokens that a query sees, itself included.
    tokens: int
    #: First tokens that every query sees besides (``sink_token_length``).
    sink_tokens: int = 0
    #: Tokens of one sequence in an iteration, at the most.
    step_tokens: int = 1

    def gone(self, position: int, tokens_per_block: int) -> range:
        """The blocks, by their place in the sequence, that no query from ``position`` on reads."""
        sinks = -(-self.sink_tokens // tokens_per_block)
        return range(sinks, max(sinks, (position + 1 - self.tokens) // tokens_per_block))

    def most_blocks(self, tokens_per_block: int) -> int:
        """Blocks that a sequence of any length holds at once, at the most."""
        span = self.tokens + self.step_tokens - 1
        # As many consecutive tokens touch one block more where they begin in the middle of one.
        touched = 1 if span == 1 else (span - 2) // tokens_per_block + 2
        return -(-self.sink_tokens // tokens_per_block) + touched
