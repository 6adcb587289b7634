"""Sampling by kernels against NumPy's sampler: the same tokens, whatever the batch, whatever the logits.

With CUDA on the GPU; without, in Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.reference.core import log_probs
from inflight.executors.reference.core.admission import Bounds, admit
from inflight.executors.reference.core.masks import Guide, Masks
from inflight.executors.reference.core.sampler import SamplerState, sample, uniform
from inflight.executors.reference.core.sequence import RequestState, SequenceState
from reference.support import request

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")
if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; run with TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: The interpreter is slow.
SCALE = 8 if DEVICE == "cuda" else 1
BATCH = 64 * SCALE
MOST_TOKENS = 96

Logits = npt.NDArray[np.float32]


class Steps:
    """A double of `DeviceSteps`, without a model."""

    def __init__(self) -> None:
        self.device, self.cuda = torch.device(DEVICE), DEVICE == "cuda"
        self.chosen = torch.zeros(BATCH, dtype=torch.int32, device=DEVICE)
        self.spare = SimpleNamespace(slot=BATCH)
        self.buckets: list[int] = []

    def upload(self, array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)

    def share(self, count: int) -> None:
        pass

    def wait_for_memory(self) -> None:
        """Nothing to wait for: all is done in one stream."""

    @contextmanager
    def queueing(self) -> Iterator[None]:
        yield


class Subject:
    """Sampling over given logits, which knows no token unless `observe` says so."""

    def __init__(self, vocab_size: int) -> None:
        from inflight.executors.reference.pytorch.slots import SlotSampling

        self.steps = Steps()
        self.sampling = SlotSampling(self.steps, vocab_size, MOST_TOKENS)  # type: ignore[arg-type]
        self.bounds = Bounds(vocab_size, MOST_TOKENS, 999, 4, 99)

    def enter(
        self, asked: Sequence[dict[str, Any]], first_slot: int = 0, guides: Mapping[int, Guide] | None = None
    ) -> list[SequenceState]:
        """Sequences of requests, each a dictionary as `support.request` takes; ``guides`` by place."""
        entered = []
        for place, one in enumerate(asked):
            made = request(place, **{"prompt": [1], "max_tokens": 64, **one})
            owner = RequestState(made, admit(made, self.bounds))
            sampler = SamplerState(owner.admitted.parameters, self.bounds.vocab_size, made.input_token_ids)
            sequence = SequenceState(place, owner, 0, sampler, made.input_token_ids)
            sequence.slot = first_slot + place
            if guides is not None and place in guides:
                sampler.guide = guides[place]
                sampler.guide.enter(sequence.slot)
            entered.append(sequence)
        self.sampling.enter(entered)
        return entered

    def choose(self, logits: Any, sequences: Sequence[SequenceState]) -> list[int]:
        """The next token of each; ``logits`` are on the device."""
        for one in sequences:
            one.launched += 1
        self.steps.chosen[: len(sequences)] = logits.argmax(-1)
        slots = np.array([one.slot for one in sequences])
        positions = np.array([one.position - 1 for one in sequences])
        self.sampling.choose(logits, sequences, slots, positions, None)
        tokens: list[int] = self.steps.chosen[: len(sequences)].tolist()
        return tokens


def random_logits(rows: int, vocab_size: int, seed: int = 0, dtype: Any = None, spread: float = 2.0) -> Any:
    values = np.random.default_rng(seed).normal(scale=spread, size=(rows, vocab_size)).astype(np.float32)
    return torch.from_numpy(values).to(DEVICE, dtype or torch.float32)


def on_host(logits: Any) -> Logits:
    values: Logits = logits.float().cpu().numpy()
    return values


DRAWN: list[dict[str, Any]] = [
    {"top_p": 1.0},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 1.7},
    {"top_p": 1e-9},
    {"top_k": 3},
    {"top_k": 50, "temperature": 0.6},
    {"top_k": 10**6, "top_p": 0.99},
    {"top_k": 20, "top_p": 0.8},
    {"top_p": 1.0, "min_p": 0.1},
    {"top_p": 0.95, "min_p": 0.02},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "temperature": 3.0},
    {"top_p": 1.0, "min_p": 1.0},
]
EDITED: list[dict[str, Any]] = [
    {"sampling": {"repetition_penalty": 1.5}},
    {"sampling": {"top_p": 0.9, "presence_penalty": 0.7, "frequency_penalty": 0.4, "temperature": 0.8}},
    {"sampling": {"top_p": 1.0}, "logit_bias": [(3, 2.0), (5, -4.0)], "bad_words": [[2]]},
    {"sampling": {"no_repeat_ngram_size": 1}},
    {"sampling": {"top_k": 5, "no_repeat_ngram_size": 2}},
    {"bad_words": [[0], [4, 5], [1, 2, 3], [6, 7]], "sampling": {"top_k": 4}},
    {"end_id": 3, "stop_words": [[5], [6, 2]], "sampling": {"min_tokens": 5, "top_p": 0.95}},
    {"end_id": 3, "sampling": {"min_tokens": 4}},
    {
        "sampling": {"top_k": 6, "top_p": 0.97, "min_p": 0.01, "repetition_penalty": 1.2, "min_tokens": 3},
        "bad_words": [[1, 1]],
        "end_id": 4,
        "logit_bias": [(7, -100.0)],
    },
]


def same(ours: Sequence[int], numpys: Sequence[int]) -> float:
    return sum(one == other for one, other in zip(ours, numpys, strict=True)) / len(ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 1000, 4099])
def test_tokens_are_numpys(vocab_size: int, dtype: Any) -> None:
    """Only a number that falls on a boundary may part them: rounding moves one by a few parts in 10^7."""
    subject = Subject(vocab_size)
    asked = [{"sampling": {"seed": seed, **one}} for seed in range(SCALE) for one in DRAWN]
    sequences = subject.enter(asked)
    ours: list[int] = []
    numpys: list[int] = []
    for step in range(3):
        logits = random_logits(len(sequences), vocab_size, step, dtype)
        ours += subject.choose(logits, sequences)
        numpys += sample(on_host(logits), [one.sampler for one in sequences], [step] * len(sequences))
    assert same(ours, numpys) >= 1 - 1 / len(ours)


def test_the_device_keeps_what_penalties_and_bans_need() -> None:
    """The host observes for NumPy only: the device is not told which tokens came."""
    vocab_size = 8
    subject = Subject(vocab_size)
    prompts = [[1], [4], [6, 2, 6], [5, 5, 4]]
    asked = [
        {**one, "prompt": prompt, "sampling": {"seed": seed, **one.get("sampling", {})}}
        for seed, prompt in enumerate(prompts)
        for one in EDITED
    ]
    sequences = subject.enter(asked)
    parted: set[int] = set()
    for step in range(12):
        logits = random_logits(len(sequences), vocab_size, step, torch.bfloat16)
        ours = subject.choose(logits, sequences)
        numpys = sample(on_host(logits), [one.sampler for one in sequences], [step] * len(sequences))
        parted |= {row for row, pair in enumerate(zip(ours, numpys, strict=True)) if len(set(pair)) > 1}
        for one, token in zip(sequences, ours, strict=True):
            one.sampler.observe(token)
    assert len(parted) <= 1


def test_a_slot_begins_anew_with_each_sequence() -> None:
    """Also where its sequence was paused: its prompt and its output are what counts."""
    subject = Subject(8)
    subject.choose(
        random_logits(len(EDITED), 8), subject.enter([{**one, "prompt": [2, 3]} for one in EDITED])
    )
    [plain] = subject.enter([{"prompt": [1]}])
    logits = random_logits(1, 8, 5)
    assert subject.choose(logits, [plain]) == [int(on_host(logits).argmax())]
    for place, one in enumerate(EDITED):
        [sequence] = subject.enter([{**one, "prompt": [6, 1]}], place)
        for token in (2, 5, 2):
            sequence.sampler.observe(token)
        sequence.launched = 3
        subject.sampling.enter([sequence])
        logits = random_logits(1, 8, place + 10)
        assert subject.choose(logits, [sequence]) == sample(on_host(logits), [sequence.sampler])


def test_a_row_is_the_same_alone_and_in_any_batch() -> None:
    vocab_size = 1500
    asked = [{"sampling": {"seed": 3, **one}} for one in DRAWN] + EDITED
    logits = random_logits(len(asked), vocab_size, 4, torch.bfloat16)
    together = Subject(vocab_size)
    tokens = together.choose(logits, together.enter(asked))
    for place, one in enumerate(asked):
        alone = Subject(vocab_size)
        assert alone.choose(logits[place : place + 1], alone.enter([one], place)) == [tokens[place]]


def test_of_equal_tokens_the_lower_ids_are_kept() -> None:
    vocab_size = 600
    subject = Subject(vocab_size)
    rows = np.zeros((6, vocab_size), dtype=np.float32)
    rows[:, 100:] = -1.0
    sampling: list[dict[str, Any]] = [
        {"top_k": 5},
        {"top_k": 103},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_k": 1},
    ]
    sampling.append({"top_p": 1.0, "min_p": 0.5})
    kept = [5, 103, None, None, 1, 100]
    weights = np.exp(rows[0].astype(np.float64))
    for place, one in enumerate(sampling):
        if kept[place] is None:
            before = np.cumsum(weights) - weights
            kept[place] = int((before < one["top_p"] * weights.sum()).sum())
    found: list[set[int]] = [set() for _ in sampling]
    for seed in range(40):
        sequences = subject.enter([{"sampling": {"seed": seed, **one}} for one in sampling])
        tokens = subject.choose(torch.from_numpy(rows).to(DEVICE), sequences)
        assert tokens == sample(rows, [one.sampler for one in sequences], [0] * len(sequences))
        for drawn, token in zip(found, tokens, strict=True):
            drawn.add(token)
    for drawn, count in zip(found, kept, strict=True):
        assert max(drawn) < (count or 0)
    assert len(found[1]) > 20


@pytest.mark.parametrize("sampling", [*DRAWN, {"repetition_penalty": 2.0}])
def test_broken_logits_and_banned_rows_still_give_a_token(sampling: dict[str, Any]) -> None:
    vocab_size = 300
    subject = Subject(vocab_size)
    rows = np.zeros((6, vocab_size), dtype=np.float32)
    for row, value in enumerate([np.nan, np.inf, -np.inf, 3e38, np.finfo(np.float32).min]):
        rows[row] = value
    rows[5, ::2], rows[5, 1::2], rows[5, 7] = np.nan, -np.inf, 1.0
    sequences = subject.enter([{"sampling": {"temperature": 1e-4, **sampling}}] * 6)
    tokens = subject.choose(torch.from_numpy(rows).to(DEVICE), sequences)
    assert all(0 <= token < vocab_size for token in tokens)
    if sampling != {"repetition_penalty": 2.0}:
        assert tokens[5] == 7
    dense = np.full(vocab_size, -np.inf, dtype="<f4").tobytes()
    banned = subject.enter([{"embedding_bias": dense, "sampling": sampling}] * 2)
    logits = random_logits(2, vocab_size)
    tokens = subject.choose(logits, banned)
    assert tokens == sample(on_host(logits), [one.sampler for one in banned], [0, 0])


@pytest.mark.parametrize("spread", [0.05, 1.0, 12.0])
def test_limits_of_flat_and_steep_rows(spread: float) -> None:
    """Cuts next to the best token and far from it, of values that lie close and far apart."""
    vocab_size = 2000
    subject = Subject(vocab_size)
    sampling = [{"top_k": k} for k in (1, 2, 100, 1999)] + [{"top_p": p} for p in (0.001, 0.5, 0.9, 0.9999)]
    sequences = subject.enter([{"sampling": {"seed": 9, **one}} for one in sampling])
    ours: list[int] = []
    numpys: list[int] = []
    for step in range(4):
        logits = random_logits(len(sampling), vocab_size, 20 + step, spread=spread)
        logits[:, 5] = logits[:, 900] = logits.amax(-1)
        ours += subject.choose(logits, sequences)
        numpys += sample(on_host(logits), [one.sampler for one in sequences], [step] * len(sampling))
    assert same(ours, numpys) >= 1 - 1 / len(ours)


@pytest.mark.parametrize(
    "sampling", [{"top_p": 1.0}, {"top_p": 0.9}, {"top_k": 6}, {"top_p": 1.0, "min_p": 0.1}]
)
def test_draws_are_distributed_as_numpys(sampling: dict[str, Any]) -> None:
    """Chi-square of two samples with other seeds; 11 degrees of freedom and 31.3 at 0.001, seeds are
    fixed."""
    vocab_size, logits = 12, random_logits(1, 12, 3, spread=1.0)
    subject = Subject(vocab_size)
    counts = np.zeros((2, vocab_size))
    for start in range(0, 1024 * SCALE, BATCH):
        sequences = subject.enter([{"sampling": {"seed": start + one, **sampling}} for one in range(BATCH)])
        for token in subject.choose(logits.repeat(BATCH, 1), sequences):
            counts[0, token] += 1
        others = [SamplerState(one.sampler.parameters, vocab_size, [1], 7) for one in sequences]
        for token in sample(np.repeat(on_host(logits), BATCH, axis=0), others):
            counts[1, token] += 1
    # Tokens that hardly come are one cell: the test is for cells of some draws each.
    often = counts.sum(axis=0) >= 20
    counts = np.column_stack((counts[:, often], counts[:, ~often].sum(axis=1) + 1))
    wanted = counts.sum(axis=0) / 2
    assert ((counts - wanted) ** 2 / wanted).sum() < 31.3


def test_random_numbers_are_the_hosts() -> None:
    """Over a flat row the token tells the number: as many places as the vocabulary has."""
    vocab_size = 4096
    subject = Subject(vocab_size)
    seeds = [0, 1, 2**31, 2**32 + 5, 2**63 + 11, 2**64 - 1]
    sequences = subject.enter([{"sampling": {"top_p": 1.0, "seed": seed}} for seed in seeds])
    for one, index in zip(sequences, (0, 1, 0, 3, 0, 2), strict=True):
        one.index = one.sampler.sequence_index = index
    subject.sampling.enter(sequences)
    flat = torch.zeros((len(seeds), vocab_size), device=DEVICE)
    for number in range(3):
        numbers = [uniform(seed, one.index, number) for seed, one in zip(seeds, sequences, strict=True)]
        assert subject.choose(flat, sequences) == [int(one * vocab_size) for one in numbers]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [40, 4099])
@pytest.mark.parametrize("width", [0, 1, 20, 33])
def test_log_probs_are_numpys(width: int, vocab_size: int, dtype: Any) -> None:
    from inflight.executors.reference.pytorch import log_prob_kernels, sampling

    logits = random_logits(6, vocab_size, 8, dtype)
    logits[1] *= 200.0  # the best are far from each other
    logits[2] = 0.0
    logits[3, : vocab_size - 5] = -np.inf
    logits[4] = -np.inf
    logits = logits.clamp(min=-3e38)
    tokens = torch.tensor([3, 0, vocab_size - 1, 7, 2, 1], dtype=torch.int32, device=DEVICE)
    wanted = log_probs.chosen_and_best(on_host(logits), tokens.cpu().numpy(), width)
    for compute in (log_prob_kernels.chosen_and_best, sampling.chosen_and_best):
        told = sampling.unpacked_log_probs(compute(logits, tokens, width).cpu().numpy())
        np.testing.assert_allclose(told.values, wanted[0], rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(told.top_ids, wanted[1])
        np.testing.assert_allclose(told.top_values, wanted[2], rtol=1e-5, atol=1e-4)


class RandomMatcher:
    """Allows a few random tokens, or hardly any that would be chosen otherwise."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size, self._seed, self._tokens = vocab_size, seed, list[int]()

    def consume_token(self, token: int) -> None:
        self._tokens.append(token)

    def unsafe_compute_mask_ptr(self, target: int, size: int) -> None:
        random = np.random.default_rng([self._seed, *self._tokens])
        allowed = random.random(self._vocab_size) < random.choice([0.02, 0.5, 1.0])
        allowed[random.integers(self._vocab_size)] = True
        bits = np.zeros(size, dtype=np.uint8)
        packed = np.packbits(allowed, bitorder="little")
        bits[: len(packed)] = packed
        ctypes.memmove(target, bits.ctypes.data, size)

    def is_error(self) -> bool:
        return False


