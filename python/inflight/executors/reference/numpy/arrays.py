"""The narrow seam of array operations, on NumPy.

Owns every operation whose speed matters: products, norms, rotary embedding, the paged scatter and gather,
attention. Another backend implements the same functions over its own arrays. Knows nothing of models,
requests or block accounting. All floats are float32; `T` is rows of the iteration, `R` sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.core.probabilities import softmax
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.model.families.family import SWIGLU_ALPHA, SWIGLU_LIMIT, Activation

#: `linear`, or one like it.
Linear = Callable[[Float32, Float32], Float32]

#: Attention scores held at once in a context phase; longer chunks are cut into query slices. Two MiB stay
#: in a processor's cache over the passes of a softmax.
MAX_SCORES = 1 << 19

#: What a masked score becomes; finite, so that a fully masked padding row stays free of NaN.
MASKED = np.float32(-1e30)


def joined(parts: Sequence[Float32]) -> Float32:
    """One array of all rows."""
    return np.concatenate(parts)


def stacked(parts: Sequence[Float32]) -> Float32:
    """One array with a new first axis."""
    return np.stack(parts)


def turned(matrix: Float32) -> Float32:
    """The transposed matrix, as a copy."""
    return np.array(matrix.T, order="C")


def unit_rows(matrix: Float32) -> Float32:
    """Each row divided by its length."""
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))[:, None]
    normed: Float32 = matrix / np.maximum(lengths, np.float32(1e-12))
    return normed


def added(weight: Float32, offset: float) -> Float32:
    """``weight + offset``."""
    total: Float32 = weight + np.float32(offset)
    return total


def no_bias(matrix: Float32) -> Float32:
    """A zero for each row of a matrix ``[out, in]``."""
    return np.zeros(len(matrix), dtype=np.float32)


def of_experts(matrices: Float32) -> Float32:
    """Matrices ``[experts, in, out]`` as ``[experts, out, in]``."""
    turned: Float32 = matrices.transpose(0, 2, 1)
    return turned


def heads_of(matrix: Float32, like: Float32, heads: int) -> Float32:  # noqa: ARG001 -- the seam's
    """A matrix ``[heads x out, in]`` as ``[heads, out, in]``."""
    return matrix.reshape(heads, -1, matrix.shape[1])


def in_order(rows: Float32, order: Sequence[int]) -> Float32:
    """The rows in another order."""
    turned: Float32 = rows[np.asarray(order)]
    return turned


def rows_of(matrix: Float32, first: int, count: int) -> Float32:
    """``count`` rows from ``first`` on; those that the matrix does not have are zero."""
    rows: Float32 = matrix[first : first + count]
    missing = count - len(rows)
    return np.concatenate((rows, np.zeros((missing, matrix.shape[1]), np.float32))) if missing else rows


def linear(x: Float32, weight: Float32, bias: Float32 | None = None) -> Float32:
    """``x [T, in]`` times ``weight [out, in]`` transposed, plus ``bias [out]``."""
    product: Float32 = x @ weight.T
    if bias is not None:
        product += bias
    return product


def by_head(x: Float32, weight: Float32) -> Float32:
    """``x [T, heads, in]`` times ``weight [heads, in, out]``."""
    product: Float32 = (x.transpose(1, 0, 2) @ weight).transpose(1, 0, 2)
    return product


def embed(weight: Float32, token_ids: Int) -> Float32:
    """Rows of ``weight [vocabulary, hidden]``."""
    return weight[token_ids]


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """Scales the last axis to unit root mean square, then by ``weight``."""
    mean_square = np.einsum("...i,...i->...", x, x)[..., None] * np.float32(1.0 / x.shape[-1])
    normed: Float32 = x / np.sqrt(mean_square + np.float32(epsilon))
    normed *= weight
    return normed


def layer_norm(x: Float32, weight: Float32, bias: Float32, epsilon: float) -> Float32:
    """Moves the last axis to mean 0 and scales it to variance 1, then by ``weight``, plus ``bias``."""
    centered: Float32 = x - x.mean(axis=-1, keepdims=True)
    variance = np.einsum("...i,...i->...", centered, centered)[..., None] * np.float32(1.0 / x.shape[-1])
    centered /= np.sqrt(variance + np.float32(epsilon))
    centered *= weight
    centered += bias
    return centered


def activate(x: Float32, activation: Activation, gated: bool) -> Float32:
    """The activation of ``x``, or that of its first half times its second where the MLP is ``gated``."""
    if activation == "silu" and gated:
        return silu_gate(x)
    if activation == "clamped_swiglu":
        return clamped_swiglu(x)
    half = x.shape[-1] // 2 if gated else x.shape[-1]
    active = _ACTIVATIONS[activation](x[..., :half])
    if gated:
        active *= x[..., half:]
    return active


def gelu_tanh(x: Float32) -> Float32:
    """The approximation of GELU by tanh, as GPT-2 has it."""
    inner: Float32 = x * x * x
    inner *= np.float32(0.044715)
    inner += x
    inner *= np.float32(np.sqrt(2.0 / np.pi))
    active: Float32 = np.tanh(inner, out=inner)
    active += np.float32(1.0)
    active *= x
    active *= np.float32(0.5)
    return active


def gelu(x: Float32) -> Float32:
    """GELU without that approximation: ``x`` times the normal distribution's integral. NumPy has no error
    function; this one is within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    wide = np.abs(x.astype(np.float64)) * 2.0**-0.5
    part = 1.0 / (1.0 + 0.3275911 * wide)
    series = (((1.061405429 * part - 1.453152027) * part + 1.421413741) * part - 0.284496736) * part
    error = 1.0 - (series + 0.254829592) * part * np.exp(-wide * wide)
    active: Float32 = (0.5 * x * (1.0 + np.sign(x) * error)).astype(np.float32)
    return active


