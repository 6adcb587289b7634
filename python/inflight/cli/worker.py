"""`inflight worker`: one worker in this process. Owns the start order (ports free, executor, then
sockets); what an executor does is its own affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from inflight.cli.options import (
    PORT,
    Choice,
    Finite,
    NativeDefault,
    model_options,
    named_options,
    native_options,
    together,
)
from inflight.cli.otel import TracedCommand
from inflight.executors import HIDDEN, NAMES

if TYPE_CHECKING:
    from inflight._native import SimulatedOptions, Tokenizer
    from inflight.executors.base import Executor
    from inflight.launch.model import Model

#: Option -> the executors that have it, its type and its help.
EXECUTOR_OPTIONS: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "step_us": (("simulated", "scripted"), Finite(min=0), "Microseconds of every iteration"),
    "step_us_per_sequence": (("simulated",), Finite(min=0), "Microseconds per sequence in an iteration"),
    "prefill_us_per_token": (("simulated",), Finite(min=0), "Microseconds per prompt token"),
    "answer": (
        ("simulated",),
        click.Path(exists=True, dir_okay=False, path_type=Path),
        "File of the text that every answer repeats",
    ),
    "num_blocks": (("simulated",), click.IntRange(min=1), "KV cache capacity in blocks"),
    "enable_kv_cache_reuse": (
        ("simulated",),
        bool,
        "Keep blocks after their request, for prompts that begin alike",
    ),
    "tokens_per_block": (("simulated", "reference"), click.IntRange(min=1), "Tokens in a KV cache block"),
    "max_batch_size": (("simulated", "reference"), click.IntRange(min=1), "Sequences that run at once"),
    "max_seq_len": (
        ("simulated", "reference"),
        click.IntRange(min=1),
        "Prompt plus generated tokens of a sequence",
    ),
    "max_num_tokens": (
        ("simulated", "reference"),
        click.IntRange(min=1),
        "Tokens in one iteration, prompts included",
    ),
}

#: What a KServe client sees of the models.
MODELS = {
    "core_model_name": (str, "KServe name of the model that takes token ids"),
    "exclude_input_in_output": (
        bool,
        "Whether KServe answers leave out the prompt by default; a request may choose",
    ),
    "fill_outputs": (
        bool,
        "Whether answers contain log probabilities and logits that were not asked for, as zeros, like those"
        " of Triton's models up to 0.11",
    ),
    "wrap_token_ids": (
        bool,
        "Wrap prompt token ids beyond the vocabulary, modulo its size; NVIDIA's benchmark scripts"
        " send such ids",
    ),
    "accumulate_tokens": (
        bool,
        "Whether each streamed response of `tensorrt_llm_bls` repeats the text before it",
    ),
    "draft_worker": (
        str,
        "HOST:PORT of a worker whose model guesses tokens for requests with `num_draft_tokens`",
    ),
    "draft_model_name": (str, "KServe name of that worker's core model"),
    "adapter_dir": (
        click.Path(exists=True, file_okay=False),
        "Directory of LoRA adapters that clients may load while the worker runs; without it, they cannot"
        " load any",
    ),
}

BOUNDS = {
    "max_message_bytes": (click.IntRange(min=1), "Largest gRPC message, sent or received"),
    "max_queue_wait_s": (
        Finite(min=0),
        "Seconds that a request may wait for a place in the batch; others are refused at once",
    ),
    "max_queued_requests": (click.IntRange(min=0), "Live requests beyond what the executor runs at once"),
    "max_grpc_connections": (click.IntRange(min=1), "gRPC connections at once; more are closed"),
    "max_concurrent_streams": (click.IntRange(min=1), "gRPC calls at once on one connection"),
    "progress_timeout_s": (
        Finite(min=0),
        "Seconds without a token while requests wait before the executor counts as failed",
    ),
    "drain_timeout_s": (Finite(min=0), "Seconds that running requests get at shutdown"),
    "slow_reader_timeout_s": (
        Finite(min=0),
        "Seconds after which a stream whose client reads nothing is ended",
    ),
    "canary_timeout_s": (Finite(min=0), "Seconds for the one token that proves readiness"),
}


#: A worker's options but for its address; the same for `serve` and `worker`.
worker_options = together(
    model_options,
    click.option(
        "--add-model",
        multiple=True,
        metavar="NAME=MODEL",
        help="One more model in the same process, with its own executor and the same options."
        " OpenAI clients call it NAME; KServe clients call its models `NAME_tensorrt_llm`,"
        " `NAME_ensemble` and so on",
    ),
    click.option(
        "--executor",
        type=Choice(NAMES, hidden=HIDDEN),
        default="reference",
        show_default=True,
        help="What generates the tokens",
    ),
    native_options("WorkerOptions", MODELS),
    native_options("WorkerOptions", BOUNDS),
    native_options(
        "SimulatedOptions",
        {
            name: (kind, f"{text}  ({', '.join(executors)})")
            for name, (executors, kind, text) in EXECUTOR_OPTIONS.items()
        },
        note=" when simulated",
    ),
)


@click.command(cls=TracedCommand)
@worker_options
@native_options(
    "WorkerOptions",
    {
        "host": (str, "Address to listen on"),
        "grpc_port": (PORT, "KServe gRPC port; 0 picks a free port"),
        "metrics_port": (PORT, "Prometheus metrics port; 0 picks a free port"),
    },
)
@click.option(
    "--http-port",
    type=PORT,
    help="Port for KServe over HTTP; 0 picks a free port  [default: none]",
)
@click.option(
    "--tls-certificate",
    type=click.Path(),
    metavar="FILE",
    help="Certificate of the ports for gRPC and HTTP and its chain, as a PEM file:"
    " gateways then need `https://` before this worker's address. Read again when it changes",
)
@click.option(
    "--tls-key",
    type=click.Path(),
    metavar="FILE",
    help="The certificate's private key, as a PEM file without a passphrase",
)
@click.option(
    "--tls-client-ca",
    type=click.Path(),
    metavar="FILE",
    help="Client CA certificates, as a PEM file: only clients with a certificate that one of them signed may"
    " connect",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    show_envvar=True,
    help="OTLP collector to which traces of requests are exported over gRPC, such as `http://localhost:4317`"
    "  [default: none]",
)
@click.option(
    "--trace-sampling-ratio",
    cls=NativeDefault,
    owner="WorkerOptions",
    type=click.FloatRange(0, 1),
    envvar="OTEL_TRACES_SAMPLER_ARG",
    show_envvar=True,
    help="Share of the requests without a `traceparent` that are traced; with one, its sender decides",
)
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    model: str | None,
    served_model_name: str | None,
    device: str,
    executor: str,
    executor_options: tuple[str, ...],
    add_model: tuple[str, ...],
    **values: Any,
) -> None:
    """Run one worker: MODEL behind KServe gRPC.

    MODEL is the directory of a Hugging Face checkpoint, its name on the Hub (ORG/NAME or
    ORG/NAME@REVISION), or a directory written by `inflight build`;
    without it, the embedded model is served.
    A repository of Triton's llmapi model, or its model.yaml, is served by TensorRT-LLM.
    The simulated executor takes only the tokenizer from it.
    """
    from inflight import _native, executors
    from inflight.errors import UserMistake, raise_problems
    from inflight.executors import ranks
    from inflight.executors.progress import in_words, watched
    from inflight.launch.further import find_further, named
    from inflight.launch.model import executor_for, find_model
    from inflight.launch.ports import require_free
    from inflight.model.tokenizer import check_tokenizer

    if (values["tls_certificate"] is None) != (values["tls_key"] is None) or (
        values["tls_client_ca"] is not None and values["tls_certificate"] is None
    ):
        raise UserMistake(
            "TLS needs a certificate and its key", "pass both `--tls-certificate` and `--tls-key`"
        )
    is_chosen = ctx.get_parameter_source("executor") is not ParameterSource.DEFAULT
    executor = executor_for(model, executor, is_chosen=is_chosen)
    chosen = {name: values.pop(name) for name in EXECUTOR_OPTIONS}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    refuse_foreign(executor, chosen)
    chosen |= named_options(executor, executor_options)
    executors.require(executor)
    found = find_model(
        model, served_model_name, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    further = find_further(
        add_model, found.name_for_clients, weights=executor in executors.NEED_WEIGHTS, executor=executor
    )
    assets = found.assets()
    options = _native.WorkerOptions(served_model_name=found.name_for_clients, assets=assets, **values)
    loading = None
    if ranks.find().rank == 0:  # the others open none
        # Loading a model takes minutes, a port in use is known at once.
        require_free(options.host, options.grpc_port, "--grpc-port")
        require_free(options.host, options.metrics_port, "--metrics-port")
        if options.http_port is not None:
            require_free(options.host, options.http_port, "--http-port")
        if executor != "simulated":
            loading = _native.LoadingWorker(options, "reading the tokenizer")
    models = [found, *further]
    vocab_sizes = {}
    for model_of in models:
        with named(model_of, of=models):
            vocab_sizes[model_of] = model_of.vocab_size()
            # Assets that no gateway can use would only make it retry.
            problem = check_tokenizer(model_of.directory)
            raise_problems([problem] if problem else [])

    if executor == "simulated":
        path = chosen.pop("answer", None)

        def simulate(found: Model) -> SimulatedOptions:
            answer = None if path is None else _answer(path, _native.Tokenizer(found.assets()))
            return _native.SimulatedOptions(vocab_size=vocab_sizes[found], answer=answer, **chosen)

        others = [(other.name_for_clients, simulate(other), other.assets()) for other in further]
        ctx.exit(_native.serve_simulated_worker(options, simulate(found), others))

    engines: list[Executor] = []
    try:
        for model_of in models:
            stage = f"the executor `{executor}` loads {model_of.name_for_clients}"

            def tell(progress: str, stage: str = stage) -> None:
                if loading is not None:
                    loading.set_stage(f"{stage}: {progress}")

            if loading is not None:
                loading.set_stage(stage)
            with named(model_of, of=models), watched(in_words(tell)):
                engines.append(
                    executors.create(
                        executor,
                        executors.ExecutorOptions(
                            model_dir=model_of.directory,
                            device=device,
                            vocab_size=vocab_sizes[model_of],
                            values=model_of.executor_options(chosen),
                        ),
                    )
                )
    except BaseException:
        # What is loaded holds a GPU, and perhaps its own processes.
        for engine in engines:
            engine.shutdown()
        raise
    first, *rest = engines
    ctx.exit(
        _native.serve_worker(
            first,
            options,
            loading,
            [
                (other.name_for_clients, engine, other.assets())
                for other, engine in zip(further, rest, strict=True)
            ],
        )
    )


def _answer(path: Path, tokenizer: Tokenizer) -> list[int]:
    from inflight.errors import UserMistake

    try:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False)
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(
            f"the answer in `{path}` cannot be read: {error}", "pass a UTF-8 text file"
        ) from None
    if not ids:
        raise UserMistake(f"the answer in `{path}` is empty", "write the text that answers repeat into it")
    return ids


def refuse_foreign(executor: str, chosen: dict[str, Any]) -> None:
    """Raises `UserMistake` for an option that the executor would ignore."""
    from inflight.errors import UserMistake
    from inflight.executors import options_of

    for name, value in chosen.items():
        meant_for = EXECUTOR_OPTIONS[name][0]
        if executor not in meant_for:
            flag = "--" + name.replace("_", "-")
            own = f"pass `--executor-option {name}={value}`"
            raise UserMistake(
                f"`{flag}` has no effect with the executor `{executor}`",
                own if name in options_of(executor) else f"leave it out, or use `--executor {meant_for[0]}`",
            )
