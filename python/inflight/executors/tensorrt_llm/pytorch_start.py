"""How an executor over TensorRT-LLM's PyTorch runtime is made: the package is imported and verified, the
checkpoint loads, and what it can do is announced. Knows nothing of requests.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from inflight._native import Capability
from inflight.errors import UserMistake
from inflight.executors.base import ModelInfo
from inflight.executors.tensorrt_llm import encoder_start, images, pytorch_config, ranks
from inflight.executors.tensorrt_llm.encoder import EncodeExecutor
from inflight.executors.tensorrt_llm.guide_check import find_grammar, takes_formats
from inflight.executors.tensorrt_llm.guide_requests import FORMATS
from inflight.executors.tensorrt_llm.health import EngineFailed, describe
from inflight.executors.tensorrt_llm.options import Options
from inflight.executors.tensorrt_llm.promises import capabilities
from inflight.executors.tensorrt_llm.pytorch import PyTorchExecutor
from inflight.executors.tensorrt_llm.pytorch_conditions import conditions
from inflight.executors.tensorrt_llm.pytorch_requests import SamplingBuilder, Started
from inflight.executors.tensorrt_llm.verify import verify

LOG = logging.getLogger("inflight.tensorrt_llm")

#: Without it several sequences of a greedy request are a ValueError.
N_GREEDY = "TLLM_ALLOW_N_GREEDY_DECODING"


def create_pytorch(model_dir: Path, options: Options, version: str) -> PyTorchExecutor | EncodeExecutor:
    """Loads a Hugging Face checkpoint. Imports TensorRT-LLM.

    Errors: `UserMistake` where the installed version cannot do what is asked; `EngineFailed` where the
    checkpoint does not load.
    """
    ranks.require_leader()
    arguments = pytorch_config.llm_arguments(model_dir, options)
    sizes = pytorch_config.Sizes.read(model_dir, arguments)
    is_encoder = bool(arguments.get(encoder_start.ENCODE_ONLY))
    if is_encoder:
        encoder_start.prepare(model_dir, arguments)
    adapters = pytorch_config.find_adapters(options, arguments)
    # Before the import: TensorRT-LLM reads it when it is loaded or starts its worker.
    os.environ.setdefault(N_GREEDY, "1")
    find, bindings, torch = import_classes(version)
    verified = verify("pytorch", version, find)
    pytorch_config.check_arguments(arguments, find, version)
    try:
        pytorch_config.make_speculation(arguments, find)
        llm = find("LLM")(**arguments)
    except (ValueError, TypeError) as error:
        raise UserMistake(
            f"TensorRT-LLM `{version}` refuses `{model_dir}`: {describe(error)}",
            "change the options, or serve a checkpoint that its PyTorch runtime supports",
        ) from error
    except Exception as error:
        raise EngineFailed(f"the checkpoint `{model_dir}` did not load: {describe(error)}") from error
    if is_encoder:
        return encoder_start.make_encoder(llm, model_dir, sizes, version)
    takes_images = pytorch_config.has_vision(model_dir) and _can_see(llm, version)
    encodes_anew = pytorch_config.has_mrope(model_dir) and pytorch_config.processes_images(llm)
    held = conditions(
        arguments, find, adapters=adapters is not None, images=takes_images, encodes_anew=encodes_anew
    )
    offered = capabilities("pytorch", held, frozenset(verified.off))
    backend = arguments.get("guided_decoding_backend") or "xgrammar"
    grammar = find_grammar() if Capability.GUIDED_DECODING in offered and backend == "xgrammar" else None
    formats = grammar is not None and takes_formats(grammar)
    max_seq_len = pytorch_config.loaded_length(llm, sizes.max_seq_len)
    has_events = callable(getattr(llm, "get_kv_cache_events_async", None))
    reports_events = has_events and pytorch_config.reports_events(arguments)
    info = ModelInfo(
        executor="tensorrt_llm",
        vocab_size=sizes.vocab_size,
        max_seq_len=max_seq_len,
        max_input_len=min(sizes.max_input_len, max_seq_len - 1),
        max_batch_size=sizes.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        max_beam_width=sizes.max_beam_width,
        tokens_per_block=sizes.tokens_per_block,
        capabilities=(
            *offered,
            *((FORMATS,) if formats else ()),
            *((Capability.ADAPTER_LOADING,) if Capability.LORA in offered else ()),
            *((Capability.CACHE_EVENTS,) if reports_events else ()),
        ),
        adapters=() if adapters is None else adapters.announced,
    )
    if sizes.max_beam_width > 1:
        LOG.warning(
            "`max_beam_width` is %d: the PyTorch runtime runs every request at that width, so this worker "
            "refuses requests of another `beam_width`",
            sizes.max_beam_width,
        )
    started = Started(
        beam_width=sizes.max_beam_width,
        overlaps=not arguments.get("disable_overlap_scheduler"),
        in_chunks=pytorch_config.computes_in_chunks(llm, arguments),
        full_sampler="full_sampler" in held,
        guide_backend=backend,
        takes_formats=formats,
        decode=llm.tokenizer.decode if encodes_anew else None,
        preprocess=getattr(llm, "preprocess", None),
    )
    builder = SamplingBuilder(find, bindings, torch, sizes.vocab_size, adapters, started)
    return PyTorchExecutor(
        llm, builder, info, request_error=find("RequestError"), reports_events=reports_events
    )


def _can_see(llm: Any, version: str) -> bool:
    """Whether the images of a checkpoint with a vision encoder can be handed over; the log says why not."""
    reasons = {
        "Pillow is not installed": not images.are_decodable(),
        f"TensorRT-LLM {version} has no input processor for it": not pytorch_config.processes_images(llm),
    }
    for reason, holds in reasons.items():
        if holds:
            LOG.warning("this checkpoint has a vision encoder, and %s: `images` is off", reason)
            return False
    return True


def import_classes(version: str) -> tuple[Any, Any, Any]:
    """A finder of classes by their names in the table, the bindings' data classes, torch."""
    try:
        torch = import_module("torch")
        package = import_module("tensorrt_llm")
        llmapi = import_module("tensorrt_llm.llmapi")
        bindings = import_module("tensorrt_llm.bindings.executor")
    except (ImportError, OSError) as error:
        raise UserMistake(
            f"TensorRT-LLM `{version}` is installed but cannot be imported: {describe(error)}",
            "check the NVIDIA driver, CUDA and `torch` packages that this version needs",
        ) from error

    def find(name: str) -> Any:
        if name == "generate_async":
            return getattr(getattr(package, "LLM", None), name, None)
        for module in (package, llmapi, bindings):
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                return found
        return None

    return find, bindings, torch
