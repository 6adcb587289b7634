"""The steps that make a TensorRT engine: convert or quantize, then trtllm-build. Pure.

Writes plans against TensorRT-LLM 1.2.1; the names of its classes, keywords and flags are facts of that
release (docs/STATUS.md says what was never run).
"""

from __future__ import annotations

from typing import Any

from inflight.build.checks.conversion import CONVERSION, check_conversion, find_glm_version
from inflight.build.checks.lengths import Lengths
from inflight.build.families import ENGINES, EngineFamily
from inflight.build.options import OPTIONS, Values
from inflight.build.options.declaration import DISABLE, ENABLE, SWITCH
from inflight.build.steps import ApiCalls, Call, Command, Layout, Mapping4D, Own, Step
from inflight.errors import Problem
from inflight.model.checkpoint import Checkpoint

QUANTIZE = "quantization/quantize.py"

#: Formats that a model class applies while it loads; the others calibrate in `quantize.py`.
WEIGHT_ONLY = {"int8_wo": "W8A16", "int4_wo": "W4A16"}

#: Architecture -> the name that TensorRT-LLM otherwise looks for in a path.
GPT_VARIANTS = {
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "starcoder",
    "Starcoder2ForCausalLM": "starcoder2",
}


def scripts_needed(checkpoint: Checkpoint, values: Values) -> tuple[str, ...]:
    """Example scripts, below the examples directory, that the plan runs."""
    family = ENGINES.get(checkpoint.facts.architecture)
    if family is not None and family.script is not None:
        return (family.script,)
    return (QUANTIZE,) if calibrates(values) else ()


def calibrates(values: Values) -> bool:
    """Whether the formats asked for need `quantize.py`."""
    quantization = values["quantization"]
    return (quantization != "none" and quantization not in WEIGHT_ONLY) or values["kv_cache_dtype"] != "auto"


def resolve_dtype(dtype: str, checkpoint: Checkpoint) -> str:
    """As TensorRT-LLM resolves `auto`: the checkpoint's, float32 narrowed to float16."""
    if dtype != "auto":
        return dtype
    own = checkpoint.facts.dtype
    return own if own in ("float16", "bfloat16") else "float16"


def plan_engine(
    checkpoint: Checkpoint,
    values: Values,
    mapping: Mapping4D,
    lengths: Lengths,
    layout: Layout,
    python: str,
) -> tuple[tuple[Step, ...], tuple[str, ...], list[Problem]]:
    """Steps, the files that the result must contain, and problems with the options."""
    family = ENGINES[checkpoint.facts.architecture]
    dtype = resolve_dtype(values["dtype"], checkpoint)
    problems = check_conversion(checkpoint, values, mapping, calibrates=calibrates(values))
    source = str(checkpoint.directory)
    if family.script is not None:
        steps = _encoder_decoder(source, family, values, mapping, lengths, layout, python, dtype, checkpoint)
        ranks = _ranks(mapping)
        expected = tuple(
            f"{part}/{name}" for part in ("encoder", "decoder") for name in ("config.json", *ranks)
        )
    elif family.converter == "llm" and not calibrates(values):
        steps = (_build_with_llm(source, values, mapping, lengths, layout, dtype),)
        expected = ("config.json", *_ranks(mapping))
    else:
        convert = (
            (_quantize(source, values, mapping, layout, python, dtype),)
            if calibrates(values)
            else _convert(checkpoint, family, values, mapping, layout, dtype)
        )
        build = _build_step(
            "build",
            "build the engine",
            layout.checkpoint,
            layout.result,
            values,
            _sizes(lengths, values),
            mapping,
        )
        steps = (*convert, build)
        expected = ("config.json", *_ranks(mapping))
    return (*steps, _files(checkpoint, layout)), expected, problems


def _ranks(mapping: Mapping4D) -> tuple[str, ...]:
    return tuple(f"rank{rank}.engine" for rank in range(mapping.world_size))


def _quant_config(values: Values) -> Call:
    kwargs: dict[str, Any] = {}
    algorithm = WEIGHT_ONLY.get(values["quantization"])
    if algorithm is not None:
        kwargs["quant_algo"] = Call("tensorrt_llm.llmapi.QuantAlgo", (algorithm,))
    return Call("tensorrt_llm.llmapi.QuantConfig", kwargs=kwargs)


