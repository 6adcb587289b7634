"""What the forward pass needs of a model, over the facts that `inflight.model.config` reads.

Owns the keys of transformers 4.x and 5.x that change the arithmetic and are common to families; what is one
family's own is in its file in `families`. Whatever would change the logits and is not implemented is refused
by name. Knows nothing of weights or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.checkpoint import read_config
from inflight.model.config import ModelFacts, find_architecture, text_values
from inflight.model.config import parse_config as parse_facts
from inflight.model.latent import Latent
from inflight.model.quantization import Quantization
from inflight.model.values import bad_value, flag, integer, missing_key, number

from .families import FAMILIES
from .families.family import Activation, Family, Names, Norm, Positions, Variant
from .hearing import HearingConfig
from .longrope import LongRope, parse_longrope
from .mixture import Mixture
from .vision import VisionConfig
from .yarn import Yarn, parse_yarn

#: Rotary scaling by name; the others (dynamic, ...) are refused.
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")

#: The quantized checkpoints that are read.
QUANTIZATIONS = "FP8 (per tensor, row or block), INT4 (AWQ, GPTQ, compressed-tensors) or MXFP4 (gpt-oss)"

_DEFAULT_ROPE_THETA = 10000.0
#: What transformers assumes where the config states no longest sequence.
_DEFAULT_POSITIONS = 2048
#: Far above any model, so that a damaged number cannot ask for all memory.
_MOST_LAYERS = 100_000


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding; the four fields after the type are those of `linear` and `llama3`."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    #: How many of a head's pairs turn by a token's position in time, by its row and by its column; None: all
    #: by its one position.
    sections: tuple[int, int, int] | None = None
    yarn: Yarn | None = None
    longrope: LongRope | None = None
    #: How many of a head's numbers turn, the first ones; 0: all.
    rotated: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the forward pass needs to know of a model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm: Norm
    norm_epsilon: float
    #: What is added to the stored weights of a norm.
    norm_offset: float
    positions: Positions
    #: None: heads are not rotated.
    rope: RopeConfig | None
    #: By head, how much scores fall per position of distance (ALiBi); None: they do not.
    alibi_slopes: tuple[float, ...] | None
    activation: Activation
    gated_mlp: bool
    #: 0: every layer has one MLP.
    num_experts: int
    experts_per_token: int
    #: Whether the shares of the chosen experts sum to 1; otherwise they are those among all.
    normalized_experts: bool
    #: What embeddings are multiplied with.
    embedding_scale: float
    #: Whether each row of the head has unit length.
    unit_head: bool
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    #: RMS norm of each query and key head before the rotary embedding (Qwen3).
    qk_norm: bool
    #: Per layer: how many of the latest positions a query sees, itself included; None: all.
    windows: tuple[int | None, ...]
    names: Names
    #: First positions that every query of a layer with a window sees besides.
    sink_tokens: int = 0
    #: How matrices of the checkpoint may be quantized.
    quantization: Quantization | None = None
    #: The tower of a model that sees.
    vision: VisionConfig | None = None
    #: The encoder of a model that hears.
    hearing: HearingConfig | None = None
    #: Whether the router of a mixture has a bias.
    router_bias: bool = False
    #: Of latent attention. The cache then has one head, whose values are part of its keys.
    latent: Latent | None = None
    #: What a mixture has besides experts that are chosen by their scores.
    mixture: Mixture | None = None
    #: What scores of attention are multiplied with; None: the inverse root of a head's size.
    attention_scale: float | None = None
    #: What scores of attention, and logits, are capped at by tanh; None: they are not.
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    #: The rotary embedding of some layers, where it is another than ``rope``, and which ones these are.
    sliding_rope: RopeConfig | None = None
    sliding_layers: frozenset[int] = frozenset()

    @property
    def scale(self) -> float:
        """What scores of attention are multiplied with."""
        return float(self.head_dim**-0.5) if self.attention_scale is None else self.attention_scale

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that its position turns."""
        return self.head_dim if self.latent is None else self.latent.rotary_dim

    @property
    def head_order(self) -> tuple[int, ...] | None:
        """Which number of a query's or key's head is computed at each place; None: they are in order. So
        that pairs are as far apart as where a whole head turns; scores do not depend on it."""
        rotated = 0 if self.rope is None else self.rope.rotated
        if not rotated:
            return None
        turned, still = range(rotated), range(rotated, self.head_dim)
        half, kept = len(turned) // 2, len(still) // 2
        return (*turned[:half], *still[:kept], *turned[half:], *still[kept:])

    def row_order(self, first: int, count: int) -> list[int] | None:
        """The same for ``count`` outputs from ``first`` on of a layer's queries, keys and values."""
        order = self.head_order
        if order is None:
            return None
        turning = (self.num_heads + self.num_kv_heads) * self.head_dim
        return [
            row if row >= turning else row - row % self.head_dim + order[row % self.head_dim]
            for row in range(first, first + count)
        ]

    @property
    def cached_numbers(self) -> int:
        """What the cache holds of a token: keys, and values that are not part of them, over all layers."""
        parts = 2 if self.latent is None else 1
        return parts * self.num_layers * self.num_kv_heads * self.head_dim

    def has_experts(self, layer: int) -> bool:
        """Whether a layer is a mixture."""
        return self.num_experts > 0 and (self.mixture is None or layer >= self.mixture.dense_layers)