def clamped_swiglu(x: Float32) -> Float32:
    """``gate * sigmoid(alpha * gate) * (up + 1)``, bounded; ``[T, 2 x n]`` are gate and up in turns."""
    gate = np.minimum(x[..., ::2], np.float32(SWIGLU_LIMIT))
    up = np.clip(x[..., 1::2], np.float32(-SWIGLU_LIMIT), np.float32(SWIGLU_LIMIT))
    active: Float32 = np.tanh(gate * np.float32(0.5 * SWIGLU_ALPHA))
    active += np.float32(1.0)
    active *= gate
    active *= up + np.float32(1.0)
    active *= np.float32(0.5)
    return active


def silu(x: Float32) -> Float32:
    """``x * sigmoid(x)``. By tanh, which cannot overflow as exp does."""
    active: Float32 = np.tanh(x * np.float32(0.5))
    active += np.float32(1.0)
    active *= x
    active *= np.float32(0.5)
    return active


#: By name.
_ACTIVATIONS: Mapping[Activation, Callable[[Float32], Float32]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
}


def silu_gate(gate_up: Float32) -> Float32:
    """``silu(gate) * up`` of the halves of ``[T, 2 x n]``. By tanh, which cannot overflow as exp does."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[:, :half], gate_up[:, half:]
    gated: Float32 = np.tanh(gate * np.float32(0.5))
    gated += np.float32(1.0)
    gated *= gate
    gated *= up
    gated *= np.float32(0.5)
    return gated


def rope_tables(inverse_frequencies: Float32, positions: int, scales: Float32) -> tuple[Float32, Float32]:
    """Cosines and sines ``[positions, head_dim / 2]`` times ``scales [head_dim / 2]``, computed in float32 as
    transformers does."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies
    return np.cos(angles) * scales, np.sin(angles) * scales


