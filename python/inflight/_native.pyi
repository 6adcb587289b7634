"""The Rust core as Python sees it: `crates/python`. Held true by tests/python/test_native_stub.py."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from inflight.executors.base import CacheChanges, Executor, ModelInfo, Request, ResponseBatch

__version__: str

#: The exit code of a worker whose executor failed.
EXIT_EXECUTOR_FAILED: int

class WorkerOption:
    """One option of `WorkerOptions` or `SimulatedOptions`, as Rust declares it."""

    @property
    def name(self) -> str:
        """As a keyword, and with dashes on a command line."""

    @property
    def help(self) -> str: ...
    @property
    def kind(self) -> str:
        """`switch`, `integer`, `number`, `text`, `file`, `directory` or `ids`."""

    @property
    def default(self) -> Any: ...
    @property
    def min(self) -> float | None: ...
    @property
    def max(self) -> float | None: ...
    @property
    def value_name(self) -> str | None: ...
    @property
    def choices(self) -> list[str]:
        """All values that it may have; empty: any of its kind."""

    @property
    def environment(self) -> str | None: ...

def worker_options() -> list[WorkerOption]:
    """Every option of `WorkerOptions`, in the order of a command's help."""

def simulated_options() -> list[WorkerOption]:
    """Every option of `SimulatedOptions`, in the order of a command's help."""

class WorkerOptions:
    """How a worker listens, what it serves and where its bounds are: the options of `worker_options`.

    Raises `TypeError` for others and `ValueError` for a value out of range; `None` is the default. Each is an
    attribute as well.
    """

    def __new__(cls, *, assets: Mapping[str, bytes] | None = None, **options: Any) -> WorkerOptions: ...
    def __getattr__(self, name: str) -> Any: ...

class Capability:
    """What an executor can support: the names in `ModelInfo.capabilities`."""

    LOG_PROBS: Final[str]
    TOP_LOG_PROBS: Final[str]
    LOG_PROB_IDS: Final[str]
    THINKING_BUDGET: Final[str]
    PROMPT_LOG_PROBS: Final[str]
    MIN_P: Final[str]
    PENALTIES: Final[str]
    MIN_TOKENS: Final[str]
    BAD_WORDS: Final[str]
    EMBEDDING_BIAS: Final[str]
    NUM_RETURN_SEQUENCES: Final[str]
    BEAM_SEARCH: Final[str]
    TOP_P_DECAY: Final[str]
    NO_REPEAT_NGRAM: Final[str]
    CONTEXT_LOGITS: Final[str]
    GENERATION_LOGITS: Final[str]
    PERF_METRICS: Final[str]
    PROMPT_TUNING: Final[str]
    LORA: Final[str]
    ADAPTER_LOADING: Final[str]
    DRAFT_TOKENS: Final[str]
    GUIDED_DECODING: Final[str]
    STRUCTURAL_FORMATS: Final[str]
    LOOKAHEAD: Final[str]
    KV_CACHE_RETENTION: Final[str]
    CONTEXT_PHASE: Final[str]
    ENCODER: Final[str]
    MROPE: Final[str]
    CROSS_ATTENTION: Final[str]
    IMAGES: Final[str]
    TRANSCRIPTION: Final[str]
    EMBEDDINGS: Final[str]
    CACHE_SALT: Final[str]
    PRIORITY: Final[str]
    RESUME: Final[str]
    CACHE_STATE: Final[str]
    CACHE_EVENTS: Final[str]
    SHORT_PROMPTS_FIRST: Final[str]

class CacheReports:
    """Whose method an executor's `report_cache` gets. Raises `ValueError` for columns that do not fit."""

    def report(self, changes: CacheChanges) -> None: ...

class SimulatedOptions:
    """The simulated executor's timing model and sizes: the options of `simulated_options`, as in
    `WorkerOptions`.
    """

    def __new__(cls, **options: Any) -> SimulatedOptions: ...
    def __getattr__(self, name: str) -> Any: ...

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

def convert_tokenizer(files: Mapping[str, bytes]) -> bytes:
    """`tokenizer.json` made of a model's other tokenizer files. Raises `ValueError` where that cannot be."""

