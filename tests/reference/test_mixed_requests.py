"""Everything that a request can ask for, mixed at random and cancelled at random: nothing is left behind.

A few hundred requests by default. The load that leaks would show in is run by

    INFLIGHT_MIXED_REQUESTS=10000 pytest -s tests/reference/test_mixed_requests.py

The sequence of requests and cancels is the same each time.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inflight
from inflight.executors.base import FinishReason, NamedTensor, Request
from inflight.executors.reference.core.adapters import Adapters, LoraRequest
from inflight.executors.reference.core.beams import BeamSearch
from inflight.executors.reference.core.blocks import BlockTable
from inflight.executors.reference.core.draft_model import DraftModel
from inflight.executors.reference.core.drafts import Drafts, LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.extras import numbers, read_extras
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.masks import Guide
from inflight.executors.reference.core.rows import Row
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy
from inflight.executors.reference.core.sequence import RequestState, SequenceState
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.lora import module_slots

from .support import engine, request

REQUESTS = int(os.environ.get("INFLIGHT_MIXED_REQUESTS", "240"))
[DEMO] = [config.parent for config in (Path(inflight.__file__).parent / "demo").rglob("config.json")]
CONFIG = load_config(DEMO)
END_IDS = [2, 4]
IN_FLIGHT, BATCH_SIZE = 40, 24
#: Adapters that clients have, and how many the cache has room for: fewer than are in use at times.
ADAPTERS, ROOM = 6, 3
RANK = 2
#: What a request may be refused for without being malformed: its adapter's turn has passed.
EXPECTED_REFUSALS = ("not found in cache", "`lora_cache_host_memory_bytes`")
#: What must not outlive the requests.
KEPT = (RequestState, SequenceState, SamplerState, BlockTable, BeamSearch, Drafts, Guide)
#: After so many requests all caches are full; what allocators may keep for later from then on.
FILLING_REQUESTS, SPARE_BYTES = 1000, 8 << 20
GUIDES = [("regex", "[a-z]{3,9}"), ("json_schema", json.dumps({"enum": ["yes", "no"]}))]


def tensor(name: str, datatype: str, values: Any) -> NamedTensor:
    types = {"UINT64": "<u8", "INT32": "<i4", "FP16": "<f2", "FP32": "<f4"}
    array = np.array(values, dtype=types[datatype])
    return NamedTensor(name, datatype, array.shape, array.tobytes())


def text(name: str, value: str) -> NamedTensor:
    data = value.encode()
    return NamedTensor(name, "BYTES", (1,), len(data).to_bytes(4, "little") + data)


def adapter(task_id: int) -> list[NamedTensor]:
    """Random matrices for the queries of all layers."""
    draw = np.random.default_rng(task_id)
    [slot] = module_slots(CONFIG)[1]
    width = RANK * (slot.inputs + slot.outputs)
    return [
        tensor("lora_weights", "FP16", draw.normal(0, 0.05, (CONFIG.num_layers, width))),
        tensor("lora_config", "INT32", [[1, layer, RANK] for layer in range(CONFIG.num_layers)]),
    ]


SENT = [adapter(task_id) for task_id in range(ADAPTERS)]
ADAPTER_BYTES = 2 * len(SENT[0][0].data)  # kept in float32


def tight(adapters: Adapters, **options: Any) -> Engine:
    """Fewer blocks than the requests in flight would like."""
    return engine(
        str(DEMO),
        num_blocks=150,
        tokens_per_block=8,
        max_seq_len=160,
        max_batch_size=BATCH_SIZE,
        max_num_tokens=128,
        adapters=adapters,
        **options,
    )


def with_draft_model(adapters: Adapters) -> Engine:
    draft = engine(str(DEMO), num_blocks=400, tokens_per_block=8, max_seq_len=160, max_batch_size=BATCH_SIZE)
    return tight(adapters, proposer=DraftModel(draft, 160, 3))


PAUSING = CapacitySchedulerPolicy.MAX_UTILIZATION
WINDOWS = {"max_attention_window_size": [32], "sink_token_length": 4}
ENGINES: dict[str, Callable[[Adapters], Engine]] = {
    "lookup and host blocks": lambda own: tight(own, lookup=LookupConfig(4, 3), num_host_blocks=60),
    "pausing, two iterations in flight": lambda own: tight(own, policy=PAUSING, depth=2),
    "sliding window": lambda own: tight(own, attention=WINDOWS),
    "draft model": with_draft_model,
}


@pytest.fixture(scope="module")
def guides() -> Any:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")
    from inflight.executors.reference.core.guides import Guides

    return Guides((DEMO / "tokenizer.json").read_text(encoding="utf-8"), CONFIG.vocab_size, END_IDS)


class Mix:
    """Draws requests. Features that exclude each other are never drawn together."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._beginnings = [self._tokens(40) for _ in range(4)]

    def request(self, client_id: int) -> tuple[Request, bool]:
        """A request, and whether it is malformed."""
        draw, chance = self.draw, self._chance
        prompt = [*draw.choice(self._beginnings)[: draw.randrange(41)], *self._tokens(draw.randrange(1, 30))]
        max_tokens = draw.choice([0, 1, 2, 5, 12, 24])
        sampling, output = self._sampling(), {}
        tensors = self._tensors()
        streaming = chance(0.7)
        kind = draw.choices(["plain", "beams", "drafts", "guide", "virtual", "several"], [8, 2, 2, 2, 2, 2])[
            0
        ]
        if kind == "beams":
            streaming = False
            sampling = {"beam_width": draw.randrange(2, 5), "length_penalty": draw.choice([0.0, 1.0])}
        elif kind == "drafts":
            tensors.append(tensor("draft_input_ids", "INT32", self._tokens(draw.randrange(1, 6))))
        elif kind == "guide":
            guide_type, guide = draw.choice(GUIDES)
            tensors += [text("guided_decoding_guide_type", guide_type), text("guided_decoding_guide", guide)]
        elif kind == "virtual":
            rows = draw.randrange(1, 6)
            place = draw.randrange(len(prompt))
            prompt[place : place + rows] = range(CONFIG.vocab_size, CONFIG.vocab_size + rows)
            table = np.random.default_rng(client_id).normal(0, 0.02, (rows, CONFIG.hidden_size))
            tensors += [
                tensor("prompt_embedding_table", "FP16", table),
                tensor("prompt_table_extra_ids", "UINT64", [1 + client_id % 3] * len(prompt)),
            ]
        elif kind == "several":
            sampling["num_return_sequences"] = draw.randrange(2, 4)
        if kind not in ("beams", "virtual") and chance(0.2):
            output = {"num_top_log_probs": 2, "return_log_probs": True, "num_prompt_log_probs": 1}
            output["return_generation_logits"] = chance(0.3)
        output["return_context_logits"] = chance(0.05)
        output["return_perf_metrics"] = chance(0.1)
        malformed = chance(0.03)
        if malformed:
            prompt[-1] = CONFIG.vocab_size + 100
        made = request(
            client_id,
            prompt,
            max_tokens,
            sampling=sampling,
            output=output,
            streaming=streaming,
            end_id=draw.choice([None, *END_IDS]),
            stop_words=[self._tokens(2)] if chance(0.2) else [],
            bad_words=[self._tokens(1)] if chance(0.2) else [],
            tensors=tensors,
        )
        return made, malformed

    def _sampling(self) -> dict[str, Any]:
        draw, chance = self.draw, self._chance
        if chance(0.4):
            return {"top_k": 1}
        sampling: dict[str, Any] = {"top_p": draw.choice([0.5, 0.9]), "seed": draw.randrange(1 << 32)}
        for name, values in (
            ("temperature", [0.5, 1.0, 1.5]),
            ("top_k", [5, 50]),
            ("min_p", [0.05]),
            ("repetition_penalty", [1.2]),
            ("frequency_penalty", [0.5]),
            ("no_repeat_ngram_size", [2, 3]),
            ("top_p_decay", [0.9]),
            ("min_tokens", [3]),
        ):
            if chance(0.2):
                sampling[name] = draw.choice(values)
        return sampling

    def _tensors(self) -> list[NamedTensor]:
        draw, chance = self.draw, self._chance
        tensors = []
        if chance(0.3):
            task_id = draw.randrange(ADAPTERS)
            tensors.append(tensor("lora_task_id", "UINT64", [task_id]))
            tensors += SENT[task_id] if chance(0.6) else []
        if chance(0.3):
            tensors.append(tensor("priority", "FP32", [draw.random()]))
        if chance(0.2):
            tensors.append(text("inflight_cache_salt", draw.choice("ab")))
        if chance(0.2):
            for name, value in (("starts", 0), ("ends", -1), ("priorities", draw.randrange(101))):
                tensors.append(tensor(f"retention_token_range_{name}", "INT32", [value]))
        return tensors

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(5, CONFIG.vocab_size) for _ in range(count)]

    def _chance(self, share: float) -> bool:
        return self.draw.random() < share


