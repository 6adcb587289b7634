"""Rows that have the beginning of their contexts in common read it together, and compute the same.

On a GPU in the types that models have; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs it", allow_module_level=True)

from inflight.executors.reference.core.engine import Engine  # noqa: E402
from inflight.executors.reference.core.iteration import Iteration  # noqa: E402
from inflight.executors.reference.pytorch import kernels, operations, prefix_kernels  # noqa: E402
from inflight.executors.reference.pytorch.common_prefixes import CommonPrefixes  # noqa: E402
from inflight.executors.reference.pytorch.operations import AttentionShape, Tables  # noqa: E402
from reference.support import AllTold, collect, request, run, torch_engine  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
TYPES = ["float32", "bfloat16"] if HAS_GPU else ["float32"]
TOLERANCES = {"float32": 3e-6, "bfloat16": 6e-3}
#: Heads, key heads, numbers of a head: shared and not, and a head that is not a power of two.
SHAPES = [(4, 2, 16), (3, 3, 24), (8, 1, 32), (6, 2, 16)]
SIZE = 4
#: Keys of a chunk in these tests.
CHUNK = 16
Tensor = Any


def tree(*branches: tuple[int, int, int]) -> list[list[int]]:
    """Tables of rows: each branch is (blocks in common, rows, blocks that each has alone), and those after
    the first begin with the blocks that the first has in common."""
    taken = iter(range(1 << 20))
    tables: list[list[int]] = []
    stem: list[int] = []
    for place, (common, rows, alone) in enumerate(branches):
        own = [*stem, *(next(taken) for _ in range(common))]
        tables += [[*own, *(next(taken) for _ in range(alone))] for _ in range(rows)]
        if place == 0:
            stem = own
    return tables


#: Tables of rows; of each, how many chunks are read together.
CASES: dict[str, tuple[list[list[int]], list[int]]] = {
    "nothing in common": (tree((0, 6, 9)), [0] * 6),
    "one prompt": (tree((12, 5, 3)), [3] * 5),
    "a part of a chunk": (tree((11, 5, 4)), [2] * 5),
    "more rows than a set": (tree((8, 70, 2)), [2] * 70),
    "fewer than pay": (tree((12, 3, 3), (0, 4, 3)), [3] * 3 + [3] * 4),
    "some rows": (tree((8, 4, 3)) + [[900 + place] * 11 for place in range(3)], [2] * 4 + [0] * 3),
    "a system prompt, then documents": (tree((8, 2, 1), (16, 6, 3), (12, 5, 1)), [2, 2, *[6] * 6, *[5] * 5]),
    "documents that begin inside a chunk": (
        tree((6, 2, 1), (16, 6, 3), (12, 5, 1)),
        [1, 1, *[5] * 6, *[4] * 5],
    ),
    "all of a table in common": (tree((8, 4, 0)), [1] * 4),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_kernels, "LEAST_KEYS", CHUNK)


def test_tables_of_these_tests() -> None:
    assert tree((1, 2, 1), (2, 1, 0)) == [[0, 1], [0, 2], [0, 3, 4]]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["plain", "softcap", "sinks"])
def test_what_rows_read_together(case: str, sizes: tuple[int, int, int], kind: str, dtype: str) -> None:
    torch.manual_seed(7)
    own, together = CASES[case]
    blocks = max(max(row) for row in own) + 1
    width = max(map(len, own)) + 2
    tables = torch.zeros((len(own) + 1, width), dtype=torch.int32, device=DEVICE)
    order = torch.randperm(blocks, device=DEVICE, dtype=torch.int32)
    for row, table in enumerate(own):
        tables[row + 1, : len(table)] = order[torch.tensor(table, device=DEVICE)]
    shape = AttentionShape(*sizes, SIZE, width * SIZE, softcap=1.5 if kind == "softcap" else None)
    keys, values = torch.randn((2, blocks, sizes[1], SIZE, sizes[2]), device=DEVICE).to(getattr(torch, dtype))
    queries = torch.randn((len(own), sizes[0], sizes[2]), device=DEVICE).to(keys.dtype)
    # Some rows have filled their last block.
    lengths = [len(table) * SIZE - row % SIZE for row, table in enumerate(own)]
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    # Slots are in another order than rows.
    slots = torch.arange(1, len(own) + 1, dtype=torch.int32, device=DEVICE)
    mixed = torch.randperm(len(own), device=DEVICE)
    queries, slots, positions = (one[mixed].contiguous() for one in (queries, slots, positions))
    sinks = torch.linspace(-2, 5, sizes[0], device=DEVICE) if kind == "sinks" else None
    wide = queries.float(), keys.float(), values.float()
    expected = operations.generation_attention(*wide, tables, slots, positions, None, shape, None, sinks)
    plan = kernels.plan_generation(positions, shape, Tables(slots, tables, blocks))
    assert plan is not None
    for _ in range(2):
        found = kernels.generation_attention(
            queries, keys, values, tables, slots, positions, None, shape, plan, sinks
        )
        assert float((found.float() - expected).norm() / expected.norm()) < TOLERANCES[dtype]
    assert plan.rows[4].tolist() == [together[row] for row in mixed.tolist()]
    assert not plan.counters.any()


def test_chunks_grow_with_contexts_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many sets as fill a device, so few parts that joining them is cheap."""
    shape = AttentionShape(4, 2, 16, SIZE, 4096)
    common = list(range(1000))
    for rows, parts, chunk in [(4, 64, 128), (16, 64, 512), (16, 1 << 20, 64), (4, 8, 1024)]:
        own = [[*common, 1000 + row] for row in range(rows)]
        tables = torch.tensor(own, dtype=torch.int32, device=DEVICE)
        positions = torch.full((rows,), 4001, dtype=torch.int32, device=DEVICE)
        slots = torch.arange(rows, dtype=torch.int32, device=DEVICE)
        monkeypatch.setattr(prefix_kernels, "parts_of", lambda _, parts=parts: parts)
        plan = kernels.plan_generation(positions, shape, Tables(slots, tables, 1000 + rows))
        assert plan is not None
        assert plan.listed[1] == chunk
        assert plan.rows[4].tolist() == [4000 // chunk] * rows
        assert int(plan.rows[4].sum()) <= 2 * parts


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (3, AttentionShape(4, 2, 16, SIZE, 64)),
        (8, AttentionShape(4, 2, 16, 3, 64)),
        (8, AttentionShape(32, 1, 16, SIZE, 64)),
        (8, AttentionShape(4, 2, 16, SIZE, 16)),
    ],
    ids=["few rows", "blocks that fit in no chunk", "many heads a key head", "short sequences"],
)
def test_where_nothing_is_looked_for(rows: int, shape: AttentionShape) -> None:
    tables = torch.zeros(
        (rows, -(-shape.max_seq_len // shape.tokens_per_block)), dtype=torch.int32, device=DEVICE
    )
    numbers = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    plan = kernels.plan_generation(numbers, shape, Tables(numbers, tables, 1))
    assert plan is not None
    assert plan.prefixes is None
    assert rows < 4 or kernels.prefix_keys(shape) is None
    assert plan.rows[4].tolist() == [0] * rows


def test_rows_of_one_sequence_read_together() -> None:
    """Its last token and guesses of the next ones, each of which sees those before it."""
    torch.manual_seed(11)
    shape = AttentionShape(4, 2, 16, SIZE, 64)
    keys, values = torch.randn((2, 12, 2, SIZE, 16), device=DEVICE)
    tables = torch.randperm(12, device=DEVICE, dtype=torch.int32)[None]
    queries = torch.randn((6, 4, 16), device=DEVICE)
    positions = torch.arange(30, 36, dtype=torch.int32, device=DEVICE)
    slots = torch.zeros(6, dtype=torch.int32, device=DEVICE)
    given = queries, keys, values, tables, slots, positions
    expected = operations.generation_attention(*given, None, shape, None)
    plan = kernels.plan_generation(positions, shape, Tables(slots, tables, 12))
    assert plan is not None
    assert plan.rows[4].tolist() == [1, 1, 2, 2, 2, 2]
    found = kernels.generation_attention(*given, None, shape, plan)
    assert float((found - expected).norm() / expected.norm()) < 3e-6


def test_a_block_in_two_chunks_is_read_right() -> None:
    """Which no scheduler makes. Rows may then read alone, and never what is another's."""
    torch.manual_seed(9)
    shape = AttentionShape(4, 2, 16, SIZE, 64)
    first, second = list(range(4)), list(range(4, 8))
    own = [
        *[[*first, *second, 20 + row] for row in range(4)],
        *[[*second, *first, 30 + row] for row in range(4)],
    ]
    tables = torch.tensor(own, dtype=torch.int32, device=DEVICE)
    keys, values = torch.randn((2, 40, 2, SIZE, 16), device=DEVICE)
    queries = torch.randn((8, 4, 16), device=DEVICE)
    positions = torch.full((8,), 33, dtype=torch.int32, device=DEVICE)
    slots = torch.arange(8, dtype=torch.int32, device=DEVICE)
    given = queries, keys, values, tables, slots, positions
    expected = operations.generation_attention(*given, None, shape, None)
    plan = kernels.plan_generation(positions, shape, Tables(slots, tables, 40))
    found = kernels.generation_attention(*given, None, shape, plan)
    assert float((found - expected).norm() / expected.norm()) < 3e-6


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|All-NaN slice) encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_requests_that_begin_alike_get_the_tokens_of_plain_operations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices of one prompt, prompts behind one that was computed before, and one of its own; some come while
    the others generate."""
    prompt = [3 + place % 60 for place in range(50)]
    first = request(0, prompt, 1)
    others = [request(one, [*prompt[:42], *range(20 + one, 23 + one)], 5) for one in range(1, 7)]
    others += [request(7, prompt, 4, sampling={"num_return_sequences": 5, "temperature": 1.0, "seed": 3})]
    late = [request(8, [7] * 9, 3), request(9, [*prompt[:45], 9], 3)]

    answers: list[bool] = []
    plain_answer = CommonPrefixes.are_many

    def are_many(self: CommonPrefixes, slots: Any) -> bool:
        answers.append(plain_answer(self, slots))
        return answers[-1]

    def told(subject: Engine) -> dict[tuple[int, int], list[int]]:
        found: AllTold = {}
        run(subject, [first])
        iteration = Iteration()
        subject.add(others, iteration)
        steps = 0
        while subject.has_work:
            if steps == 3:
                subject.add(late, iteration)
            collect(iteration.rows, found)
            iteration = Iteration()
            subject.step(iteration)
            steps += 1
        collect(iteration.rows, found)
        return {key: one.tokens for key, one in found.items()}

    expected = told(torch_engine(name))
    assert not answers
    monkeypatch.setattr(CommonPrefixes, "are_many", are_many)
    assert told(torch_engine(name, DEVICE, kernels=kernels)) == expected
    assert answers.count(True) > 3
