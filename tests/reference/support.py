"""What the tests share: the fixtures' paths, requests in few words, and batches read back as rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from inflight.executors.base import FinishReason, OutputConfig, Request, ResponseBatch, SamplingConfig
from inflight.executors.reference.assembly import _load_hearing
from inflight.executors.reference.core.adapters import Adapters
from inflight.executors.reference.core.admission import Bounds
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.branches import Proposer
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.images import ImagePrompt
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.options import cache_window, limit_windows, parse_options
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.reuse import ReuseIndex
from inflight.executors.reference.core.rows import Row
from inflight.executors.reference.core.runner import Runner
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy, Limits
from inflight.executors.reference.model.config import ModelConfig, load_config
from inflight.executors.reference.model.processor import load_processor
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.hearing import NumpyHearing
from inflight.executors.reference.numpy.model import NumpyModel, load_model
from inflight.executors.reference.numpy.runner import NumpyRunner
from inflight.executors.reference.numpy.sight import NumpySight

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB_SIZE = 64

_models: dict[tuple[str, bool], NumpyModel] = {}


def expected(name: str) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Token ids and transformers' logits of a fixture."""
    with np.load(FIXTURES / name / "expected.npz") as file:
        return file["token_ids"].tolist(), file["logits"]


def model(name: str = "llama", invariant: bool = False) -> NumpyModel:
    """A fixture's model, loaded once; it is immutable."""
    if (name, invariant) not in _models:
        _models[name, invariant] = load_model(FIXTURES / name, batch_invariant=invariant)
    return _models[name, invariant]


def engine(
    name: str = "llama",
    *,
    max_batch_size: int = 64,
    max_num_tokens: int = 256,
    num_blocks: int = 600,
    tokens_per_block: int = 4,
    max_seq_len: int = 128,
    max_queue_size: int = 100,
    depth: int = 1,
    reuse: bool = True,
    policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
    chunked: bool = True,
    lookup: LookupConfig | None = None,
    proposer: Proposer | None = None,
    attention: dict[str, Any] | None = None,
    num_host_blocks: int = 0,
    adapters: Adapters | None = None,
    torch: TorchSettings | None = None,
    invariant: bool = False,
    image_bytes: int = 1 << 20,
    max_rows: int = 0,
) -> Engine:
    """An engine over a fixture, small enough to reach its limits. ``attention`` holds the options that limit
    its windows, ``invariant`` is NumPy's option `batch_invariant`.

    With `INFLIGHT_TEST_DEVICE` `cpu` or `cuda` in the environment it computes on PyTorch there, so that
    every test of the engine can be run on both implementations.
    """
    config = limit_windows(load_config(FIXTURES / name), parse_options(attention or {}))
    window = cache_window(config, max_num_tokens)
    limits = Limits(max_batch_size, max_num_tokens, policy, chunked, max_rows=max_rows)
    if torch is None and "INFLIGHT_TEST_DEVICE" in os.environ:
        torch = TorchSettings(os.environ["INFLIGHT_TEST_DEVICE"])
    runner: Runner
    if torch is not None:
        runner = torch_runner(
            name,
            config,
            torch,
            limits,
            num_blocks,
            tokens_per_block,
            max_seq_len,
            num_host_blocks,
            image_bytes,
        )
    else:
        cache = PagedCache.of(config, num_blocks + num_host_blocks, tokens_per_block)
        loaded = model(name, invariant)
        if attention:
            loaded = load_model(FIXTURES / name, None, config, batch_invariant=invariant)
        sight = None
        if loaded.tower is not None and config.vision is not None:
            sight = NumpySight(loaded.tower, load_processor(FIXTURES / name, config.vision), image_bytes)
        hearing = None if loaded.encoder is None else NumpyHearing(loaded.encoder, 1 << 30)
        runner = NumpyRunner(loaded, cache, depth, sight=sight, hearing=hearing)
    return Engine(
        runner,
        BlockPool(
            num_blocks,
            tokens_per_block,
            ReuseIndex(tokens_per_block, True, 1000) if reuse else None,
            window=window,
            num_host_blocks=num_host_blocks,
        ),
        limits,
        Bounds(
            config.vocab_size,
            max_seq_len,
            num_blocks,
            tokens_per_block,
            max_queue_size,
            None if chunked else max_num_tokens,
            policy is CapacitySchedulerPolicy.MAX_UTILIZATION,
            max_beam_width=8,
            window=window,
            hidden_size=config.hidden_size,
            reuses_blocks=reuse,
            hearing=_load_hearing(FIXTURES / name, config),
        ),
        lookup,
        proposer,
        adapters,
    )


def torch_engine(
    name: str = "llama",
    device: str = "cpu",
    *,
    kernels: ModuleType | None = None,
    dtype: str = "float32",
    **limits: Any,
) -> Engine:
    """As `engine`, over PyTorch; with the kernels on a GPU."""
    return engine(name, torch=TorchSettings(device, kernels, dtype), **limits)


@dataclass(frozen=True)
class TorchSettings:
    """How PyTorch is to compute."""

    device: str = "cpu"
    kernels: ModuleType | None = None
    dtype: str = "float32"