class OneByOne:
    """llguidance's pool, without threads."""

    def consume_token_par(self, matchers: list[tuple[RandomMatcher, int]]) -> None:
        for matcher, token in matchers:
            matcher.consume_token(token)

    def unsafe_compute_mask_ptr(
        self, matchers: list[tuple[RandomMatcher, int]], target: int, size: int, rows: int
    ) -> None:
        for matcher, row in matchers:
            assert row < rows
            matcher.unsafe_compute_mask_ptr(target + row * size, size)


def random_guides(vocab_size: int, places: Sequence[int]) -> dict[int, Guide]:
    masks = Masks(OneByOne(), vocab_size, frozenset())
    guides = {place: Guide(RandomMatcher(vocab_size, place), masks) for place in places}
    for guide in guides.values():
        masks.compute(guide)
    return guides


@pytest.mark.parametrize("vocab_size", [40, 4099])
def test_guided_rows_are_chosen_by_the_masks_in_their_slots(vocab_size: int) -> None:
    """Greedy and drawn, with all else that edits logits, between rows that have no guide."""
    asked: list[dict[str, Any]] = [
        {},
        {"sampling": {"top_p": 0.9, "seed": 5}},
        {"sampling": {"top_k": 5, "temperature": 2.0, "seed": 6}},
        *EDITED,
        {"sampling": {"top_p": 0.8, "top_p_decay": 0.9, "seed": 7}},
    ]
    subject = Subject(vocab_size)
    guided = [place for place in range(len(asked)) if place % 4 != 1]
    sequences = subject.enter(asked, 3, random_guides(vocab_size, guided))
    assert not any(subject.sampling.follows(sequences[place].sampler) for place in guided)
    # A model's guides share their masks; what another model's allow comes row by row.
    other = subject.enter([{}, {}], 3 + len(asked), random_guides(vocab_size, [0, 1]))
    sequences += other
    alike = []
    for step in range(8):
        logits = random_logits(len(sequences), vocab_size, step)
        tokens = subject.choose(logits, sequences)
        wanted = sample(on_host(logits), [one.sampler for one in sequences], [step] * len(sequences))
        for place in guided:
            guide = sequences[place].sampler.guide
            assert guide is not None
            assert guide.mask()[tokens[place]]
        alike.append(same(tokens, wanted))
        for one, token in zip(sequences, tokens, strict=True):
            one.sampler.observe(token)
    assert np.mean(alike) == 1.0


def test_rows_that_need_the_host_are_chosen_among_the_others() -> None:
    """A top-p that decays; words that do not fit in a slot."""
    vocab_size = 64
    subject = Subject(vocab_size)
    many = [[word % 64, 1, 2, 3, 4, 5, 6, 7, 8, 9] for word in range(1000)]
    asked: list[dict[str, Any]] = [
        {"sampling": {"top_p": 0.9, "seed": 1}},
        {"sampling": {"top_p": 0.9, "top_p_decay": 0.5, "seed": 2}},
        {"bad_words": many, "sampling": {"top_k": 8, "seed": 3}},
        {},
        {"sampling": {"frequency_penalty": 1.0}},
    ]
    sequences = subject.enter(asked)
    assert [subject.sampling.follows(one.sampler) for one in sequences] == [True, False, False, True, True]
    for step in range(6):
        logits = random_logits(len(asked), vocab_size, step)
        tokens = subject.choose(logits, sequences)
        assert tokens == sample(on_host(logits), [one.sampler for one in sequences], [step] * len(asked))
        for one, token in zip(sequences, tokens, strict=True):
            one.sampler.observe(token)
