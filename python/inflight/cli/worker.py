"""`inflight worker`: one worker in this process. Owns the start order (ports free, executor, then
sockets); what an executor does is its own affair.
"""

from __future__ import annotations

from typing import Any

import click

from inflight.cli.options import PORT, model_options, native_options

SIMULATED = {
    "step_us": (click.FloatRange(min=0), "Simulated, scripted: microseconds of every iteration; 0: none."),
    "step_us_per_sequence": (click.FloatRange(min=0), "Simulated: microseconds an iteration per sequence."),
    "prefill_us_per_token": (click.FloatRange(min=0), "Simulated: microseconds per prompt token."),
    "max_batch_size": (click.IntRange(min=1), "Simulated: sequences that run at once."),
    "num_blocks": (click.IntRange(min=1), "Simulated: KV cache capacity in blocks."),
    "tokens_per_block": (click.IntRange(min=1), "Simulated: tokens in a KV cache block."),
    "max_seq_len": (click.IntRange(min=1), "Simulated: prompt plus generated tokens of a sequence."),
    "max_num_tokens": (click.IntRange(min=1), "Simulated: prompt tokens in one iteration."),
}

BOUNDS = {
    "max_message_bytes": (click.IntRange(min=1), "Largest gRPC message taken or sent."),
    "max_queued_requests": (click.IntRange(min=0), "Live requests beyond what the executor runs at once."),
    "max_concurrent_streams": (click.IntRange(min=1), "gRPC calls at once on one connection."),
    "progress_timeout_s": (
        click.FloatRange(min=0),
        "Seconds without a token while requests wait before the executor is taken for dead.",
    ),
    "drain_timeout_s": (click.FloatRange(min=0), "Seconds that running requests get at shutdown."),
    "slow_reader_timeout_s": (
        click.FloatRange(min=0),
        "Seconds after which a stream whose client reads nothing is ended.",
    ),
    "canary_timeout_s": (click.FloatRange(min=0), "Seconds for the one token that proves readiness."),
}


@click.command()
@model_options
@click.option(
    "--executor",
    type=click.Choice(["reference", "simulated", "tensorrt_llm", "scripted"]),
    default="reference",
    show_default=True,
    metavar="[reference|simulated|tensorrt_llm]",
    help="What generates the tokens.",
)
@native_options(
    "WorkerOptions",
    {
        "host": (str, "Address to listen on."),
        "grpc_port": (PORT, "KServe gRPC port; 0: any free one."),
        "metrics_port": (PORT, "Prometheus metrics port; 0: any free one."),
    },
)
@native_options("WorkerOptions", BOUNDS)
@native_options("SimulatedOptions", SIMULATED)
@click.pass_context
def worker(
    ctx: click.Context,
    /,
    model: str | None,
    served_model_name: str | None,
    device: str,
    executor: str,
    **values: Any,
) -> None:
    """Run one worker: MODEL behind KServe gRPC.

    MODEL is a Hugging Face checkpoint directory; without it, the embedded model is served.
    The simulated executor takes only the tokenizer from it.
    """
    from inflight import _native, executors
    from inflight.launch.model import find_model
    from inflight.launch.ports import require_free

    simulated = {name: values.pop(name) for name in SIMULATED}
    executors.require(executor)
    found = find_model(model, served_model_name, weights=executor in executors.NEED_WEIGHTS)
    options = _native.WorkerOptions(served_model_name=found.served_name, assets=found.assets(), **values)
    # Loading a model takes minutes, a port in use is known at once.
    require_free(options.host, options.grpc_port, "--grpc-port")
    require_free(options.host, options.metrics_port, "--metrics-port")

    if executor == "simulated":
        vocab_size = found.vocab_size()
        timing = _native.SimulatedOptions(vocab_size=vocab_size, **simulated)
        ctx.exit(_native.serve_simulated_worker(options, timing))
    engine = executors.create(
        executor,
        executors.ExecutorOptions(
            model_dir=found.directory,
            device=device,
            vocab_size=found.vocab_size(),
            step_us=simulated["step_us"] or 0.0,
        ),
    )
    ctx.exit(_native.serve_worker(engine, options))
