"""Options, and what `inflight build` wrote, into the arguments of `tensorrt_llm.LLM`. Owns which option feeds
which argument and who wins; an argument that nothing was given for is not passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.adapters import MAX_RANK, Adapters, read_adapters
from inflight.executors.tensorrt_llm.options import Options
from inflight.executors.tensorrt_llm.verify import parameters
from inflight.model.files import ARGUMENTS_FILE, load_json
from inflight.model.llm_args import OWNED, PROCESSORS, merge, read_arguments, suggest
from inflight.model.llmapi import processors
from inflight.model.speculation import CLASSES as CLASSES_OF_OPTIONS
from inflight.model.speculation import LATER_CLASSES

LOG = logging.getLogger("inflight.tensorrt_llm")

#: Defaults of TorchLlmArgs at 1.2.1, for what the worker must know (max_batch_size: of BuildConfig).
_MAX_BATCH_SIZE, _MAX_NUM_TOKENS, _TOKENS_PER_BLOCK = 2048, 8192, 32

#: Option -> argument of LLM, or field of one of its configurations (`outer.field`).
ARGUMENTS = {
    "max_batch_size": "max_batch_size",
    "max_num_tokens": "max_num_tokens",
    "max_beam_width": "max_beam_width",
    "max_seq_len": "max_seq_len",
    "max_input_len": "max_input_len",
    "batch_scheduler_policy": "scheduler_config.capacity_scheduler_policy",
    "context_chunking_policy": "scheduler_config.context_chunking_policy",
    "enable_chunked_context": "enable_chunked_prefill",
    "max_tokens_in_paged_kv_cache": "kv_cache_config.max_tokens",
    "max_attention_window_size": "kv_cache_config.max_attention_window",
    "sink_token_length": "kv_cache_config.sink_token_length",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_host_memory_bytes": "kv_cache_config.host_cache_size",
    "kv_cache_onboard_blocks": "kv_cache_config.onboard_blocks",
    "enable_kv_cache_reuse": "kv_cache_config.enable_block_reuse",
    "enable_partial_reuse": "kv_cache_config.enable_partial_reuse",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "event_buffer_max_size": "kv_cache_config.event_buffer_max_size",
    "lora_cache_optimal_adapter_size": "peft_cache_config.optimal_adapter_size",
    "lora_cache_max_adapter_size": "peft_cache_config.max_adapter_size",
    "lora_cache_gpu_memory_fraction": "peft_cache_config.device_cache_percent",
    "lora_cache_host_memory_bytes": "peft_cache_config.host_cache_size",
    "lora_target_modules": "lora_config.lora_target_modules",
    "max_lora_rank": "lora_config.max_lora_rank",
    "guided_decoding_backend": "guided_decoding_backend",
    "gather_generation_logits": "gather_generation_logits",
    "cache_transceiver_backend": "cache_transceiver_config.backend",
    "encode_only": "encode_only",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "moe_tensor_parallel_size": "moe_tensor_parallel_size",
    "moe_expert_parallel_size": "moe_expert_parallel_size",
    "dtype": "dtype",
    "trust_remote_code": "trust_remote_code",
    "sampler_type": "sampler_type",
    "attn_backend": "attn_backend",
    "stream_interval": "stream_interval",
    "cuda_graph_batch_sizes": "cuda_graph_config.batch_sizes",
    "cuda_graph_enable_padding": "cuda_graph_config.enable_padding",
    "disable_overlap_scheduler": "disable_overlap_scheduler",
    "disable_flashinfer_sampling": "disable_flashinfer_sampling",
}
#: Options whose arguments 1.2 does not have.
ADDED = ("encode_only",)
#: Options whose arguments 1.3 no longer has.
REMOVED = ("kv_cache_onboard_blocks", "sampler_type", "disable_flashinfer_sampling")
#: Configuration argument -> its class.
CLASSES = {
    "kv_cache_config": "KvCacheConfig",
    "scheduler_config": "SchedulerConfig",
    "cache_transceiver_config": "CacheTransceiverConfig",
    "peft_cache_config": "PeftCacheConfig",
    "lora_config": "LoraConfig",
    "cuda_graph_config": "CudaGraphConfig",
    "moe_config": "MoeConfig",
    "attention_dp_config": "AttentionDpConfig",
    "torch_compile_config": "TorchCompileConfig",
    "kv_connector_config": "KvCacheConnectorConfig",
}
#: Configurations that are made with defaults where they are absent.
_MAY_BE_NONE = frozenset({"cuda_graph_config"})
#: What `sampler_type` asks for where there is one sampler.
_ONLY_SAMPLER = ("auto", "TorchSampler")
#: The argument that one of several classes makes, and the classes.
SPECULATION = "speculative_config"
SPECULATION_CLASSES = CLASSES_OF_OPTIONS | LATER_CLASSES
#: Options whose values TensorRT-LLM's enumerations spell in capitals.
_CAPITALS = frozenset({"batch_scheduler_policy", "context_chunking_policy"})


def llm_arguments(model_dir: Path, options: Options) -> dict[str, Any]:
    """The arguments for a worker, configurations as dicts. Errors: as `chosen_arguments`."""
    arguments = chosen_arguments(model_dir, options)
    if options.llm_args is not None:
        for name in processors(Path(options.llm_args)):
            LOG.warning(
                "`%s` of `%s` in `%s` is for requests to Triton's model; no request here can choose it",
                name,
                PROCESSORS,
                options.llm_args,
            )
    # Prompts come as tokens; guides need to know how those are spelled, and so do the processors of images.
    sees = has_vision(model_dir) or has_mrope(model_dir)
    skip_tokenizer = not arguments.get("guided_decoding_backend") and not sees
    arguments.update(model=str(model_dir), skip_tokenizer_init=skip_tokenizer, enable_iter_perf_stats=True)
    return arguments


def chosen_arguments(model_dir: Path, options: Options) -> dict[str, Any]:
    """The arguments that were chosen: those that `inflight build` wrote, replaced by options where both name
    one, which the log says. Errors: `UserMistake` for a file or a draft model that is not whole.
    """
    arguments = _written(model_dir)
    if options.llm_args is not None:
        # None turns something off only where that differs from leaving it out.
        given = read_arguments(Path(options.llm_args))
        kept = {name: value for name, value in given.items() if value is not None or name in _MAY_BE_NONE}
        arguments = _checked(merge(arguments, kept, _say_replaced), options.llm_args)
    for option, path in ARGUMENTS.items():
        value = getattr(options, option)
        if value is None:
            continue
        if option in _CAPITALS:
            value = value.upper()
        outer, _, leaf = path.rpartition(".")
        if outer and arguments.get(outer) is None:
            arguments[outer] = {}
        target = arguments[outer] if outer else arguments
        if target.get(leaf, value) != value:
            LOG.warning(
                "the option `%s` is `%s`, in place of `%s` in %s", option, value, target[leaf], ARGUMENTS_FILE
            )
        target[leaf] = value
    if SPECULATION in arguments and arguments.get("sampler_type") == "TRTLLMSampler":
        raise UserMistake(
            "`sampler_type` is `TRTLLMSampler`, which speculative decoding puts another sampler in place of",
            "leave it out, or build without `--speculative-decoding-mode`",
        )
    draft = arguments.get(SPECULATION, {}).get("speculative_model")
    if draft is not None and not Path(draft).is_dir():
        raise UserMistake(
            f"the draft model `{draft}` does not exist", "put it back, or build again with another"
        )
    if options.cuda_graph_mode is False:
        # Absent, it would be made with its defaults.
        arguments["cuda_graph_config"] = None
    return arguments


def _say_replaced(name: str, before: Any, value: Any) -> None:
    LOG.warning("the file of `llm_args` sets `%s` to `%s`, in place of `%s`", name, value, before)


def has_vision(model_dir: Path) -> bool:
    """Whether the checkpoint's `config.json` describes a vision encoder."""
    try:
        config = load_json(model_dir / "config.json")
    except (OSError, ValueError):
        # `Sizes.read` says what is wrong with it.
        return False
    return isinstance(config, dict) and isinstance(config.get("vision_config"), dict)


