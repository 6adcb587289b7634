"""Prompt tuning: a virtual token is what it is embedded as, and the cache keeps tables apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights

from .support import FIXTURES, VOCAB_SIZE, AllTold, engine, request, run

Float32 = npt.NDArray[np.float32]

PROMPT = [(5 * token) % 59 + 3 for token in range(30)]
#: The tokens of the prompt that are sent as virtual ones.
VIRTUAL = range(4, 22)


def embeddings(name: str = "llama") -> Float32:
    config = load_config(FIXTURES / name)
    weights = CheckpointWeights.of(config, find_weights(FIXTURES / name))
    return weights.tensor(f"{config.names.embedding}.weight")


def tensor(name: str, datatype: str, values: npt.NDArray[Any]) -> NamedTensor:
    return NamedTensor(name, datatype, values.shape, values.tobytes())


def tuned(table: Float32, extra_ids: list[int] | None = None, datatype: str = "FP32") -> list[NamedTensor]:
    packed: npt.NDArray[Any] = table.astype("<f2" if datatype == "FP16" else "<f4")
    if datatype == "BF16":
        packed = (packed.view("<u4") >> 16).astype("<u2")
    tensors = [
        tensor("prompt_embedding_table", datatype, packed),
        tensor("prompt_vocab_size", "INT32", np.array([len(table)], "<i4")),
    ]
    if extra_ids is not None:
        tensors.append(tensor("prompt_table_extra_ids", "UINT64", np.array(extra_ids, "<u8")))
    return tensors


def virtual_prompt(prompt: list[int] = PROMPT) -> list[int]:
    """With virtual tokens in the places of `VIRTUAL`: the table's rows in order."""
    made = list(prompt)
    for row, place in enumerate(VIRTUAL):
        made[place] = VOCAB_SIZE + row
    return made


def marks(mark: int = 1) -> list[int]:
    return [mark if place in VIRTUAL else 0 for place in range(len(PROMPT))]


def asked(
    client_id: int, prompt: list[int], tensors: list[NamedTensor] | None = None, **fields: Any
) -> Request:
    output = {"return_log_probs": True, "num_top_log_probs": 2}
    return request(client_id, prompt, 8, tensors=tensors or [], output=output, **fields)


def same(told: AllTold, expected: AllTold) -> None:
    assert told.keys() == expected.keys()
    for key, one in expected.items():
        assert told[key].error is None
        assert told[key].tokens == one.tokens
        assert told[key].log_probs == pytest.approx(one.log_probs, abs=1e-4)


def own_table(name: str = "llama") -> Float32:
    """The model's own embeddings of the tokens that are sent as virtual ones."""
    return embeddings(name)[[PROMPT[place] for place in VIRTUAL]]


@pytest.mark.parametrize(
    "name", ["llama", "gemma", "gemma3", "gpt2", "qwen2_tied", "mixtral", "baichuan2_alibi", "deepseek_v2"]
)
@pytest.mark.parametrize("tokens", [256, 8])
def test_a_virtual_token_is_what_it_is_embedded_as(name: str, tokens: int) -> None:
    """Beside plain requests, whole and in chunks."""
    expected = run(engine(name), [asked(1, PROMPT), asked(2, PROMPT[:7])])
    subject = engine(name, max_num_tokens=tokens)
    told = run(subject, [asked(1, virtual_prompt(), tuned(own_table(name), marks())), asked(2, PROMPT[:7])])
    same(told, expected)
    assert subject.pool.used == 0


def test_the_table_is_read_in_each_of_its_types() -> None:
    table = own_table().astype("<f2").astype(np.float32)
    upper = (table.view("<u4") & 0xFFFF0000).view("<f4")
    for datatype, values in (("FP16", table), ("FP32", upper), ("BF16", upper)):
        told = run(engine(), [asked(1, virtual_prompt(), tuned(values, marks(), datatype))])
        expected = run(engine(), [asked(1, virtual_prompt(), tuned(values, marks()))])
        same(told, expected)
    other = run(engine(), [asked(1, virtual_prompt(), tuned(-table, marks()))])
    assert other[1, 0].log_probs != pytest.approx(expected[1, 0].log_probs, abs=1e-2)


