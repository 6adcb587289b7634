"""The connections between ranks: who may join, what arrives, and who notices an end. Ranks are threads."""

from __future__ import annotations

import pickle
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from inflight.executors import ranks
from inflight.executors.ranks import Job
from inflight.executors.reference.parallel.channel import Address, Door, FollowerChannel, LeaderChannel
from inflight.executors.reference.parallel.meeting import LOOPBACK, StoreMeeting

HOST = "127.0.0.1"
PATIENCE_S = 10.0


@contextmanager
def connected(size: int = 3) -> Iterator[tuple[LeaderChannel, list[FollowerChannel]]]:
    """Rank 0's end and the others'."""
    door = Door(HOST)
    followers = [FollowerChannel(HOST, door.address, rank) for rank in range(1, size)]
    leader = door.admit(size)
    try:
        yield leader, followers
    finally:
        for one in followers:
            one.close()
        leader.close(None, PATIENCE_S)


def test_messages_arrive_at_every_rank_in_order() -> None:
    with connected() as (leader, followers):
        sent = [("forward", ([1, 2], b"x" * 100_000)), ("logits", ()), None]
        for message in sent:
            leader.send(message)
        assert [[one.receive() for _ in sent] for one in followers] == [sent, sent]


def test_a_stranger_is_not_let_in() -> None:
    door = Door(HOST)
    stranger = FollowerChannel(HOST, replace(door.address, secret=bytes(32)), 1)
    silent = socket.create_connection((HOST, door.address.port))
    silent.close()
    own = FollowerChannel(HOST, door.address, 1)
    leader = door.admit(2)
    leader.send("hello")
    assert own.receive() == "hello"
    with pytest.raises((EOFError, ConnectionError)):
        stranger.receive()
    with pytest.raises(ConnectionRefusedError):
        FollowerChannel(HOST, door.address, 2)
    own.close()
    stranger.close()
    leader.close(None, PATIENCE_S)


def test_a_rank_that_does_not_come_is_not_waited_for_forever() -> None:
    with pytest.raises(TimeoutError):
        Door(HOST).admit(2, timeout_s=0.05)


@pytest.mark.parametrize("words", [None, "ValueError: too much"])
def test_rank_0_learns_who_is_gone_and_its_last_words(words: str | None) -> None:
    with connected() as (leader, followers):
        told: queue.Queue[tuple[int, str | None]] = queue.Queue()
        leader.watch(lambda rank, last: told.put((rank, last)))
        if words is None:
            followers[1].close()
        else:
            followers[1].fail(words)
        assert told.get(timeout=PATIENCE_S) == (2, words)


def test_the_others_learn_that_rank_0_is_gone_whatever_they_do() -> None:
    with connected() as (leader, followers):
        gone = [threading.Event() for _ in followers]
        for one, event in zip(followers, gone, strict=True):
            one.watch(event.set)
        leader.send("not read, since the rank computes")
        leader.drop()
        assert all(event.wait(PATIENCE_S) for event in gone)


def test_an_end_in_good_order_alarms_nobody() -> None:
    with connected() as (leader, followers):
        alarms: list[str] = []
        leader.watch(lambda *_: alarms.append("leader"))
        for one in followers:
            one.watch(lambda: alarms.append("follower"))
        ended = threading.Thread(
            target=lambda: alarms.append("late") if not leader.close(None, 5.0) else None
        )
        ended.start()
        for one in followers:
            assert one.receive() is None
            one.close()
        ended.join(PATIENCE_S)
        assert not alarms


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, Job()),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "PMIX_RANK": "3",
            },
            Job(3, 4, 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, Job(1, 2, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}, Job(5, 8, 1)),
        (
            {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            Job(1, 2, 1, by_torchrun=True),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Job()),
    ],
    ids=["alone", "Open MPI", "MPICH", "Slurm", "torchrun", "not torchrun"],
)
def test_the_job_is_what_the_launcher_says(environment: dict[str, str], job: Job) -> None:
    assert ranks.find(environment) == job


@pytest.mark.parametrize(
    ("hosts", "master", "found"),
    [
        (["a", "a"], "a.group", LOOPBACK),
        (["a", "b"], "a.group", "a.group"),
        (["a", "b"], None, "a"),
    ],
    ids=["one machine", "torchrun's address", "the host's name"],
)
def test_ranks_of_torchrun_find_rank_0(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], master: str | None, found: str
) -> None:
    class Met(StoreMeeting):
        def __init__(self) -> None:
            """Without a store."""

        def exchange(self, value: Any) -> list[Any]:
            return hosts if value else []

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    if master is not None:
        monkeypatch.setenv("MASTER_ADDR", master)
    assert Met().leader_host() == found


class Store(dict[str, bytes]):
    """As torch's: text goes in, bytes come out."""

    def set(self, name: str, value: str | bytes) -> None:
        self[name] = value.encode() if isinstance(value, str) else value


def met_through(store: Store, rank: int) -> StoreMeeting:
    meeting = StoreMeeting.__new__(StoreMeeting)
    meeting.store, meeting._job, meeting._exchanged = store, Job(rank, 2, by_torchrun=True), 0
    return meeting


def test_ranks_exchange_values_through_a_store() -> None:
    store = Store({"inflight/0/1": b"null"})
    address = Address(7, b"\x00\xffsecret")
    first = met_through(store, 0).exchange(address.to_json())
    assert (Address.from_json(first[0]), first[1]) == (address, None)
    assert met_through(store, 1).exchange(None) == first


def test_nothing_from_a_store_is_unpickled() -> None:
    store = Store({"inflight/0/1": pickle.dumps("host")})
    with pytest.raises(ValueError, match=r"codec|Expecting"):
        met_through(store, 0).exchange("host")
