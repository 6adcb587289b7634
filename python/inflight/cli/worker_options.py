"""The options of a worker and of the simulated executor on a command line. Rust declares them; none is
repeated here.

Owns which of them a command takes, and which executors have those of the simulated one too. They are read
from the extension once the command runs or shows its own help, so that other help stays quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from inflight.cli.declared import Option
from inflight.cli.options import Finite
from inflight.cli.otel import TracedCommand

if TYPE_CHECKING:
    from inflight._native import WorkerOption

Made = TypeVar("Made")

#: Not on a command line, and why.
NOT_TAKEN = {
    "served_model_name": "commands have their own, for the model that they find",
    "vocab_size": "it is the tokenizer's",
}

#: Where a worker listens, and what it traces.
ADDRESS = (
    "host",
    "grpc_port",
    "metrics_port",
    "http_port",
    "kv_events_port",
    "kv_events_replay_port",
    "kv_events_topic",
    "kv_events_form",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "otlp_endpoint",
    "trace_sampling_ratio",
)

#: Options of the simulated executor that others have as well.
SHARED = {
    "step_us": ("scripted",),
    "tokens_per_block": ("reference",),
    "max_batch_size": ("reference",),
    "max_seq_len": ("reference",),
    "max_num_tokens": ("reference",),
}


class NativeOption(Option):
    """An option that Rust declares: `None` unless given, because Rust has its default with its reason."""

    def __init__(self, declared: WorkerOption, help: str | None = None, note: str = "") -> None:
        """`note` is put behind the default in the help."""
        self.declared = declared
        self.note = note
        # A switch without a value is true, as the gateway's are.
        switch: dict[str, Any] = {"is_flag": False, "flag_value": "true"}
        super().__init__(
            ["--" + declared.name.replace("_", "-"), declared.name],
            type=_type_of(declared),
            metavar=declared.value_name,
            envvar=declared.environment,
            show_envvar=True,
            help=help or declared.help,
            **(switch if declared.kind == "switch" else {}),
        )

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Adds the default to what click shows in brackets."""
        extra = super().get_help_extra(ctx)
        value = self.declared.default
        if value is not None:
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            # As clap writes it.
            extra["default"] = (shown.lower() if isinstance(value, bool) else shown) + self.note
        return extra


class CommandWithWorker(TracedCommand):
    """A command that takes a worker's options, behind `--executor`, in addition to its own."""

    #: Of `ADDRESS`, those that it takes, with another help where it has one.
    address: Mapping[str, str | None] = dict.fromkeys(ADDRESS)

    @cached_property
    def worker_options(self) -> list[NativeOption]:
        """Those that it takes."""
        from inflight import _native

        declared = [one for one in _native.worker_options() if one.name not in NOT_TAKEN]
        return [
            *(NativeOption(one) for one in declared if one.name not in ADDRESS),
            *(
                NativeOption(one, f"{one.help}  ({', '.join(executors_with(one.name))})", " when simulated")
                for one in _native.simulated_options()
                if one.name not in NOT_TAKEN
            ),
            *(NativeOption(one, self.address[one.name]) for one in declared if one.name in self.address),
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own, with the worker's behind `--executor`."""
        own = super().get_params(ctx)
        place = 1 + next(place for place, one in enumerate(own) if one.name == "executor")
        return [*own[:place], *self.worker_options, *own[place:]]


def executors_with(name: str) -> tuple[str, ...]:
    """The executors that have an option of the simulated one."""
    return ("simulated", *SHARED.get(name, ()))


def made_of(make: Callable[..., Made], **values: Any) -> Made:
    """The options of `make` from the command line. Raises `click.UsageError` for what Rust refuses."""
    try:
        return make(**values)
    except ValueError as error:
        name, _, rest = str(error).removeprefix("`").partition("`")
        raise click.UsageError(f"`--{name.replace('_', '-')}`{rest}") from None


def simulated_names() -> list[str]:
    """The options of the simulated executor that commands take."""
    from inflight import _native

    return [one.name for one in _native.simulated_options() if one.name not in NOT_TAKEN]


def _type_of(declared: WorkerOption) -> Any:
    # The bounds of all are whole numbers, which the help shows without a point.
    low, high = (None if bound is None else int(bound) for bound in (declared.min, declared.max))
    types: dict[str, Any] = {
        "switch": click.BOOL,
        "integer": click.IntRange(low, high),
        "number": Finite(low, high),
        "text": click.Choice(declared.choices) if declared.choices else click.STRING,
        # Who reads it says what is wrong with it.
        "file": click.Path(),
        "directory": click.Path(exists=True, file_okay=False),
        "ids": click.Path(exists=True, dir_okay=False, path_type=Path),
    }
    return types[declared.kind]