def _convert(
    checkpoint: Checkpoint,
    family: EngineFamily,
    values: Values,
    mapping: Mapping4D,
    layout: Layout,
    dtype: str,
) -> tuple[Step, ...]:
    """A step a rank: a failure of one is taken up at that one, and `--workers` of them overlap."""
    architecture = checkpoint.facts.architecture
    overrides: dict[str, Any] = {name: values[name] for name in CONVERSION if values.is_given(name)}
    if architecture in GPT_VARIANTS:
        overrides["gpt_variant"] = GPT_VARIANTS[architecture]
    elif family.name == "ChatGLMForCausalLM":
        overrides["chatglm_version"] = find_glm_version(checkpoint)
    return tuple(
        Step(
            name=f"convert-rank{rank}",
            title=f"convert rank {rank} of {mapping.world_size}",
            action=ApiCalls(
                (
                    Call(
                        f"tensorrt_llm.models.{family.name}.from_hugging_face",
                        (str(checkpoint.directory), dtype),
                        {
                            "mapping": Call(
                                "tensorrt_llm.mapping.Mapping", kwargs={"rank": rank, **mapping.record()}
                            ),
                            "quant_config": _quant_config(values),
                            # Written out: TensorRT-LLM's own default is to trust.
                            "trust_remote_code": values["trust_remote_code"],
                            **overrides,
                        },
                        result="model",
                    ),
                    Call("model.save_checkpoint", (layout.checkpoint,), {"save_config": rank == 0}),
                )
            ),
            outputs=(f"{layout.checkpoint}/rank{rank}.safetensors",),
            stage="convert",
        )
        for rank in range(mapping.world_size)
    )


def _quantize(
    source: str, values: Values, mapping: Mapping4D, layout: Layout, python: str, dtype: str
) -> Step:
    quantization, cache = values["quantization"], values["kv_cache_dtype"]
    argv = [python, f"{values['examples_dir']}/{QUANTIZE}"]
    argv += ["--model_dir", source, "--output_dir", layout.checkpoint, "--dtype", dtype]
    argv += ["--qformat", "full_prec" if quantization == "none" else quantization]
    if cache != "auto":
        argv += ["--kv_cache_dtype", cache]
    argv += ["--tp_size", str(mapping.tp_size), "--pp_size", str(mapping.pp_size)]
    if mapping.cp_size > 1:
        argv += ["--cp_size", str(mapping.cp_size)]
    argv += ["--calib_dataset", values["calib_dataset"], "--calib_size", str(values["calib_size"])]
    argv += ["--calib_max_seq_length", str(values["calib_max_seq_length"])]
    if "awq" in quantization:
        argv += ["--awq_block_size", str(values["awq_block_size"])]
    return Step(
        "quantize",
        f"calibrate and quantize ({quantization}, KV cache {cache})",
        Command(tuple(argv)),
        outputs=(f"{layout.checkpoint}/config.json",),
    )


def kv_cache_type(values: Values) -> str:
    """`--kv-cache-type`, or what the old switch means."""
    old = values["paged_kv_cache"]
    if old is None:
        return str(values["kv_cache_type"])
    return "paged" if old == ENABLE else "continuous"


def _sizes(lengths: Lengths, values: Values) -> dict[str, Any]:
    return {
        "max_batch_size": lengths.max_batch_size,
        "max_input_len": lengths.max_input_len,
        "max_seq_len": lengths.max_seq_len,
        "max_num_tokens": lengths.max_num_tokens,
        "max_beam_width": lengths.max_beam_width,
        "kv_cache_type": kv_cache_type(values),
        "gemm_plugin": values["gemm_plugin"],
    }


def build_arguments(values: Values, fixed: dict[str, Any]) -> list[str]:
    """Flags of `trtllm-build` in the order of their declaration: `fixed` ones, and all others given."""
    argv: list[str] = []
    for option in OPTIONS:
        if option.build_flag is None:
            continue
        if option.name in fixed:
            value = fixed[option.name]
        elif values.is_given(option.name):
            value = values[option.name]
        else:
            continue
        if value is None or value is False:
            continue
        argv.append(option.build_flag)
        if isinstance(value, (tuple, list)):
            argv += [str(item) for item in value]
        elif value is not True:
            argv.append(str(value))
    return argv


def _build_step(
    name: str,
    title: str,
    checkpoint_dir: str,
    output_dir: str,
    values: Values,
    fixed: dict[str, Any],
    mapping: Mapping4D,
) -> Step:
    argv = ["trtllm-build", "--checkpoint_dir", checkpoint_dir, "--output_dir", output_dir]
    argv += build_arguments(values, fixed)
    outputs = tuple(f"{output_dir}/{file}" for file in ("config.json", *_ranks(mapping)))
    return Step(name, title, Command(tuple(argv)), outputs=outputs)