def torch_runner(
    name: str,
    config: ModelConfig,
    settings: TorchSettings,
    limits: Limits,
    num_blocks: int,
    size: int,
    max_seq_len: int,
    num_host_blocks: int,
    image_bytes: int = 1 << 20,
) -> Runner:
    """A runner on PyTorch over a fixture."""
    import torch

    from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
    from inflight.executors.reference.pytorch import operations
    from inflight.executors.reference.pytorch.hearing import TorchHearing
    from inflight.executors.reference.pytorch.model import TorchModel
    from inflight.executors.reference.pytorch.runner import TorchRunner
    from inflight.executors.reference.pytorch.vision import TorchSight
    from inflight.executors.reference.pytorch.weights import DeviceWeights

    kernels = settings.kernels
    if settings.device == "cuda" and kernels is None:
        from inflight.executors.reference.pytorch import kernels
    torch.set_num_threads(1)  # the models are tiny
    checkpoint = CheckpointWeights.of(config, find_weights(FIXTURES / name))
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    with closing(DeviceWeights(checkpoint, device, dtype)) as weights:
        model = TorchModel(config, weights, max_seq_len, size, kernels or operations)
    sight = None
    if model.tower is not None:
        processor = load_processor(FIXTURES / name, model.tower.config)
        sight = TorchSight(model.tower, processor, image_bytes)
    slots = limits.max_batch_size
    hearing = None if model.encoder is None else TorchHearing(model.encoder, slots, slots)
    return TorchRunner(
        model, num_blocks, limits, num_host_blocks=num_host_blocks, sight=sight, hearing=hearing
    )


def request(
    client_id: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    sampling: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None,
    **fields: Any,
) -> Request:
    """A request; ``sampling`` and ``output`` are fields of its two configurations."""
    return Request(
        client_id,
        list(prompt),
        max_tokens,
        sampling_config=SamplingConfig(**(sampling or {})),
        output_config=OutputConfig(**(output or {})),
        **fields,
    )


@dataclass
class Told:
    """All that was told of one sequence."""

    tokens: list[int] = field(default_factory=list)
    rows: int = 0
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    final: bool = False
    error: str | None = None
    log_probs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_values: list[list[float]] = field(default_factory=list)
    prompt_rows: list[Row] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    logits: list[npt.NDArray[np.float32]] = field(default_factory=list)
    context_logits: npt.NDArray[np.float32] | None = None
    embedding: npt.NDArray[np.float32] | None = None
    tensors: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)


#: What was told, by (client id, sequence index).
AllTold = dict[tuple[int, int], Told]


def collect(rows: Sequence[Row], into: AllTold | None = None) -> AllTold:
    """Rows by (client id, sequence index); checks the order that the protocol promises."""
    told: AllTold = {} if into is None else into
    for row in rows:
        assert not any(one.final for (client_id, _), one in told.items() if client_id == row.client_id)
        one = told.setdefault((row.client_id, row.sequence_index), Told())
        assert one.finish_reason == FinishReason.NOT_FINISHED
        one.rows += 1
        one.tokens.extend(row.tokens)
        one.finish_reason, one.final = row.finish_reason, row.final
        one.error = row.error[1] if row.error else None
        if row.record is not None:
            # What was not asked for is not sent.
            if row.wants_log_probs:
                one.log_probs.extend(row.record.log_probs)
            if row.top_width:
                one.top_ids.extend(ids.tolist() for ids in row.record.top_ids)
                one.top_values.extend(values.tolist() for values in row.record.top_log_probs)
            one.logits.extend(row.record.logits)
        for tensor in row.metrics:
            if tensor.datatype == "FP32":
                one.tensors[tensor.name] = np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)
        if row.context_logits is not None:
            assert one.context_logits is None
            one.context_logits = row.context_logits
        if row.embedding is not None:
            assert one.embedding is None
            one.embedding = row.embedding
        if row.cached_tokens is not None:
            one.cached_tokens.append(row.cached_tokens)
        if row.prompt is not None:
            one.prompt_rows.append(row)
    return told


def run(
    subject: Engine,
    requests: Sequence[Request],
    most: int = 1000,
    images: Mapping[int, ImagePrompt | Refused] | None = None,
) -> AllTold:
    """Runs requests to their end; ``images`` are those of prompts, by client id."""
    first = Iteration()
    subject.add(requests, first, images=images or {})
    told = collect(first.rows)
    for _ in range(most):
        if not subject.has_work:
            return told
        iteration = Iteration()
        subject.step(iteration)
        collect(iteration.rows, told)
    raise AssertionError(f"work is left after {most} iterations")


def unpack(batch: ResponseBatch) -> list[Row]:
    """The dense columns of a batch as rows, checking that their lengths agree."""
    client_ids = np.frombuffer(batch.client_ids, dtype="<u8")
    indices = np.frombuffer(batch.sequence_index, dtype="<i4")
    offsets = np.frombuffer(batch.token_offsets, dtype="<u4")
    tokens = np.frombuffer(batch.token_ids, dtype="<i4")
    reasons = np.frombuffer(batch.finish_reasons, dtype="u1")
    finals = np.frombuffer(batch.finals, dtype="u1")
    count = len(client_ids)
    assert len(indices) == len(reasons) == len(finals) == count
    assert len(offsets) == (count + 1 if count else 0)
    assert (int(offsets[-1]) if count else 0) == len(tokens)
    return [
        Row(
            int(client_ids[row]),
            int(indices[row]),
            tokens[offsets[row] : offsets[row + 1]].tolist(),
            FinishReason(int(reasons[row])),
            bool(finals[row]),
        )
        for row in range(count)
    ]


def read_config(name: str) -> dict[str, Any]:
    """A fixture's ``config.json``."""
    values: dict[str, Any] = json.loads((FIXTURES / name / "config.json").read_text())
    return values