@pytest.mark.parametrize(
    ("sampling", "draft"), [({"beam_width": 3}, []), ({}, [9, 9, 9]), ({"no_repeat_ngram_size": 1}, [])]
)
@pytest.mark.parametrize("lookup", [None, LookupConfig(4, 2)])
def test_with_beams_drafts_and_bans(
    sampling: dict[str, Any], draft: list[int], lookup: LookupConfig | None
) -> None:
    drafts = [tensor("draft_input_ids", "INT32", np.array(draft, "<i4"))] if draft else []

    def ask(prompt: list[int], tensors: list[NamedTensor]) -> dict[tuple[int, int], list[int]]:
        one = request(1, prompt, 8, sampling=sampling, streaming=False, tensors=tensors)
        return {key: each.tokens for key, each in run(engine(lookup=lookup), [one]).items()}

    told = ask(virtual_prompt(), drafts + tuned(own_table(), marks()))
    expected = ask(PROMPT, drafts)
    if "no_repeat_ngram_size" in sampling:
        # The tokens behind the virtual ones are not known, and so may come again.
        assert len(set(told[1, 0])) == len(told[1, 0])
        plain = {token for place, token in enumerate(PROMPT) if place not in VIRTUAL}
        assert not plain & set(told[1, 0])
    else:
        assert told == expected


def test_penalties_pass_over_virtual_tokens() -> None:
    sampling = {"repetition_penalty": 1.5, "frequency_penalty": 0.5}
    told = run(engine(), [asked(1, virtual_prompt(), tuned(own_table(), marks()), sampling=sampling)])
    assert len(told[1, 0].tokens) == 8


def test_a_paused_request_goes_on_with_its_table() -> None:
    def fill(prompt: list[int], tensors: list[NamedTensor]) -> tuple[Engine, AllTold]:
        subject = engine(
            num_blocks=22, policy=CapacitySchedulerPolicy.MAX_UTILIZATION, max_num_tokens=256, reuse=False
        )
        requests = [request(one, prompt, 30, tensors=tensors) for one in range(3)]
        return subject, run(subject, requests)

    _, expected = fill(PROMPT, [])
    subject, told = fill(virtual_prompt(), tuned(own_table()))
    assert [one.tokens for one in told.values()] == [one.tokens for one in expected.values()]
    assert subject.pool.used == 0


def test_blocks_are_found_by_the_same_extra_ids_alone() -> None:
    subject = engine()
    first, other = own_table(), -own_table()

    def found(client_id: int, table: Float32, extra_ids: list[int]) -> int:
        told = run(subject, [asked(client_id, virtual_prompt(), tuned(table, extra_ids))])[client_id, 0]
        expected = run(engine(), [asked(1, virtual_prompt(), tuned(table, extra_ids))])[1, 0]
        assert told.tokens == expected.tokens
        [cached] = told.cached_tokens
        return cached

    assert found(1, first, marks(7)) == 0
    assert found(2, first, marks(7)) == len(PROMPT) - 1
    # What comes before the virtual tokens has no extra id: it is the same text.
    assert found(3, other, marks(8)) == VIRTUAL.start
    assert found(4, other, marks(8)) == len(PROMPT) - 1
    # Far ids do not meet: all 64 bits count.
    assert found(5, first, marks(7 + (1 << 60))) == VIRTUAL.start
    # Plain text finds plain text.
    assert run(subject, [asked(6, PROMPT)])[6, 0].cached_tokens == [VIRTUAL.start]


TABLE = np.zeros((len(VIRTUAL), 32), np.float32)


@pytest.mark.parametrize(
    ("prompt", "tensors", "words"),
    [
        (virtual_prompt(), [], "token id `81`"),
        (virtual_prompt(), tuned(TABLE[:-1], marks()), "token id `81`"),
        (virtual_prompt(), tuned(TABLE), "prompt_table_extra_ids has `0` values for 30"),
        (virtual_prompt(), tuned(TABLE, marks()[:-1]), "prompt_table_extra_ids has `29` values"),
        (virtual_prompt(), tuned(TABLE[:, 1:], marks()), "[virtual tokens, 32]"),
        (virtual_prompt(), tuned(np.full_like(TABLE, np.nan), marks()), "not a number"),
        (PROMPT, tuned(TABLE, marks())[2:], "without prompt_embedding_table"),
    ],
)
def test_what_does_not_fit_is_refused(prompt: list[int], tensors: list[NamedTensor], words: str) -> None:
    subject = engine()
    assert words in (run(subject, [asked(1, prompt, tensors)])[1, 0].error or "")
    assert run(subject, [asked(2, [5, 6])])[2, 0].error is None


def test_probabilities_of_virtual_tokens_are_refused_by_name() -> None:
    one = request(1, virtual_prompt(), 8, tensors=tuned(TABLE, marks()), output={"num_prompt_log_probs": 1})
    assert "inflight_num_prompt_log_probs" in (run(engine(), [one])[1, 0].error or "")


def test_longer_extra_ids_are_cut_and_without_reuse_none_are_needed() -> None:
    longer = run(engine(), [asked(1, virtual_prompt(), tuned(own_table(), [*marks(), 0, 0]))])
    without = run(engine(reuse=False), [asked(1, virtual_prompt(), tuned(own_table()))])
    same(longer, without)
