"""A prompt at one worker of TensorRT-LLM's double and what follows it at another, behind a gateway: both
runtimes, streamed and whole. The answer is that of one worker.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.double.package import write_double
from support.metrics import total
from support.processes import InflightProcess
from support.servers import Start, openai_client, start_gateway, wait_ready
from trtllm.test_worker import checkpoint_with_tokenizer, engine_with_tokenizer, run_worker

#: Each with its own options.
RUNTIMES = {
    "engine": ("cache_transceiver_backend=UCX",),
    "pytorch": ("cache_transceiver_backend=UCX", "disable_overlap_scheduler=true"),
}


class Fleet:
    """A worker of each kind and a gateway that splits all it can."""

    def __init__(self, start: Start, runtime: str, directory: Path) -> None:
        make = engine_with_tokenizer if runtime == "engine" else checkpoint_with_tokenizer
        self.logs: dict[str, Path] = {}
        self.workers: dict[str, InflightProcess] = {}
        for phases in ("context", "generation"):
            environment = write_double(directory / phases)
            options = RUNTIMES[runtime]
            model = make(directory / f"{phases}-model")
            self.logs[phases] = Path(environment["DOUBLE_REQUESTS"])
            self.workers[phases] = run_worker(
                start, model, environment, *options, worker=("--served-model-name=m", f"--phases={phases}")
            )
        gateway = start_gateway(start, list(self.workers.values()), "--disaggregate=always")
        self.address = wait_ready(gateway)
        gateway.wait_until("both are up", lambda: total(self.address, "inflight_gateway_worker_up") == 2)
        self.client = openai_client(self.address)

    def asked(self, phases: str) -> list[dict[str, Any]]:
        """What the runtime was asked for."""
        return [json.loads(line) for line in self.logs[phases].read_text().splitlines()]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_prompt_is_handed_over(start: Start, tmp_path: Path, runtime: str) -> None:
    fleet = Fleet(start, runtime, tmp_path)
    arguments: dict[str, Any] = {"model": "m", "prompt": [40, 41], "max_tokens": 6, "temperature": 0}
    expected = fleet.client.completions.create(**arguments).choices[0].text
    assert len(expected) == 6, "whole, as nothing of it is known before its end"
    before = {phases: len(fleet.asked(phases)) for phases in fleet.logs}
    with fleet.client.completions.create(**arguments, stream=True) as stream:
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert text == expected
    added = {phases: fleet.asked(phases)[before[phases] :] for phases in fleet.logs}
    kinds = {phases: json.dumps(one[-1]).lower() for phases, one in added.items() if one}
    assert "context_only" in kinds["context"]
    assert "generation_only" in kinds["generation"]
    assert total(fleet.address, "inflight_gateway_hand_over_seconds_count") == 1
    assert total(fleet.address, "inflight_gateway_resumes_total") == 0