def has_mrope(model_dir: Path) -> bool:
    """Whether positions of the checkpoint have several parts (mRoPE), as in Qwen's vision models."""
    try:
        config = load_json(model_dir / "config.json")
    except (OSError, ValueError):
        return False
    if not isinstance(config, dict):
        return False
    texts = [config, config.get("text_config")]
    scalings = [
        text.get(name)
        for text in texts
        if isinstance(text, dict)
        for name in ("rope_scaling", "rope_parameters")
    ]
    return any(isinstance(scaling, dict) and "mrope_section" in scaling for scaling in scalings)


def processes_images(llm: Any) -> bool:
    """Whether TensorRT-LLM has an input processor for this model. The default one silently drops images."""
    kinds = type(getattr(llm, "input_processor", None)).__mro__
    return not any(kind.__name__ in ("DefaultInputProcessor", "NoneType") for kind in kinds)


def loaded_length(llm: Any, max_seq_len: int) -> int:
    """The longest sequence that fits the loaded LLM: it lowers `max_seq_len` to what its KV cache holds, and
    then cuts `max_tokens` without a word. Versions that do not say leave the given length."""
    lengths = [
        getattr(getattr(llm, "_executor", None), "max_seq_len", None),
        getattr(getattr(llm, "args", None), "max_seq_len", None),
    ]
    capacity = getattr(llm, "get_kv_cache_capacity", None)
    if callable(capacity):
        try:
            lengths.append(capacity().get("maxNumTokens"))
        except Exception:
            LOG.exception("TensorRT-LLM does not report how many tokens its KV cache holds")
    known = [length for length in lengths if isinstance(length, int) and length > 0]
    shortest = min([max_seq_len, *known])
    if shortest < max_seq_len:
        LOG.warning("reduced `max_seq_len` to %d (from %d) to fit the KV cache", shortest, max_seq_len)
    return shortest