class Detokenizer:
    """One sequence's text as its ids arrive; the pieces together equal the decoding of all ids."""

    def __new__(cls, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> Detokenizer: ...
    def push(self, ids: Sequence[int]) -> str:
        """The text that has become certain."""

    def finish(self) -> str:
        """What was held back; ends the sequence."""

class CoreInput:
    """An input tensor of the core model."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str:
        """KServe's name, such as `INT32`."""

    @property
    def dims(self) -> tuple[int, ...]:
        """Without the batch dimension; -1 is any length."""

    @property
    def optional(self) -> bool: ...
    @property
    def ragged(self) -> bool:
        """Rows of a batch may differ in length."""

    @property
    def squeezed(self) -> bool:
        """Triton reshapes it to nothing: its backends see the batch dimension alone."""

    @property
    def any_float(self) -> bool:
        """Any float type will do; `datatype` is the default."""

    @property
    def declared(self) -> bool:
        """Whether the config.pbtxt of Triton's model declares it."""

    @property
    def capability(self) -> str | None:
        """What the executor must be capable of, unless the value asks for nothing."""

    @property
    def path(self) -> str | None:
        """The field of `inflight.executors.base.Request` that it becomes, with dots.

        None: the worker applies it, or it travels in `Request.tensors` under its own name.
        """

class CoreOutput:
    """An output tensor of the core model."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def dims(self) -> tuple[int, ...]:
        """Without the batch dimension; -1 is any length."""

    @property
    def declared(self) -> bool:
        """Whether the config.pbtxt of Triton's model declares it."""

class CoreParameter:
    """A request parameter, which travels in `Request.tensors` under its own name."""

    @property
    def name(self) -> str: ...
    @property
    def capability(self) -> str: ...

class CoreModel:
    """The table of the core model, in the order of Triton's config.pbtxt."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def inputs(self) -> tuple[CoreInput, ...]: ...
    @property
    def outputs(self) -> tuple[CoreOutput, ...]: ...
    @property
    def parameters(self) -> tuple[CoreParameter, ...]: ...

def core_model() -> CoreModel:
    """The core model's inputs, outputs and request parameters: the one table of them."""

class Refusal:
    """Why a request, or one of its rows, gets no answer."""

    @property
    def status(self) -> int:
        """A gRPC status code."""

    @property
    def text(self) -> str: ...

class ParsedRequest:
    """A request that was understood."""

    @property
    def is_stop(self) -> bool:
        """It ends the requests with its id, and is not an executor request itself."""

    @property
    def requests(self) -> list[Request]:
        """One for each row of the batch."""

    @property
    def streaming(self) -> bool: ...
    @property
    def sequences(self) -> int:
        """Sequences of each row."""

class RowResponse:
    """What one row of the executor became."""

    @property
    def client_id(self) -> int: ...
    @property
    def is_final(self) -> bool:
        """Whether it was the last row of this client id."""

    @property
    def outputs(self) -> list[tuple[str, str, tuple[int, ...], bytes]] | None:
        """Name, datatype, shape with the batch dimension, bytes. None with a refusal, or while beams are
        gathered."""

    @property
    def refusal(self) -> Refusal | None: ...

class CoreRequests:
    """The core model inside a server that is not ours (Triton): parses requests, remembers them until their
    last row, and answers rows, as the worker does. Safe to share between threads.

    `info.max_batch_size` bounds the rows of a request, `max_message_bytes` an answer;
    `exclude_input_in_output` holds for requests that do not say.
    """

    def __new__(
        cls, info: ModelInfo, *, max_message_bytes: int, exclude_input_in_output: bool = False
    ) -> CoreRequests: ...
    def parse(
        self,
        request_id: str,
        inputs: Sequence[tuple[str, str, Sequence[int], bytes]],
        outputs: Sequence[str],
        parameters: Mapping[str, bool | int | float | str],
    ) -> ParsedRequest | Refusal:
        """Reads a request. `inputs`: name, datatype, shape with the batch dimension, packed bytes.

        Raises `ValueError` for an unknown datatype, `TypeError` for a parameter of another type.
        """

    def respond(self, batch: ResponseBatch) -> list[RowResponse]:
        """Answers the rows of one iteration, in order; rows of unknown client ids have no answer.

        Raises `TypeError` or `ValueError` for a batch that `check_response_batch` refuses.
        """

    def forget(self, client_ids: Sequence[int]) -> None:
        """Drops requests that the executor will not answer."""

class TextModel:
    """The tensors of one text model. An input's `path` is the core model's input that takes it as it is."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[CoreInput, ...]: ...
    @property
    def outputs(self) -> tuple[CoreOutput, ...]: ...

def text_models() -> list[TextModel]:
    """The tensors of `preprocessing`, `postprocessing`, `ensemble` and `tensorrt_llm_bls`."""

class TextModels:
    """The text models on a model's files, as the worker serves them. Safe to share between threads.

    `vocab_size` is what an embedding bias has values for; `max_batch_size` bounds the rows of a request.
    Raises `ValueError` for files that are missing or malformed.
    """

    def __new__(
        cls,
        files: Mapping[str, bytes],
        *,
        vocab_size: int | None = None,
        max_batch_size: int | None = None,
        core_model: str | None = None,
        add_special_tokens: bool = True,
        skip_special_tokens: bool = True,
        exclude_input_in_output: bool = False,
        accumulate_tokens: bool = False,
    ) -> TextModels: ...
    def preprocess(
        self, inputs: Sequence[tuple[str, str, Sequence[int], bytes]], outputs: Sequence[str]
    ) -> list[tuple[str, str, tuple[int, ...], bytes]] | Refusal:
        """The outputs of `preprocessing`; without names in `outputs`, all of them.

        Tensors are name, datatype, shape with the batch dimension, packed bytes. Raises `ValueError` for an
        unknown datatype.
        """

    def postprocess(
        self, inputs: Sequence[tuple[str, str, Sequence[int], bytes]], outputs: Sequence[str]
    ) -> list[tuple[str, str, tuple[int, ...], bytes]] | Refusal:
        """The outputs of `postprocessing`, as those of `preprocess`."""

    def generation(
        self, inputs: Sequence[tuple[str, str, Sequence[int], bytes]], outputs: Sequence[str]
    ) -> Generation | Refusal:
        """A request of `tensorrt_llm_bls`."""

class Generation:
    """A request of `tensorrt_llm_bls`: what the core model is asked, and what its answers become."""

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int, ...], bytes]]: ...
    @property
    def outputs(self) -> list[str]:
        """The core model's outputs to ask for."""

    def push(
        self, outputs: Sequence[tuple[str, str, Sequence[int], bytes]]
    ) -> list[tuple[str, str, tuple[int, ...], bytes]] | None:
        """The outputs for one response of the core model; None behind a stop word.

        Raises `ValueError` for tensors that are not the core model's.
        """

    def finish(self) -> list[list[tuple[str, str, tuple[int, ...], bytes]]]:
        """The outputs of the responses that the end shows to be text after all."""

    @property
    def is_stopped(self) -> bool:
        """Whether stop words have ended every sequence of a stream."""

def executor_gauges(stats: str | None, active: int) -> list[tuple[str, str, str, list[tuple[str, float]]]]:
    """The executor's gauges as on the worker's metrics page: name, help, label, and a number per label value.

    `stats` is an iteration's statistics in JSON, under TensorRT-LLM's keys. Raises `ValueError` where they
    cannot be read.
    """

class LoadingWorker:
    """A worker whose model loads: holds both ports, and answers there that it is not ready and why."""

    def __new__(cls, options: WorkerOptions, stage: str) -> LoadingWorker:
        """Raises `OSError` where a port cannot be bound."""

    def set_stage(self, stage: str) -> None:
        """What it does now, for people."""

def serve_worker(
    executor: Executor,
    options: WorkerOptions,
    loading: LoadingWorker | None = None,
    further: Sequence[tuple[str, Executor, Mapping[str, bytes]]] | None = None,
) -> int:
    """Serves an executor until SIGINT or SIGTERM, with the GIL released; returns the exit code.

    With `loading`, on the ports that it holds. `further`: more models of the process, each with its name, its
    executor and its files by name.

    The first signal drains, the second ends the process at once. 0 after a signal,
    `EXIT_EXECUTOR_FAILED` when the executor failed, 1 when the worker could not go on.
    """

def serve_simulated_worker(
    options: WorkerOptions,
    simulated: SimulatedOptions,
    further: Sequence[tuple[str, SimulatedOptions, Mapping[str, bytes]]] | None = None,
) -> int:
    """Serves the simulated executor; blocks, handles signals and returns as `serve_worker` does."""

def gateway_main(argv: Sequence[str]) -> int:
    """Runs `inflight gateway`; `argv` starts with the program's name. Returns the exit code."""

class GatewayOption:
    """One option of `inflight gateway`, as Rust declares it."""

    @property
    def flag(self) -> str:
        """Without the dashes: `max-body-bytes`."""

    @property
    def value_name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def default(self) -> str | None: ...
    @property
    def environment(self) -> str | None:
        """The environment variable that sets it as well."""

    @property
    def is_multiple(self) -> bool: ...
    @property
    def choices(self) -> list[str]:
        """Empty: any value of its kind."""

def gateway_options() -> list[GatewayOption]:
    """Every option of `inflight gateway`, in the order of its help."""

def read_option_file(path: str, known: Sequence[str]) -> dict[str, list[str]]:
    """The options in a file, each with its values as text. Raises `ValueError` with what is wrong in it."""

def trace_variable(name: str, value: str) -> tuple[str, str] | None:
    """What replaces a value of OpenTelemetry that cannot be used, and a warning; `None`: it can be used."""

def check_gateway_arguments(argv: Sequence[str]) -> str | None:
    """What is wrong with arguments for `inflight gateway`; `argv` starts with the program's name."""

def template_helper_main() -> None:
    """Renders the chat templates of one model for the gateway that started this process."""

def bench_main(argv: Sequence[str]) -> int:
    """Runs `inflight bench`; `argv` starts with the program's name. Returns the exit code."""

def simulate_main(argv: Sequence[str]) -> int:
    """Runs `inflight simulate`; `argv` starts with the program's name. Returns the exit code."""

def check_guide_bounds(kind: str, text: str) -> None:
    """Checks the bounds of a JSON schema or a Lark grammar (``kind``: ``json_schema`` or ``lark``), which the
    one who compiles it cannot keep. Errors: ValueError."""

def open_objects(schema: str) -> list[str]:
    """Finds the objects of a JSON schema that are closed while it guides an answer, as JSON pointers.

    They name their properties and say nothing of others, and nothing else constrains them.

    Errors: ValueError for a schema beyond the bounds of guides.
    """

def check_response_batch(batch: ResponseBatch) -> None:
    """Checks a batch as the worker does before it uses one.

    Raises `TypeError` for a column of the wrong type, `ValueError` for columns that do not fit together.
    """
