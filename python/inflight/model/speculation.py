"""Who may draft tokens in which runtime, by TensorRT-LLM's names. Data only.

Flags of `trtllm-build` for engines; `decoding_type` and the classes of `speculative_config` for the PyTorch
runtime.
"""

from __future__ import annotations

#: Who may draft tokens: for `trtllm-build`, and for the PyTorch runtime.
ENGINE_DRAFTERS = ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")
#: Of those, the ones whose heads only their own classes and scripts convert, which a build does not run.
UNCONVERTED_DRAFTERS = ("medusa", "explicit_draft_tokens", "eagle")
PYTORCH_DRAFTERS = ("eagle", "draft_target", "ngram", "mtp", "auto")

#: Mode -> `decoding_type` of `speculative_config`.
DECODING_TYPES = {
    "eagle": "Eagle",
    "draft_target": "Draft_Target",
    "ngram": "NGram",
    "mtp": "MTP",
    "auto": "AUTO",
}

#: `decoding_type` -> its class in `tensorrt_llm.llmapi`.
CLASSES = {
    "Eagle": "EagleDecodingConfig",
    "Draft_Target": "DraftTargetDecodingConfig",
    "NGram": "NGramDecodingConfig",
    "MTP": "MTPDecodingConfig",
    "AUTO": "AutoDecodingConfig",
}
#: The same of later versions, which no option names: they come in a file of arguments.
LATER_CLASSES = {
    "Eagle3": "Eagle3DecodingConfig",
    "SA": "SADecodingConfig",
    "PARD": "PARDDecodingConfig",
    "DFlash": "DFlashDecodingConfig",
    "DSpark": "DSparkDecodingConfig",
}

#: Types that draft and sample inside the model: they decode greedily unless configured otherwise.
ONE_MODEL = frozenset({"Eagle", "MTP"})
#: Types whose drafted tokens pass through the sampler, as all others do. `AUTO` is n-grams.
TWO_MODEL = frozenset({"Draft_Target", "NGram", "AUTO"})
