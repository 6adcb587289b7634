"""Runs agent frameworks against `inflight serve`, and prints what works as a table.

    make frameworks                          # all of them; the first time packages are downloaded
    make frameworks FRAMEWORKS="langchain"   # one
    make frameworks FRAMEWORKS="--url http://localhost:8000 --model NAME"

Ends with 1 if something does not work that is not known to be beyond the embedded model. Of
a server that was given with `--url`, nothing is known.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from frameworks.environments import CLIENTS, FRAMEWORKS, Framework, prepare, versions
from support.processes import InflightProcess
from support.servers import MODEL_NAME, wait_ready

CASES = ("text", "stream", "tools", "tools streamed", "structured", "structured streamed")
#: Rows that send no schema that would be followed, only words: the embedded model answers in words.
BEYOND_THE_MODEL = re.compile(r"instructor, (JSON|MD_JSON|ANTHROPIC_JSON)")
#: LlamaIndex streams a call that it does not demand; the embedded model answers with one of its own.
NOT_DEMANDED = ("LlamaIndex, OpenAILikeResponses", "structured streamed")
LIMIT_S = 300
Cell = dict[str, str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="frameworks")
    names = [framework.name for framework in FRAMEWORKS]
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(names))
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--model", default=MODEL_NAME)
    arguments = parser.parse_args()
    unknown = set(arguments.frameworks) - set(names)
    if unknown:
        parser.error(f"there is no `{unknown.pop()}`; known are {', '.join(names)}")
    chosen = [one for one in FRAMEWORKS if one.name in (arguments.frameworks or names)]
    commands = [(framework, prepare(framework)) for framework in chosen]
    cells: list[Cell] = []
    with serving(arguments.url) as url:
        for framework, command in commands:
            cells += ask(framework, command, url, arguments.model)
    is_embedded = arguments.url is None
    print(table(cells, is_embedded))
    for framework in chosen:
        print(f"- {versions(framework)}")
    failed = [cell for cell in cells if cell["state"] == "no"]
    for cell in failed:
        print(f"\n{cell['row']}, {cell['case']}: {cell['reason'].splitlines()[0][:300]}")
    return int(any(not (is_embedded and is_known(cell)) for cell in failed))


def is_known(cell: Cell) -> bool:
    """Whether what failed is known to be beyond the embedded model."""
    return bool(BEYOND_THE_MODEL.fullmatch(cell["row"])) or (cell["row"], cell["case"]) == NOT_DEMANDED


@contextmanager
def serving(url: str | None) -> Iterator[str]:
    """The address of the server, which lives as long as it is needed."""
    if url is not None:
        yield url.rstrip("/")
        return
    process = InflightProcess("serve", "--port=0", "--grpc-port=0", "--metrics-port=0")
    try:
        yield f"http://{wait_ready(process)}"
    finally:
        process.stop()


def ask(framework: Framework, command: list[str], url: str, model: str) -> list[Cell]:
    """The cells of a framework's rows."""
    print(f"  {framework.name}", file=sys.stderr, flush=True)
    environment = {
        **os.environ,
        "INFLIGHT_URL": url,
        "INFLIGHT_MODEL": model,
        "PYTHONPATH": str(CLIENTS),
    }
    asked = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    cells: list[Cell] = [json.loads(line) for line in asked.stdout.splitlines() if line.startswith('{"row"')]
    if asked.returncode or not cells:
        raise SystemExit(f"{framework.name} did not run:\n{asked.stderr[-2000:]}")
    return cells


def table(cells: list[Cell], is_embedded: bool) -> str:
    """The cells in Markdown: a line for each row. `is_embedded`: the embedded model answered."""
    lines = [f"| framework | {' | '.join(CASES)} |", f"|---|{'---|' * len(CASES)}"]
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(cell["row"], {})[cell["case"]] = shown(cell, is_embedded)
    lines += [f"| {row} | {' | '.join(found[case] for case in CASES)} |" for row, found in rows.items()]
    return "\n".join(lines)


def shown(cell: Cell, is_embedded: bool) -> str:
    """A cell's words."""
    if cell["state"] == "no":
        return "no: the model" if is_embedded and is_known(cell) else "**no**"
    return {"yes": "yes", "absent": "–"}[cell["state"]]


if __name__ == "__main__":
    sys.exit(main())