@dataclass
class Load:
    """The requests in flight over one engine, and what each of them is owed."""

    subject: Engine
    guides: Any
    mix: Mix
    #: Malformed ones, and those that a cancel was sent for.
    waiting: dict[int, Request] = field(default_factory=dict)
    malformed: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    #: By client id: sequences that have ended.
    ended: Counter[int] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    now_s: float = 0.0

    def run(self, first: int, count: int) -> None:
        """So many requests, the first with this client id, to the end of all."""
        ids = iter(range(first, first + count))
        exhausted = False
        while not exhausted or self.waiting:
            burst = min(self.mix.draw.randrange(9), IN_FLIGHT - len(self.waiting))
            arriving = list(itertools.islice(ids, burst))
            exhausted = exhausted or len(arriving) < burst
            self._iterate(arriving)

    def _iterate(self, arriving: list[int]) -> None:
        draw = self.mix.draw
        self.now_s += 0.01
        iteration = Iteration(now_s=self.now_s)
        requests, compiled = [], {}
        for client_id in arriving:
            made, malformed = self.mix.request(client_id)
            self.malformed |= {client_id} if malformed else set()
            asked = read_extras(made).guide
            if asked is not None:
                compiled[client_id] = self.guides.compile(asked)
            self.waiting[client_id] = made
            requests.append(made)
        self.subject.add(requests, iteration, compiled)
        alive = list(self.waiting)
        cancels = [one for one in alive if draw.random() < 0.02]
        if draw.random() < 0.002:
            cancels = alive
        self.cancelled.update(cancels)
        self.subject.cancel(cancels, iteration)
        if self.subject.has_work:
            self.subject.step(iteration)
        for row in iteration.rows:
            self._take(row)

    def _take(self, row: Row) -> None:
        client_id = row.client_id
        made = self.waiting[client_id]  # no row comes after the final one
        if row.finish_reason != FinishReason.NOT_FINISHED:
            self.ended[client_id] += 1
            assert row.finish_reason != FinishReason.CANCELLED or client_id in self.cancelled
        if not row.final:
            return
        if row.error is not None:
            expected = client_id in self.malformed or any(one in row.error[1] for one in EXPECTED_REFUSALS)
            assert expected, row.error
            self.counts["malformed" if client_id in self.malformed else "refused"] += 1
        elif row.finish_reason == FinishReason.CANCELLED:
            self.counts["cancelled"] += 1
        else:
            assert client_id not in self.malformed
            # A search for no tokens ends before its beams part.
            width = made.sampling_config.beam_width if made.max_tokens else 1
            owed = max(width, made.sampling_config.num_return_sequences)
            assert self.ended[client_id] == owed, (made.sampling_config, made.max_tokens)
            self.counts["answered"] += 1
        del self.waiting[client_id], self.ended[client_id]
        self.cancelled.discard(client_id)
        self.malformed.discard(client_id)


