"""The executor protocol: what the worker asks of whatever generates tokens.

Owns the request and response types that cross from Rust, and nothing else. Names are those of
TensorRT-LLM's executor API. One crossing per engine iteration: a `ResponseBatch` is columns of packed
little-endian bytes, so that a batch of any size crosses in one call and without per-token objects.
The Rust twin, with the meaning of each field, is ``crates/worker/src/executor.rs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol


class FinishReason(IntEnum):
    """Why a sequence ended; TensorRT-LLM's numbers."""

    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class StatusCode(IntEnum):
    """The gRPC status codes an executor may give to what it refuses."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(slots=True)
class SamplingConfig:
    """``tensorrt_llm.bindings.executor.SamplingConfig``; ``None``: the executor's own default."""

    beam_width: int = 1
    num_return_sequences: int = 1
    top_k: int | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    top_p_decay: float | None = None
    min_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: int | None = None
    no_repeat_ngram_size: int | None = None


@dataclass(slots=True)
class OutputConfig:
    """``tensorrt_llm.bindings.executor.OutputConfig``, plus the numbers of reported alternatives."""

    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    return_perf_metrics: bool = False
    num_top_log_probs: int = 0
    num_prompt_log_probs: int | None = None


@dataclass(slots=True)
class NamedTensor:
    """A tensor under its Triton name; ``data`` is packed little-endian, ``shape`` has no batch dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(slots=True)
class Request:
    """``tensorrt_llm.bindings.executor.Request``; token rows never repeat the prompt."""

    client_id: int
    input_token_ids: list[int]
    max_tokens: int
    streaming: bool = True
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig)
    output_config: OutputConfig = field(default_factory=OutputConfig)
    end_id: int | None = None
    pad_id: int | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    stop_words: list[list[int]] = field(default_factory=list)
    #: float32 bytes ``[vocab_size]``, or empty.
    embedding_bias: bytes = b""
    #: Sparse bias as (token id, value).
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    #: Also the request parameters ``request_type`` (BYTES) and ``priority`` (FP32, 0 to 1, 1 first).
    tensors: list[NamedTensor] = field(default_factory=list)
    #: What another executor generated of this request (capability ``resume``). Empty: nothing. Otherwise one
    #: entry for each of the ``num_return_sequences`` sequences: its tokens so far, possibly none, or None for
    #: a sequence that has ended already. The executor sends no row of an ended one, and the request's one
    #: final row is the last row of the others. These tokens count as generated everywhere: ``max_tokens`` is
    #: still the total, and rows carry only new tokens.
    generated: list[list[int] | None] = field(default_factory=list)


@dataclass(slots=True)
class ResponseBatch:
    """The rows of one await, as columns.

    Row r's tokens are ``token_ids[token_offsets[r]:token_offsets[r+1]]``.

    Exactly one row of a request is final, also after a cancel or an error. An executor that knows the end
    token's log probability puts the end token last among the tokens of the row that ends with it; answers
    to KServe clients leave it out. Matched stop words are among the tokens. Columns marked sparse are empty
    when no row has them.
    """

    client_ids: bytes = b""  #: uint64 [rows]
    sequence_index: bytes = b""  #: int32 [rows]
    token_offsets: bytes = b""  #: uint32 [rows + 1], or empty when there are no rows
    token_ids: bytes = b""  #: int32 [tokens]
    finish_reasons: bytes = b""  #: uint8 [rows], FinishReason; non-zero on a sequence's last row
    finals: bytes = b""  #: uint8 [rows], 1 on the request's last row
    errors: Sequence[tuple[int, int, str]] = ()  #: sparse: (row, StatusCode, text)
    log_prob_rows: bytes = b""  #: sparse: uint32 row numbers, ascending
    log_probs: bytes = b""  #: float32, as many per such row as it has tokens
    top_log_prob_rows: bytes = b""  #: sparse: uint32
    top_log_prob_widths: bytes = b""  #: uint32, k of each such row
    top_log_prob_ids: bytes = b""  #: int32, tokens x k per such row, best first
    top_log_probs: bytes = b""  #: float32, likewise
    cached_tokens: Sequence[tuple[int, int]] = ()  #: sparse: (row, prompt tokens found in the cache)
    #: sparse: (row, float32 [prompt], k, int32 [prompt x k], float32 [prompt x k])
    prompt_log_probs: Sequence[tuple[int, bytes, int, bytes, bytes]] = ()
    tensors: Sequence[tuple[int, NamedTensor]] = ()  #: sparse: large outputs by Triton output name


class CacheChange(IntEnum):
    """What happened to a block of the KV cache."""

    #: To all blocks: none can be found any more.
    CLEARED = 0
    STORED = 1
    #: In the host's memory, from which it is brought back.
    STORED_ON_HOST = 2
    MOVED_TO_DEVICE = 3
    MOVED_TO_HOST = 4
    REMOVED = 5


@dataclass(slots=True)
class CacheChanges:
    """Blocks that can be found from now on, or no longer, as columns, in the order of events.

    A block's name is the executor's own, and unique among those that it holds. Only full blocks whose token
    ids say what they hold are reported: none that an image or a prompt table touches, and none after one.
    """

    kinds: bytes = b""  #: uint8 [changes], CacheChange
    names: bytes = b""  #: uint64 [changes]; 0 where all blocks are meant
    parents: bytes = b""  #: uint64 [stored], the block before; ignored for the first of a sequence
    token_ids: bytes = b""  #: int32 [stored x tokens_per_block]
    #: sparse: (number among the stored, LoRA task id or None, salt) of those that are the first of a sequence
    firsts: Sequence[tuple[int, int | None, bytes]] = ()


class CacheReport(Protocol):
    """Takes what has changed in the cache, at most once an iteration."""

    def __call__(self, changes: CacheChanges, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the executor serves and can do; capability names are `inflight._native.Capability`'s."""

    executor: str
    vocab_size: int
    max_seq_len: int
    max_input_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int
    capabilities: tuple[str, ...] = ()
    #: LoRA adapters loaded from the executor's own files: (name, ``lora_task_id``), in order of name. The
    #: worker announces them in its `ModelDescription`.
    adapters: tuple[tuple[str, int], ...] = ()
    #: What distinguishes its weights from others; empty: not known. A request continues only where it is the
    #: same.
    weights: str = ""


