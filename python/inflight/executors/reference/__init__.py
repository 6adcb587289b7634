"""The reference executor: decoder models on NumPy or PyTorch, with the semantics of TensorRT-LLM.

    model         a checkpoint: config, families, weights, adapters, what an image becomes
    core          in-flight batching: requests, blocks, sampling rules, guides. No model and no device
    numpy         the small runner, to be read and to be compared with transformers
    pytorch       the fast runner, on a GPU or a CPU
    parallel      ranks: how they meet, lead and follow
    transfer      blocks of the cache that travel between workers
    executor      the executor protocol: the engine's thread, waiting and time
    interpreter   what Python does for itself while streams wait
    preparation   guides, adapters and images, before the engine sees a request
    assembly      which parts, in which order
    capabilities  what works then
    errors        what cannot be served

Imports point up this list's way only: the runners import `core`, `core` imports `model`, and neither runner
imports the other. Everything around a runner can be run and tested without a GPU.
"""

from __future__ import annotations

from .assembly import create
from .errors import CheckpointError, OptionError, UnsupportedModelError

__all__ = ["CheckpointError", "OptionError", "UnsupportedModelError", "create"]
