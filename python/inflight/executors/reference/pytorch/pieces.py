"""An iteration as CUDA graphs of a few layers each, which is given up between two of them.

Owns how a graph is cut, and what is queued before it is asked again whether somebody came. Does not know
what the layers compute or who waits. What was given up is computed anew from its beginning: it has written
keys and values that are written again, and nothing else that lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .capturing import no_collection
from .model import TorchModel

#: Bytes of weights that a piece reads, at least: about 0.3 ms on an H200, where a graph more takes 0.01.
_PIECE_BYTES = 1 << 30
#: One computes and the next one is queued, so that the device never waits for the host.
_QUEUED = 2


class GivenUp(Exception):
    """An iteration was not queued to its end."""


class Pieces:
    """Graphs that follow one another. Captures them; inside of `DeviceSteps.queueing`."""

    def __init__(self, model: TorchModel, compute: Callable[[], Any], layers: int, pool: Any) -> None:
        """``layers`` are those of a piece; the graphs share the memory of ``pool`` with others."""
        self._graphs: list[Any] = []

        def begin() -> None:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            self._graphs.append(graph)

        def cut(layer: int) -> None:
            if layer and layer % layers == 0:
                self._graphs[-1].capture_end()
                begin()

        compute()  # compiles kernels and picks algorithms, which a capture must not
        torch.cuda.synchronize(model.device)
        model.before_layer = cut
        try:
            with no_collection():
                begin()
                compute()
                self._graphs[-1].capture_end()
        finally:
            model.before_layer = None

    def replay(self, is_awaited: Callable[[], bool]) -> None:
        """Queues all pieces, the last ones once the first are done. Raises `GivenUp`."""
        queued: deque[Any] = deque()
        for graph in self._graphs:
            if len(queued) == _QUEUED:
                queued.popleft().synchronize()
            if is_awaited():
                raise GivenUp
            graph.replay()
            done = torch.cuda.Event()
            done.record()
            queued.append(done)


def layers_of_a_piece(weight_bytes: int, layers: int) -> int:
    """How many of a model's layers are in a piece; all of them where cutting would not pay."""
    pieces = max(1, min(layers, weight_bytes // _PIECE_BYTES))
    return -(-layers // pieces)
