#!/usr/bin/env python3
"""Tokens per second of the reference executor alone: all requests at once, no gateway, no worker.

    python tools/benchmark_executor.py --shape small --shape 8b --batch 1 --batch 64 --batch 256

Weights are random (``load_format`` `dummy`), or those of the checkpoint that ``--model`` names. Prompts are
random tokens, and no end token ends an output. A run is from the first request handed in to the last token,
prompts included; the best of ``--repeat``.

How tokens are chosen is a case; the speed of each is printed also as a share of the first one's. Every
request has another seed, and the cases take turns:

    python tools/benchmark_executor.py --batch 256 --case greedy --case top-p --case penalties --case all

So are LoRA adapters on all linear layers, mixed over the requests; their weights are random and in memory:

    python tools/benchmark_executor.py --shape 8b --batch 64 --adapters 0 --adapters 1 --adapters 32 \\
        --adapter-rank 16 --option lora_cache_gpu_memory_fraction=0.9 \\
        --option max_tokens_in_paged_kv_cache=131072

With ``--write DIRECTORY`` nothing runs: the shape becomes a model directory for the whole path,

    inflight serve DIRECTORY --device cuda --executor-option load_format=dummy
    inflight bench load 127.0.0.1:8000 --streams 256 --prompt-tokens 100 --requests 1024 --warmup 256

with the embedded model's tokenizer, filled up with made-up words to the shape's vocabulary. Such a directory
also serves `--guide`, which needs a tokenizer:

    python tools/benchmark_executor.py --model DIRECTORY --guide --option load_format=dummy \\
        --option backend=pytorch
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from inflight.executors.base import Executor, NamedTensor, Request
from inflight.executors.reference import create
from inflight.executors.reference.core.adapters import Loaded, Named, task_id_of
from inflight.executors.reference.model.config import ModelConfig, load_config
from inflight.executors.reference.model.lora import Adapter, Delta, Part, Slot, named_slots
from inflight.launch.model import DEMO_DIRECTORY

#: Keys of `config.json` by shape.
SHAPES: dict[str, dict[str, Any]] = {
    # To try a tool without a GPU.
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
    "small": {
        "num_hidden_layers": 16,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 2816,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    "1b": {
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    "8b": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
}

SHAPES |= {
    # Qwen3-30B-A3B's.
    "30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
    },
    # Half the layers of Mixtral-8x7B, so that it fits one GPU in 16 bits.
    "mixtral-half": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 16,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
    },
    # As published, but for the longest sequence.
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
        "vocab_size": 201088,
        "max_position_embeddings": 8192,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    # DeepSeek-V2-Lite's.
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 102400,
        "max_position_embeddings": 8192,
    },
    # Gemma-3-4B's language model.
    "gemma-3-4b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 10240,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
        "max_position_embeddings": 8192,
    },
}

#: How random weights are quantized, as `quantization_config` says it.
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
}

#: A long list of small objects: keys, numbers, enumerations and free text by turns, and no end in sight.
GUIDE = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["city", "river", "mountain"]},
            "size": {"type": "integer", "minimum": 0, "maximum": 10**9},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
}


#: Ways to choose tokens: fields of a request, of its sampling and of its output. `choices` asks for four
#: sequences a request and has a quarter of the requests, and `repeated` sends each of those four times;
#: `sampling` is all of them but log probabilities and choices.
_PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
_BIAS: dict[str, Any] = {"logit_bias": [(one, 0.5) for one in range(1, 301)]}
_WORDS: dict[str, Any] = {"bad_words": [[one] for one in range(64)] + [[one, one + 1] for one in range(64)]}
_LOG_PROBS: dict[str, Any] = {"return_log_probs": True, "num_top_log_probs": 20}
_SAMPLING = {
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.01,
    "no_repeat_ngram_size": 3,
    "temperature": 0.8,
    **_PENALTIES,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}, {}),
    "temperature": ({}, {"top_p": 1.0, "temperature": 0.8}, {}),
    "top-p": ({}, {"top_p": 0.9}, {}),
    "top-k": ({}, {"top_k": 50}, {}),
    "min-p": ({}, {"top_p": 1.0, "min_p": 0.05}, {}),
    "penalties": ({}, {"top_p": 1.0, **_PENALTIES}, {}),
    "ngrams": ({}, {"top_p": 1.0, "no_repeat_ngram_size": 3}, {}),
    "bias": (_BIAS, {"top_p": 1.0}, {}),
    "words": (_WORDS, {"top_p": 1.0}, {}),
    "choices": ({}, {"top_p": 0.9, "num_return_sequences": 4}, {}),
    "repeated": ({}, {"top_p": 0.9}, {}),
    "log-probs": ({}, {}, _LOG_PROBS),
    "sampling": ({**_BIAS, **_WORDS}, _SAMPLING, {}),
    "all": ({**_BIAS, **_WORDS}, {**_SAMPLING, "num_return_sequences": 4}, _LOG_PROBS),
}


#: Requests with the same prompt, by case.
_COPIES = {"repeated": 4}


def write_config(shape: str, directory: Path, quantization: str | None = None) -> None:
    """A ``config.json`` of ``shape`` in ``directory``; enough for random weights."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPES[shape]}
    if quantization is not None:
        config["quantization_config"] = QUANTIZATIONS[quantization]
    (directory / "config.json").write_text(json.dumps(config))


