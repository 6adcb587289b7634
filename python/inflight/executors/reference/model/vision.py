"""The vision tower of a model that sees: its sizes, as `config.json` states them, and its tensors.

Owns Qwen2.5-VL's tower, the one that is implemented; whatever would change its outputs and is not
implemented is refused by name. What becomes of a file before the tower is `processor`'s. Pure; knows neither
files nor arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.config import ModelFacts
from inflight.model.values import bad_value, integer

#: Of the norms in the tower, which no config states.
NORM_EPSILON = 1e-6
#: Of the rotary embedding in the tower, the same.
ROPE_THETA = 10000.0

_MOST_LAYERS = 1000
#: Far above any tower, so that a damaged number cannot ask for all memory.
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Everything that the tower's forward pass needs to know."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    channels: int
    #: Pixels along a side of a patch, and frames in one: an image is repeated.
    patch_size: int
    frames: int
    #: Patches along a side of what becomes one token.
    merge_size: int
    #: Tokens along a side of a window.
    window: int
    #: The layers that see the whole image; the others see a window.
    full_layers: frozenset[int]
    #: Of the embeddings that it gives: the language model's size.
    out_size: int
    #: The placeholder of an image in a prompt.
    image_token_id: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_width(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.frames * self.patch_size**2

    @property
    def merged_width(self) -> int:
        """Numbers of the patches that become one token."""
        return self.hidden_size * self.merge_size**2

    @property
    def factor(self) -> int:
        """Pixels along a side of what becomes one token."""
        return self.patch_size * self.merge_size


def parse_vision(facts: ModelFacts, config: Mapping[str, Any]) -> VisionConfig:
    """The tower in the object of a `config.json`. Raises `CheckpointError`, `UnsupportedModelError`."""
    values = config.get("vision_config")
    if not isinstance(values, dict):
        raise bad_value("vision_config", values, "an object")
    if values.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"`hidden_act` of `vision_config` in `config.json` is `{values['hidden_act']}`, which the"
            " reference executor does not support",
            "use another checkpoint, or the tensorrt_llm executor",
        )

    def number(key: str, default: int | None = None, *, maximum: int = _LARGEST) -> int:
        return integer(values, key, default, maximum=maximum)

    hidden, heads = number("hidden_size"), number("num_heads", 16)
    if hidden % heads or (hidden // heads) % 4:
        raise bad_value("num_heads", heads, f"a divisor of `hidden_size` ({hidden}) into multiples of 4")
    layers = number("depth", maximum=_MOST_LAYERS)
    patch, merge = number("patch_size", 14, maximum=256), number("spatial_merge_size", 2, maximum=16)
    window = number("window_size", 112) // (patch * merge)
    if window < 1:
        raise bad_value("window_size", values.get("window_size"), f"at least {patch * merge}")
    out = number("out_hidden_size", facts.hidden_size)
    if out != facts.hidden_size:
        raise bad_value("out_hidden_size", out, f"the language model's `hidden_size` ({facts.hidden_size})")
    image_token = integer(config, "image_token_id", minimum=0, maximum=facts.vocab_size - 1)
    return VisionConfig(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=number("intermediate_size"),
        num_heads=heads,
        # Published checkpoints say `in_chans`.
        channels=integer(values, "in_channels" if "in_channels" in values else "in_chans", 3, 3, 3),
        patch_size=patch,
        frames=number("temporal_patch_size", 2, maximum=16),
        merge_size=merge,
        window=window,
        full_layers=_full_layers(values, layers),
        out_size=out,
        image_token_id=image_token,
    )


def _full_layers(values: Mapping[str, Any], layers: int) -> frozenset[int]:
    listed = values.get("fullatt_block_indexes", [7, 15, 23, 31])
    if not isinstance(listed, list) or not all(isinstance(one, int) and one >= 0 for one in listed):
        raise bad_value("fullatt_block_indexes", listed, "a list of layers")
    return frozenset(one for one in listed if one < layers)


def vision_tensors(config: VisionConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor of the tower; matrices are ``[out, in]``."""
    hidden, inner, merged = config.hidden_size, config.intermediate_size, config.merged_width
    yield (
        "visual.patch_embed.proj.weight",
        (hidden, config.channels, config.frames, config.patch_size, config.patch_size),
    )
    for layer in range(config.num_layers):
        prefix = f"visual.blocks.{layer}"
        yield f"{prefix}.norm1.weight", (hidden,)
        yield f"{prefix}.norm2.weight", (hidden,)
        for name, rows, columns in (
            ("attn.qkv", 3 * hidden, hidden),
            ("attn.proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            yield f"{prefix}.{name}.weight", (rows, columns)
            yield f"{prefix}.{name}.bias", (rows,)
    yield "visual.merger.ln_q.weight", (hidden,)
    for name, rows, columns in (("mlp.0", merged, merged), ("mlp.2", config.out_size, merged)):
        yield f"visual.merger.{name}.weight", (rows, columns)
        yield f"visual.merger.{name}.bias", (rows,)
