"""The kernels add what LoRA adapters add in plain operations, for all adapters of an iteration at once.

On a GPU in all types; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from inflight.executors.reference.core.adapters import Adapters
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.lora import Adapter, Delta, Part, Slot
from reference.support import FIXTURES, AllTold, engine, run, torch_engine
from reference.test_lora import asked, matrices, same, sent

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs some of it", allow_module_level=True)

from inflight.executors.reference.pytorch import kernels  # noqa: E402
from inflight.executors.reference.pytorch.adapter_tables import AdapterTables, grouped  # noqa: E402
from inflight.executors.reference.pytorch.adapters import DeviceAdapters  # noqa: E402

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


def test_rows_are_sorted_by_adapter_and_cut_into_tiles() -> None:
    spans = np.array([[0, 1], [1, 1], [2, 1], [8, 40]])
    flat = grouped(np.array([3, -1, 0, 3]), spans, 16, 64, 4 + 3 * 8)
    tiles = flat[4 : 4 + 3 * flat[0]].reshape(-1, 3)
    assert tiles.tolist() == [[0, 0, 1], [3, 1, 16], [3, 17, 16], [3, 33, 9]]
    assert flat[28 : 28 + 42].tolist() == [2, 0, *range(8, 48)]


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_the_engine_answers_as_on_numpy_while_adapters_come_and_go() -> None:
    """On a GPU from graphs: the first iteration of a kind is launched by hand, later ones are replayed."""
    turns, places = (6, 6) if HAS_GPU else (2, 3)

    def answers(subject: Engine) -> AllTold:
        found: AllTold = {}
        for turn in range(turns):
            requests = []
            for place in range(places):
                # One in five has no adapter.
                task_id = (turn + place) % 5
                prompt = [3 + (11 * turn + 7 * place + one) % 60 for one in range(4 + 3 * place)]
                tensors = sent(100 + task_id, matrices("llama", task_id)) if task_id else None
                requests.append(asked(10 * turn + place, prompt, tensors))
            found |= run(subject, requests)
        return found

    def adapters() -> Adapters:
        return Adapters(load_config(FIXTURES / "llama"), 8, 1 << 24)

    exact = answers(engine("llama", adapters=adapters(), max_batch_size=8))
    # Room for three adapters at a time.
    subject = torch_engine(
        "llama", DEVICE.type, kernels=kernels, adapters=adapters(), max_batch_size=3, max_num_tokens=64
    )
    ours = answers(subject)
    same(ours, exact)