def write_model(shape: str, directory: Path) -> None:
    """A directory that `inflight serve` takes: no weights, and a tokenizer with a word for every id."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(shape, directory)
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(DEMO_DIRECTORY / name, directory / name)
    tokenizer = json.loads((DEMO_DIRECTORY / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    words = (
        "\u0120" + "".join(letters)  # the byte-level space before a word
        for length in (4, 5)
        for letters in itertools.product("etaoinshrdlu", repeat=length)
    )
    free = (word for word in words if word not in vocabulary)
    for token in range(SHAPES[shape]["vocab_size"]):
        if token not in taken:
            vocabulary[next(free)] = token
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"{}      ")


def random_adapter(name: str, config: ModelConfig, rank: int, pool: Any) -> Adapter:
    """On all linear layers. Matrices are parts of ``pool``, from places that the name decides: those of many
    adapters would fill the host's memory."""
    draw = random.Random(name)

    def drawn(rows: int, columns: int) -> Any:
        start = draw.randrange(len(pool) - rows * columns)
        return pool[start : start + rows * columns].reshape(rows, columns)

    slots = named_slots(config).values()
    layers: list[dict[Part, list[Delta]]] = []
    nbytes = 0
    for _ in range(config.num_layers):
        layer: dict[Part, list[Delta]] = {}
        for slot in slots:
            delta = Delta(slot, drawn(rank, slot.inputs), drawn(slot.outputs, rank))
            layer.setdefault(slot.part, []).append(delta)
            nbytes += delta.down.nbytes + delta.up.nbytes
        layers.append(layer)
    return Adapter(task_id_of(name), layers, name.encode(), nbytes)


def install_adapters(executor: Any, count: int, rank: int, config: ModelConfig) -> None:
    """Adapters with the names `1` and so on, as if they had been read from files."""

    def elements(slot: Slot) -> int:
        return rank * max(slot.inputs, slot.outputs)

    most = max(elements(slot) for slot in named_slots(config).values())
    pool = np.random.default_rng(0).normal(0, 0.02, 2 * most).astype(np.float32)
    for number in range(1, count + 1):
        adapter = random_adapter(str(number), config, rank, pool)
        named = Named(str(number), adapter.task_id, Path(str(number)))
        executor._adapters.install(Loaded(adapter, named))


