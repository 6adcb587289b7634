"""Whether options, checkpoint and machine fit together. Pure: facts in, problems out, each with the option
and its value.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.engine.checkpoint import ModelFacts
from inflight.engine.installed import Installed
from inflight.engine.options import BY_NAME, DISABLE, ENABLE, PYTORCH, TENSORRT, Values
from inflight.engine.steps import Mapping4D, Problem

#: Quantization and cache formats -> the oldest GPU architecture with the instructions.
NEEDS_ARCHITECTURE = {"fp8": 89, "nvfp4": 100, "w4a8_awq": 89}


#: TensorRT-LLM counts in 32 bits.
MOST = 2**31 - 1
#: Ranks of one model: more than anybody has, and few enough to list a step for each.
MOST_RANKS = 4096


@dataclass(frozen=True)
class Lengths:
    """Sizes of the built model in tokens."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int


def applicable(values: Values, runtime: str) -> list[Problem]:
    """Options given that mean nothing to `runtime`."""
    return [
        Problem(
            f"`{BY_NAME[name].flag}` means nothing to the runtime `{runtime}`",
            f"leave `{BY_NAME[name].flag}` out, or choose `--runtime {BY_NAME[name].runtimes[0]}`",
        )
        for name in values.given
        if runtime not in BY_NAME[name].runtimes
    ]


def countable(values: Values) -> list[Problem]:
    """Numbers given that no runtime could hold."""
    return [
        Problem(f"`{BY_NAME[name].flag} {values[name]}` is too large", f"choose at most {MOST}")
        for name in values.given
        if isinstance(values[name], int) and values[name] > MOST
    ]


