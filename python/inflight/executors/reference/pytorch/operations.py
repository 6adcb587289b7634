"""The array seam on PyTorch, in plain operations: every device runs them, and every kernel is held to them.

The operations of `numpy.arrays`, fused as the device wants them. Rows are those of one iteration ``[T]``;
floats have the model's type, and sums are taken in float32. Knows nothing of requests or block accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from inflight.executors.reference.model.families.family import SWIGLU_ALPHA, SWIGLU_LIMIT, Activation
from inflight.executors.reference.model.mixture import GroupedRouting

from . import compressed

#: Rows of a prompt that one tile of `Context` holds at most.
CONTEXT_TILE = 64

Tensor = Any  # torch.Tensor; torch is optional, and not there where types are checked
#: The experts of each row ``[T, chosen]``, and their shares in float32.
Choice = tuple[Tensor, Tensor]
#: Adds to what a part of an expert made of its rows: part, expert, what went in, what came out.
Adapt = Callable[[str, int, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What attention needs to know of a model and its cache."""

    heads: int
    kv_heads: int
    head_dim: int
    tokens_per_block: int
    max_seq_len: int
    #: First positions that every query sees beyond its window.
    sink_tokens: int = 0
    #: By head, float32, where biases are linear.
    slopes: Tensor | None = None
    #: Whether heads have scores that count besides those of the keys.
    has_sink_scores: bool = False
    #: What scores are multiplied with; None: the inverse root of a head's size.
    attention_scale: float | None = None
    #: What scores are capped at; None: they are not.
    softcap: float | None = None
    #: Numbers of a value, which are the first of its key; None: values are stored apart, as large as keys.
    value_dim: int | None = None

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5) if self.attention_scale is None else self.attention_scale


@dataclass(frozen=True, slots=True)
class Tables:
    """Where generation rows find the blocks of their contexts."""

    #: The sequence slot of each row, int32 ``[R]``.
    slots: Tensor
    #: By slot: int32 ``[slots, blocks of the longest]``.
    blocks: Tensor
    #: Blocks of the cache.
    count: int


@dataclass(frozen=True, slots=True)
class Context:
    """The rows of an iteration that belong to prompts, cut into tiles of consecutive rows of one chunk."""

    #: Row, slot, first position and rows of each tile: int32 ``[tiles]``.
    rows: Tensor
    slots: Tensor
    positions: Tensor
    counts: Tensor
    #: The same on the host, for the plain operations: (first row, rows, slot, first position) a chunk.
    chunks: tuple[tuple[int, ...], ...]


def prepare(
    inputs: Tensor, chosen: Tensor, block_tables: Tensor, tokens_per_block: int
) -> tuple[Tensor, Tensor]:
    """Token ids and cache slots of generation rows, and notes the block of each in ``block_tables``.

    ``inputs [5, R]``: known token, row of ``chosen`` that holds it instead (or negative), position, sequence
    slot, block of the position. All int32.
    """
    known, sources, positions, slots, blocks = inputs
    token_ids = torch.where(sources >= 0, chosen[sources.clamp(min=0).long()], known)
    columns = torch.div(positions, tokens_per_block, rounding_mode="floor").long()
    block_tables[slots.long(), columns] = blocks
    return token_ids, blocks * tokens_per_block + positions % tokens_per_block


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One tensor of all rows."""
    return torch.cat(tuple(parts)) if _are_plain(parts) else compressed.joined(parts)


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """One tensor with a new first axis."""
    return torch.stack(tuple(parts)) if _are_plain(parts) else compressed.stacked(parts)


def _are_plain(parts: Sequence[Tensor]) -> bool:
    return all(isinstance(part, torch.Tensor) for part in parts)


def turned(matrix: Tensor) -> Tensor:
    """The transposed matrix, as a copy."""
    return matrix.t().contiguous()


def unit_rows(matrix: Tensor) -> Tensor:
    """Each row divided by its length."""
    return functional.normalize(matrix.float()).to(matrix.dtype)


def added(weight: Tensor, offset: float) -> Tensor:
    """``weight + offset``, in float32: in half precision the sum would lose what the weight says."""
    return weight.float() + offset


def no_bias(matrix: Tensor) -> Tensor:
    """A zero for each row of a matrix ``[out, in]``."""
    return matrix.new_zeros(len(matrix))


def of_experts(matrices: Tensor) -> Tensor:
    """Matrices ``[experts, in, out]`` as ``[experts, out, in]``; compressed ones are so already."""
    return matrices.transpose(1, 2).contiguous() if _are_plain([matrices]) else matrices


def heads_of(matrix: Tensor, like: Tensor, heads: int) -> Tensor:
    """A matrix ``[heads x out, in]`` as ``[heads, out, in]``, uncompressed in the type of ``like``."""
    plain = matrix if _are_plain([matrix]) else matrix.expanded(like.dtype)
    return plain.view(heads, -1, plain.shape[1])


def in_order(rows: Tensor, order: Sequence[int]) -> Tensor:
    """The rows in another order."""
    return rows[torch.tensor(order, device=rows.device)]


def rows_of(matrix: Tensor, first: int, count: int) -> Tensor:
    """``count`` rows from ``first`` on; those that the matrix does not have are zero."""
    rows = matrix[first : first + count]
    return functional.pad(rows, (0, 0, 0, count - len(rows)))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [T, in]`` times ``weight [out, in]`` transposed, plus ``bias [out]``. A compressed matrix is
    expanded each time: right, and slow."""
    if not isinstance(weight, torch.Tensor):
        weight = weight.expanded(x.dtype)
    return functional.linear(x, weight, bias)