def run(
    executor: Executor,
    batch: int,
    inputs: int,
    outputs: int,
    case: str,
    adapters: int,
    tensors: list[NamedTensor],
    turn: int,
) -> tuple[float, float]:
    """Seconds from handing in requests for ``batch`` sequences to their last token, and CPU seconds of the
    process. Requests take turns with ``adapters``; each ``turn`` has other prompts."""
    vocab_size = executor.info().vocab_size
    draw = random.Random(1000 * turn + batch)
    fields, sampling, output = CASES[case]
    count, copies = max(1, batch // sampling.get("num_return_sequences", 1)), _COPIES.get(case, 1)
    prompts = [[draw.randrange(vocab_size) for _ in range(inputs)] for _ in range(max(1, count // copies))]
    requests = [Request(one, prompts[one // copies % len(prompts)], outputs) for one in range(count)]
    for seed, request in enumerate(requests):
        request.tensors = list(tensors)
        if adapters:
            task_id = struct.pack("<Q", 1 + seed % adapters)
            request.tensors.append(NamedTensor("lora_task_id", "UINT64", (1,), task_id))
        request.sampling_config.seed = seed
        for subject, values in (
            (request, fields),
            (request.sampling_config, sampling),
            (request.output_config, output),
        ):
            for name, value in values.items():
                setattr(subject, name, value)
        request.sampling_config.num_return_sequences = batch // count
    left = count
    tokens = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    executor.enqueue(requests)
    while left:
        rows = executor.await_responses(10.0)
        left -= sum(rows.finals)
        tokens += len(rows.token_ids) // 4
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if tokens != batch // count * count * outputs:
        raise RuntimeError(f"{tokens} tokens came and {batch // count * count * outputs} were asked for")
    return seconds, cpu_seconds


def measure(
    executor: Executor,
    shape: str,
    batch: int,
    cases: list[str],
    arguments: argparse.Namespace,
    tensors: list[NamedTensor],
) -> None:
    """Prints the best run of each case. The cases take turns, so that a slow moment is not all one case's."""
    kinds = list(itertools.product(cases, arguments.adapters or [0]))
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    for case, adapters in kinds:
        run(executor, batch, arguments.input, 8, case, adapters, tensors, 0)
    turns = itertools.product(range(arguments.repeat), kinds)
    for turn, (_, kind) in enumerate(turns, 1):
        case, adapters = kind
        executor.stats()
        times = run(executor, batch, arguments.input, arguments.output, case, adapters, tensors, turn)
        latencies = sorted(float(one["iterLatencyMS"]) for one in executor.stats())
        found[kind].append((*times, latencies[len(latencies) // 2]))
    rank = arguments.adapter_rank
    names = {
        (case, adapters): f"{case}, {adapters} adapters of rank {rank}" if adapters else case
        for case, adapters in kinds
    }
    first = min(found[kinds[0]])[0]
    for kind, runs in found.items():
        best, cpu, median = (min(values) for values in zip(*runs, strict=True))
        print(
            f"{shape}: batch {batch}: {names[kind]}: {batch * arguments.output / best:,.0f} tokens/s, "
            f"{first / best:.2f} of {names[kinds[0]]}, "
            f"median iteration {median:.2f} ms, {batch * arguments.output / cpu:,.0f} tokens/CPU s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="default: small")
    parser.add_argument("--quantization", choices=sorted(QUANTIZATIONS), help="of the shapes' weights")
    parser.add_argument("--model", type=Path, metavar="DIRECTORY", help="a checkpoint instead of shapes")
    parser.add_argument("--batch", action="append", type=int, help="requests at once; default: 1, 64, 256")
    parser.add_argument("--input", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of an output")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the best counts")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument(
        "--case", action="append", choices=list(CASES), help="how tokens are chosen; default: greedy"
    )
    parser.add_argument(
        "--adapters", action="append", type=int, help="LoRA adapters that requests share out; default: 0"
    )
    parser.add_argument("--adapter-rank", type=int, default=16, help="their rank; default: 16")
    parser.add_argument("--guide", action="store_true", help="guide every output by a JSON schema")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the executor")
    parser.add_argument("--write", type=Path, metavar="DIRECTORY", help="write a model to serve, run nothing")
    arguments = parser.parse_args()
    if arguments.write is not None:
        write_model((arguments.shape or ["small"])[0], arguments.write)
        return
    guide = [("guide_type", b"json_schema"), ("guide", json.dumps(GUIDE).encode())]
    tensors = [
        NamedTensor(f"guided_decoding_{name}", "BYTES", (1,), struct.pack("<I", len(text)) + text)
        for name, text in guide
        if arguments.guide
    ]
    batches = arguments.batch or [1, 64, 256]
    options: dict[str, Any] = {
        "max_batch_size": max(batches),
        # Repeated runs send the same prompts, which must be computed each time.
        "enable_kv_cache_reuse": False,
    }
    if arguments.model is None:
        options |= {"load_format": "dummy", "backend": "pytorch"}
    if arguments.adapters:
        # Those of `install_adapters` share their memory.
        options |= {"lora_cache_host_memory_bytes": 1 << 50}
        options |= {"lora_cache_max_adapter_size": arguments.adapter_rank}
    for name, _, value in (option.partition("=") for option in arguments.option):
        options[name] = int(value) if value.isdecimal() else value
    for shape in [arguments.model.name] if arguments.model else arguments.shape or ["small"]:
        with tempfile.TemporaryDirectory() as directory:
            if arguments.model is None:
                write_config(shape, Path(directory), arguments.quantization)
            started = time.perf_counter()
            executor = create(arguments.model or directory, arguments.device, **options)
            print(f"{shape}: ready after {time.perf_counter() - started:.1f} s", flush=True)
            if arguments.adapters:
                config = load_config(arguments.model or Path(directory))
                install_adapters(executor, max(arguments.adapters), arguments.adapter_rank, config)
            for batch in batches:
                measure(executor, shape, batch, arguments.case or ["greedy"], arguments, tensors)
            executor.shutdown()


if __name__ == "__main__":
    main()