def _encoder_decoder(
    source: str,
    family: EngineFamily,
    values: Values,
    mapping: Mapping4D,
    lengths: Lengths,
    layout: Layout,
    python: str,
    dtype: str,
    checkpoint: Checkpoint,
) -> tuple[Step, ...]:
    """One conversion, two engines. T5's relative attention bias has no fused kernel: context_fmha is off."""
    convert = Step(
        "convert",
        "convert encoder and decoder",
        Command(
            (
                *(python, f"{values['examples_dir']}/{family.script}"),
                *("--model_type", family.name, "--model_dir", source, "--output_dir", layout.checkpoint),
                *("--tp_size", str(mapping.tp_size), "--pp_size", str(mapping.pp_size)),
                *("--dtype", dtype, "--workers", str(values["workers"])),
            )
        ),
        outputs=(f"{layout.checkpoint}/encoder/config.json", f"{layout.checkpoint}/decoder/config.json"),
    )
    shared = {
        **_sizes(lengths, values),
        "moe_plugin": values["moe_plugin"] or DISABLE,
        "bert_attention_plugin": values["bert_attention_plugin"] or dtype,
        "gpt_attention_plugin": values["gpt_attention_plugin"] or dtype,
    }
    if checkpoint.facts.architecture == "T5ForConditionalGeneration":
        shared["context_fmha"] = DISABLE
    encoder_len = values["max_encoder_input_len"]
    encoder = {
        **shared,
        "max_input_len": encoder_len,
        "max_seq_len": None,
        "max_encoder_input_len": None,
        "kv_cache_type": "disabled",
    }
    # The decoder's prompt is its start token.
    decoder = {**shared, "max_input_len": 1, "max_encoder_input_len": encoder_len}
    return (
        convert,
        *(
            _build_step(
                f"build-{part}",
                f"build the {part}'s engine",
                f"{layout.checkpoint}/{part}",
                f"{layout.result}/{part}",
                values,
                fixed,
                mapping,
            )
            for part, fixed in (("encoder", encoder), ("decoder", decoder))
        ),
    )


def _build_with_llm(
    source: str, values: Values, mapping: Mapping4D, lengths: Lengths, layout: Layout, dtype: str
) -> Step:
    """Convert and build in one, by the engine class of the LLM API."""
    fixed = _sizes(lengths, values)
    build: dict[str, Any] = {}
    plugins: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name not in fixed and not values.is_given(option.name):
            continue
        value = fixed.get(option.name, values[option.name])
        if option.name == "kv_cache_type":
            # An enumeration there, and paged is its default.
            continue
        if option.build_config is not None:
            build[option.build_config] = value
        elif option.plugin_config is not None:
            switch = {ENABLE: True, DISABLE: False if option.choices == SWITCH else None}
            plugins[option.plugin_config] = switch.get(value, value)
    experts = {
        "moe_tensor_parallel_size": mapping.moe_tp_size,
        "moe_expert_parallel_size": mapping.moe_ep_size,
    }
    llm = Call(
        "tensorrt_llm._tensorrt_engine.LLM",
        kwargs={
            "model": source,
            "dtype": dtype,
            "tensor_parallel_size": mapping.tp_size,
            "pipeline_parallel_size": mapping.pp_size,
            **({"context_parallel_size": mapping.cp_size} if mapping.cp_size > 1 else {}),
            **{name: size for name, size in experts.items() if size is not None},
            "trust_remote_code": values["trust_remote_code"],
            **({"fast_build": True} if values["fast_build"] else {}),
            "quant_config": _quant_config(values),
            "build_config": Call(
                "tensorrt_llm.llmapi.BuildConfig",
                kwargs={**build, "plugin_config": Call("tensorrt_llm.plugin.PluginConfig", kwargs=plugins)},
            ),
        },
        result="llm",
    )
    return Step(
        "build",
        "convert and build the engine",
        ApiCalls((llm, Call("llm.save", (layout.result,)), Call("llm.shutdown"))),
        outputs=tuple(f"{layout.result}/{name}" for name in ("config.json", *_ranks(mapping))),
    )


def _files(checkpoint: Checkpoint, layout: Layout) -> Step:
    return Step(
        "files",
        "copy the tokenizer and the checkpoint's config next to the engine",
        Own(
            "files.copy_for_engine",
            {"source": str(checkpoint.directory), "result": layout.result},
        ),
        outputs=(f"{layout.result}/checkpoint_config.json",),
    )