def add_rms_norm(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    epsilon: float,
    more: Tensor | None = None,
    delta_norm: Tensor | None = None,
) -> Tensor:
    """Adds ``delta`` to ``x`` in place; the sum with unit root mean square, times ``weight``. ``more`` is
    added to ``delta`` first; then it is normed by ``delta_norm`` if there is one."""
    if delta is not None:
        delta = _with(delta, more)
        x += delta if delta_norm is None else rms_norm(delta, delta_norm, epsilon)
    return rms_norm(x, weight, epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``x`` with unit root mean square, times ``weight``."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (normed * weight.float()).to(x.dtype)


def add_layer_norm(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    more: Tensor | None = None,
) -> Tensor:
    """Adds ``delta`` to ``x`` in place; the sum, moved to mean 0 and scaled to variance 1, times ``weight``,
    plus ``bias``. ``more`` is added to ``delta`` first."""
    if delta is not None:
        x += _with(delta, more)
    return functional.layer_norm(x, weight.shape, weight, bias, epsilon)


def _with(values: Tensor, more: Tensor | None) -> Tensor:
    return values if more is None else values + more


def activate(x: Tensor, activation: Activation, gated: bool, more: Tensor | None = None) -> Tensor:
    """The activation of ``x``, or that of its first half times its second where the MLP is ``gated``.
    ``more`` is added to ``x`` first."""
    wide = _with(x, more).float()
    if activation == "clamped_swiglu":
        gate = wide[..., ::2].clamp(max=SWIGLU_LIMIT)
        up = wide[..., 1::2].clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
        return (gate * torch.sigmoid(gate * SWIGLU_ALPHA) * (up + 1)).to(x.dtype)
    active, factor = wide.chunk(2, dim=-1) if gated else (wide, None)
    if activation == "silu":
        active = functional.silu(active)
    else:
        active = functional.gelu(active, approximate="tanh" if activation == "gelu_tanh" else "none")
    return (active if factor is None else active * factor).to(x.dtype)


def capped(x: Tensor, softcap: float) -> Tensor:
    """``x``, in its own memory, bent by tanh so that it stays below ``softcap``."""
    return x.copy_((x.float() / softcap).tanh() * softcap)


def experts(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    chosen: int,
    activation: Activation,
    normalized: bool = True,
    adapt: Adapt | None = None,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    choice: Choice | None = None,
) -> Tensor:
    """A mixture of gated MLPs: each row goes through its ``chosen`` best experts, by the softmax of their
    ``scores [T, experts]``, or of all scores where not ``normalized``. Matrices are ``[experts, out, in]``
    and biases ``[experts, out]``; ``adapt`` adds to what they give. A ``choice`` that was made otherwise
    takes the place of this one."""
    best, shares = choose_experts(scores, chosen, normalized) if choice is None else choice
    mixed = torch.zeros_like(x)
    for expert in best.unique().tolist():
        rows, places = torch.nonzero(best == expert, as_tuple=True)
        own = x[rows]
        inner = linear(own, gate_up[expert], None if gate_up_bias is None else gate_up_bias[expert])
        if adapt is not None:
            adapt("gate_up", expert, own, inner)
        active = activate(inner, activation, True)
        out = linear(active, down[expert], None if down_bias is None else down_bias[expert])
        if adapt is not None:
            adapt("down", expert, active, out)
        mixed[rows] += out * shares[rows, places][:, None].to(x.dtype)
    return mixed


def choose_experts(scores: Tensor, chosen: int, normalized: bool = True) -> tuple[Tensor, Tensor]:
    """The best experts of each row ``[T, chosen]`` and their shares in float32, which sum to 1 where they are
    ``normalized``."""
    highest, best = scores.float().topk(chosen, dim=-1)
    if normalized:
        return best, highest.softmax(-1)
    return best, (highest - scores.float().logsumexp(-1, keepdim=True)).exp()


def choose_in_groups(scores: Tensor, bias: Tensor | None, chosen: int, routing: GroupedRouting) -> Choice:
    """The same within the best groups of experts, as DeepSeek's models choose. ``bias [experts]`` counts in
    the choice only."""
    wide = scores.float()
    shares = wide.sigmoid() if routing.by_sigmoid else wide.softmax(-1)
    worth = shares if bias is None else shares + bias
    if routing.groups > 1:
        grouped = worth.view(len(worth), routing.groups, -1)
        counted = grouped.topk(routing.counted, dim=-1).values.sum(-1)
        kept = torch.zeros_like(counted, dtype=torch.bool)
        kept.scatter_(1, counted.topk(routing.chosen_groups, dim=-1).indices, True)
        worth = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    best = worth.topk(chosen, dim=-1).indices
    own = shares.gather(1, best)
    if routing.normalized:
        own = own / own.sum(-1, keepdim=True)
    return best.int(), own * routing.factor


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    cache_slots: Tensor,
    tables: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    shape: AttentionShape,
    more: Tensor | None = None,
) -> Tensor:
    """Norms and rotates the queries and keys of ``qkv [T, (heads + 2 kv_heads) x head_dim]``, writes keys and
    values to the cache ``[blocks, kv_heads, tokens_per_block, head_dim]``; the queries
    ``[T, heads, head_dim]``. ``more`` is added to ``qkv`` first.
    """
    qkv = _with(qkv, more)
    rows = qkv.shape[0]
    heads = qkv.view(rows, -1, shape.head_dim)
    queries, new_keys, new_values = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    if norms is not None:
        queries, new_keys = (
            rms_norm(part, norm, epsilon) for part, norm in zip((queries, new_keys), norms, strict=True)
        )
    cosines, sines = (table[positions.long()][:, None, :] for table in tables)
    blocks, offsets = _places(cache_slots, shape.tokens_per_block)
    _store(keys, blocks, offsets, rotate(new_keys, cosines, sines))
    _store(values, blocks, offsets, new_values)
    return rotate(queries, cosines, sines)