def rope(x: Float32, cosines: Float32, sines: Float32) -> Float32:
    """Rotates ``x [T, heads, head_dim]`` by each row's angles ``[T, head_dim / 2]``; halves are the pairs."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosines, sines = cosines[:, None, :], sines[:, None, :]
    rotated = np.empty_like(x)
    np.multiply(first, cosines, out=rotated[..., :half])
    rotated[..., :half] -= second * sines
    np.multiply(second, cosines, out=rotated[..., half:])
    rotated[..., half:] += first * sines
    return rotated


def capped(x: Float32, softcap: float) -> Float32:
    """``x``, in its own memory, bent by tanh so that it stays below ``softcap``."""
    x *= np.float32(1.0 / softcap)
    np.tanh(x, out=x)
    x *= np.float32(softcap)
    return x


def scatter(cache: Float32, slots: Int, rows: Float32) -> None:
    """Writes ``rows [T, kv_heads, head_dim]`` into ``cache [slots, kv_heads, head_dim]``."""
    cache[slots] = rows


def gather(cache: Float32, tokens_per_block: int, block_table: Int) -> Float32:
    """Reads whole blocks: ``block_table [R, blocks]`` to ``[R, blocks x size, kv_heads, head_dim]``."""
    blocks = cache.reshape(-1, tokens_per_block, *cache.shape[1:])
    gathered = np.take(blocks, block_table, axis=0)
    return gathered.reshape(block_table.shape[0], -1, *cache.shape[1:])


def generation_mask(
    lengths: Int, padded: int, window: int | None, places: Int | None = None, sink_tokens: int = 0
) -> Float32 | None:
    """What to add to scores ``[R, 1, 1, padded]`` of one new token per sequence; None: nothing.

    ``places [R, padded]`` are the positions of the keys, if they are not in order from 0. Positions below
    ``sink_tokens`` are seen beyond the window.
    """
    if window is None and places is None and bool((lengths == padded).all()):
        return None
    keys = np.arange(padded) if places is None else places
    hidden = keys >= lengths[:, None]
    if window is not None:
        hidden |= (keys < lengths[:, None] - window) & (keys >= sink_tokens)
    mask: Float32 = np.where(hidden, MASKED, np.float32(0.0))
    return mask[:, None, None, :]


def generation_attention(
    queries: Float32,
    keys: Float32,
    values: Float32,
    mask: Float32 | None,
    scale: float,
    slopes: Float32 | None = None,
    distances: Float32 | None = None,
    sink_scores: Float32 | None = None,
    softcap: float | None = None,
) -> Float32:
    """One new token a sequence: ``queries [R, heads, head_dim]`` over ``[R, padded, kv_heads, head_dim]``.
    With ``slopes [heads]`` scores fall with the ``distances [R, padded]`` of the keys (ALiBi). With
    ``softcap`` they are capped first. ``sink_scores [heads]`` count besides those of the keys."""
    rows, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    # Queries that share a key head form one small matrix; the transposes below are views that BLAS reads.
    grouped = (queries * np.float32(scale)).reshape(rows, kv_heads, heads // kv_heads, head_dim)
    scores = grouped @ keys.transpose(0, 2, 3, 1)
    if softcap is not None:
        capped(scores, softcap)
    if slopes is not None and distances is not None:
        scores += slopes.reshape(kv_heads, -1, 1) * distances[:, None, None, :]
    if mask is not None:
        scores += mask
    weights = attention_shares(scores, None if sink_scores is None else sink_scores.reshape(kv_heads, -1, 1))
    mixed: Float32 = weights @ values.transpose(0, 2, 1, 3)
    return mixed.reshape(rows, heads, -1)


def attention_shares(scores: Float32, sink_scores: Float32 | None) -> Float32:
    """The softmax of the last axis; ``sink_scores``, with a last axis of 1, count and have no share."""
    if sink_scores is None:
        return softmax(scores)
    highest = np.maximum(scores.max(axis=-1, keepdims=True), sink_scores)
    weights: Float32 = np.exp(scores - highest)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink_scores - highest)
    return weights


def _mask(hidden: npt.NDArray[np.bool_]) -> Float32:
    """What to add to scores of which some are hidden."""
    mask: Float32 = np.where(hidden, MASKED, np.float32(0.0))
    return mask


def context_attention(
    queries: Float32,
    keys: Float32,
    values: Float32,
    first_position: int,
    window: int | None,
    scale: float,
    places: Int | None = None,
    sink_tokens: int = 0,
    slopes: Float32 | None = None,
    sink_scores: Float32 | None = None,
    softcap: float | None = None,
) -> Float32:
    """A chunk of one prompt: ``queries [T, heads, head_dim]`` at ``first_position`` on, causal, over all
    ``[first_position + T, kv_heads, head_dim]`` keys so far. A head of values may have another size.

    With ``places [keys]`` over keys at these positions; those below ``sink_tokens`` are seen beyond the
    window. With ``slopes [heads]`` scores fall with the distance (ALiBi). With ``softcap`` they are
    capped first. ``sink_scores [heads]`` count besides those of the keys.
    """
    count, heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    out = np.empty((count, heads, values.shape[-1]), dtype=np.float32)
    slides = window is not None and places is None
    most = min(len(keys), window + count) if window is not None and slides else len(keys)
    step = max(1, MAX_SCORES // (heads * most))
    for start in range(0, count, step):
        stop = min(count, start + step)
        rows = stop - start
        # Only keys that some query of the slice sees.
        end = first_position + stop if places is None else len(keys)
        begin = max(0, first_position + start + 1 - window) if window is not None and slides else 0
        grouped = (queries[start:stop] * np.float32(scale)).reshape(rows, kv_heads, shared, head_dim)
        grouped = grouped.transpose(1, 2, 0, 3).reshape(kv_heads, shared * rows, head_dim)
        scores = grouped @ keys[begin:end].transpose(1, 2, 0)
        if softcap is not None:
            capped(scores, softcap)
        by_row = scores.reshape(kv_heads * shared, rows, end - begin)
        own = np.arange(first_position + start, first_position + stop)[:, None]
        if slopes is not None:
            seen = np.arange(begin, end) if places is None else places
            by_row += slopes[:, None, None] * (seen - own).astype(np.float32)
        if places is None:
            # Every query of the slice sees what is before it and in the window of its last one: only the
            # corners are masked.
            by_row[:, :, -rows:] += _mask(np.arange(end - rows, end) > own)
            left = 0 if window is None else min(end, first_position + stop - window) - begin
            if window is not None and left > 0:
                by_row[:, :, :left] += _mask(np.arange(begin, begin + left) <= own - window)
        else:
            hidden = places > own
            if window is not None:
                hidden |= (places <= own - window) & (places >= sink_tokens)
            by_row += _mask(hidden)
        own_sinks = None if sink_scores is None else np.repeat(sink_scores, rows).reshape(kv_heads, -1, 1)
        mixed = attention_shares(scores, own_sinks) @ values[begin:end].transpose(1, 0, 2)
        mixed = mixed.reshape(heads, rows, -1)
        out[start:stop] = mixed.transpose(1, 0, 2)
    return out
