"""LoRA adapters: which matrices of a model they change, and TensorRT-LLM's tensor format.

Owns the module ids, the layout of ``lora_weights`` and ``lora_config``, and their check against a model.
Knows nothing of requests, files or caches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from inflight.model.lora import MODULES

from .array_types import Array, Float32
from .config import ModelConfig

#: The products of a layer that an adapter may add to.
Part = Literal["qkv", "output", "gate_up", "down", "router"]


class AdapterError(Exception):
    """An adapter does not fit the model; the text names what, and what to do."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A module's place: the outputs ``start`` to ``stop`` of a part, over so many inputs."""

    part: Part
    start: int
    stop: int
    inputs: int
    #: Of a mixture: whose part it is.
    expert: int | None = None

    @property
    def outputs(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Delta:
    """What a module adds: ``up @ (down @ x)`` to its outputs; scaled already."""

    slot: Slot
    down: Float32  #: ``[rank, in]``
    up: Float32  #: ``[out, rank]``


#: The deltas of one layer.
LayerDeltas = Mapping[Part, Sequence[Delta]]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A loaded adapter; immutable."""

    task_id: int
    layers: Sequence[LayerDeltas]
    #: Of its weights: what was computed with others must not be found again.
    fingerprint: bytes
    nbytes: int

    @classmethod
    def of(cls, task_id: int, num_layers: int, deltas: Iterable[tuple[int, Delta]]) -> Adapter:
        """From deltas and the layers that they belong to."""
        layers: list[dict[Part, list[Delta]]] = [{} for _ in range(num_layers)]
        digest = hashlib.blake2b(task_id.to_bytes(8, "little"), digest_size=16)
        nbytes = 0
        for layer, delta in deltas:
            layers[layer].setdefault(delta.slot.part, []).append(delta)
            digest.update(repr((layer, delta.slot)).encode())
            for array in (delta.down, delta.up):
                digest.update(array.tobytes())
                nbytes += array.nbytes
        return cls(task_id, layers, digest.digest(), nbytes)


def named_slots(config: ModelConfig) -> dict[str, Slot]:
    """Where the checkpoint's own modules of a layer are, by their names in it."""
    names, hidden, inner = config.names, config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.latent is not None:
        # The other modules of such models do not take adapters yet.
        return _split("output", (names.output,), (hidden,), config.num_heads * config.latent.value_dim)
    slots = _split("qkv", names.qkv, (queries, keys, keys), hidden)
    slots |= _split("output", (names.output,), (hidden,), queries)
    widths = (inner, inner) if config.gated_mlp else (inner,)
    mlp = _split("gate_up", names.gate_up, widths, hidden) | _split("down", (names.down,), (hidden,), inner)
    if not config.num_experts:
        return slots | mlp
    slots |= _split("router", (names.router,), (config.num_experts,), hidden)
    # Adapters of PEFT for experts that lie in one tensor have another form.
    for expert in () if names.stacked_experts else range(config.num_experts):
        for name, slot in mlp.items():
            slots[f"{names.expert.format(expert)}.{name}"] = replace(slot, expert=expert)
    return slots


def has_expert_slots(config: ModelConfig) -> bool:
    """Whether the modules of experts take adapters."""
    return any(slot.expert is not None for slot in named_slots(config).values())


def widths(config: ModelConfig) -> dict[Part, int]:
    """The outputs of the parts of a layer, or of one expert."""
    found: dict[Part, int] = {}
    for slot in named_slots(config).values():
        found[slot.part] = max(slot.stop, found.get(slot.part, 0))
    return found


def _split(part: Part, names: Sequence[str], widths: Sequence[int], inputs: int) -> dict[str, Slot]:
    if len(names) != len(widths):
        return {names[0]: Slot(part, 0, sum(widths), inputs)}
    ends = np.cumsum(widths).tolist()
    return {
        name: Slot(part, end - width, end, inputs)
        for name, end, width in zip(names, ends, widths, strict=True)
    }


def module_slots(config: ModelConfig) -> dict[int, Sequence[Slot]]:
    """Where TensorRT-LLM's modules are, by their ids: one place, or one of each expert. Those that the model
    lacks are absent."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.latent is not None:
        [slot] = named_slots(config).values()
        return {MODULES.index("attn_dense"): (slot,)}
    slots = {
        "attn_qkv": Slot("qkv", 0, queries + 2 * keys, hidden),
        "attn_q": Slot("qkv", 0, queries, hidden),
        "attn_k": Slot("qkv", queries, queries + keys, hidden),
        "attn_v": Slot("qkv", queries + keys, queries + 2 * keys, hidden),
        "attn_dense": Slot("output", 0, hidden, queries),
    }
    # The gate is TensorRT-LLM's h_to_4h, and what it calls gate is the projection up.
    mlp = {"h_to_4h": Slot("gate_up", 0, inner, hidden), "4h_to_h": Slot("down", 0, hidden, inner)}
    if config.gated_mlp:
        mlp["gate"] = Slot("gate_up", inner, 2 * inner, hidden)
    if config.num_experts:
        slots["moe_router"] = Slot("router", 0, config.num_experts, hidden)
    else:
        slots |= {f"mlp_{name}": slot for name, slot in mlp.items()}
        if config.gated_mlp:
            slots["mlp_gate_up"] = Slot("gate_up", 0, 2 * inner, hidden)
    found: dict[int, Sequence[Slot]] = {MODULES.index(name): (slot,) for name, slot in slots.items()}
    for name, slot in mlp.items() if config.num_experts and not config.names.stacked_experts else ():
        found[MODULES.index(f"moe_{name}")] = [
            replace(slot, expert=expert) for expert in range(config.num_experts)
        ]
    return found


def from_tensors(task_id: int, weights: Array, rows: Array, config: ModelConfig, max_rank: int) -> Adapter:
    """An adapter in TensorRT-LLM's format: ``rows [modules, 3]`` of module id, layer and rank, and for each a
    row of ``weights`` with the matrix down, then the scaled matrix up, then padding. Of a mixture's module
    the matrices down of all experts come first. Errors: `AdapterError`.
    """
    if rows.ndim != 2 or rows.shape[1] != 3 or weights.ndim != 2 or len(weights) != len(rows):
        raise AdapterError(
            f"lora_weights and lora_config have the shapes `{list(weights.shape)}` and `{list(rows.shape)}`; "
            "they must be [modules, weights] and [modules, 3]"
        )
    if len(rows) == 0:
        raise AdapterError("lora_config names no module; send the whole adapter")
    slots = module_slots(config)
    deltas, seen = [], set()
    for (module, layer, rank), flat in zip(rows.tolist(), weights, strict=True):
        name = MODULES[module] if 0 <= module < len(MODULES) else str(module)
        if module not in slots:
            raise AdapterError(
                f"lora_config names module `{name}`, which `{config.architecture}` has not here; use "
                f"{', '.join(MODULES[known] for known in sorted(slots))}"
            )
        if not 0 <= layer < config.num_layers:
            raise AdapterError(f"lora_config names layer `{layer}`; the model has {config.num_layers}")
        if (module, layer) in seen:
            raise AdapterError(f"lora_config names module `{name}` of layer `{layer}` twice")
        seen.add((module, layer))
        check_rank(rank, max_rank)
        places = slots[module]
        inputs = rank * sum(slot.inputs for slot in places)
        outputs = rank * sum(slot.outputs for slot in places)
        if inputs + outputs > len(flat):
            raise AdapterError(
                f"lora_weights has {len(flat)} values for module `{name}` of layer `{layer}`, which has "
                f"{inputs + outputs} at rank {rank}"
            )
        downs = flat[:inputs].reshape(len(places), rank, -1)
        ups = flat[inputs : inputs + outputs].reshape(len(places), -1, rank)
        deltas += [
            (layer, _delta(config, slot, down, up)) for slot, down, up in zip(places, downs, ups, strict=True)
        ]
    return Adapter.of(task_id, config.num_layers, deltas)


def check_rank(rank: int, max_rank: int) -> None:
    """Errors: `AdapterError` for a rank that the cache does not take."""
    if not 1 <= rank <= max_rank:
        raise AdapterError(
            f"the adapter's rank is `{rank}`; it must be between 1 and {max_rank}, the server's "
            "`lora_cache_max_adapter_size`"
        )


def _delta(config: ModelConfig, slot: Slot, down: Array, up: Array) -> Delta:
    order = config.row_order(slot.start, slot.outputs) if slot.part == "qkv" else None
    if order is not None:
        up = up[np.asarray(order) - slot.start]
    wide = Delta(slot, np.array(down, dtype=np.float32), np.array(up, dtype=np.float32))
    if not (bool(np.isfinite(wide.down).all()) and bool(np.isfinite(wide.up).all())):
        raise AdapterError("the adapter's weights hold a value that is not a number or is infinite")
    return wide


def scaled_delta(config: ModelConfig, slot: Slot, down: Array, up: Array, scale: float) -> Delta:
    """A delta from matrices that are not scaled yet. Errors: `AdapterError`."""
    return _delta(config, slot, down, np.asarray(up, dtype=np.float32) * np.float32(scale))
