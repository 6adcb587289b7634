"""Mistral (Llama with a sliding window) in PyTorch, small enough to read at once, for training only.

Owns the arithmetic and the Hugging Face names of the weights. Knows no text and no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of the network. Tied embeddings; grouped-query attention."""

    vocabulary: int
    hidden: int = 256
    layers: int = 5
    heads: int = 8
    kv_heads: int = 4
    intermediate: int = 512
    context: int = 32_768
    #: Tokens that each layer sees, the query's own included. Positions are relative to the query, so that
    #: nothing at position 30,000 is new to the model, and a token costs the same there as at 1,024.
    window: int = 1024
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, width, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        s = self.shape
        q = self.q_proj(x).view(batch, length, s.heads, s.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, s.kv_heads, s.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, s.kv_heads, s.head_dim).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v.to(q.dtype), attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, s.hidden))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.epsilon = shape.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = FeedForward(shape)
        self.input_layernorm = Norm(shape)
        self.post_attention_layernorm = Norm(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)


class Mistral(nn.Module):
    """Ids [batch, length] to logits [batch, length, vocabulary]; `state_dict` has Hugging Face's names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    scale /= math.sqrt(2 * shape.layers)
                nn.init.normal_(parameter, std=scale)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` [batch, 1, length, length] is true where attention is allowed; without it: the window."""
        cos, sin = self.rotation(ids.shape[1], ids.device)
        if mask is None:
            mask = self.visible(ids.shape[1], ids.device)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def visible(self, length: int, device: torch.device) -> Tensor:
        """Which keys [length, length] each query sees: the latest ones up to itself."""
        at = torch.arange(length, device=device)
        behind = at[:, None] - at[None, :]
        return (behind >= 0) & (behind < self.shape.window)

    def rotation(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosine and sine [length, head_dim] of the rotary position embedding, in float32."""
        dim = self.shape.head_dim
        frequency = self.shape.rope_theta ** (-torch.arange(0, dim, 2, device=device).float() / dim)
        angle = torch.arange(length, device=device).float()[:, None] * frequency[None, :]
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [batch, heads, length, head_dim] turned by its position, halves paired as Hugging Face does."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