def resolve_mapping(values: Values, facts: ModelFacts) -> tuple[Mapping4D, list[Problem]]:
    """The mapping that the options ask for, sizes of experts filled in, and what is wrong with it."""
    tp, pp, cp = values["tp_size"], values["pp_size"], values["cp_size"]
    moe_tp, moe_ep = values["moe_tp_size"], values["moe_ep_size"]
    problems: list[Problem] = []
    if facts.num_experts:
        if moe_tp is None and moe_ep is None:
            moe_tp, moe_ep = tp, 1
        elif moe_tp is None:
            moe_tp = max(1, tp // moe_ep)
        elif moe_ep is None:
            moe_ep = max(1, tp // moe_tp)
        if moe_tp * moe_ep != tp:
            problems.append(
                Problem(
                    f"`--moe-tp-size {moe_tp}` times `--moe-ep-size {moe_ep}` is not `--tp-size {tp}`",
                    "choose two sizes whose product is `--tp-size`",
                )
            )
        if facts.num_experts % moe_ep:
            problems.append(
                Problem(
                    f"`--moe-ep-size {moe_ep}` does not divide the model's `{facts.num_experts}` experts",
                    f"choose a divisor of {facts.num_experts}",
                )
            )
    else:
        for name in ("moe_tp_size", "moe_ep_size"):
            if values.is_given(name):
                flag = BY_NAME[name].flag
                problems.append(
                    Problem(
                        f"`{flag} {values[name]}` is given, and `{facts.architecture}` has no experts",
                        f"leave `{flag}` out",
                    )
                )
        moe_tp = moe_ep = None
    world = values["world_size"]
    if world not in (None, tp * pp * cp):
        problems.append(
            Problem(
                f"`--world-size {world}` is not `--tp-size {tp}` times `--pp-size {pp}`"
                + (f" times `--cp-size {cp}`" if cp > 1 else ""),
                "leave `--world-size` out",
            )
        )
    problems += check_division(tp, pp, facts)
    if tp * pp * cp > MOST_RANKS:
        problems.append(
            Problem(
                f"`--tp-size {tp}`, `--pp-size {pp}` and `--cp-size {cp}` make `{tp * pp * cp}` ranks",
                f"choose at most {MOST_RANKS} in all",
            )
        )
        # Refused anyway: a plan for one rank shows the other problems.
        return Mapping4D(), problems
    return Mapping4D(tp, pp, cp, moe_tp, moe_ep), problems


def check_division(tp: int, pp: int, facts: ModelFacts) -> list[Problem]:
    """Whether that many ranks can share the model's heads and layers."""
    problems = []
    if facts.num_heads % tp:
        problems.append(
            Problem(
                f"`--tp-size {tp}` does not divide the model's `{facts.num_heads}` attention heads",
                f"choose a divisor of {facts.num_heads}",
            )
        )
    if facts.num_kv_heads % tp and tp % facts.num_kv_heads:
        problems.append(
            Problem(
                f"`--tp-size {tp}` neither divides the model's `{facts.num_kv_heads}` key-value heads"
                " nor is a multiple of them",
                "choose a size that does",
            )
        )
    if facts.num_layers < pp:
        problems.append(
            Problem(
                f"`--pp-size {pp}` is more than the model's `{facts.num_layers}` layers",
                f"choose at most {facts.num_layers}",
            )
        )
    return problems


def resolve_lengths(values: Values, facts: ModelFacts) -> tuple[Lengths, list[Problem], list[str]]:
    """The sizes, what is wrong with them, and what a person should know."""
    problems: list[Problem] = []
    notes: list[str] = []
    trained = facts.max_position_embeddings
    max_input, max_seq, max_output = (
        values["max_input_len"],
        values["max_seq_len"],
        values["max_output_len"],
    )
    # A length that follows from others has not its own option's name.
    asked = f"`--max-seq-len {max_seq}` is" if max_seq is not None else f"`--max-input-len {max_input}` is"
    if max_output is not None:
        if max_seq is not None or max_input is None:
            problems.append(
                Problem(
                    f"`--max-output-len {max_output}` goes with `--max-input-len` and not `--max-seq-len`",
                    "give `--max-seq-len` alone: prompt plus output",
                )
            )
        else:
            max_seq = max_input + max_output
            asked = f"`--max-input-len {max_input}` and `--max-output-len {max_output}` are together"
            notes.append(f"`--max-output-len` is of older releases: max_seq_len is {max_seq}")
    if max_seq is None:
        if trained is None:
            problems.append(
                Problem("config.json states no longest sequence", "give one with `--max-seq-len`")
            )
        max_seq = max(trained or 2, max_input or 0)
    if trained is not None and max_seq > trained:
        beyond = f"{asked} beyond the `{trained}` positions the model was trained for"
        if facts.learned_positions:
            problems.append(Problem(beyond, f"choose at most {trained}: the model has no vector for more"))
        else:
            notes.append(f"{beyond}: quality there is not assured")
    max_input = max_input if max_input is not None else max_seq
    if max_input > max_seq:
        problems.append(
            Problem(
                f"`--max-input-len {max_input}` is more than `--max-seq-len {max_seq}`",
                "the prompt is part of the sequence: raise one or lower the other",
            )
        )
    sequences = values["max_batch_size"] * values["max_beam_width"]
    max_num_tokens = values["max_num_tokens"]
    if not values.is_given("max_num_tokens"):
        max_num_tokens = max(max_num_tokens, sequences)
    tuned = values["opt_num_tokens"]
    if tuned is not None and tuned > max_num_tokens:
        problems.append(
            Problem(
                f"`--opt-num-tokens {tuned}` is more than `--max-num-tokens {max_num_tokens}`",
                "no iteration has so many: lower one or raise the other",
            )
        )
    lengths = Lengths(values["max_batch_size"], max_input, max_seq, max_num_tokens, values["max_beam_width"])
    if values["remove_input_padding"] != DISABLE and max_num_tokens < sequences:
        problems.append(
            Problem(
                f"`--max-num-tokens {lengths.max_num_tokens}` is less than `--max-batch-size"
                f" {lengths.max_batch_size}` times `--max-beam-width {lengths.max_beam_width}`",
                "every sequence needs a token an iteration: raise `--max-num-tokens`",
            )
        )
    return lengths, problems, notes


def check_formats(values: Values, facts: ModelFacts, runtime: str, installed: Installed) -> list[Problem]:
    """Quantization against the checkpoint, the precision, the runtime and the GPUs."""
    problems = []
    quantization, cache = values["quantization"], values["kv_cache_dtype"]
    if quantization != "none" and facts.quantized:
        problems.append(
            Problem(
                f"`--quantization {quantization}` is given, and the checkpoint is quantized already"
                f" (`{facts.quantized}`)",
                "give the unquantized checkpoint, or leave the option out",
            )
        )
    if quantization != "none" and values["dtype"] == "float32":
        problems.append(
            Problem(
                f"`--quantization {quantization}` does not go with `--dtype float32`",
                "choose `--dtype float16` or `bfloat16`",
            )
        )
    if runtime == PYTORCH:
        if quantization != "none":
            problems.append(
                Problem(
                    f"`--quantization {quantization}` means nothing to the runtime `pytorch`, which quantizes"
                    " no checkpoint",
                    "give a checkpoint that is quantized, or choose `--runtime tensorrt`",
                )
            )
        if cache == "int8":
            problems.append(
                Problem(
                    "`--kv-cache-dtype int8` is not a cache format of the runtime `pytorch`",
                    "choose `fp8` or `auto`",
                )
            )
    if installed.gpus and runtime in (PYTORCH, TENSORRT):
        problems += _gpu_formats(quantization, cache, installed)
    return problems


def _gpu_formats(quantization: str, cache: str, installed: Installed) -> list[Problem]:
    problems = []
    for flag, value in (("--quantization", quantization), ("--kv-cache-dtype", cache)):
        needed = NEEDS_ARCHITECTURE.get(value)
        for gpu in installed.gpus:
            digits = gpu.architecture.removeprefix("sm")
            if needed is not None and digits.isdigit() and int(digits) < needed:
                problems.append(
                    Problem(
                        f"`{flag} {value}` needs GPU architecture `sm{needed}`, and `{gpu.name}` is"
                        f" `{gpu.architecture}`",
                        "choose another format, or build on such a GPU",
                    )
                )
                break
    return problems


def check_features(values: Values, facts: ModelFacts) -> list[Problem]:
    """Engine features that exclude or need each other."""
    problems = []
    for given, problem, remedy in (
        (
            values.is_given("paged_kv_cache") and values.is_given("kv_cache_type"),
            "`--paged-kv-cache` and `--kv-cache-type` are both given",
            "keep `--kv-cache-type`",
        ),
        (
            values["use_inflight_batching"]
            and (
                DISABLE in (values["remove_input_padding"], values["paged_kv_cache"])
                or values["kv_cache_type"] != "paged"
            ),
            "`--use-inflight-batching` is given without packed requests or without a paged cache",
            "leave `--remove-input-padding` and `--kv-cache-type` at their defaults",
        ),
        (
            values["user_buffer"] == ENABLE and values["reduce_fusion"] != ENABLE,
            "`--user-buffer enable` is given without `--reduce-fusion enable`",
            "give both",
        ),
        (
            values["lora_plugin"] == DISABLE and (values["lora_dir"] or values["lora_target_modules"]),
            "`--lora-plugin disable` is given with adapters",
            "leave it out, or the adapters",
        ),
        (
            values["embedding_sharding_dim"] > 1,
            f"`--embedding-sharding-dim` is `{values['embedding_sharding_dim']}`",
            "choose 0 or 1",
        ),
        (
            values["use_parallel_embedding"]
            and values["embedding_sharding_dim"] == 0
            and facts.vocab_size % values["tp_size"] != 0,
            f"`--tp-size {values['tp_size']}` does not divide the vocabulary `{facts.vocab_size}`",
            "choose `--embedding-sharding-dim 1`, or leave `--use-parallel-embedding` out",
        ),
        (
            values["use_parallel_embedding"]
            and values["embedding_sharding_dim"] == 1
            and facts.hidden_size % values["tp_size"] != 0,
            f"`--tp-size {values['tp_size']}` does not divide the hidden size `{facts.hidden_size}`",
            "choose `--embedding-sharding-dim 0`",
        ),
    ):
        if given:
            problems.append(Problem(problem, remedy))
    return problems


def check_workers(values: Values, installed: Installed) -> list[Problem]:
    """More builders than GPUs; unknown GPUs are taken for enough."""
    workers = values["workers"]
    if installed.gpus and workers > len(installed.gpus):
        return [
            Problem(
                f"`--workers {workers}` is more than this machine's `{len(installed.gpus)}` GPUs",
                f"choose at most {len(installed.gpus)}",
            )
        ]
    return []
