"""Reads a topology file. Owns YAML and the paths in messages; what the keys mean is `topology`'s."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.launch.topology import (
    Deploy,
    Drain,
    Gateways,
    Model,
    Mpi,
    Pairs,
    Reload,
    Restart,
    Topology,
    check,
)
from inflight.options import declared

#: Sections that hold one set of keys each, next to the list `models`.
SECTIONS: Mapping[str, type] = {
    "gateways": Gateways,
    "restart": Restart,
    "reload": Reload,
    "drain": Drain,
    "mpi": Mpi,
    "deploy": Deploy,
}
#: Options that are keys of the topology, and how it names them.
WORKER_KEYS = {
    "model": "path",
    "served_model_name": "name",
    "executor": "executor",
    "executor_options": "executor_options",
    "device": "device",
    "host": None,
    "grpc_port": "grpc_port",
    "metrics_port": "metrics_port",
    "kv_events_port": "kv_events_port",
    "kv_events_replay_port": "kv_events_replay_port",
    "kv_events_topic": "kv_events_topic",
    "drain_timeout_s": "drain.worker_s",
}
GATEWAY_KEYS = {
    "worker": None,
    "worker_file": None,
    "worker_dns": None,
    "endpoint": None,
    "endpoint_file": None,
    "endpoint_dns": None,
    "worker_service": None,
    "worker_etcd": None,
    "config": None,
    "host": "gateways.host",
    "port": "gateways.port",
    "api_key": "gateways.api_key_file",
    "api_key_file": "gateways.api_key_file",
    "shutdown_grace_s": "drain.gateway_s",
}
#: More is a mistake, and YAML's aliases can make a small file huge.
LARGEST_FILE_BYTES = 1 << 20


def read(path: Path) -> Topology:
    """The topology in the file, checked; paths of models become absolute. Raises `UserMistake`."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise UserMistake(f"`{path}` is larger than 1 MiB", "pass a topology file")
    try:
        return parse(content.decode("utf-8"), path.absolute().parent)
    except UnicodeDecodeError as error:
        raise UserMistake(f"`{path}` is not UTF-8 text", "pass a topology file") from error
    except UserMistake as error:
        raise UserMistake(f"{path}: {error.what}", error.remedy) from error


def parse(text: str, base: Path) -> Topology:
    """The topology in `text`; `base` is where relative paths start. Raises `UserMistake`."""
    document = _load(text)
    if not isinstance(document, dict):
        raise UserMistake(
            "a topology must be a mapping with the key `models`", "see `docs/reference/topology.md`"
        )
    _refuse_unknown(document, ("models", *SECTIONS), "")
    models = document.get("models")
    if not isinstance(models, list):
        raise UserMistake("`models` must be a list", "add one model; `- {}` serves the embedded model")
    topology = Topology(
        models=tuple(
            _absolute(_section(Model, values, f"models[{index}]"), "path", base)
            for index, values in enumerate(models)
        ),
        **{
            name: _section(section, document[name], name)
            for name, section in SECTIONS.items()
            if document.get(name) is not None
        },
    )
    topology = replace(
        topology,
        gateways=_absolute(topology.gateways, "api_key_file", base),
        mpi=_absolute(topology.mpi, "hostfile", base),
    )
    check(topology)
    return topology


def check_names(topology: Topology, worker: Iterable[str], gateway: Iterable[str]) -> None:
    """Raises `UserMistake` for a key of `worker_options` that `inflight worker` does not have, or of
    `gateways.options` that `inflight gateway` does not have, or that is a separate key.
    """
    for index, model in enumerate(topology.models):
        _check_options(model.worker_options, worker, WORKER_KEYS, f"models[{index}].worker_options")
    _check_options(topology.gateways.options, gateway, GATEWAY_KEYS, "gateways.options")


def _check_options(pairs: Pairs, known: Iterable[str], keys: Mapping[str, str | None], where: str) -> None:
    given = {name.replace("-", "_"): value for name, value in pairs}
    for name in given:
        if name in keys:
            key = keys[name]
            raise UserMistake(
                f"`{where}.{name}` is set by the topology itself",
                "leave it out" if key is None else f"use the key `{key}`",
            )
    _refuse_unknown(given, [name for name in known if name not in keys], where)


def _section(section: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UserMistake(f"`{where}` must be a mapping of keys", "indent its keys below it")
    known = declared(section)
    _refuse_unknown(values, known, where)
    parsed = {}
    for key, value in values.items():
        if value is None:
            continue
        one = replace(known[key], name=f"{where}.{key}")
        if isinstance(value, (dict, list)) and one.kind in ("text", "path", "choice") and key != "gpus":
            raise UserMistake(f"`{where}.{key}` must be one value, not a list or mapping", "pass one value")
        parsed[key] = one.parse(value)
        if isinstance(parsed[key], dict):
            parsed[key] = tuple(parsed[key].items())
        elif isinstance(parsed[key], list):
            parsed[key] = tuple(parsed[key])
    return section(**parsed)


def _absolute(values: Any, key: str, base: Path) -> Any:
    given = getattr(values, key)
    return values if given is None else replace(values, **{key: str(base / Path(given).expanduser())})


def _refuse_unknown(values: Mapping[Any, Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in values:
        if key in known:
            continue
        path = f"{where}.{key}" if where else str(key)
        near = difflib.get_close_matches(str(key).replace("-", "_"), known, n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else f"use one of {', '.join(known)}"
        raise UserMistake(f"unknown key `{path}`", hint)


def _load(text: str) -> Any:
    # Imported as data: it has no types, and nothing else here needs it.
    yaml: Any = import_module("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a key that appears twice, of which YAML keeps the last one without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise UserMistake(
                        f"line {key.start_mark.line + 1}: the key `{key.value}` appears twice",
                        "keep one of them",
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise UserMistake(
            f"{line}not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}",
            "correct the line; values with `:`, `{` or `#` need quotes",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserMistake("not valid YAML", "see `docs/reference/topology.md`") from error


def reference() -> str:
    """Every key as a Markdown table for each section; what `docs/reference/topology.md` shows."""
    parts = []
    for title, section in {"models[]": Model, **SECTIONS}.items():
        rows = [
            f"## `{title}`\n",
            f"{section.__doc__}\n",
            "| key | type | default | meaning |",
            "|---|---|---|---|",
        ]
        for one in declared(section).values():
            kind = " \\| ".join(f"`{choice}`" for choice in one.choices) or _KINDS.get(one.name, one.kind)
            default = "" if one.default in (None, ()) else f"`{_shown(one.default)}`"
            rows.append(f"| `{one.name}` | {kind} | {default} | {one.meaning} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _shown(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


_KINDS = {"gpus": "GPUs", "port": "port"} | dict.fromkeys(
    ("grpc_port", "metrics_port", "kv_events_port", "kv_events_replay_port"), "port"
)
