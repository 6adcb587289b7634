"""The scripted executor keeps the executors' protocol: rows in order, one final row a request."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

from inflight._native import check_response_batch
from inflight.executors.base import FinishReason, Request, ResponseBatch, SamplingConfig
from inflight.executors.scripted import ScriptedExecutor


@dataclass
class Seen:
    """What came for one (client id, sequence)."""

    tokens: list[int] = field(default_factory=list)
    rows: int = 0
    reason: FinishReason = FinishReason.NOT_FINISHED
    finals: int = 0


def collect(batch: ResponseBatch, seen: dict[tuple[int, int], Seen]) -> None:
    check_response_batch(batch)
    offsets = array("I", batch.token_offsets)
    tokens = array("i", batch.token_ids)
    indices = array("i", batch.sequence_index)
    for row, client_id in enumerate(array("Q", batch.client_ids)):
        entry = seen[client_id, indices[row]]
        assert entry.reason is FinishReason.NOT_FINISHED, "a row after the last one"
        entry.rows += 1
        entry.tokens.extend(tokens[offsets[row] : offsets[row + 1]])
        entry.reason = FinishReason(batch.finish_reasons[row])
        entry.finals += batch.finals[row]


def run(executor: ScriptedExecutor, seen: dict[tuple[int, int], Seen], awaits: int) -> None:
    for _ in range(awaits):
        collect(executor.await_responses(0.0), seen)


def request(client_id: int, max_tokens: int, *, streaming: bool = True, n: int = 1) -> Request:
    return Request(client_id, [1, 2], max_tokens, streaming, SamplingConfig(num_return_sequences=n))


def test_each_await_moves_every_sequence_by_one_token() -> None:
    executor = ScriptedExecutor()
    seen: dict[tuple[int, int], Seen] = defaultdict(Seen)
    executor.enqueue([request(1, 3), request(2, 5, n=2)])
    run(executor, seen, 1)
    assert {key: len(entry.tokens) for key, entry in seen.items()} == {(1, 0): 1, (2, 0): 1, (2, 1): 1}
    run(executor, seen, 9)
    assert {key: len(entry.tokens) for key, entry in seen.items()} == {(1, 0): 3, (2, 0): 5, (2, 1): 5}
    assert all(entry.reason is FinishReason.LENGTH for entry in seen.values())
    assert [seen[1, 0].finals, seen[2, 0].finals, seen[2, 1].finals] == [1, 0, 1]


def test_a_request_that_does_not_stream_gets_one_row() -> None:
    executor = ScriptedExecutor()
    seen: dict[tuple[int, int], Seen] = defaultdict(Seen)
    executor.enqueue([request(1, 4, streaming=False)])
    run(executor, seen, 10)
    assert (seen[1, 0].rows, len(seen[1, 0].tokens), seen[1, 0].finals) == (1, 4, 1)


def test_a_cancelled_request_gets_its_final_row_and_no_token() -> None:
    executor = ScriptedExecutor()
    seen: dict[tuple[int, int], Seen] = defaultdict(Seen)
    executor.enqueue([request(1, 100), request(2, 4)])
    run(executor, seen, 2)
    executor.cancel([1, 99])
    run(executor, seen, 10)
    assert (len(seen[1, 0].tokens), seen[1, 0].reason) == (2, FinishReason.CANCELLED)
    assert (len(seen[2, 0].tokens), seen[2, 0].reason) == (4, FinishReason.LENGTH)
    assert executor.stats()[0]["numActiveRequests"] == 0
    assert executor.stats() == ()


def test_the_columns_are_prepared_once_while_nothing_changes() -> None:
    executor = ScriptedExecutor()
    executor.enqueue([request(1, 100)])
    assert executor.await_responses(0.0) is executor.await_responses(0.0)


def test_an_idle_executor_waits_no_longer_than_asked_and_ends_at_once() -> None:
    executor = ScriptedExecutor()
    assert executor.await_responses(0.0).client_ids == b""
    executor.shutdown()
    assert executor.await_responses(3600.0).client_ids == b""
