#!/usr/bin/env python3
"""Tokens per second of vLLM's engine alone, for the shapes, the prompts and the cases of
`benchmark_executor.py`, which starts this file with `--vllm PYTHON`. Runs in vLLM's own environment, without
Inflight.

Weights are drawn as Inflight's `load_format` `dummy` draws them. vLLM's own dummy weights are all drawn from
one seed, so that the routers of all layers are the same and a mixture of experts uses few of its experts.
Requests have no seeds, which vLLM would sample for one by one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from generation_cases import CASES, prompts_of, requests_of

#: The loader below reaches the engine's process only if that is a copy of this one.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

LOAD_FORMAT = "drawn"

#: Fields of a request that vLLM has no public name for, or takes as text only.
UNKNOWN = {"bad_words", "no_repeat_ngram_size"}

#: The root mean square of what all nibbles of MXFP4 stand for, and of what four bits do around their middle.
MXFP4_SPREAD, INT4_SPREAD = 2.93, 4.6
#: FP8 numbers are drawn this wide, and scaled back.
FP8_SPREAD = 16.0
#: Eight zeros of INT4 in a word, each 8.
INT4_ZEROS = -0x77777778


def register_loader() -> None:
    """Makes ``load_format`` `drawn` known to vLLM."""
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class DrawnWeights(BaseModelLoader):  # type: ignore[misc]
        def download_model(self, model_config: Any) -> None:
            pass

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def load_weights(self, model: Any, model_config: Any) -> None:
            config = model_config.hf_text_config
            norm = 0.0 if config.model_type.startswith("gemma") else 1.0
            generator = None
            for name, tensor in model.state_dict().items():
                generator = generator or torch.Generator(tensor.device).manual_seed(0)
                draw(torch, name, tensor, config.hidden_size**-0.5, norm, generator)


def draw(torch: Any, name: str, tensor: Any, scale: float, norm: float, generator: Any) -> None:
    """Fills a parameter. ``scale`` is the standard deviation of matrices, ``norm`` a norm's weight. What is
    not listed here keeps what vLLM gave it, such as the scales of a key-value cache."""
    part = name.rpartition(".")[2]
    if not tensor.is_floating_point():
        if part.endswith("weight_scale"):
            tensor.fill_(127 + round(math.log2(scale / MXFP4_SPREAD)))
        elif part.endswith("qzeros"):
            tensor.fill_(INT4_ZEROS)
        elif part.endswith("weight"):
            limits = torch.iinfo(tensor.dtype)
            tensor.random_(limits.min, limits.max + 1, generator=generator)
    elif part.endswith("scales"):
        tensor.fill_(scale / INT4_SPREAD)
    elif "weight_scale" in part:
        tensor.fill_(scale / FP8_SPREAD)
    elif tensor.ndim == 1 or part.endswith("bias"):
        tensor.fill_(norm if part == "weight" else 0.0)
    elif tensor.itemsize == 1:
        drawn = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
        drawn.normal_(0.0, FP8_SPREAD, generator=generator)
        tensor.copy_(drawn.clamp_(-448, 448).to(tensor.dtype))
    elif tensor.ndim > 1:
        tensor.normal_(0.0, scale, generator=generator)


def unknown_fields(case: str) -> set[str]:
    """What a case asks for and vLLM cannot be asked for."""
    return UNKNOWN & {name for fields in CASES[case] for name in fields}


def sampling_parameters(case: str, batch: int, outputs: int) -> Any:
    """vLLM's form of a case, for a request of ``batch`` sequences in all."""
    from vllm import SamplingParams

    fields, sampling, output = CASES[case]
    named = {name: value for name, value in sampling.items() if name != "num_return_sequences"}
    if not sampling:
        named["temperature"] = 0.0
    if "logit_bias" in fields:
        named["logit_bias"] = dict(fields["logit_bias"])
    if output:
        named["logprobs"] = output["num_top_log_probs"]
    named["n"] = batch // requests_of(batch, case)
    return SamplingParams(**named, max_tokens=outputs, ignore_eos=True, detokenize=False)


def speed(engine: Any, prompts: list[list[int]], parameters: Any) -> float:
    """Tokens per second, from handing in the prompts to the last token."""
    wanted = [{"prompt_token_ids": prompt} for prompt in prompts]
    started = time.perf_counter()
    answers = engine.generate(wanted, parameters, use_tqdm=False)
    taken = time.perf_counter() - started
    tokens = sum(len(one.token_ids) for answer in answers for one in answer.outputs)
    asked_for = len(prompts) * parameters.n * parameters.max_tokens
    if tokens != asked_for:
        raise RuntimeError(f"{tokens} tokens came and {asked_for} were asked for")
    return tokens / taken


def measure(engine: Any, batch: int, case: str, vocab_size: int, arguments: argparse.Namespace) -> float:
    """Tokens per second of the best run; the first one does not count."""
    speeds = []
    for turn in range(arguments.repeat + 1):
        prompts = prompts_of(batch, case, arguments.input, vocab_size, turn)
        parameters = sampling_parameters(case, batch, arguments.output if turn else 8)
        speeds.append(speed(engine, prompts, parameters))
    return max(speeds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="that holds the `config.json`")
    parser.add_argument("--name", required=True, help="of the shape, for the rows")
    parser.add_argument("--results", type=Path, required=True, help="a file that gets a JSON object a row")
    parser.add_argument("--batch", action="append", type=int, required=True)
    parser.add_argument("--case", action="append", required=True, choices=list(CASES))
    parser.add_argument("--input", type=int, required=True)
    parser.add_argument("--output", type=int, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON", help="of `vllm.LLM`")
    arguments = parser.parse_args()

    register_loader()
    from vllm import LLM

    options: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": arguments.input + arguments.output,
        "max_num_seqs": max(arguments.batch),
        "gpu_memory_utilization": 0.85,
        # Repeated runs send the same prompts, which must be computed each time.
        "enable_prefix_caching": False,
    }
    for name, _, value in (option.partition("=") for option in arguments.option):
        options[name] = json.loads(value)
    started = time.perf_counter()
    engine = LLM(str(arguments.directory), load_format=LOAD_FORMAT, skip_tokenizer_init=True, **options)
    print(f"{arguments.name}: vLLM ready after {time.perf_counter() - started:.1f} s", flush=True)
    vocab_size = json.loads((arguments.directory / "config.json").read_text())["vocab_size"]
    with arguments.results.open("a") as results:
        for batch in arguments.batch:
            for case in arguments.case:
                if unknown := unknown_fields(case):
                    print(f"{case}: vLLM has no {', '.join(sorted(unknown))}", flush=True)
                    continue
                best = measure(engine, batch, case, vocab_size, arguments)
                row = {"shape": arguments.name, "batch": batch, "case": case, "speed": best}
                results.write(json.dumps(row) + "\n")
                results.flush()
                print(f"{arguments.name}: batch {batch}: {case}: vLLM: {best:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
