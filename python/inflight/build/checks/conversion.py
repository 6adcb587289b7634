"""What TensorRT-LLM's converters would refuse late, drop without a word, or decide by a path. Pure.

The facts are of its model classes, `quantize.py` and example scripts at 1.2.1; which of them a plan runs is
`runtimes.tensorrt`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from inflight.build.families import ENGINES, EngineFamily
from inflight.build.options import BY_NAME, Values
from inflight.build.steps import Mapping4D
from inflight.errors import Problem
from inflight.model.checkpoint import Checkpoint

#: Architectures that transformers loads only by running the checkpoint's own code.
REMOTE_CODE = frozenset(
    {
        "BaichuanForCausalLM",
        "BaiChuanForCausalLM",
        "QWenLMHeadModel",
        "ExaoneForCausalLM",
        "ChatGLMModel",
        "ChatGLMForConditionalGeneration",
        "DeciLMForCausalLM",
    }
)

#: Options that model classes take while they convert.
CONVERSION = ("use_parallel_embedding", "embedding_sharding_dim", "load_by_shard", "load_model_on_cpu")
#: Classes that read `load_by_shard`; others drop it.
_LOADS_BY_SHARD = frozenset({"LLaMAForCausalLM", "FalconForCausalLM"})

#: Flags of `trtllm-build` that `BuildConfig` and `PluginConfig` have no field for, and what `LLM` converts
#: without.
LLM_CANNOT = (
    "lora_dir",
    "lora_target_modules",
    "speculative_decoding_mode",
    "logits_dtype",
    "gather_all_token_logits",
    "model_cls_file",
    "log_level",
    *CONVERSION,
)

#: Parts of a path by which TensorRT-LLM takes a LLaMA for another model.
_LLAMA_PATHS = ("vila", "llava")
#: Parts of a path by which `quantize.py` does.
_QUANTIZE_PATHS = ("mpt", "vila", "llava")


def check_conversion(
    checkpoint: Checkpoint, values: Values, mapping: Mapping4D, *, calibrates: bool
) -> list[Problem]:
    """What prevents the conversion of this checkpoint with these options."""
    architecture = checkpoint.facts.architecture
    family = ENGINES[architecture]
    problems = [*_code(checkpoint, family, values, calibrates=calibrates)]
    if family.script is not None:
        return [*problems, *_encoder_decoder(architecture, values, mapping)]
    problems += _paths(checkpoint, family, calibrates=calibrates)
    if calibrates:
        dropped = (*CONVERSION, "moe_tp_size", "moe_ep_size")
        problems += _given(values, dropped, "has no effect on a build that calibrates")
    elif family.converter == "llm":
        problems += [
            Problem(
                f"`{BY_NAME[name].flag}` cannot be given for `{architecture}`, which the LLM API builds",
                f"leave `{BY_NAME[name].flag}` out",
            )
            for name in LLM_CANNOT
            if values.is_given(name)
        ]
    elif family.name not in _LOADS_BY_SHARD:
        problems += _given(values, ("load_by_shard",), f"has no effect on `{architecture}`")
    return problems


def _given(values: Values, names: tuple[str, ...], why: str) -> Iterator[Problem]:
    for name in names:
        if values.is_given(name):
            flag = BY_NAME[name].flag
            yield Problem(f"`{flag}` {why}", f"leave `{flag}` out")


def _code(
    checkpoint: Checkpoint, family: EngineFamily, values: Values, *, calibrates: bool
) -> Iterator[Problem]:
    """Untrusted code, which two of TensorRT-LLM's scripts always run."""
    if values["trust_remote_code"]:
        return
    architecture = checkpoint.facts.architecture
    remedy = "review that code, then allow it with `--trust-remote-code`"
    if family.script is None and architecture in REMOTE_CODE:
        yield Problem(f"`{architecture}` needs Python code from its checkpoint", remedy)
    elif checkpoint.code_files and (calibrates or family.name == "GPTForCausalLM"):
        what = "`quantize.py`" if calibrates else f"the conversion of `{architecture}`"
        yield Problem(
            f"{what} would run Python code that `{checkpoint.code_files[0]}` of the checkpoint names",
            f"{remedy}, or remove `auto_map` from that file",
        )


def _paths(checkpoint: Checkpoint, family: EngineFamily, *, calibrates: bool) -> Iterator[Problem]:
    """TensorRT-LLM looks for names of models in the path that it is given."""
    source, architecture = str(checkpoint.directory), checkpoint.facts.architecture
    wrong: tuple[str, ...] = ()
    if calibrates:
        wrong = _QUANTIZE_PATHS
    elif family.name == "LLaMAForCausalLM":
        wrong = _LLAMA_PATHS
    for part in wrong:
        if part in source:
            yield Problem(
                f"the path `{source}` contains `{part}`, so TensorRT-LLM treats it as a model of that name",
                "pass a symbolic link to it whose path does not contain that",
            )
    if architecture == "ExaoneForCausalLM" and not calibrates and "exaone" not in source:
        yield Problem(
            f"the path `{source}` does not contain `exaone`, by which TensorRT-LLM recognizes the model",
            "pass a symbolic link to it whose path contains that",
        )
    if family.name == "ChatGLMForCausalLM" and not calibrates and find_glm_version(checkpoint) is None:
        yield Problem(
            f"nothing in `{source}` says which version of GLM it is",
            "pass a symbolic link to it whose name contains `chatglm2`, `chatglm3` or `glm-4`",
        )


def _encoder_decoder(architecture: str, values: Values, mapping: Mapping4D) -> Iterator[Problem]:
    if values["quantization"] != "none":
        yield Problem(
            f"`--quantization {values['quantization']}` is not supported for `{architecture}`",
            "leave it out: encoder-decoder models are built in their own precision",
        )
    if values.is_given("max_input_len"):
        yield Problem(
            f"`--max-input-len {values['max_input_len']}` has no effect with an encoder-decoder",
            "pass `--max-encoder-input-len`",
        )
    for flag, size in (("--cp-size", mapping.cp_size), ("--pp-size", mapping.pp_size)):
        if size > 1:
            yield Problem(f"`{flag} {size}` is not supported for `{architecture}`", "leave it out")
    yield from _given(values, (*CONVERSION, "kv_cache_dtype"), f"has no effect on `{architecture}`")


def find_glm_version(checkpoint: Checkpoint) -> str | None:
    """TensorRT-LLM's name for the version of a GLM, from its config and its directory's name; None: neither
    says."""
    config = checkpoint.config
    if "inner_hidden_size" in config:
        return "chatglm"
    if config.get("padded_vocab_size") == _GLM_4_VOCABULARY:
        return "glm4"
    names = f"{config.get('_name_or_path', '')} {checkpoint.directory.name}".lower()
    for version, spellings in _GLM_NAMES.items():
        if any(spelling in names for spelling in spellings):
            return version
    # The two differ by what they make of a ratio.
    return "chatglm3" if config.get("rope_ratio", 1) == 1 else None


_GLM_4_VOCABULARY = 151552
_GLM_NAMES = {"chatglm3": ("chatglm3",), "chatglm2": ("chatglm2",), "glm4": ("glm-4", "glm_4", "glm4")}
