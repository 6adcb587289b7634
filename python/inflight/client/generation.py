"""Generation requests as people ask for them: options to the tensors that a model declares, responses to
sequences. Pure.

Names differ between releases of the TensorRT-LLM backend, and between its core model and its text models;
which ones are sent follows from what the server's model declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.client.kserve import DTYPES, Array, Input, Request, Response
from inflight.errors import UserMistake

CORE_MODEL = "tensorrt_llm"

#: Option -> the names that models have for it, newest first.
NAMES: dict[str, tuple[str, ...]] = {
    "max_tokens": ("max_tokens", "request_output_len"),
    "streaming": ("streaming", "stream"),
    "beam_width": ("beam_width",),
    "num_return_sequences": ("num_return_sequences",),
    "temperature": ("temperature",),
    "top_k": ("runtime_top_k", "top_k"),
    "top_p": ("runtime_top_p", "top_p"),
    "min_tokens": ("min_tokens", "min_length"),
    "length_penalty": ("len_penalty", "length_penalty"),
    "repetition_penalty": ("repetition_penalty",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "early_stopping": ("early_stopping",),
    "seed": ("seed", "random_seed"),
    "end_id": ("end_id",),
    "pad_id": ("pad_id",),
    "return_log_probs": ("return_log_probs",),
    "return_context_logits": ("return_context_logits",),
    "return_generation_logits": ("return_generation_logits",),
    "exclude_input_in_output": ("exclude_input_in_output",),
    "lora_task_id": ("lora_task_id",),
    "draft_input_ids": ("draft_input_ids",),
    "num_draft_tokens": ("num_draft_tokens",),
    "use_draft_logits": ("use_draft_logits",),
}
#: Options that an older model may lack without harm: it does what they ask for anyway, or cannot do other.
FORGIVEN = frozenset({"exclude_input_in_output", "streaming"})
#: Outputs that describe a sequence further, and are shown with it.
OF_SEQUENCES = frozenset(
    {"output_ids", "sequence_length", "text_output", "cum_log_probs", "output_log_probs", "batch_index"}
    | {"sequence_index"}
)


def tensors(
    declared: Mapping[str, Input], options: Mapping[str, Any], rows: int, model: str
) -> dict[str, Array]:
    """The tensors of options that have a value, for a batch of `rows`.

    Raises `UserMistake` for an option that the model has no input for.
    """
    made = {}
    for option, value in options.items():
        if value is None:
            continue
        names = NAMES.get(option, (option,))
        known = next((declared[name] for name in names if name in declared), None)
        if known is None:
            if option in FORGIVEN:
                continue
            raise UserMistake(f"`{model}` has no input `{names[0]}`", "leave it out, or ask another model")
        made[known.name] = tensor(known, value, rows)
    return made


def tensor(known: Input, value: Any, rows: int) -> Array:
    """One value for every row, in the input's datatype; a list fills the last dimension.

    Raises `UserMistake` where the value does not fit.
    """
    dtype = DTYPES.get(known.datatype)
    if dtype is None:
        raise UserMistake(f"`{known.name}` is `{known.datatype}`, which cannot be sent", "leave it out")
    try:
        array = np.asarray(_encoded(value) if dtype is np.object_ else value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserMistake(f"`{known.name}` must be `{known.datatype}`, got `{value}`: {error}") from None
    # Every model of the repository declares its batch dimension.
    open_dimensions = len(known.shape) - 1
    array = array.reshape((1,) * max(open_dimensions - array.ndim, 0) + array.shape)
    return np.repeat(array[None], rows, axis=0)


def _encoded(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_encoded(one) for one in value]
    return str(value).encode()


def word_lists(rows: Sequence[Sequence[Sequence[int]]]) -> Array:
    """Words as the core model takes them, `[batch, 2, ids]`: all ids end to end above the end of each word,
    padded with 0 and -1.
    """
    width = max((sum(map(len, words)) for words in rows), default=0)
    made = np.zeros((len(rows), 2, width), np.int32)
    made[:, 1] = -1
    for row, words in enumerate(rows):
        ids = [one for word in words for one in word]
        ends = np.cumsum([len(word) for word in words])
        made[row, 0, : len(ids)] = ids
        made[row, 1, : len(ends)] = ends
    return made


def prompts(rows: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Array, Array]:
    """`input_ids`, padded to the longest row, and `input_lengths`."""
    ids = np.full((len(rows), max(map(len, rows))), pad_id, np.int32)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    return ids, np.array([[len(tokens)] for tokens in rows], np.int32)


def request(
    model: str,
    declared: Mapping[str, Input],
    arrays: Mapping[str, Array],
    request_id: str,
    *,
    streaming: bool,
) -> Request:
    """A request whose datatypes are those that the model declares."""
    datatypes = {name: declared[name].datatype for name in arrays}
    return Request(model, arrays, datatypes, request_id, streaming)


@dataclass
class Generated:
    """What was generated for one row, sequence and beam."""

    batch_index: int
    sequence_index: int
    beam: int
    ids: list[int] = field(default_factory=list)
    text: str | None = None
    cum_log_prob: float | None = None
    log_probs: list[float] = field(default_factory=list)


@dataclass
class Answer:
    """Every sequence, and the other outputs as they came last."""

    sequences: dict[tuple[int, int, int], Generated] = field(default_factory=dict)
    others: dict[str, Array] = field(default_factory=dict)
    responses: int = 0

    def add(self, response: Response, *, streaming: bool, accumulated: bool = False) -> list[Generated]:
        """Takes a response in; what it brought, one per sequence that it is about."""
        self.responses += 1
        outputs = response.tensors
        news = [new for new in _sequences(outputs) if new.ids or new.text is not None]
        for new in news:
            key = (new.batch_index, new.sequence_index, new.beam)
            old = self.sequences.setdefault(key, Generated(*key))
            # Without streaming, a sequence comes whole; beams always do.
            old.ids = [*old.ids, *new.ids] if streaming else new.ids
            if new.text is not None:
                old.text = (old.text or "") + new.text if streaming and not accumulated else new.text
            old.cum_log_prob = new.cum_log_prob if new.cum_log_prob is not None else old.cum_log_prob
            old.log_probs = [*old.log_probs, *new.log_probs] if streaming else new.log_probs
        for name, array in outputs.items():
            if name not in OF_SEQUENCES:
                before = self.others.get(name)
                grows = streaming and before is not None and name == "generation_logits"
                self.others[name] = np.concatenate([before, array], axis=-2) if grows else array
        return news

    def ordered(self) -> list[Generated]:
        """By row, then sequence, then beam."""
        return [self.sequences[key] for key in sorted(self.sequences)]


def _sequences(outputs: Mapping[str, Array]) -> Iterable[Generated]:
    """The sequences of one response: rows of the batch, or the one that its indexes name."""
    row = _scalar(outputs.get("batch_index"), 0)
    index = _scalar(outputs.get("sequence_index"), 0)
    ids, texts = outputs.get("output_ids"), outputs.get("text_output")
    sums, log_probs = outputs.get("cum_log_probs"), outputs.get("output_log_probs")
    if ids is not None:
        # Over `generate_stream` shapes are lost, and there is one row of one beam.
        ids = ids.reshape((1,) * (3 - ids.ndim) + ids.shape)
        lengths = outputs.get("sequence_length")
        lengths = None if lengths is None else np.reshape(lengths, ids.shape[:2])
        for batch in range(ids.shape[0]):
            for beam in range(ids.shape[1]):
                length = ids.shape[2] if lengths is None else int(lengths[batch, beam])
                made = Generated(row + batch, index, beam, [int(one) for one in ids[batch, beam, :length]])
                yield _with_log_probs(made, sums, log_probs, (batch, beam), len(made.ids))
    elif texts is not None:
        flat = texts.reshape(-1)
        rows = texts.shape[0] if texts.ndim > 1 else 1
        for at, text in enumerate(flat):
            batch, beam = divmod(at, max(len(flat) // rows, 1))
            decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            made = Generated(row + batch, index, beam, text=decoded)
            yield _with_log_probs(made, sums, log_probs, (batch, beam), None)


def _with_log_probs(
    made: Generated, sums: Array | None, log_probs: Array | None, place: tuple[int, int], count: int | None
) -> Generated:
    batch, beam = place
    if sums is not None:
        sums = sums.reshape((1,) * (2 - sums.ndim) + sums.shape)
        if batch < sums.shape[0] and beam < sums.shape[1]:
            made.cum_log_prob = float(sums[batch, beam])
    if log_probs is not None:
        log_probs = log_probs.reshape((1,) * (3 - log_probs.ndim) + log_probs.shape)
        if batch < log_probs.shape[0] and beam < log_probs.shape[1]:
            values = log_probs[batch, beam]
            made.log_probs = [
                float(one) for one in (values if count is None else values[-count:] if count else [])
            ]
    return made


def _scalar(array: Array | None, default: int) -> int:
    return default if array is None or not array.size else int(array.reshape(-1)[0])