SUPPORTED_ARCHITECTURES = tuple(FAMILIES)


def load_config(model_dir: Path) -> ModelConfig:
    """Reads `config.json` of a checkpoint directory. Raises `CheckpointError`, `UnsupportedModelError`."""
    return parse_config(read_config(model_dir))


def parse_config(config: Mapping[str, Any]) -> ModelConfig:
    """The configuration in the object of a `config.json`."""
    architecture = find_architecture(config)
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(
            f"the architecture `{architecture}` is not supported by the reference executor",
            f"use one of {', '.join(SUPPORTED_ARCHITECTURES)}, or the tensorrt_llm executor",
        )
    facts, values = parse_facts(config), text_values(config)
    activation = _require_supported(facts, values, family)
    max_positions = facts.max_position_embeddings or _DEFAULT_POSITIONS
    variant = Variant() if family.variant is None else family.variant(facts, values)
    positions = "learned" if facts.learned_positions else variant.positions
    mixture = None if family.mixture is None else family.mixture(values, facts.num_experts)
    _require_choice(facts, mixture, family)
    windows = family.windows(values, facts.num_layers)
    full, sliding = (values, None) if family.ropes is None else family.ropes(values)
    rope = _rope(full, max_positions, facts.head_dim, family) if positions == "rotary" else None
    scale, latent = variant.attention_scale, facts.latent if family.latent else None
    if latent is not None:
        scale = _latent_scale(latent, rope)
    return ModelConfig(
        architecture=architecture,
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size if mixture is None else mixture.expert_size,
        num_layers=facts.num_layers,
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads if latent is None else 1,
        head_dim=facts.head_dim if latent is None else latent.cached_dim,
        max_position_embeddings=max_positions,
        norm=family.norm,
        norm_epsilon=number(values, family.epsilon_key, family.epsilon),
        norm_offset=family.norm_offset,
        positions=positions,
        rope=rope,
        alibi_slopes=_alibi_slopes(facts.num_heads) if positions == "alibi" else None,
        activation=activation,
        gated_mlp=facts.gated_mlp,
        num_experts=facts.num_experts if family.names.router else 0,
        experts_per_token=facts.experts_per_token if family.names.router else 0,
        normalized_experts=_bias(values, "norm_topk_prob", family.normalized_experts),
        embedding_scale=facts.hidden_size**0.5 if family.scaled_embedding else 1.0,
        unit_head=variant.unit_head,
        tie_word_embeddings=facts.tie_word_embeddings,
        qkv_bias=_bias(values, "attention_bias", family.qkv_bias),
        output_bias=_bias(values, "attention_bias", family.output_bias),
        mlp_bias=_bias(values, "mlp_bias", family.mlp_bias),
        qk_norm=family.qk_norm,
        windows=windows,
        names=family.names,
        quantization=facts.quantization,
        vision=None if family.vision is None else family.vision(facts, config),
        hearing=None if family.hearing is None else family.hearing(facts, config),
        router_bias=family.router_bias,
        latent=latent,
        mixture=mixture,
        attention_scale=scale,
        attention_softcap=variant.attention_softcap,
        logit_softcap=variant.logit_softcap,
        sliding_rope=None if sliding is None else _rope(sliding, max_positions, facts.head_dim, family),
        sliding_layers=frozenset(
            layer for layer, window in enumerate(windows) if sliding is not None and window is not None
        ),
    )


