"""The communicator on PyTorch: tensors over NCCL between GPUs, over gloo between CPUs.

Owns the process group and which GPU is which rank's. Its operations are queued on the current stream, and
NCCL's can be part of a CUDA graph. Knows nothing of models.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as distributed

from inflight.executors.ranks import Job
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.communicator import Alone, Communicator
from inflight.executors.reference.parallel.meeting import Meeting, StoreMeeting

from .operations import Tensor

#: A rank that loads its weights more slowly than the others is waited for.
_TIMEOUT = timedelta(minutes=30)


class DeviceCommunicator(Communicator[Tensor], Protocol):
    """What a model on PyTorch asks of the other ranks."""

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's values, written over everybody's ``tensor``."""


class OneDevice(Alone[Tensor]):
    """A model that one device holds whole."""

    def broadcast(self, tensor: Tensor) -> None:
        """Nobody else is there."""


class TorchCommunicator:
    """The ranks of the default process group."""

    def __init__(self, job: Job) -> None:
        self.rank, self.size = job.rank, job.size

    def all_reduce(self, array: Tensor) -> Tensor:
        distributed.all_reduce(array)
        return array

    def all_gather(self, part: Tensor) -> Tensor:
        rows, columns = part.shape
        gathered = part.new_empty((self.size * rows, columns))
        if rows:
            distributed.all_gather_into_tensor(gathered, part)
        return gathered.view(self.size, rows, columns).transpose(0, 1).reshape(rows, self.size * columns)

    def broadcast(self, tensor: Tensor) -> None:
        distributed.broadcast(tensor, src=0)


def local_device(job: Job) -> str:
    """The GPU of this rank: the one of its number among the machine's ranks, or the only one it sees."""
    return f"cuda:{job.local_rank % max(1, torch.cuda.device_count())}"


def connect(job: Job, meeting: Meeting, device: Any) -> TorchCommunicator:
    """The communicator of all ranks; each calls this with its device. Errors: `OptionError`."""
    if device.type == "cuda":
        _require_one_rank_a_gpu(job, meeting, device)
    store = meeting.store if isinstance(meeting, StoreMeeting) else _open_store(job, meeting)
    is_cuda = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=distributed.PrefixStore("inflight-group", store),
        rank=job.rank,
        world_size=job.size,
        timeout=_TIMEOUT,
        device_id=device if is_cuda else None,
    )
    return TorchCommunicator(job)


def _open_store(job: Job, meeting: Meeting) -> Any:
    """A store on rank 0; the other ranks learn its port through the meeting."""
    host = meeting.leader_host()
    store = None
    if job.rank == 0:
        store = distributed.TCPStore(host, 0, job.size, is_master=True, wait_for_workers=False)
    port = meeting.exchange(None if store is None else store.port)[0]
    return store or distributed.TCPStore(host, port, job.size, is_master=False, wait_for_workers=False)


def _require_one_rank_a_gpu(job: Job, meeting: Meeting, device: Any) -> None:
    mine = str(torch.cuda.get_device_properties(device).uuid)
    everybodys = meeting.exchange(mine)
    if everybodys.count(mine) > 1:
        raise OptionError(
            f"`{everybodys.count(mine)}` ranks share one GPU, rank `{job.rank}` among them",
            f"start as many ranks as there are GPUs (this machine shows {torch.cuda.device_count()}), or let"
            " `CUDA_VISIBLE_DEVICES` name different ones",
        )
