"""Values on their way to TensorRT-LLM: tensors of the wire as what a field takes. Knows none of its classes.

Every converter is called with the value and the module `torch`, which only tensors need; it raises
`Refused` where a client sent something that no field can hold.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from inflight.executors.base import NamedTensor

#: KServe datatype -> name of the dtype in `torch`.
TORCH_DTYPES = {
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}
#: KServe datatype -> `struct` code.
_CODES = {"INT32": "i", "INT64": "q", "UINT64": "Q", "FP32": "f", "BOOL": "?", "UINT8": "B"}

#: The version of what `pack_context_phase` writes; 2 has fields of later versions besides.
_CONTEXT_PHASE_FORMAT, _WITH_MORE = 1, 2


class Refused(Exception):
    """One request cannot be taken; the text says which input and why."""


def same(value: Any, torch: Any) -> Any:  # noqa: ARG001 -- every converter has this signature
    """The value as it is."""
    return value


def numbers(value: NamedTensor, torch: Any = None) -> list[Any]:  # noqa: ARG001
    """All elements of a small tensor."""
    code = _CODES.get(value.datatype)
    if code is None or len(value.data) % struct.calcsize(code):
        raise Refused(f"`{value.name}` of datatype `{value.datatype}` cannot be read; send it as declared")
    return list(struct.unpack(f"<{len(value.data) // struct.calcsize(code)}{code}", value.data))


def first(value: NamedTensor, torch: Any = None) -> Any:
    """The one element of a scalar input."""
    found = numbers(value, torch)
    if len(found) != 1:
        raise Refused(f"`{value.name}` has `{len(found)}` values; send one")
    return found[0]


def text(value: NamedTensor, torch: Any = None) -> str:  # noqa: ARG001
    """The one string of a BYTES input (four bytes of length, then UTF-8)."""
    if len(value.data) < 4 or struct.unpack_from("<I", value.data)[0] != len(value.data) - 4:
        raise Refused(f"`{value.name}` is not one string; send one BYTES element")
    try:
        return value.data[4:].decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"`{value.name}` is not UTF-8: {error}") from error


def salt_id(value: NamedTensor, torch: Any = None) -> int:
    """A string as the number by which engines keep cache blocks apart: 63 bits of its hash."""
    digest = hashlib.sha256(text(value, torch).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def tensor(value: NamedTensor, torch: Any) -> Any:
    """A `torch.Tensor` of the same type and shape, with its own memory."""
    dtype = TORCH_DTYPES.get(value.datatype)
    if dtype is None:
        raise Refused(f"`{value.name}` has the datatype `{value.datatype}`, which no tensor can have")
    if not value.data:
        return torch.empty(tuple(value.shape), dtype=getattr(torch, dtype))
    # A bytearray, because torch warns about memory that it may not write.
    return torch.frombuffer(bytearray(value.data), dtype=getattr(torch, dtype)).reshape(tuple(value.shape))


def float_vector(value: bytes, torch: Any) -> Any:
    """Packed float32 as a tensor `[n]`."""
    return torch.frombuffer(bytearray(value), dtype=torch.float32)


def extra_ids(value: NamedTensor, torch: Any) -> list[int]:
    """`PromptTuningConfig.input_token_extra_ids`."""
    return [int(number) for number in numbers(value, torch)]


def token_ids(value: NamedTensor, torch: Any = None) -> list[int]:
    """A row of token ids."""
    return [int(number) for number in numbers(value, torch)]


def pack_context_phase(
    first_gen_tokens: Sequence[int],
    req_id: int,
    opaque_state: bytes | None,
    draft_tokens: Sequence[int] | None,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """`ContextPhaseParams` as the bytes of output `context_phase_params`. `more`: further fields of
    `DisaggregatedParams`, as JSON holds them.

    Ours: the serializer of Triton's C++ backend is not reachable from Python, so its bytes and these are
    not interchangeable.
    """
    state = None if opaque_state is None else base64.b64encode(opaque_state).decode("ascii")
    fields = {
        "format": _WITH_MORE if more else _CONTEXT_PHASE_FORMAT,
        "first_gen_tokens": list(first_gen_tokens),
        "req_id": req_id,
        "opaque_state": state,
        "draft_tokens": None if draft_tokens is None else list(draft_tokens),
    }
    if more:
        fields["more"] = dict(more)
    return json.dumps(fields, separators=(",", ":")).encode()


def context_phase(value: NamedTensor, torch: Any = None) -> dict[str, Any]:  # noqa: ARG001
    """The fields that `pack_context_phase` packed."""
    try:
        fields = json.loads(value.data)
        if fields.pop("format") not in (_CONTEXT_PHASE_FORMAT, _WITH_MORE):
            raise ValueError("another format")
        more = fields.get("more", {})
        if not isinstance(more, dict):
            raise ValueError("its further fields are not an object")
        state = fields["opaque_state"]
        return {
            "first_gen_tokens": [int(token) for token in fields["first_gen_tokens"]],
            "req_id": int(fields["req_id"]),
            "opaque_state": None if state is None else base64.b64decode(state, validate=True),
            "draft_tokens": None
            if fields["draft_tokens"] is None
            else [int(token) for token in fields["draft_tokens"]],
            "more": more,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            f"`{value.name}` is not what a context-only request of this executor answered: {error}"
        ) from error