def _latent_scale(latent: Latent, rope: RopeConfig | None) -> float:
    """By the size of a head's query, and larger where positions are stretched."""
    factor = 1.0 if rope is None or rope.yarn is None else rope.yarn.score_factor
    return float(latent.query_dim**-0.5 * factor)


def _alibi_slopes(heads: int) -> tuple[float, ...]:
    """As "Train Short, Test Long" has them: a geometric sequence for a power of two, and for other numbers
    every second of the next longer one."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (place + 1) / power) for place in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * place + 1) / power) for place in range(heads - power)]
    return tuple(slopes)


def _bias(values: Mapping[str, Any], key: str, fixed: bool | None) -> bool:
    return flag(values, key, False) if fixed is None else fixed


def _require_choice(facts: ModelFacts, mixture: Mixture | None, family: Family) -> None:
    """Refuses a mixture that cannot choose as many experts as it says."""
    experts = facts.num_experts if family.names.router else 0
    if mixture is not None:
        experts = experts // mixture.routing.groups * mixture.routing.chosen_groups
    if experts and not 0 < facts.experts_per_token <= experts:
        raise bad_value("num_experts_per_tok", facts.experts_per_token, f"a number from 1 to {experts}")


def _require_supported(facts: ModelFacts, values: Mapping[str, Any], family: Family) -> Activation:
    """Refuses what is not implemented; the activation is."""
    scheme = facts.quantization
    if scheme is not None and scheme.layout is None:
        raise UnsupportedModelError(
            f"`quantization_config` in `config.json` states {scheme.unknown}, which is not supported by the"
            " reference executor",
            f"use a checkpoint in {QUANTIZATIONS}, or one that is not quantized",
        )
    if scheme is not None and family.names.transposed:
        raise UnsupportedModelError(
            f"quantized checkpoints of `{facts.architecture}` are not supported by the reference executor",
            "use the unquantized checkpoint",
        )
    key = family.activation_key
    activation = values.get(key) or family.activation
    if activation not in family.activations:
        raise UnsupportedModelError(
            f"`{key}` in `config.json` must be `{'` or `'.join(family.activations)}` for the reference"
            f" executor, got `{activation}`",
            "use another checkpoint, or the tensorrt_llm executor",
        )
    for key, accepted in family.required.items():
        if values.get(key, accepted[0]) not in accepted:
            raise UnsupportedModelError(
                f"`{key}` in `config.json` is `{values[key]}`, which the reference executor does not support",
                "use another checkpoint, or the tensorrt_llm executor",
            )
    if facts.gated_mlp and values.get("intermediate_size") is None:
        # Not to be guessed from the hidden size, as it is where the MLP has no gate.
        raise missing_key("intermediate_size")
    if family.latent and facts.latent is None:
        raise missing_key("kv_lora_rank")
    if facts.num_layers > _MOST_LAYERS:
        raise bad_value("num_hidden_layers", facts.num_layers, f"at most {_MOST_LAYERS}")
    if facts.head_dim % 2:
        raise bad_value("head_dim", facts.head_dim, "an even number")
    return family.activations[activation]


def _rope(values: Mapping[str, Any], max_positions: int, head_dim: int, family: Family) -> RopeConfig:
    """transformers 5 keeps all in ``rope_parameters``; 4 has ``rope_theta`` next to ``rope_scaling``."""
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(values.get(key), (dict, type(None))):
            raise bad_value(key, values[key], "an object")
    parameters: Mapping[str, Any] = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModelError(
            "`rope_parameters` in `config.json` differs by layer type",
            "use a model with one rotary embedding",
        )
    rotated = _rotated(parameters, values, head_dim, family)
    rope_type = str(parameters.get("rope_type", parameters.get("type", "default")))
    # As Phi-3's first configs name it.
    rope_type = "longrope" if rope_type == "su" else rope_type
    sections = None
    if family.vision is not None:
        # transformers 4 and published checkpoints name the type after the sections.
        rope_type = "default" if rope_type == "mrope" else rope_type
        sections = _sections(parameters.get("mrope_section"), head_dim)
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModelError(
            f"rotary scaling `{rope_type}` is not supported by the reference executor",
            f"use a checkpoint with one of {', '.join(SUPPORTED_ROPE_TYPES)}",
        )
    theta = number(parameters, "rope_theta", number(values, "rope_theta", _DEFAULT_ROPE_THETA))
    if rope_type == "default":
        return RopeConfig(theta=theta, sections=sections, rotated=rotated)
    if sections is not None:
        raise UnsupportedModelError(
            f"rotary scaling `{rope_type}` with `mrope_section` is not supported by the reference executor",
            "use a checkpoint with `default`",
        )
    if rope_type == "longrope":
        original = values.get("original_max_position_embeddings")
        longrope = parse_longrope(parameters, original, max_positions, (rotated or head_dim) // 2)
        return RopeConfig(theta=theta, rope_type=rope_type, longrope=longrope, rotated=rotated)
    if rotated:
        raise UnsupportedModelError(
            f"rotary scaling `{rope_type}` with `partial_rotary_factor` is not supported by the reference"
            " executor",
            "use a checkpoint with `default` or `longrope`",
        )
    if rope_type == "yarn":
        return RopeConfig(theta=theta, rope_type=rope_type, yarn=parse_yarn(parameters, theta, max_positions))
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type=rope_type, factor=number(parameters, "factor"))
    low = number(parameters, "low_freq_factor")
    high = number(parameters, "high_freq_factor")
    if high <= low:
        raise bad_value("high_freq_factor", high, f"more than low_freq_factor ({low})")
    return RopeConfig(
        theta=theta,
        rope_type=rope_type,
        factor=number(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=integer(
            parameters, "original_max_position_embeddings", max_positions
        ),
    )


def _rotated(parameters: Mapping[str, Any], values: Mapping[str, Any], head_dim: int, family: Family) -> int:
    """How many of a head's numbers turn; 0: all."""
    key = "partial_rotary_factor"
    part = parameters.get(key, values.get(key))
    if part in (None, 1, 1.0):
        return 0
    if not family.partly_rotated or values.get("quantization_config") is not None:
        raise UnsupportedModelError(
            f"`{key}` in `config.json` is `{part}`, which the reference executor supports for unquantized"
            " checkpoints of Phi-3 and Phi-4 only",
            "use a checkpoint without it, or the tensorrt_llm executor",
        )
    rotated = int(head_dim * number({key: part}, key))
    if rotated % 2 or not 0 < rotated < head_dim:
        raise bad_value(key, part, f"an even part of the `{head_dim}` numbers of a head")
    return rotated


def _sections(listed: Any, head_dim: int) -> tuple[int, int, int]:
    """`mrope_section`: the pairs of a head by what turns them."""
    pairs = head_dim // 2
    if (
        not isinstance(listed, list)
        or len(listed) != 3
        or not all(isinstance(one, int) and one >= 0 for one in listed)
        or sum(listed) != pairs
    ):
        raise bad_value("mrope_section", listed, f"three numbers whose sum is {pairs}, half of a head")
    time, row, column = listed
    return time, row, column