def computes_in_chunks(llm: Any, arguments: dict[str, Any]) -> bool:
    """Whether the loaded LLM computes long prompts in chunks: as it says, else as it was asked to."""
    said = getattr(getattr(llm, "args", None), "enable_chunked_prefill", None)
    return bool(arguments.get("enable_chunked_prefill") if said is None else said)


def _written(model_dir: Path) -> dict[str, Any]:
    path = model_dir / ARGUMENTS_FILE
    if not path.is_file():
        return {}
    try:
        arguments = load_json(path)
        if not isinstance(arguments, dict):
            raise ValueError("it is not a JSON object")
        _require_objects(arguments)
    except (OSError, ValueError) as error:
        raise UserMistake(
            f"`{path}` cannot be read: {error}", "build it again with `inflight build --force`"
        ) from error
    return arguments


def _require_objects(arguments: dict[str, Any]) -> None:
    """Raises `ValueError` for a configuration that is not an object."""
    for name in (*CLASSES, SPECULATION):
        is_off = name in _MAY_BE_NONE and name in arguments and arguments[name] is None
        if not is_off and not isinstance(arguments.get(name, {}), dict):
            raise ValueError(f"its {name} is not an object")


def _checked(arguments: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        _require_objects(arguments)
    except ValueError as error:
        raise UserMistake(
            f"`llm_args` is `{path}`, and {error}", "write its fields below it, one to a line"
        ) from error
    return arguments


def find_adapters(options: Options, arguments: dict[str, Any]) -> Adapters | None:
    """The adapters that `lora_adapter_dir` names, checked; turns LoRA on where there are any. Without it,
    target modules are enough to load adapters while the worker runs."""
    config = arguments.get("lora_config", {})
    if options.lora_adapter_dir is None:
        if not config.get("lora_target_modules"):
            return None
        arguments["enable_lora"] = True
        return Adapters(None, config["lora_target_modules"], config.get("max_lora_rank") or MAX_RANK)
    if not config.get("lora_target_modules"):
        raise UserMistake(
            f"`lora_adapter_dir` is `{options.lora_adapter_dir}`, and no target modules are given",
            "pass `lora_target_modules=attn_q,attn_k,attn_v`, or build with `--lora-target-modules`",
        )
    arguments["enable_lora"] = True
    return read_adapters(options.lora_adapter_dir, config["lora_target_modules"], config.get("max_lora_rank"))


def reuses_blocks(arguments: dict[str, Any]) -> bool:
    """Whether prompts that start alike share cache blocks, as they do by default. The logits of a prompt then
    lack the tokens that the cache had."""
    cache = arguments.get("kv_cache_config")
    return not isinstance(cache, dict) or cache.get("enable_block_reuse", True) is not False


def reports_events(arguments: dict[str, Any]) -> bool:
    """Whether TensorRT-LLM keeps events of its KV cache: with room for them, and blocks that are reused."""
    cache = arguments.get("kv_cache_config")
    has_room = isinstance(cache, dict) and (cache.get("event_buffer_max_size") or 0) > 0
    return has_room and reuses_blocks(arguments)


def check_arguments(arguments: dict[str, Any], find: Callable[[str], Any], version: str) -> None:
    """Refuses arguments that the installed version has not; where it does not say, LLM itself refuses."""
    missing = []
    taken = parameters(find("TorchLlmArgs")) if find("TorchLlmArgs") is not None else None
    if taken is not None and "sampler_type" not in taken and arguments.get("sampler_type") in _ONLY_SAMPLER:
        # There is nothing to choose any more.
        del arguments["sampler_type"]
    if taken is not None:
        missing = [name for name in arguments if name not in taken and name != "enable_iter_perf_stats"]
        if "enable_iter_perf_stats" not in taken:
            arguments.pop("enable_iter_perf_stats", None)
    for name, short in CLASSES.items():
        # The bindings' class of that name is another.
        found = None if name == "lora_config" else find(short)
        fields = parameters(found) if found is not None else None
        if fields is not None and isinstance(arguments.get(name), dict):
            missing += [f"{name}.{field}" for field in arguments[name] if field not in fields]
    missing += _missing_speculation(arguments, find)
    if missing:
        meant = _meant(missing[0], taken or set(), find)
        raise UserMistake(
            f"TensorRT-LLM `{version}` has no argument {', '.join(f'`{name}`' for name in missing)}",
            f"did you mean `{meant}`?"
            if meant
            else "leave the options for it out, or install a version that has it",
        )


def _meant(missing: str, taken: set[str], find: Callable[[str], Any]) -> str | None:
    """The argument, or field of a configuration, that a missing one was probably meant to be."""
    field, is_type, kind = missing.partition("decoding_type=")
    if is_type:
        near = suggest(kind, SPECULATION_CLASSES)
        return None if near is None else f"{field}decoding_type={near}"
    outer, dot, leaf = missing.rpartition(".")
    if not dot:
        return suggest(leaf, taken - set(OWNED))
    found = find(CLASSES.get(outer, ""))
    near = None if found is None else suggest(leaf, parameters(found) or ())
    return None if near is None else f"{outer}.{near}"


def _missing_speculation(arguments: dict[str, Any], find: Callable[[str], Any]) -> list[str]:
    config = arguments.get(SPECULATION)
    if config is None:
        return []
    kind = config.get("decoding_type")
    found = find(SPECULATION_CLASSES.get(kind, ""))
    if found is None:
        return [f"{SPECULATION}.decoding_type={kind}"]
    fields = parameters(found)
    if fields is None:
        return []
    return [f"{SPECULATION}.{name}" for name in config if name not in fields and name != "decoding_type"]


def make_speculation(arguments: dict[str, Any], find: Callable[[str], Any]) -> None:
    """Puts an object of the right class in place of the dict, whose `decoding_type` some versions refuse."""
    config = arguments.get(SPECULATION)
    if config is None:
        return
    keywords = {name: value for name, value in config.items() if name != "decoding_type"}
    arguments[SPECULATION] = find(SPECULATION_CLASSES[config["decoding_type"]])(**keywords)


@dataclass(frozen=True)
class Sizes:
    """What the worker must know of the model."""

    vocab_size: int
    max_seq_len: int
    max_input_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    tokens_per_block: int

    @classmethod
    def read(cls, model_dir: Path, arguments: dict[str, Any]) -> Sizes:
        """From the checkpoint's `config.json` and the arguments. Errors: `UserMistake`."""
        config = load_json(model_dir / "config.json")
        # Multimodal checkpoints keep the language model's sizes one level down.
        text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
        vocab_size = text.get("vocab_size")
        if not isinstance(vocab_size, int) or vocab_size < 1:
            raise UserMistake(
                f"`{model_dir}/config.json` has no `vocab_size`", "download the checkpoint again"
            )
        max_seq_len = arguments.get("max_seq_len") or text.get("max_position_embeddings")
        if not isinstance(max_seq_len, int):
            raise UserMistake(
                f"`{model_dir}/config.json` has no `max_position_embeddings`",
                "say how long sequences may be: `--executor-option max_seq_len=...`",
            )
        max_num_tokens = arguments.get("max_num_tokens") or _MAX_NUM_TOKENS
        max_input_len = arguments.get("max_input_len") or max_seq_len - 1
        if not arguments.get("enable_chunked_prefill"):
            # Without chunks a prompt must fit one iteration.
            max_input_len = min(max_input_len, max_num_tokens)
        cache = arguments.get("kv_cache_config")
        block = cache.get("tokens_per_block") if isinstance(cache, dict) else None
        return cls(
            vocab_size=vocab_size,
            max_seq_len=max_seq_len,
            max_input_len=max_input_len,
            max_batch_size=arguments.get("max_batch_size") or _MAX_BATCH_SIZE,
            max_num_tokens=max_num_tokens,
            max_beam_width=arguments.get("max_beam_width") or 1,
            tokens_per_block=block or _TOKENS_PER_BLOCK,
        )
