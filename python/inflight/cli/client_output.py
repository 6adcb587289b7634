"""How `inflight client` shows answers and health: for people as they come, or as one JSON object."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.terminal import echo, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inflight.client.generation import Answer, Generated
    from inflight.client.kserve import Array, Health, Request
    from inflight.client.text import Text


class Shown:
    """One request: its tokens while they come, then the rest."""

    def __init__(self, request: Request, *, as_json: bool, text: Text | None) -> None:
        self._request = request
        self._as_json = as_json
        self._text = text
        self._began = time.monotonic()
        self._first_s: float | None = None
        self._live = request.streaming and not as_json and _rows(request) == 1
        self._printed = False

    def arrived(self, news: Sequence[Generated]) -> None:
        """What one response brought."""
        if news and self._first_s is None:
            self._first_s = time.monotonic() - self._began
        if not self._live:
            return
        for new in news:
            if new.text is not None:
                click.echo(_lines(new.text), nl=False)
            else:
                click.echo(("," if self._printed else "") + ",".join(map(str, new.ids)), nl=False)
            self._printed = True

    def end(self, answer: Answer, save: Path | None) -> None:
        """The whole answer."""
        took_s = time.monotonic() - self._began
        if self._printed:
            click.echo()
        if save is not None:
            _save(answer, save)
        if self._as_json:
            click.echo(json.dumps(self._object(answer, took_s), allow_nan=False))
            return
        sequences = answer.ordered()
        for one in sequences:
            label = _label(one, sequences)
            if one.text is not None:
                if not self._live:
                    click.echo(label + _lines(one.text))
            elif not self._live:
                click.echo(label + ",".join(map(str, one.ids)))
            if one.text is None and self._text is not None:
                click.echo(f"{label}text: {_lines(self._text.decode(one.ids))}")
            if one.cum_log_prob is not None:
                click.echo(f"{label}cumulative log probability: {one.cum_log_prob:.6f}")
            if one.log_probs:
                click.echo(
                    f"{label}log probabilities: " + ",".join(f"{value:.4f}" for value in one.log_probs)
                )
        for name, array in answer.others.items():
            echo(f"{name}: {_brief(array)}")
        if not sequences:
            click.echo("no tokens", err=True)
        tokens = sum(len(one.ids) for one in sequences)
        counted = f"{tokens} tokens in " if tokens else ""
        first = "" if self._first_s is None else f"; the first after {self._first_s * 1e3:.0f} ms"
        echo(f"{counted}{took_s * 1e3:.0f} ms{first}", err=True)

    def _object(self, answer: Answer, took_s: float) -> dict[str, Any]:
        sequences = []
        for one in answer.ordered():
            row: dict[str, Any] = {
                "batch_index": one.batch_index,
                "sequence_index": one.sequence_index,
                "beam": one.beam,
            }
            if one.text is None:
                row["output_ids"] = one.ids
                if self._text is not None:
                    row["text"] = self._text.decode(one.ids)
            else:
                row["text"] = one.text
            if one.cum_log_prob is not None:
                row["cum_log_prob"] = _finite(one.cum_log_prob)
            if one.log_probs:
                row["log_probs"] = [_finite(value) for value in one.log_probs]
            sequences.append(row)
        return {
            "model": self._request.model,
            "request_id": self._request.request_id,
            "sequences": sequences,
            "outputs": {
                name: {"shape": list(array.shape), "datatype": str(array.dtype), **_few(array)}
                for name, array in answer.others.items()
            },
            "responses": answer.responses,
            "first_ms": None if self._first_s is None else round(self._first_s * 1e3, 3),
            "total_ms": round(took_s * 1e3, 3),
        }


def show_health(found: Health, model: str | None, ready: bool, *, as_json: bool) -> None:
    """A server's health, and one model's."""
    if as_json:
        click.echo(
            json.dumps(
                {
                    "live": found.live,
                    "ready": ready,
                    "name": found.name,
                    "version": found.version,
                    "problem": found.problem,
                    "extensions": list(found.extensions),
                    "models": [
                        {"name": name, "version": version, "state": state}
                        for name, version, state in found.models
                    ],
                }
            )
        )
        return
    echo(f"live: {_yes(found.live)}")
    echo(f"ready: {_yes(found.ready)}")
    if model is not None:
        echo(f"{model} ready: {_yes(ready)}")
    if found.name:
        echo(f"server: {found.name} {found.version}".rstrip())
    if found.problem:
        echo(found.problem, err=True)
    for name, version, state in found.models:
        if model in (None, name):
            echo(f"model: {name} {version} {state}".replace("  ", " "))


#: An output of so many values is shown; logits have more.
FEW = 16


def _few(array: Array) -> dict[str, Any]:
    if array.size > FEW:
        return {}
    return {"values": [_plain(one) for one in array.reshape(-1).tolist()]}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _brief(array: Array) -> str:
    if array.size <= FEW:
        return " ".join(str(_plain(one)) for one in array.reshape(-1).tolist())
    return f"{array.dtype} {list(array.shape)}, from {array.min():.4g} to {array.max():.4g}"


def _save(answer: Answer, directory: Path) -> None:
    import numpy as np

    directory.mkdir(parents=True, exist_ok=True)
    for name, array in answer.others.items():
        if array.dtype != np.object_:
            # Names are the server's; none may lead elsewhere.
            np.save(directory / f"{Path(name).name}.npy", array)


def _rows(request: Request) -> int:
    return max((len(array) for array in request.tensors.values()), default=1)


def _label(one: Generated, all_of_them: Sequence[Generated]) -> str:
    if len(all_of_them) == 1:
        return ""
    parts = [f"prompt {one.batch_index}"] if len({other.batch_index for other in all_of_them}) > 1 else []
    if len({other.sequence_index for other in all_of_them}) > 1:
        parts.append(f"sequence {one.sequence_index}")
    if len({other.beam for other in all_of_them}) > 1:
        parts.append(f"beam {one.beam}")
    return f"[{', '.join(parts)}] "


def _lines(text: str) -> str:
    """A model's text: its lines stay, other control characters are escaped."""
    return "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in text.split("\n"))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
