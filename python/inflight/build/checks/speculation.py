"""Who drafts tokens in which runtime, and what has to be said with it. Pure.

The names are TensorRT-LLM's: flags of `trtllm-build` for engines, `decoding_type` and fields of the classes
of `speculative_config` for the PyTorch runtime.
"""

from __future__ import annotations

from inflight.build.options import BY_NAME, Values
from inflight.errors import Problem
from inflight.model.checkpoint import Checkpoint
from inflight.model.runtimes import PYTORCH, TENSORRT
from inflight.model.speculation import ENGINE_DRAFTERS, PYTORCH_DRAFTERS, UNCONVERTED_DRAFTERS

#: Mode of the PyTorch runtime -> the options that it needs, and those that it takes besides.
_NEEDS: dict[str, tuple[str, ...]] = {
    "eagle": ("max_draft_len", "speculative_model"),
    "draft_target": ("max_draft_len", "speculative_model"),
    "ngram": ("max_draft_len", "max_matching_ngram_size"),
}
_TAKES: dict[str, tuple[str, ...]] = {"mtp": ("num_nextn_predict_layers",)}

_OPTIONS = ("max_draft_len", "speculative_model", "max_matching_ngram_size", "num_nextn_predict_layers")


def check_speculation(values: Values, runtime: str) -> list[Problem]:
    """What of the options for drafting does not fit `runtime` or each other."""
    mode = values["speculative_decoding_mode"]
    if runtime == TENSORRT:
        return _check_engine(mode, values)
    given = [name for name in _OPTIONS if values.is_given(name)]
    if mode is None:
        return [
            Problem(
                f"`{BY_NAME[name].flag} {values[name]}` needs `--speculative-decoding-mode`",
                "pass both",
            )
            for name in given
        ]
    if mode not in PYTORCH_DRAFTERS:
        return [_foreign(mode, PYTORCH, TENSORRT, PYTORCH_DRAFTERS)]
    needed = _NEEDS.get(mode, ())
    problems = [
        Problem(
            f"`--speculative-decoding-mode {mode}` needs `{BY_NAME[name].flag}`",
            f"pass `{BY_NAME[name].flag}`: {BY_NAME[name].meaning}",
        )
        for name in needed
        if not values[name]
    ]
    problems += [
        Problem(
            f"`{BY_NAME[name].flag} {values[name]}` has no effect with `--speculative-decoding-mode {mode}`",
            f"leave `{BY_NAME[name].flag}` out",
        )
        for name in given
        if name not in (*needed, *_TAKES.get(mode, ()))
    ]
    if values["max_beam_width"] > 1:
        problems.append(
            Problem(
                f"`--max-beam-width {values['max_beam_width']}` cannot be combined with"
                f" `--speculative-decoding-mode {mode}`",
                "leave one of them out: speculative decoding produces one sequence",
            )
        )
    return problems


def check_draft(values: Values, draft: Checkpoint, target: Checkpoint) -> list[Problem]:
    """Whether tokens of the draft model mean the same to the target; Eagle's heads have the target's own."""
    ours, its = target.facts.vocab_size, draft.facts.vocab_size
    if values["speculative_decoding_mode"] != "draft_target" or ours == its:
        return []
    return [
        Problem(
            f"`--speculative-model {draft.directory}` has a vocabulary of `{its}`,"
            f" and the model one of `{ours}`",
            "pass a smaller model of the same family",
        )
    ]


def _check_engine(mode: str | None, values: Values) -> list[Problem]:
    if mode is None:
        if not values.is_given("max_draft_len"):
            return []
        flag = f"`--max-draft-len {values['max_draft_len']}`"
        return [Problem(f"{flag} needs `--speculative-decoding-mode`", "pass both")]
    if mode not in ENGINE_DRAFTERS:
        return [_foreign(mode, TENSORRT, PYTORCH, ENGINE_DRAFTERS)]
    if mode in UNCONVERTED_DRAFTERS:
        return [
            Problem(
                f"`--speculative-decoding-mode {mode}` is not supported: `inflight build` does not convert"
                " the heads that draft",
                "convert the model with TensorRT-LLM's example script, run `trtllm-build`, and serve its"
                " engine with `inflight worker`",
            )
        ]
    if values["max_draft_len"] == 0:
        return [
            Problem(
                f"`--speculative-decoding-mode {mode}` needs `--max-draft-len`",
                "pass the number of tokens to draft per step",
            )
        ]
    return []


def _foreign(mode: str, runtime: str, other: str, choices: tuple[str, ...]) -> Problem:
    return Problem(
        f"`--speculative-decoding-mode {mode}` is not supported for runtime `{runtime}`",
        f"choose one of {', '.join(choices)}, or `--runtime {other}`",
    )