class AdapterRefused(Exception):
    """An adapter is not loaded or unloaded, for a reason that clients receive; nothing has changed."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


#: One iteration's numbers under TensorRT-LLM's JSON keys (``IterationStats.to_json_str``).
IterationStats = Mapping[str, Any]


class Executor(Protocol):
    """Generates tokens for many requests at once.

    One thread enqueues and cancels, another awaits; methods must tolerate that. An exception from any
    method means that the whole executor is broken and ends the worker process.
    """

    def enqueue(self, requests: Sequence[Request]) -> None:
        """Takes requests; a refusal of one is its errored, final row, and the others continue."""

    def cancel(self, client_ids: Sequence[int]) -> None:
        """Cancels; unknown or finished ids are ignored. Each still gets its one final row."""

    def await_responses(self, timeout_s: float) -> ResponseBatch:
        """Waits, with the GIL released, until rows are ready or the time has passed (then no rows)."""

    def stats(self) -> Sequence[IterationStats]:
        """Iterations since the last call, oldest first; bounded. All but the last may have only what adds up:
        ``iter``, ``iterLatencyMS``, the prompt tokens and what generated."""

    def info(self) -> ModelInfo:
        """Asked once, before the server binds."""

    def shutdown(self) -> None:
        """Ends the executor and its threads."""


class CacheReporter(Protocol):
    """What an executor with the capability ``cache_events`` does besides: it reports its cache's blocks."""

    def report_cache(self, report: CacheReport) -> tuple[int, int]:
        """Reports from now on. Called once, before any request. Returns how many blocks the device and the
        host hold at most."""


class AdapterLoader(Protocol):
    """What an executor with the capability ``adapter_loading`` does besides: it takes LoRA adapters while it
    runs.

    Calls come one at a time, from a separate thread, and may take as long as reading the files does. An
    exception other than `AdapterRefused` means that the executor is broken.
    """

    def load_adapter(self, name: str, path: str) -> int:
        """Loads the adapter of a directory, and returns the task id that requests ask for it with.

        A name that is loaded already means these files from now on; requests that run keep what they
        started with. Errors: `AdapterRefused` for files that cannot be served, or where there is no room.
        """

    def unload_adapter(self, name: str) -> None:
        """Requests no longer find the adapter; those that run keep it. Errors: `AdapterRefused` where there
        is none of that name."""
