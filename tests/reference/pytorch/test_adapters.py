"""The kernels add what LoRA adapters add in plain operations, for all adapters of an iteration at once.

On a GPU in all types; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import NamedTensor
from inflight.executors.reference.core.adapters import Adapters
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.lora import Adapter, Delta, Part, Slot
from reference.support import FIXTURES, AllTold, engine, run, torch_engine
from reference.test_lora import asked, matrices, same, save_peft, sent, task

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs some of it", allow_module_level=True)

from inflight.executors.reference.pytorch import kernels, operations  # noqa: E402
from inflight.executors.reference.pytorch.adapter_tables import AdapterTables, grouped  # noqa: E402
from inflight.executors.reference.pytorch.adapters import DeviceAdapters, adapt_expert  # noqa: E402

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
#: Relative to the same numbers in float64: what adapters add is rounded once more where it is added.
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
TYPES = list(TOLERANCES) if HAS_GPU else ["float32"]

HIDDEN, KEYS, INNER = (1024, 256, 2880) if HAS_GPU else (80, 48, 112)
QKV = HIDDEN + 2 * KEYS
Q, K, V = (
    Slot("qkv", start, stop, HIDDEN)
    for start, stop in ((0, HIDDEN), (HIDDEN, HIDDEN + KEYS), (HIDDEN + KEYS, QKV))
)
#: TensorRT-LLM's one module for all three, which an adapter may have next to them.
ALL = Slot("qkv", 0, QKV, HIDDEN)
GATE, UP = Slot("gate_up", 0, INNER, HIDDEN), Slot("gate_up", INNER, 2 * INNER, HIDDEN)
DOWN = Slot("down", 0, HIDDEN, INNER)
WIDTHS: dict[Part, int] = {"qkv": QKV, "gate_up": 2 * INNER, "down": HIDDEN}


def adapter(task_id: int, rank: int, slots: tuple[Slot, ...], layers: int = 2) -> Adapter:
    draw = np.random.default_rng(task_id)

    def drawn(*shape: int) -> Any:
        return (draw.normal(size=shape) / np.sqrt(shape[1])).astype(np.float32)

    deltas = [
        (layer, Delta(slot, drawn(rank, slot.inputs), drawn(slot.outputs, rank)))
        for layer in range(layers)
        for slot in slots
    ]
    return Adapter.of(task_id, layers, deltas)


ADAPTERS = [
    adapter(1, 16, (Q, K, V, GATE, UP, DOWN)),
    adapter(2, 3, (Q, V)),
    adapter(3, 40, (ALL, K, UP)),
    adapter(4, 130, (DOWN, GATE)),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 5, 40, 700] if HAS_GPU else [1, 40, 520])
def test_the_kernels_add_what_plain_operations_add(rows: int, dtype: str) -> None:
    kind = getattr(torch, dtype)

    def upload(array: Any) -> Any:
        return torch.from_numpy(array).to(DEVICE)

    tables = AdapterTables(DEVICE, kind, 1 << 30, 8, 2, 1024, WIDTHS, upload)
    exact = DeviceAdapters(torch.device("cpu"), torch.float64, 1 << 30)
    draw = np.random.default_rng(rows)
    # Of one row each, but the last, which is a prompt's; the second sequence has no adapter.
    singles = min(rows - 1, 30)
    spans = [(None if place == 1 else ADAPTERS[int(draw.integers(4))], place, 1) for place in range(singles)]
    spans.append((ADAPTERS[2], singles, rows - singles))
    for layer, slots in ((0, (ALL,)), (1, (GATE, UP)), (1, (DOWN,))):
        part = slots[0].part
        x = torch.randn(rows, slots[0].inputs, device=DEVICE).to(kind)
        out = torch.randn(rows, slots[-1].stop, device=DEVICE).to(kind)
        wanted, _ = exact.rows(spans).product(layer, part, x.double().cpu(), out.double().cpu().clone)
        ours, more = tables.rows(spans, rows, lasting=rows < 100).product(layer, part, x, out.clone)
        if more is not None:
            ours = ours.double() + more.double()
        error = (ours.double().cpu() - wanted).norm() / wanted.norm()
        assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 30, 300] if HAS_GPU else [30])
def test_the_kernels_change_experts_as_plain_operations_do(rows: int, dtype: str) -> None:
    kind, experts, chosen = getattr(torch, dtype), 6, 2
    hidden, inner = (256, 192) if HAS_GPU else (32, 48)

    def upload(array: Any) -> Any:
        return torch.from_numpy(array).to(DEVICE)

    def of_experts(task_id: int, rank: int, changed: range, both: bool) -> Adapter:
        modules = [Slot("gate_up", 0, 2 * inner, hidden)] if both else []
        modules += [Slot("gate_up", inner, 2 * inner, hidden), Slot("down", 0, hidden, inner)]
        return adapter(task_id, rank, tuple(replace(one, expert=of) for of in changed for one in modules))

    adapters = [
        of_experts(1, 8, range(experts), True),
        of_experts(2, 30, range(2, 5), False),
        adapter(3, 16, (Slot("router", 0, experts, hidden),)),
        None,
    ]
    widths: dict[Part, int] = {"gate_up": 2 * inner, "down": hidden, "router": experts}
    tables = AdapterTables(DEVICE, kind, 1 << 30, 8, 2, 1024, widths, upload, experts)
    exact = DeviceAdapters(torch.device("cpu"), torch.float64, 1 << 30)
    draw = np.random.default_rng(rows)
    spans = [(adapters[int(draw.integers(4))], place, 1) for place in range(rows - 1)]
    spans.append((adapters[0], rows - 1, 1))
    x, scores = torch.randn(rows, hidden, device=DEVICE).to(kind), torch.randn(rows, experts, device=DEVICE)
    gate_up = torch.randn(experts, 2 * inner, hidden, device=DEVICE).mul(0.1).to(kind)
    down = torch.randn(experts, hidden, inner, device=DEVICE).mul(0.1).to(kind)
    wide, best, wide_up, wide_down = (one.double().cpu() for one in (x, scores, gate_up, down))
    wanted = operations.experts(wide, best, wide_up, wide_down, chosen, "silu")
    for group in exact.rows(spans).groups:
        wanted[group.rows] = operations.experts(
            wide[group.rows],
            best[group.rows],
            wide_up,
            wide_down,
            chosen,
            "silu",
            adapt=partial(adapt_expert, group.adapter.layers[1]),
        )
    adds = tables.rows(spans, rows, lasting=rows == 30).experts(1)
    ours = kernels.experts(x, scores.to(kind), gate_up, down, chosen, "silu", True, adds)
    close = torch.isclose(ours.double().cpu(), wanted, atol=1.0).all(1)
    # In half precision a score may choose another expert; such rows are few.
    assert close.float().mean() > 0.95
    error = (ours.double().cpu() - wanted)[close].norm() / wanted[close].norm()
    assert error < 3 * TOLERANCES[dtype]


def test_rows_are_sorted_by_adapter_and_cut_into_tiles() -> None:
    spans = np.array([[0, 1], [1, 1], [2, 1], [8, 40]])
    flat = grouped(np.array([3, -1, 0, 3]), spans, 16, 64, 4 + 3 * 8)
    tiles = flat[4 : 4 + 3 * flat[0]].reshape(-1, 3)
    assert tiles.tolist() == [[0, 0, 1], [3, 1, 16], [3, 17, 16], [3, 33, 9]]
    assert flat[28 : 28 + 42].tolist() == [2, 0, *range(8, 48)]


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["llama", "mixtral"] if HAS_GPU else ["llama"])
def test_the_engine_answers_as_on_numpy_while_adapters_come_and_go(name: str, tmp_path: Path) -> None:
    """On a GPU from graphs: the first iteration of a kind is launched by hand, later ones are replayed.
    A mixture's adapters are files, since a client sends those of all its experts at once."""
    turns, places = (6, 6) if HAS_GPU else (2, 3)
    drawn = {task_id: matrices(name, task_id) for task_id in range(1, 5)}
    for task_id, adapter_of in drawn.items() if name == "mixtral" else ():
        save_peft(tmp_path / str(100 + task_id), adapter_of)

    def told(task_id: int) -> list[NamedTensor]:
        return [task(100 + task_id)] if name == "mixtral" else sent(100 + task_id, drawn[task_id])

    def answers(subject: Engine) -> AllTold:
        found: AllTold = {}
        for turn in range(turns):
            requests = []
            for place in range(places):
                # One in five has no adapter.
                task_id = (turn + place) % 5
                prompt = [3 + (11 * turn + 7 * place + one) % 60 for one in range(4 + 3 * place)]
                tensors = told(task_id) if task_id else None
                requests.append(asked(10 * turn + place, prompt, tensors))
            found |= run(subject, requests)
        return found

    def adapters() -> Adapters:
        return Adapters(load_config(FIXTURES / name), 8, 1 << 24, tmp_path)

    exact = answers(engine(name, adapters=adapters(), max_batch_size=8))
    # Room for three adapters at a time.
    subject = torch_engine(
        name, DEVICE.type, kernels=kernels, adapters=adapters(), max_batch_size=3, max_num_tokens=64
    )
    ours = answers(subject)
    same(ours, exact)
