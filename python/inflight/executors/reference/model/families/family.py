"""What a family file states: how its models differ from Llama, and where their tensors are.

Owns the vocabulary of families. Pure data; knows neither files nor arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inflight.executors.reference.model.hearing import HearingConfig
from inflight.executors.reference.model.mixture import Mixture
from inflight.executors.reference.model.vision import VisionConfig
from inflight.model.config import ModelFacts

from .rotary import Ropes
from .windows import Windows, no_windows

Norm = Literal["rms", "layer"]
Positions = Literal["rotary", "learned", "alibi"]
#: gpt-oss's bound of an MLP's inner numbers, and the factor within its sigmoid.
SWIGLU_LIMIT, SWIGLU_ALPHA = 7.0, 1.702

#: `clamped_swiglu` is gpt-oss's: gate and up take turns among the outputs, both are bounded, and 1 is
#: added to up.
Activation = Literal["silu", "gelu_tanh", "gelu", "clamped_swiglu"]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of modules in a checkpoint, without ``.weight`` and ``.bias``; those of a layer follow ``layer``,
    whose ``{}`` is its number. Modules that share their input are listed in the order of their outputs, or
    as one name if the checkpoint stores them as one.
    """

    embedding: str = "model.embed_tokens"
    #: Where positions are learned.
    positions: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}"
    input_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    post_norm: str = "post_attention_layernorm"
    #: Gate before up; of a mixture, the names within an expert, as is ``down``.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    #: Of a mixture of experts; the ``{}`` is the expert's number.
    router: str = ""
    expert: str = ""
    #: Of what all tokens share next to the experts; of a layer without experts, the beginning of the names
    #: of its MLP.
    shared_expert: str = ""
    dense: str = ""
    #: What counts in the choice of experts besides their scores.
    choice_bias: str = ""
    #: Whether one tensor has all experts' matrices ``[experts, in, out]``, and one their biases: named
    #: without ``.weight``, and with ``_bias`` in place of ``.bias``.
    stacked_experts: bool = False
    #: Where heads have a score that counts in the softmax and has no value.
    sink_scores: str = ""
    #: Of modules with a bias, those that have none all the same.
    unbiased: tuple[str, ...] = ()
    #: Whether the layers' matrices are stored as ``[in, out]``.
    transposed: bool = False
    #: What some checkpoints leave out at the beginning of every name.
    optional_prefix: str = ""
    #: Beginnings of names, and how some checkpoints spell them.
    spellings: tuple[tuple[str, str], ...] = ()
    #: Of the norms of what attention and the MLP give, before it is added; empty: there are none.
    output_norm: str = ""
    down_norm: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """What the models of one family differ in among themselves."""

    #: Where the config's facts have none that are learned.
    positions: Positions = "rotary"
    #: Whether each row of the head has unit length.
    unit_head: bool = False
    #: What scores of attention are multiplied with; None: the inverse root of a head's size.
    attention_scale: float | None = None
    #: What scores of attention, and logits, are capped at by tanh; None: they are not.
    attention_softcap: float | None = None
    logit_softcap: float | None = None


@dataclass(frozen=True)
class Family:
    """How an architecture differs from Llama in what `inflight.model.config` does not state as a fact; of a
    bias, None: the config's own key decides."""

    architectures: tuple[str, ...]
    names: Names = Names()
    qkv_bias: bool | None = False
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    #: Of a mixture's router.
    router_bias: bool = False
    #: RMS norm of each query and key head before the rotary embedding.
    qk_norm: bool = False
    windows: Windows = no_windows
    norm: Norm = "rms"
    #: Where the config has a norm's epsilon, and what it is without.
    epsilon_key: str = "rms_norm_eps"
    epsilon: float = 1e-6
    #: What is added to the stored weights of a norm.
    norm_offset: float = 0.0
    #: Where the config has the activation, the name that holds without, and what each name means.
    activation_key: str = "hidden_act"
    activation: str = "silu"
    activations: Mapping[str, Activation] = field(default_factory=lambda: {"silu": "silu"})
    #: Of a mixture, whether the shares of a token's experts sum to 1; None: `norm_topk_prob` decides.
    normalized_experts: bool | None = True
    #: Whether embeddings are multiplied with the square root of their size.
    scaled_embedding: bool = False
    #: Keys of the config that change the arithmetic, with the only values that are implemented.
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Where the family has several: which one a config is, by its facts and its other values.
    variant: Callable[[ModelFacts, Mapping[str, Any]], Variant] | None = None
    #: Of a model that sees: its tower, by its facts and the whole config. Its rotary embedding has three
    #: positions.
    vision: Callable[[ModelFacts, Mapping[str, Any]], VisionConfig] | None = None
    #: Of a model that hears: its encoder, likewise.
    hearing: Callable[[ModelFacts, Mapping[str, Any]], HearingConfig] | None = None
    #: Whether the config may say that only the first numbers of a head turn.
    partly_rotated: bool = False
    #: Where layers with a window have another rotary embedding than others: how the config states both.
    ropes: Ropes | None = None
    #: Whether attention is latent.
    latent: bool = False
    #: Of a mixture that has more than experts: by the config's values, and how many experts there are.
    mixture: Callable[[Mapping[str, Any], int], Mixture] | None = None
