"""The bytes of `context_phase_params`: what a context worker hands to the one that generates.

Owns their format, their version and the MAC over them. Pure: knows nothing of sockets or of who holds the
blocks. They pass through clients, so that every length is bounded before anything is made of it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass, field
from typing import Any

from inflight.executors.base import FinishReason

from .refusal import Refused, invalid

CONTEXT_PHASE_PARAMS = "context_phase_params"
REQUEST_TYPE = "request_type"
CONTEXT_ONLY, GENERATION_ONLY, WHOLE = "context_only", "generation_only", "context_and_generation"

#: Of an offer's id, which nobody guesses.
ID_BYTES = 16
#: Of HMAC-SHA256.
MAC_BYTES = 32

_MAGIC, _VERSION = b"IFCP", 1
_HEAD = struct.Struct("<4sHI")
_PURPOSE = b"inflight context phase\0"
#: Bytes of the whole; 256 alternatives of the first token take a quarter of it.
_MOST_BYTES = 16 << 10
_MOST_ADDRESSES = 8
#: What a first token may do: nothing, or end its request.
_REASONS = (FinishReason.NOT_FINISHED, FinishReason.END_ID, FinishReason.STOP_WORDS)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token that the context worker sampled, and what is reported of it."""

    token: int
    log_prob: float
    top_ids: tuple[int, ...] = ()
    top_log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """Blocks that a context worker holds for anyone who brings their id."""

    id: bytes
    #: (host, port), each of which serves them.
    addresses: tuple[tuple[str, int], ...]
    #: Of the model: `ModelInfo.weights`, and what a block's bytes are.
    weights: str
    layout: str
    #: Of the prompt, and the hash of them as the cache's keys have it, with salt, adapter and images.
    tokens: int
    content: bytes


@dataclass(frozen=True, slots=True)
class ContextPhase:
    """What a context phase left."""

    first: FirstToken
    #: NOT_FINISHED: there is more to generate.
    reason: FinishReason
    #: None: nothing is held, the prompt is computed again.
    offer: Offer | None
    #: Whether the bytes have this worker's key.
    is_authentic: bool = field(default=False, compare=False)


def pack(phase: ContextPhase, key: bytes) -> bytes:
    """The bytes; an empty ``key`` leaves the MAC out."""
    first, offer = phase.first, phase.offer
    fields: dict[str, Any] = {
        "token": first.token,
        "log_probs": _packed_floats((first.log_prob, *first.top_log_probs)),
        "top_ids": list(first.top_ids),
        "reason": int(phase.reason),
    }
    if offer is not None:
        fields["offer"] = {
            "id": offer.id.hex(),
            "addresses": [list(address) for address in offer.addresses],
            "weights": offer.weights,
            "layout": offer.layout,
            "tokens": offer.tokens,
            "content": offer.content.hex(),
        }
    body = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    signed = _HEAD.pack(_MAGIC, _VERSION, len(body)) + body
    return signed + (_mac(key, signed) if key else b"")


def unpack(data: bytes, key: bytes) -> ContextPhase:
    """What `pack` packed. Errors: `Refused` for bytes of another format, however they came to be."""
    if len(data) > _MOST_BYTES:
        raise invalid(f"`{CONTEXT_PHASE_PARAMS}` has {len(data)} bytes; it may have {_MOST_BYTES}")
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise _foreign("its beginning is not that of a reference executor's")
    _, version, length = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise _foreign(f"its version is {version}, and this worker has {_VERSION}")
    signed, mac = data[: _HEAD.size + length], data[_HEAD.size + length :]
    if len(signed) != _HEAD.size + length or len(mac) not in (0, MAC_BYTES):
        raise _foreign("its length is wrong")
    is_authentic = bool(key) and hmac.compare_digest(mac, _mac(key, signed))
    try:
        return _read(json.loads(signed[_HEAD.size :]), is_authentic)
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise _foreign("its fields cannot be read") from error


def _read(fields: Any, is_authentic: bool) -> ContextPhase:
    log_prob, *tops = _floats(fields["log_probs"])
    top_ids = tuple(_count(one) for one in fields["top_ids"])
    if len(top_ids) != len(tops):
        raise ValueError("alternatives")
    given = fields.get("offer")
    offer = None
    if given is not None:
        addresses = tuple((_text(host), _count(port)) for host, port in given["addresses"])
        if not 1 <= len(addresses) <= _MOST_ADDRESSES or any(not 0 < port < 65536 for _, port in addresses):
            raise ValueError("addresses")
        offer = Offer(
            bytes.fromhex(_text(given["id"])),
            addresses,
            _text(given["weights"]),
            _text(given["layout"]),
            _count(given["tokens"]),
            bytes.fromhex(_text(given["content"])),
        )
        if len(offer.id) != ID_BYTES:
            raise ValueError("id")
    first = FirstToken(_count(fields["token"]), log_prob, top_ids, tuple(tops))
    reason = FinishReason(fields["reason"])
    if reason not in _REASONS:
        raise ValueError("reason")
    return ContextPhase(first, reason, offer, is_authentic)


def _mac(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + signed, hashlib.sha256).digest()


def _packed_floats(values: tuple[float, ...]) -> str:
    # As the tensors have them: a JSON number cannot be infinite, which a forbidden alternative is.
    return struct.pack(f"<{len(values)}f", *values).hex()


def _floats(text: Any) -> tuple[float, ...]:
    packed = bytes.fromhex(_text(text))
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("number")
    return value


def _foreign(why: str) -> Refused:
    return invalid(
        f"`{CONTEXT_PHASE_PARAMS}` is not what this worker understands: {why}; send the bytes of a "
        "`context_only` answer of the same executor unchanged"
    )
