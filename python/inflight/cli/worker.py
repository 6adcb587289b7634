"""`inflight worker`: one worker in this process. Owns the start order (ports free, executor, then
sockets); what an executor does is its own affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from inflight.cli.declared import option
from inflight.cli.options import Choice, model_options, named_options, together
from inflight.cli.worker_options import CommandWithWorker, executors_with, made_of, simulated_names
from inflight.executors import HIDDEN, NAMES

if TYPE_CHECKING:
    from inflight._native import SimulatedOptions, Tokenizer
    from inflight.executors.base import Executor
    from inflight.launch.model import Model

#: What it serves and with what; the same for `serve` and `worker`.
with_executor = together(
    model_options,
    option(
        "--add-model",
        multiple=True,
        metavar="NAME=MODEL",
        help="One more model in the same process, with its own executor and the same options."
        " OpenAI clients call it NAME; KServe clients call its models `NAME_tensorrt_llm`,"
        " `NAME_ensemble` and so on",
    ),
    option(
        "--executor",
        type=Choice(NAMES, hidden=HIDDEN),
        default="reference",
        show_default=True,
        help="What generates the tokens",
    ),
)


@click.command(cls=CommandWithWorker)
@with_executor
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
    refuse_unpublished(values["kv_events_port"], values["kv_events_replay_port"], add_model)
    is_chosen = ctx.get_parameter_source("executor") is not ParameterSource.DEFAULT
    executor = executor_for(model, executor, is_chosen=is_chosen)
    chosen = {name: values.pop(name) for name in simulated_names()}
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
    name = found.name_for_clients
    options = made_of(_native.WorkerOptions, served_model_name=name, assets=assets, **values)
    loading = None
    if ranks.find().rank == 0:  # the others open none
        # Loading a model takes minutes, a port in use is known at once.
        require_free(options.host, options.grpc_port, "--grpc-port")
        require_free(options.host, options.metrics_port, "--metrics-port")
        if options.http_port is not None:
            require_free(options.host, options.http_port, "--http-port")
        if options.kv_events_port is not None:
            require_free(options.host, options.kv_events_port, "--kv-events-port")
        if options.kv_events_replay_port is not None:
            require_free(options.host, options.kv_events_replay_port, "--kv-events-replay-port")
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
            size = vocab_sizes[found]
            return made_of(_native.SimulatedOptions, vocab_size=size, answer=answer, **chosen)

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


def refuse_unpublished(port: int | None, replay_port: int | None, add_model: tuple[str, ...]) -> None:
    """Raises `UserMistake` for events of the cache that nobody would hear."""
    from inflight.errors import UserMistake

    if replay_port is not None and port is None:
        raise UserMistake("`--kv-events-replay-port` needs `--kv-events-port`", "pass both")
    if port is not None and add_model:
        raise UserMistake(
            "`--kv-events-port` publishes the cache of one model, and `--add-model` adds others",
            "start a worker for each model",
        )


def refuse_foreign(executor: str, chosen: dict[str, Any]) -> None:
    """Raises `UserMistake` for an option that the executor would ignore."""
    from inflight.errors import UserMistake
    from inflight.executors import options_of

    for name, value in chosen.items():
        meant_for = executors_with(name)
        if executor not in meant_for:
            flag = "--" + name.replace("_", "-")
            own = f"pass `--executor-option {name}={value}`"
            raise UserMistake(
                f"`{flag}` has no effect with the executor `{executor}`",
                own if name in options_of(executor) else f"leave it out, or use `--executor {meant_for[0]}`",
            )