def _places(cache_slots: Tensor, tokens_per_block: int) -> tuple[Tensor, Tensor]:
    """Blocks, and offsets in them."""
    blocks = torch.div(cache_slots, tokens_per_block, rounding_mode="floor").long()
    return blocks, (cache_slots % tokens_per_block).long()


def _store(cache: Tensor, blocks: Tensor, offsets: Tensor, new: Tensor) -> None:
    if cache.dtype == new.dtype:
        cache[blocks, :, offsets] = new
    else:
        # FP8 has no infinity: what is beyond its largest number becomes that. Assigned as bytes, since not
        # all operations take FP8.
        largest = torch.finfo(cache.dtype).max
        narrow = new.float().clamp(-largest, largest).to(cache.dtype)
        cache.view(torch.uint8)[blocks, :, offsets] = narrow.view(torch.uint8)


def turn_latent(
    queries: Tensor,
    made: Tensor,
    norm: Tensor,
    epsilon: float,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    cache_slots: Tensor,
    keys: Tensor,
    out: Tensor,
) -> None:
    """Of latent attention: writes the keys of ``made [T, rank + rotary_dim]`` to the cache, and the turned
    ends of ``queries [T, heads, key_dim + rotary_dim]`` to those of ``out [T, heads, rank + rotary_dim]``.

    A key is a vector, normed, and turned numbers behind it, whose pairs lie next to each other in what is
    given, and in halves in what is made.
    """
    rank = norm.shape[0]
    rotary_dim = made.shape[1] - rank
    cosines, sines = (table[positions.long()][:, None] for table in tables)
    out[..., rank:] = rotate(_apart(queries[..., -rotary_dim:]), cosines, sines)
    vectors, turning = made.split((rank, rotary_dim), dim=-1)
    turned = rotate(_apart(turning[:, None]), cosines, sines)
    made_keys = torch.cat((rms_norm(vectors, norm, epsilon)[:, None], turned), -1)
    _store(keys, *_places(cache_slots, keys.shape[2]), made_keys)


