"""How an executor over `LLM.encode` is made: what goes with it, and which checkpoints are embedding models.

Knows nothing of requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inflight._native import Capability
from inflight.errors import UserMistake
from inflight.executors.base import ModelInfo
from inflight.executors.tensorrt_llm.encoder import EncodeExecutor, vectors_of
from inflight.executors.tensorrt_llm.health import EngineFailed, describe
from inflight.executors.tensorrt_llm.pytorch_config import Sizes
from inflight.model.files import load_json

ENCODE_ONLY = "encode_only"
#: What `config.json` of an embedding model calls it, and what TensorRT-LLM has for it: as a model that
#: generates it would give logits (`trtllm-serve embeddings` does the same).
_EMBEDS = {"Qwen3ForCausalLM": "Qwen3ForTextEmbedding"}
#: The encoder runs in this process, on one GPU.
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
#: What belongs to generation.
_GENERATES = ("speculative_config", "lora_config", "guided_decoding_backend", "cache_transceiver_config")


def prepare(model_dir: Path, arguments: dict[str, Any]) -> None:
    """Checks what goes with `encode_only`, and names the architecture. Errors: `UserMistake`."""
    for name in _RANKS:
        if (arguments.get(name) or 1) > 1:
            raise UserMistake(
                f"`{name}` is `{arguments[name]}`, and with `{ENCODE_ONLY}` TensorRT-LLM uses one GPU",
                "start several workers instead",
            )
    for name in _GENERATES:
        if arguments.get(name):
            raise UserMistake(
                f"`{name}` is for models that generate, and `{ENCODE_ONLY}` is set", "leave one of them out"
            )
    config = load_json(model_dir / "config.json")
    architecture = (config.get("architectures") or [""])[0]
    if architecture in _EMBEDS:
        given = arguments.get("model_kwargs") or {}
        arguments["model_kwargs"] = {"architectures": [_EMBEDS[architecture]]} | given


def make_encoder(llm: Any, model_dir: Path, sizes: Sizes, version: str) -> EncodeExecutor:
    """Tries the model once. Errors: `UserMistake` where it makes something else than embeddings;
    `EngineFailed` where it fails."""
    if not callable(getattr(llm, "encode", None)):
        raise UserMistake(
            f"TensorRT-LLM `{version}` has no `LLM.encode`, which `{ENCODE_ONLY}` needs",
            "install 1.3 or later, or serve the model with `--executor reference`",
        )
    try:
        [vector] = vectors_of(llm, [[0]])
    except Exception as error:
        raise EngineFailed(f"the model encodes nothing: {describe(error)}") from error
    config = load_json(model_dir / "config.json")
    hidden = config.get("hidden_size")
    if vector.ndim != 1 or (isinstance(hidden, int) and vector.shape != (hidden,)):
        raise UserMistake(
            f"`{model_dir}` is not an embedding model of TensorRT-LLM's: of a token it makes numbers of the"
            f" shape `{list(vector.shape)}`, and its `hidden_size` is `{hidden}`",
            f"leave `{ENCODE_ONLY}` out to generate text, or serve it with `--executor reference`",
        )
    info = ModelInfo(
        executor="tensorrt_llm",
        vocab_size=sizes.vocab_size,
        max_seq_len=sizes.max_seq_len,
        max_input_len=sizes.max_input_len,
        max_batch_size=sizes.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        max_beam_width=1,
        tokens_per_block=sizes.tokens_per_block,
        capabilities=(Capability.EMBEDDINGS,),
    )
    return EncodeExecutor(llm, info, int(vector.shape[0]))