def alive(guides: Any) -> Counter[str]:
    """Objects of requests; compiled guides stay for those that bring them again."""
    gc.collect()
    counts = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KEPT)
    kept = sum(len(families) for families in guides._compiled.values())
    return counts - Counter({Guide.__name__: kept})


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def check_empty(subject: Engine, adapters: Adapters, guides: Any, before: Counter[str]) -> None:
    """No block, slot, adapter or object is still held for a request."""
    assert (subject.num_waiting, subject.num_active, subject.has_work) == (0, 0, False)
    assert (subject.pool.used, subject.pool.available) == (0, subject.pool.num_blocks)
    left = alive(guides) - before
    if "INFLIGHT_TEST_DEVICE" in os.environ:
        # A runner on PyTorch remembers whose blocks each slot holds, and so does the draft model's.
        assert left.pop("BlockTable", 0) <= 2 * BATCH_SIZE
    assert not left
    # An adapter that is in use would leave too little room for others.
    for first in range(0, ADAPTERS, ROOM):
        held = [
            adapters.acquire(LoraRequest(one, *map(numbers, SENT[one]))) for one in range(first, first + ROOM)
        ]
        for one in held:
            adapters.release(one)


@pytest.mark.timeout(120 + REQUESTS // 10)
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_left_of_mixed_requests(name: str, guides: Any) -> None:
    before = alive(guides)
    adapters = Adapters(CONFIG, 8, ROOM * ADAPTER_BYTES)
    subject = ENGINES[name](adapters)
    load = Load(subject, guides, Mix(seed=7))
    count = REQUESTS // len(ENGINES)
    load.run(10, count // 2)
    check_empty(subject, adapters, guides, before)
    objects, resident = sys.getallocatedblocks(), resident_bytes()
    load.run(10 + count, count - count // 2)
    check_empty(subject, adapters, guides, before)
    objects, resident = sys.getallocatedblocks() - objects, resident_bytes() - resident
    print(f"{name}: {dict(load.counts)}; second half: {objects:+} objects, {resident >> 10:+} KiB")
    assert sum(load.counts.values()) == count
    assert load.counts["answered"] > count // 2
    assert load.counts["cancelled"] > 0
    if count // 2 >= FILLING_REQUESTS:
        # What is cached has reached its limit: not one object more is kept of each request.
        assert objects < count // 4
        assert resident < SPARE_BYTES
