"""The Rust core as Python sees it: `crates/python`. Held true by tests/python/test_native_stub.py."""

from collections.abc import Mapping, Sequence

from inflight.executors.base import Executor, ResponseBatch

__version__: str

#: The exit code of a worker whose executor failed.
EXIT_EXECUTOR_FAILED: int

class WorkerOptions:
    """How a worker listens, what it serves and where its bounds are. Times are in seconds."""

    def __new__(
        cls,
        *,
        host: str | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        served_model_name: str | None = None,
        assets: Mapping[str, bytes] | None = None,
        max_message_bytes: int | None = None,
        max_queued_requests: int | None = None,
        max_concurrent_streams: int | None = None,
        progress_timeout_s: float | None = None,
        drain_timeout_s: float | None = None,
        slow_reader_timeout_s: float | None = None,
        canary_timeout_s: float | None = None,
    ) -> WorkerOptions: ...
    @property
    def host(self) -> str: ...
    @property
    def grpc_port(self) -> int: ...
    @property
    def metrics_port(self) -> int: ...
    @property
    def served_model_name(self) -> str: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def max_queued_requests(self) -> int: ...
    @property
    def max_concurrent_streams(self) -> int: ...
    @property
    def progress_timeout_s(self) -> float: ...
    @property
    def drain_timeout_s(self) -> float: ...
    @property
    def slow_reader_timeout_s(self) -> float: ...
    @property
    def canary_timeout_s(self) -> float: ...

class SimulatedOptions:
    """The simulated executor's timing model and sizes."""

    def __new__(
        cls,
        *,
        prefill_us_per_token: float | None = None,
        step_us: float | None = None,
        step_us_per_sequence: float | None = None,
        max_batch_size: int | None = None,
        num_blocks: int | None = None,
        tokens_per_block: int | None = None,
        max_seq_len: int | None = None,
        max_num_tokens: int | None = None,
        vocab_size: int | None = None,
    ) -> SimulatedOptions: ...
    @property
    def prefill_us_per_token(self) -> float: ...
    @property
    def step_us(self) -> float: ...
    @property
    def step_us_per_sequence(self) -> float: ...
    @property
    def max_batch_size(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def tokens_per_block(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def max_num_tokens(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

class Tokenizer:
    """A model's tokenizer and the ids that its files name; `files` by base name, as `ModelFiles`.

    Raises `ValueError` for files that are missing or malformed, and for text that has no encoding.
    """

    def __new__(cls, files: Mapping[str, bytes]) -> Tokenizer: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> list[int]: ...
    @property
    def pad_token_id(self) -> int | None: ...

class Detokenizer:
    """One sequence's text as its ids arrive; the pieces together equal the decoding of all ids."""

    def __new__(cls, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> Detokenizer: ...
    def push(self, ids: Sequence[int]) -> str:
        """The text that has become certain."""

    def finish(self) -> str:
        """What was held back; ends the sequence."""

class StopMatcher:
    """Passes on the text that can no longer be part of a stop string."""

    def __new__(cls, stops: Sequence[str]) -> StopMatcher: ...
    def push(self, text: str) -> str:
        """What may be shown; nothing more once a stop string is complete."""

    def finish(self) -> str:
        """What was held back, unless a stop string was complete."""

    @property
    def hit(self) -> int | None:
        """The index of the stop string that ended the text."""

def serve_worker(executor: Executor, options: WorkerOptions) -> int:
    """Serves an executor until SIGINT or SIGTERM, with the GIL released; returns the exit code.

    The first signal drains, the second ends the process at once. 0 after a signal,
    `EXIT_EXECUTOR_FAILED` when the executor failed, 1 when the worker could not go on.
    """

def serve_simulated_worker(options: WorkerOptions, simulated: SimulatedOptions) -> int:
    """Serves the simulated executor; blocks, handles signals and returns as `serve_worker` does."""

def gateway_main(argv: Sequence[str]) -> int:
    """Runs `inflight gateway`; `argv` starts with the program's name. Returns the exit code."""

def bench_main(argv: Sequence[str]) -> int:
    """Runs `inflight bench`; `argv` starts with the program's name. Returns the exit code."""

def check_response_batch(batch: ResponseBatch) -> None:
    """Checks a batch as the worker does before it uses one.

    Raises `TypeError` for a column of the wrong type, `ValueError` for columns that do not fit together.
    """