def _apart(x: Tensor) -> Tensor:
    return torch.cat((x[..., ::2], x[..., 1::2]), -1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns ``x [T, heads, head_dim]`` by each row's angles ``[T, 1, head_dim / 2]``; halves are the
    pairs."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


def prefix_keys(shape: AttentionShape) -> int | None:  # noqa: ARG001 -- the seam's
    """How many keys generation rows have in common, at least, to read them together: here they never do."""
    return None


def plan_generation(positions: Tensor, shape: AttentionShape, tables: Tables | None = None) -> Any:  # noqa: ARG001 -- the seam's
    """How the generation rows of an iteration are attended to, in every layer, where what their ``tables``
    have in common may be read together: here, one after the other."""
    return None


def generation_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    positions: Tensor,
    window: int | None,
    shape: AttentionShape,
    plan: Any,  # noqa: ARG001 -- the seam's
    sink_scores: Tensor | None = None,
) -> Tensor:
    """One new token a sequence: ``queries [R, heads, head_dim]`` over the cache, by
    ``block_tables [slots, ...]``, as `plan_generation` planned it. ``sink_scores [heads]``, in float32, count
    besides those of the keys.

    Reads whole tables, however long the sequences are: right, and slow for long ones.
    """
    tables = block_tables[slots.long()].long()
    mixed = [
        _attend(queries[row : row + 1], keys, values, tables[row], int(position), window, shape, sink_scores)
        for row, position in enumerate(positions.tolist())
    ]
    return torch.cat(mixed) if mixed else queries


def plan_context(context: Context, shape: AttentionShape, element_size: int, narrow: bool = False) -> Any:  # noqa: ARG001 -- the seam's
    """How the prompts of an iteration are attended to, in every layer, by queries whose numbers have so many
    bytes, and those of a ``narrow`` cache fewer: here, one after the other."""
    return None


def context_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context: Context,
    window: int | None,
    shape: AttentionShape,
    plan: Any,  # noqa: ARG001 -- the seam's
    out: Tensor,
    sink_scores: Tensor | None = None,
) -> None:
    """Chunks of prompts, causal over all that is cached of them: from ``queries [T, heads, head_dim]`` to
    the same rows of ``out``, as `plan_context` planned it."""
    for row, count, slot, position in context.chunks:
        rows = slice(row, row + count)
        table = block_tables[slot].long()
        out[rows] = _attend(queries[rows], keys, values, table, position, window, shape, sink_scores)


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    first: int,
    window: int | None,
    shape: AttentionShape,
    sink_scores: Tensor | None,
) -> Tensor:
    """Consecutive rows of one sequence from position ``first`` on. Blocks that none of them sees are not
    read: they may be another sequence's by now."""
    count, size = queries.shape[0], shape.tokens_per_block
    length = first + count
    begin = 0 if window is None else max(0, first + 1 - window) // size
    read = torch.arange(begin, -(-length // size), device=queries.device)
    if shape.sink_tokens and begin:
        sinks = torch.arange(min(begin, -(-shape.sink_tokens // size)), device=queries.device)
        read = torch.cat((sinks, read))
    blocks = table[read]
    keys_read = len(read) * size - (-length % size)

    def gathered(cache: Tensor) -> Tensor:
        read = cache[blocks] if cache.dtype == queries.dtype else _widened(cache, blocks, queries.dtype)
        flat = read.transpose(0, 1).reshape(shape.kv_heads, -1, read.shape[-1])[:, :keys_read]
        return flat.repeat_interleave(shape.heads // shape.kv_heads, dim=0)

    own = torch.arange(first, length, device=queries.device)[:, None]
    other = (read[:, None] * size + torch.arange(size, device=queries.device)).flatten()[:keys_read]
    seen = other <= own
    if window is not None:
        seen &= (other > own - window) | (other < shape.sink_tokens)
    mask = seen
    if shape.slopes is not None:
        biases = shape.slopes[:, None, None] * (other - own).float()
        mask = biases.masked_fill(~seen, float("-inf")).to(queries.dtype)
    own_keys, own_values = gathered(keys), gathered(values)
    if sink_scores is not None:
        # As a key and a value of zeros, whose score is what is added to it.
        own_keys, own_values = (functional.pad(one, (0, 0, 0, 1)) for one in (own_keys, own_values))
        biases = torch.zeros(seen.shape, device=queries.device).masked_fill(~seen, float("-inf"))
        sinks = sink_scores[:, None, None].expand(-1, count, 1)
        mask = torch.cat((biases.expand(shape.heads, -1, -1), sinks), -1).to(queries.dtype)
    queries = queries.transpose(0, 1)
    if shape.softcap is not None:
        scores = capped(queries.float() @ own_keys.float().mT * shape.scale, shape.softcap)
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        mixed = (scores.softmax(-1) @ own_values.float()).to(queries.dtype)
    else:
        mixed = functional.scaled_dot_product_attention(
            queries, own_keys, own_values, attn_mask=mask, scale=shape.scale
        )
    return mixed.transpose(0, 1)


def _widened(cache: Tensor, blocks: Tensor, dtype: Tensor) -> Tensor:
    """Blocks of an FP8 cache."""
    return cache.view(torch.uint8)[blocks].view(cache.dtype).to(dtype)
